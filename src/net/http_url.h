/* SPDX-License-Identifier: Apache-2.0 */
/* "http://host:port/path?query" taken apart. */
#ifndef BATON_NET_HTTP_URL_H
#define BATON_NET_HTTP_URL_H

#include "base/error.h"

#include <stdbool.h>

struct http_url {
    bool tls;
    char host[256]; /* without the brackets of IPv6 */
    uint16_t port;
    const char *target;  /* "/path?query", in the text that was parsed; "" is to be "/" */
    char authority[272]; /* "host:port" as the Host header and people write it */
};

int http_url_parse(const char *text, struct http_url *url, struct error err);

#endif
