/* SPDX-License-Identifier: Apache-2.0 */
/* TLS between two ends over TCP, with certificates made when the test starts: who is let in, who
 * is not, what a person is told about files that do not fit together; and the proofs by which
 * peers without TLS show that they know the key. */
#include "net/tls.h"

#include "net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 10000
#define DAY (24L * 60 * 60)

/* ---- certificates ---------------------------------------------------------------------- */

/* Files in one folder: <name>.crt and <name>.key. */
static char folder[] = "/tmp/baton-test-tls-XXXXXX";

struct path {
    char text[96];
};
static struct path path_of(const char *name, const char *suffix)
{
    struct path path;
    snprintf(path.text, sizeof(path.text), "%s/%s%s", folder, name, suffix);
    return path;
}
#define CERTIFICATE(name) path_of(name, ".crt").text
#define KEY(name) path_of(name, ".key").text

struct identity {
    EVP_PKEY *key;
    X509 *certificate;
};

static void extension_add(X509 *certificate, int which, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, which, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

/* issuer NULL: an authority, signed by itself. */
static struct identity identity_make(const char *name, EVP_PKEY *key,
                                     const struct identity *issuer, long valid_for)
{
    static long serial;
    assert_non_null(key);
    X509 *certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -2 * DAY);
    X509_gmtime_adj(X509_getm_notAfter(certificate), valid_for);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(certificate,
                         X509_get_subject_name(issuer ? issuer->certificate : certificate));
    X509_set_pubkey(certificate, key);
    extension_add(certificate, NID_basic_constraints,
                  issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    assert_true(X509_sign(certificate, issuer ? issuer->key : key, EVP_sha256()) > 0);
    return (struct identity){key, certificate};
}

static void identity_write(const char *name, struct identity identity)
{
    FILE *file = fopen(CERTIFICATE(name), "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, identity.certificate), 1);
    fclose(file);
    file = fopen(KEY(name), "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, identity.key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
}

static void identity_free(struct identity identity)
{
    EVP_PKEY_free(identity.key);
    X509_free(identity.certificate);
}

static void leaf_write(const char *name, EVP_PKEY *key, const struct identity *issuer,
                       long valid_for)
{
    struct identity leaf = identity_make(name, key, issuer, valid_for);
    identity_write(name, leaf);
    identity_free(leaf);
}

/* ours and foreign are authorities of the same name: only the keys tell them apart. */
static int certificates_make(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes with write(2); the library ignores it as well */
    if (!mkdtemp(folder))
        return -1;
    struct identity ours = identity_make("authority", EVP_EC_gen("P-256"), NULL, DAY);
    struct identity foreign = identity_make("authority", EVP_EC_gen("P-256"), NULL, DAY);
    identity_write("ours", ours);
    identity_write("foreign", foreign);
    leaf_write("prefill", EVP_EC_gen("P-256"), &ours, DAY);
    leaf_write("decode", EVP_EC_gen("P-256"), &ours, DAY);
    leaf_write("rsa", EVP_RSA_gen(2048), &ours, DAY);
    leaf_write("expired", EVP_EC_gen("P-256"), &ours, -DAY);
    leaf_write("stranger", EVP_EC_gen("P-256"), &foreign, DAY);
    identity_free(ours);
    identity_free(foreign);
    FILE *file = fopen(CERTIFICATE("garbage"), "w");
    if (!file)
        return -1;
    fputs("-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n", file);
    return fclose(file);
}

static int certificates_remove(void **state)
{
    static const char *names[] = {"ours", "foreign", "prefill",  "decode",
                                  "rsa",  "expired", "stranger", "garbage"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        unlink(CERTIFICATE(names[i]));
        unlink(KEY(names[i]));
    }
    return rmdir(folder);
}

static struct tls *open_or_fail(const char *name, const char *authority)
{
    char text[512] = "";
    struct tls *tls = NULL;
    if (tls_open(CERTIFICATE(name), KEY(name), CERTIFICATE(authority), &tls,
                 ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    return tls;
}

/* ---- two ends over TCP ----------------------------------------------------------------- */

struct ends {
    int client_fd, server_fd;
    SSL *client, *server;
};

static void ends_connect(struct ends *ends)
{
    uint16_t port = 0;
    int listener;
    assert_int_equal(socket_listen("127.0.0.1", &port, &listener, ERROR_NONE), BATON_OK);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ends->client_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(ends->client_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    struct pollfd waiting = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
    ends->server_fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert_true(ends->server_fd >= 0);
    assert_int_equal(fcntl(ends->client_fd, F_SETFL, O_NONBLOCK), 0);
    socket_close(listener);
}

/* client may be a session that is not ours. */
static struct ends ends_make(SSL *client, SSL *server)
{
    struct ends ends = {.client = client, .server = server};
    ends_connect(&ends);
    if (client)
        assert_int_equal(SSL_set_fd(client, ends.client_fd), 1);
    assert_non_null(server);
    assert_int_equal(SSL_set_fd(server, ends.server_fd), 1);
    return ends;
}

static void ends_close(struct ends *ends)
{
    SSL_free(ends->client);
    SSL_free(ends->server);
    close(ends->client_fd);
    close(ends->server_fd);
    ERR_clear_error();
}

/* 1: done, 0: wants more, -1: over. */
static int step_result(SSL *ssl, int rc)
{
    int reason = SSL_get_error(ssl, rc);
    if (rc > 0)
        return 1;
    return reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

/* Each end handshakes, then sends its word and reads the other's. In TLS 1.3 the client has
 * finished before the server has judged its certificate, so only a word that came through shows
 * that both agreed. */
struct talk {
    SSL *ssl;
    const char *word;
    char heard[16];
    int shaken, spoken, got; /* as step_result says */
};

static bool talk_over(const struct talk *talk)
{
    return talk->shaken < 0 || talk->spoken < 0 || talk->got != 0;
}

static void talk_step(struct talk *talk)
{
    ERR_clear_error();
    if (talk->shaken == 0)
        talk->shaken = step_result(talk->ssl, SSL_do_handshake(talk->ssl));
    if (talk->shaken == 1 && talk->spoken == 0)
        talk->spoken =
            step_result(talk->ssl, SSL_write(talk->ssl, talk->word, (int)strlen(talk->word)));
    if (talk->spoken == 1 && talk->got == 0)
        talk->got = step_result(talk->ssl,
                                SSL_read(talk->ssl, talk->heard, (int)sizeof(talk->heard) - 1));
}

static void talk_both(struct ends *ends, struct talk *client, struct talk *server)
{
    *client = (struct talk){.ssl = ends->client, .word = "from client"};
    *server = (struct talk){.ssl = ends->server, .word = "from server"};
    for (int turn = 0; !(talk_over(client) && talk_over(server)); turn++) {
        struct pollfd waiting[2] = {{.fd = ends->client_fd, .events = POLLIN},
                                    {.fd = ends->server_fd, .events = POLLIN}};
        talk_step(client);
        talk_step(server);
        if (talk_over(client) && talk_over(server))
            break;
        assert_true(turn < 1000);
        assert_true(poll(waiting, 2, PATIENCE_MS) > 0);
    }
}

static void assert_refused(SSL *client, SSL *server)
{
    struct talk from_client, from_server;
    struct ends ends = ends_make(client, server);
    talk_both(&ends, &from_client, &from_server);
    assert_string_equal(from_client.heard, "");
    assert_string_equal(from_server.heard, "");
    ends_close(&ends);
}

/* ---- who is let in --------------------------------------------------------------------- */

static void assert_peer(SSL *ssl, const char *name)
{
    char found[64] = "";
    X509 *peer = SSL_get1_peer_certificate(ssl);
    assert_non_null(peer);
    X509_NAME_get_text_by_NID(X509_get_subject_name(peer), NID_commonName, found,
                              sizeof(found));
    assert_string_equal(found, name);
    X509_free(peer);
    assert_int_equal(SSL_get_verify_result(ssl), X509_V_OK);
}

static void test_session_of_one_authority_is_mutual(void **state)
{
    struct talk from_client, from_server;
    (void)state;
    static const char *servers[] = {"prefill", "rsa"};
    for (size_t i = 0; i < 2; i++) {
        struct tls *client = open_or_fail("decode", "ours");
        struct tls *server = open_or_fail(servers[i], "ours");
        assert_int_equal(ERR_peek_error(), 0);
        struct ends ends = ends_make(tls_session(client, false), tls_session(server, true));
        tls_close(client); /* sessions outlive what made them */
        tls_close(server);
        talk_both(&ends, &from_client, &from_server);
        assert_string_equal(from_client.heard, "from server");
        assert_string_equal(from_server.heard, "from client");
        assert_peer(ends.client, servers[i]);
        assert_peer(ends.server, "decode");
        assert_int_equal(SSL_version(ends.client), TLS1_3_VERSION);
        ends_close(&ends);
    }
}

static void test_session_bytes_on_the_wire_are_not_readable(void **state)
{
    struct talk from_client, from_server;
    static const char secret[] = "pages of a prompt";
    char wire[4096];
    (void)state;
    struct tls *client = open_or_fail("decode", "ours"),
               *server = open_or_fail("prefill", "ours");
    struct ends ends = ends_make(tls_session(client, false), tls_session(server, true));
    talk_both(&ends, &from_client, &from_server);
    assert_int_equal(SSL_write(ends.client, secret, sizeof(secret)), sizeof(secret));
    struct pollfd waiting = {.fd = ends.server_fd, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
    ssize_t got = read(ends.server_fd, wire, sizeof(wire));
    assert_true(got > (ssize_t)sizeof(secret));
    assert_null(memmem(wire, (size_t)got, secret, sizeof(secret) - 1));
    ends_close(&ends);
    tls_close(client);
    tls_close(server);
}

static void test_session_of_a_wrong_authority_is_refused(void **state)
{
    (void)state;
    /* The authority that each end believes in, and whose certificate it shows. */
    static const struct {
        const char *client, *client_believes, *server, *server_believes;
    } cases[] = {
        {"stranger", "ours", "prefill", "ours"},    /* the server must refuse */
        {"decode", "ours", "stranger", "ours"},     /* the client must */
        {"stranger", "foreign", "prefill", "ours"}, /* both */
        {"decode", "foreign", "prefill", "ours"}, /* the client, though the server would not */
        {"decode", "ours", "prefill", "foreign"},   {"expired", "ours", "prefill", "ours"},
        {"decode", "ours", "expired", "ours"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tls *client = open_or_fail(cases[i].client, cases[i].client_believes);
        struct tls *server = open_or_fail(cases[i].server, cases[i].server_believes);
        assert_refused(tls_session(client, false), tls_session(server, true));
        tls_close(client);
        tls_close(server);
    }
}

/* Clients made by hand, which do what ours never would. */
static SSL *client_by_hand(SSL_CTX *context, const char *name, int version_most)
{
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_max_proto_version(context, version_most);
    if (name) {
        assert_int_equal(SSL_CTX_use_certificate_chain_file(context, CERTIFICATE(name)), 1);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(context, KEY(name), SSL_FILETYPE_PEM), 1);
    }
    SSL *session = SSL_new(context);
    assert_non_null(session);
    SSL_set_connect_state(session);
    return session;
}

static void test_session_needs_a_certificate_and_tls_1_3(void **state)
{
    static const struct {
        const char *name;
        int version_most;
        bool welcome;
    } cases[] = {
        {"decode", TLS1_3_VERSION,
         true}, /* so that the next two are refused for their reason */
        {NULL, TLS1_3_VERSION, false},
        {"decode", TLS1_2_VERSION, false},
    };
    (void)state;
    struct tls *server = open_or_fail("prefill", "ours");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct talk from_client, from_server;
        SSL_CTX *context = SSL_CTX_new(TLS_client_method());
        struct ends ends =
            ends_make(client_by_hand(context, cases[i].name, cases[i].version_most),
                      tls_session(server, true));
        talk_both(&ends, &from_client, &from_server);
        assert_string_equal(from_server.heard, cases[i].welcome ? "from client" : "");
        ends_close(&ends);
        SSL_CTX_free(context);
    }
    tls_close(server);
}

static void test_session_refuses_plain_bytes(void **state)
{
    static const char plain[] = "GET / HTTP/1.1\r\nHost: prefill\r\n\r\n";
    char text[160];
    (void)state;
    struct tls *server = open_or_fail("prefill", "ours");
    struct ends ends = ends_make(NULL, tls_session(server, true));
    assert_int_equal(write(ends.client_fd, plain, sizeof(plain)), sizeof(plain));
    struct pollfd waiting = {.fd = ends.server_fd, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, PATIENCE_MS), 1);
    ERR_clear_error();
    assert_int_equal(step_result(ends.server, SSL_do_handshake(ends.server)), -1);
    assert_non_null(strstr(tls_error(text, sizeof(text)), "SSL routines"));
    assert_string_equal(tls_error(text, sizeof(text)),
                        "no further reason"); /* and it is spent */
    ends_close(&ends);
    tls_close(server);
}

/* ---- what a person is told ------------------------------------------------------------- */

static void assert_open_refused(const char *certificate, const char *key, const char *authority,
                                const char *part, const char *named)
{
    char text[512] = "";
    struct tls *tls = NULL;
    assert_int_equal(tls_open(certificate, key, authority, &tls, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    assert_null(tls);
    if (!strstr(text, part) || !strstr(text, named))
        fail_msg("'%s' does not say '%s' and name %s", text, part, named);
}

static void test_open_needs_all_three_files(void **state)
{
    (void)state;
    assert_open_refused(NULL, KEY("prefill"), CERTIFICATE("ours"), "all three or none", "");
    assert_open_refused(CERTIFICATE("prefill"), NULL, CERTIFICATE("ours"), "all three or none",
                        "");
    assert_open_refused(CERTIFICATE("prefill"), KEY("prefill"), NULL, "all three or none", "");
}

static void test_open_names_the_file_that_is_wrong(void **state)
{
    static const char *wrong[] = {"missing", "garbage"};
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct path bad = path_of(wrong[i], ".crt");
        assert_open_refused(bad.text, KEY("prefill"), CERTIFICATE("ours"),
                            "cannot use the TLS certificate", bad.text);
        assert_open_refused(CERTIFICATE("prefill"), bad.text, CERTIFICATE("ours"),
                            "cannot use the TLS key", bad.text);
        assert_open_refused(CERTIFICATE("prefill"), KEY("prefill"), bad.text,
                            "cannot use the TLS authority", bad.text);
        assert_int_equal(ERR_peek_error(), 0); /* the next session starts clean */
    }
}

static void test_open_refuses_a_key_of_another_certificate(void **state)
{
    (void)state;
    assert_open_refused(CERTIFICATE("prefill"), KEY("decode"), CERTIFICATE("ours"), "TLS key",
                        KEY("decode"));
    assert_open_refused(CERTIFICATE("prefill"), KEY("rsa"), CERTIFICATE("ours"), "TLS key",
                        KEY("rsa"));
    assert_open_refused(CERTIFICATE("rsa"), KEY("prefill"), CERTIFICATE("ours"), "TLS key",
                        KEY("prefill"));
}

/* ---- proofs ---------------------------------------------------------------------------- */

static void test_proof_is_hmac_sha256_of_both_parts(void **state)
{
    /* RFC 4231, test case 2 */
    static const uint8_t expected[32] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                         0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                         0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                         0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    uint8_t proof[32];
    (void)state;
    tls_proof("Jefe", "what do ya want ", 16, "for nothing?", 12, proof);
    assert_memory_equal(proof, expected, sizeof(expected));
    assert_true(tls_proof_equal(proof, expected));
}

static void test_proof_equal_sees_every_bit(void **state)
{
    uint8_t proof[32], other[32];
    (void)state;
    tls_proof("key", "first", 5, "second", 6, proof);
    for (unsigned bit = 0; bit < 256; bit++) {
        memcpy(other, proof, sizeof(other));
        other[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        assert_false(tls_proof_equal(proof, other));
    }
    memcpy(other, proof, sizeof(other));
    assert_true(tls_proof_equal(proof, other));
}

static void test_proof_depends_on_every_bit_of_what_it_proves(void **state)
{
    char key[] = "shared secret of the fleet";
    uint8_t first[32], second[48], proof[32], other[32];
    struct {
        uint8_t *bytes;
        size_t size;
    } parts[] = {
        {(uint8_t *)key, strlen(key)}, {first, sizeof(first)}, {second, sizeof(second)}};
    (void)state;
    for (size_t i = 0; i < sizeof(second); i++)
        first[i % sizeof(first)] = second[i] = (uint8_t)(i * 37);
    tls_proof(key, first, sizeof(first), second, sizeof(second), proof);
    for (size_t part = 0; part < 3; part++) {
        for (size_t bit = 0; bit < 8 * parts[part].size; bit++) {
            uint8_t mask = (uint8_t)(1u << (bit % 8));
            parts[part].bytes[bit / 8] ^= mask;
            tls_proof(key, first, sizeof(first), second, sizeof(second), other);
            parts[part].bytes[bit / 8] ^= mask;
            assert_false(tls_proof_equal(proof, other));
        }
    }
    tls_proof(key, first, sizeof(first), second, sizeof(second), other);
    assert_true(tls_proof_equal(proof, other));
    tls_proof(key, second, sizeof(second), first, sizeof(first),
              other); /* who asks whom counts */
    assert_false(tls_proof_equal(proof, other));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session_of_one_authority_is_mutual),
        cmocka_unit_test(test_session_bytes_on_the_wire_are_not_readable),
        cmocka_unit_test(test_session_of_a_wrong_authority_is_refused),
        cmocka_unit_test(test_session_needs_a_certificate_and_tls_1_3),
        cmocka_unit_test(test_session_refuses_plain_bytes),
        cmocka_unit_test(test_open_needs_all_three_files),
        cmocka_unit_test(test_open_names_the_file_that_is_wrong),
        cmocka_unit_test(test_open_refuses_a_key_of_another_certificate),
        cmocka_unit_test(test_proof_is_hmac_sha256_of_both_parts),
        cmocka_unit_test(test_proof_equal_sees_every_bit),
        cmocka_unit_test(test_proof_depends_on_every_bit_of_what_it_proves),
    };
    return cmocka_run_group_tests(tests, certificates_make, certificates_remove);
}
