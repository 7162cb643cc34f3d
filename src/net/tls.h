/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for links and data streams, where both ends show a certificate of the same authority, and for
 * HTTP, where only the server shows one. */
#ifndef BATON_NET_TLS_H
#define BATON_NET_TLS_H

#include "base/error.h"

#include <stdbool.h>

struct tls;
struct ssl_st;

int tls_open(const char *certificate, const char *key, const char *authority, struct tls **out,
             struct error err);
/* A server that asks its clients for no certificate. TLS 1.2 and later. */
int tls_open_server(const char *certificate, const char *key, struct tls **out,
                    struct error err);
/* A client that shows none and checks the server's. authority: PEM file, NULL: the system's. */
int tls_open_client(const char *authority, bool unchecked, struct tls **out, struct error err);
void tls_close(struct tls *tls);
struct ssl_st *tls_session(struct tls *tls, bool server); /* NULL when out of memory */
/* A client's, to a server that must prove to be `host` (a name or a numeric address). */
struct ssl_st *tls_session_to(struct tls *tls, const char *host);

/* HMAC-SHA256 over the parts; for the proof that a peer knows the shared key. */
void tls_proof(const char *key, const void *first, size_t first_size, const void *second,
               size_t second_size, uint8_t out[32]);
bool tls_proof_equal(const uint8_t a[32], const uint8_t b[32]);

/* The first OpenSSL error of this thread as text. */
const char *tls_error(char *text, size_t size);

#endif
