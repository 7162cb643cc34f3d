/* SPDX-License-Identifier: Apache-2.0 */
#include "self_signed.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DAY (24L * 60 * 60)

static void extension_add(X509 *certificate, int which, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, which, value);
    assert_non_null(extension);
    assert_int_equal(X509_add_ext(certificate, extension, -1), 1);
    X509_EXTENSION_free(extension);
}

static FILE *file_new(char *path)
{
    strcpy(path, "/tmp/baton-test-http-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    return fdopen(fd, "w");
}

void self_signed_make(struct self_signed *files)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -DAY);
    X509_gmtime_adj(X509_getm_notAfter(certificate), DAY);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)"baton test", -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
    X509_set_pubkey(certificate, key);
    extension_add(certificate, NID_basic_constraints, "critical,CA:TRUE");
    extension_add(certificate, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
    assert_true(X509_sign(certificate, key, EVP_sha256()) > 0);
    FILE *file = file_new(files->certificate);
    assert_int_equal(PEM_write_X509(file, certificate), 1);
    fclose(file);
    file = file_new(files->key);
    assert_int_equal(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

void self_signed_remove(struct self_signed *files)
{
    unlink(files->certificate);
    unlink(files->key);
}
