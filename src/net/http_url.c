/* SPDX-License-Identifier: Apache-2.0 */
#include "http_url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Finds host and port between the slashes; false: there is no such address. */
static bool authority_parse(struct http_url *url, const char *text, size_t length)
{
    char copy[272];
    char *host = copy, *port = NULL;
    if (!length || length >= sizeof(copy))
        return false;
    memcpy(copy, text, length);
    copy[length] = 0;
    if (*copy == '[') {
        char *end = strchr(copy, ']');
        if (!end || (end[1] && end[1] != ':'))
            return false;
        *end = 0;
        host = copy + 1;
        port = end[1] ? end + 2 : NULL;
    } else if ((port = strchr(copy, ':'))) {
        *port++ = 0;
    }
    size_t host_length = strlen(host);
    if (!host_length || host_length >= sizeof(url->host) || strpbrk(host, " \t\r\n@\"<>\\"))
        return false;
    memcpy(url->host, host, host_length + 1);
    url->port = url->tls ? 443 : 80;
    if (port) {
        if (!*port || strlen(port) > 5 || strspn(port, "0123456789") != strlen(port) ||
            atoi(port) < 1 || atoi(port) > 65535)
            return false;
        url->port = (uint16_t)atoi(port);
    }
    snprintf(url->authority, sizeof(url->authority), strchr(host, ':') ? "[%s]:%u" : "%s:%u",
             url->host, url->port);
    return true;
}

int http_url_parse(const char *text, struct http_url *url, struct error err)
{
    const char *at = text;
    if (!strncasecmp(text, "http://", 7))
        at += 7;
    else if (!strncasecmp(text, "https://", 8))
        at += 8;
    else
        return error_set(err, BATON_EINVAL,
                         "'%.200s' is no address of a server: write http://HOST:PORT", text);
    url->tls = at - text == 8;
    size_t length = strcspn(at, "/?#");
    if (!authority_parse(url, at, length))
        return error_set(err, BATON_EINVAL,
                         "'%.200s' names no host and port: write http://HOST:PORT", text);
    url->target = at + length;
    for (const char *byte = url->target; *byte; byte++) {
        if ((unsigned char)*byte <= 0x20 || *byte == 0x7f || *byte == '#')
            return error_set(err, BATON_EINVAL,
                             "'%.200s' has a blank, a # or a control character in its path",
                             text);
    }
    return BATON_OK;
}
