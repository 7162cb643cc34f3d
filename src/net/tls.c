/* SPDX-License-Identifier: Apache-2.0 */
/* See tls.h. Between our own ends it is TLS 1.3 only. */
#include "tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <stdlib.h>
#include <string.h>

struct tls {
    SSL_CTX *context;
};

const char *tls_error(char *text, size_t size)
{
    unsigned long code = ERR_get_error();
    if (code)
        ERR_error_string_n(code, text, size);
    else
        strncpy(text, "no further reason", size);
    ERR_clear_error();
    return text;
}

static int tls_load_own(SSL_CTX *context, const char *certificate, const char *key,
                        struct error err)
{
    char why[160];
    if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1)
        return error_set(err, BATON_EINVAL, "cannot use the TLS certificate %s: %s",
                         certificate, tls_error(why, sizeof(why)));
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 &&
        ERR_GET_REASON(ERR_peek_error()) != X509_R_KEY_VALUES_MISMATCH)
        return error_set(err, BATON_EINVAL, "cannot use the TLS key %s: %s", key,
                         tls_error(why, sizeof(why)));
    int belongs = SSL_CTX_check_private_key(context);
    ERR_clear_error();
    if (belongs != 1)
        return error_set(err, BATON_EINVAL,
                         "the TLS key %s does not belong to the certificate %s", key,
                         certificate);
    return BATON_OK;
}

static int tls_load_authority(SSL_CTX *context, const char *authority, struct error err)
{
    char why[160];
    if (SSL_CTX_load_verify_locations(context, authority, NULL) != 1)
        return error_set(err, BATON_EINVAL, "cannot use the TLS authority %s: %s", authority,
                         tls_error(why, sizeof(why)));
    return BATON_OK;
}

static int tls_new(int oldest, struct tls **out, struct error err)
{
    struct tls *tls = calloc(1, sizeof(*tls));
    if (!tls)
        return error_set(err, BATON_ENOMEM, "out of memory for TLS");
    tls->context = SSL_CTX_new(TLS_method());
    if (!tls->context) {
        free(tls);
        return error_set(err, BATON_ENOMEM, "out of memory for TLS");
    }
    SSL_CTX_set_min_proto_version(tls->context, oldest);
    SSL_CTX_set_mode(tls->context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    *out = tls;
    return BATON_OK;
}

int tls_open(const char *certificate, const char *key, const char *authority, struct tls **out,
             struct error err)
{
    struct tls *tls;
    if (!certificate || !key || !authority)
        return error_set(
            err, BATON_EINVAL,
            "TLS needs a certificate, a key and an authority: give all three or none");
    int code = tls_new(TLS1_3_VERSION, &tls, err);
    if (code != BATON_OK)
        return code;
    SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    code = tls_load_own(tls->context, certificate, key, err);
    if (code == BATON_OK)
        code = tls_load_authority(tls->context, authority, err);
    if (code != BATON_OK) {
        tls_close(tls);
        return code;
    }
    *out = tls;
    return BATON_OK;
}

int tls_open_server(const char *certificate, const char *key, struct tls **out,
                    struct error err)
{
    struct tls *tls;
    if (!certificate || !key)
        return error_set(err, BATON_EINVAL,
                         "TLS needs a certificate and a key: give both or none");
    int code = tls_new(TLS1_2_VERSION, &tls, err);
    if (code != BATON_OK)
        return code;
    SSL_CTX_set_mode(tls->context, SSL_MODE_RELEASE_BUFFERS); /* thousands may be idle */
    code = tls_load_own(tls->context, certificate, key, err);
    if (code != BATON_OK) {
        tls_close(tls);
        return code;
    }
    *out = tls;
    return BATON_OK;
}

int tls_open_client(const char *authority, bool unchecked, struct tls **out, struct error err)
{
    struct tls *tls;
    int code = tls_new(TLS1_2_VERSION, &tls, err);
    if (code != BATON_OK)
        return code;
    SSL_CTX_set_verify(tls->context, unchecked ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (authority)
        code = tls_load_authority(tls->context, authority, err);
    else
        SSL_CTX_set_default_verify_paths(tls->context);
    if (code != BATON_OK) {
        tls_close(tls);
        return code;
    }
    *out = tls;
    return BATON_OK;
}

void tls_close(struct tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

struct ssl_st *tls_session(struct tls *tls, bool server)
{
    SSL *session = SSL_new(tls->context);
    if (!session)
        return NULL;
    if (server)
        SSL_set_accept_state(session);
    else
        SSL_set_connect_state(session);
    return session;
}

struct ssl_st *tls_session_to(struct tls *tls, const char *host)
{
    SSL *session = tls_session(tls, false);
    if (!session)
        return NULL;
    /* A number has no name to ask for; it is looked for among the certificate's addresses. */
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host) == 1)
        return session;
    ERR_clear_error();
    if (SSL_set1_host(session, host) == 1 && SSL_set_tlsext_host_name(session, host) == 1)
        return session;
    SSL_free(session);
    return NULL;
}

void tls_proof(const char *key, const void *first, size_t first_size, const void *second,
               size_t second_size, uint8_t out[32])
{
    uint8_t joined[512];
    unsigned length = 32;
    BATON_ASSERT(first_size + second_size <= sizeof(joined));
    memcpy(joined, first, first_size);
    memcpy(joined + first_size, second, second_size);
    HMAC(EVP_sha256(), key, (int)strlen(key), joined, first_size + second_size, out, &length);
}

bool tls_proof_equal(const uint8_t a[32], const uint8_t b[32])
{
    return CRYPTO_memcmp(a, b, 32) == 0;
}
