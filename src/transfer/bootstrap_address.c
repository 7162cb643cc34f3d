/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap addresses come out of request bodies, so anybody who can send a request can name
 * one. This file takes them apart ("host:port", "[v6]:port") and holds them against the list
 * of those that the operator lets this worker call. It resolves nothing: a name is allowed by
 * its name, an address by its bytes, so that no DNS answer can widen the list. */
#include "bootstrap.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HOST_MAX 64 /* as in bootstrap_route.rank_ip, with the final NUL */

/* IPv4 addresses are kept as IPv4-mapped IPv6 ones: one comparison, and ::ffff:10.0.0.1
 * cannot walk around a rule about 10.0.0.0/8. */
struct address_bytes {
    uint8_t bytes[16];
};

static bool address_bytes_read(const char *text, struct address_bytes *out)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (inet_pton(AF_INET6, text, out->bytes) == 1)
        return true;
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) != 1)
        return false;
    memcpy(out->bytes, mapped, sizeof(mapped));
    memcpy(out->bytes + sizeof(mapped), &v4, sizeof(v4));
    return true;
}

/* An IPv6 address may name its interface: fe80::1%eth0. */
static bool host_is_v6(const char *host)
{
    char address[HOST_MAX];
    size_t length = strcspn(host, "%");
    struct in6_addr ignored;
    if (length >= sizeof(address) || (host[length] && !host[length + 1]))
        return false;
    for (const char *zone = host + length; *zone; zone++) {
        if (!isalnum((unsigned char)*zone) && !strchr("%._-", *zone))
            return false;
    }
    memcpy(address, host, length);
    address[length] = '\0';
    return inet_pton(AF_INET6, address, &ignored) == 1;
}

static bool host_is_name_or_v4(const char *host)
{
    for (const char *c = host; *c; c++) {
        if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
            return false;
    }
    return *host != '\0';
}

static bool port_read(const char *text, uint16_t *port)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits])
        return false;
    unsigned long value = strtoul(text, NULL, 10);
    if (value == 0 || value > UINT16_MAX)
        return false;
    *port = (uint16_t)value;
    return true;
}

/* Cuts "[v6]:port" or "host:port" in two, without judging the parts. */
static const char *address_split(const char *addr, char host[HOST_MAX], const char **port)
{
    const char *first = addr, *end;
    if (*addr == '[') {
        first = addr + 1;
        end = strchr(addr, ']');
        if (!end)
            return "the '[' is not closed";
        if (end[1] != ':')
            return "no ':port' follows the ']'";
        *port = end + 2;
    } else {
        end = strchr(addr, ':');
        if (!end)
            return "there is no ':port'";
        if (strchr(end + 1, ':'))
            return "it has more than one ':'; an IPv6 address needs brackets: [::1]:8998";
        *port = end + 1;
    }
    if (end == first)
        return "there is no host";
    if ((size_t)(end - first) >= HOST_MAX)
        return "the host is longer than 63 characters";
    memcpy(host, first, (size_t)(end - first));
    host[end - first] = '\0';
    return NULL;
}

int bootstrap_address_parse(const char *addr, char *host, size_t host_size, uint16_t *port,
                            struct error err)
{
    char name[HOST_MAX];
    const char *port_text, *problem;
    uint16_t number;
    BATON_ASSERT(host_size >= HOST_MAX);
    if (!addr)
        return error_set(err, BATON_EINVAL, "no bootstrap address is given; say host:port");
    if (strstr(addr, "://"))
        problem = "leave away what is before '://'";
    else
        problem = address_split(addr, name, &port_text);
    if (!problem && !(*addr == '[' ? host_is_v6(name) : host_is_name_or_v4(name)))
        problem = *addr == '[' ? "what is in the brackets is no IPv6 address"
                               : "the host has characters that no host name has";
    if (!problem && !port_read(port_text, &number))
        problem = "the port must be a number from 1 to 65535";
    if (problem)
        return error_set(err, BATON_EINVAL,
                         "bootstrap address '%.80s' is not host:port or [v6]:port: %s", addr,
                         problem);
    memcpy(host, name, strlen(name) + 1);
    *port = number;
    return BATON_OK;
}

/* ---- the allow list -------------------------------------------------------------------- */

struct allow_entry {
    char host[HOST_MAX];
    struct address_bytes address;
    bool is_address; /* else host is a name */
    unsigned prefix; /* bits of address that count */
    uint16_t port;   /* 0: any */
};

static const char *allow_cidr_read(char *text, char *slash, struct allow_entry *entry)
{
    size_t digits = strspn(slash + 1, "0123456789");
    *slash = '\0';
    if (!address_bytes_read(text, &entry->address))
        return "what is before the '/' is no IPv4 or IPv6 address";
    unsigned most = strchr(text, ':') ? 128 : 32;
    unsigned long bits = strtoul(slash + 1, NULL, 10);
    if (digits == 0 || digits > 3 || slash[1 + digits] || bits > most)
        return "what is after the '/' must be a number of bits, at most 32 (IPv4) or 128 "
               "(IPv6)";
    entry->is_address = true;
    entry->prefix = (unsigned)bits + (128 - most);
    return NULL;
}

static bool text_is_bare_v6(const char *text)
{
    const char *colon = strchr(text, ':');
    return colon && strchr(colon + 1, ':') && *text != '[';
}

static const char *allow_host_read(const char *text, struct allow_entry *entry)
{
    bool bracketed = *text == '[';
    size_t length = strlen(text);
    bool has_port = bracketed ? text[length - 1] != ']' : strchr(text, ':') != NULL;
    if (has_port && !text_is_bare_v6(text)) {
        if (bootstrap_address_parse(text, entry->host, sizeof(entry->host), &entry->port,
                                    ERROR_NONE) < 0)
            return "it is no host, host:port, [v6]:port or address/bits";
    } else {
        size_t skip = bracketed ? 1 : 0;
        if (length - 2 * skip >= sizeof(entry->host))
            return "the host is longer than 63 characters";
        memcpy(entry->host, text + skip, length - 2 * skip);
        entry->host[length - 2 * skip] = '\0';
        if (!host_is_v6(entry->host) && (bracketed || !host_is_name_or_v4(entry->host)))
            return "it is no host, host:port, [v6]:port or address/bits";
    }
    entry->is_address = address_bytes_read(entry->host, &entry->address);
    entry->prefix = 128;
    return NULL;
}

static bool prefix_equal(const struct address_bytes *a, const struct address_bytes *b,
                         unsigned prefix)
{
    unsigned whole = prefix / 8, rest = prefix % 8;
    if (memcmp(a->bytes, b->bytes, whole) != 0)
        return false;
    return rest == 0 || ((a->bytes[whole] ^ b->bytes[whole]) >> (8 - rest)) == 0;
}

static bool allow_entry_matches(const struct allow_entry *entry, const char *host,
                                uint16_t port)
{
    struct address_bytes address;
    if (entry->port && entry->port != port)
        return false;
    if (!entry->is_address)
        return strcasecmp(entry->host, host) == 0;
    return address_bytes_read(host, &address) &&
           prefix_equal(&entry->address, &address, entry->prefix);
}

/* Copies the next entry without the blanks around it; entries longer than any valid one are
 * cut, which makes them invalid. Returns what is left of the list. */
static const char *allow_next(const char *list, char *text, size_t size)
{
    size_t length = strcspn(list, ",");
    const char *rest = list[length] ? list + length + 1 : list + length;
    while (length && isspace((unsigned char)*list))
        list++, length--;
    while (length && isspace((unsigned char)list[length - 1]))
        length--;
    if (length >= size)
        length = size - 1;
    memcpy(text, list, length);
    text[length] = '\0';
    return rest;
}

int bootstrap_address_allowed(const char *addr, const char *allow, struct error err)
{
    char host[HOST_MAX], text[2 * HOST_MAX], shown[2 * HOST_MAX];
    uint16_t port;
    bool allowed = !allow || !*allow;
    int rc = bootstrap_address_parse(addr, host, sizeof(host), &port, err);
    if (rc < 0)
        return rc;
    while (allow && *allow) {
        struct allow_entry entry = {0};
        allow = allow_next(allow, text, sizeof(text));
        if (!*text)
            continue;
        snprintf(shown, sizeof(shown), "%s", text);
        char *slash = strchr(text, '/');
        const char *problem =
            slash ? allow_cidr_read(text, slash, &entry) : allow_host_read(text, &entry);
        if (problem)
            return error_set(err, BATON_EINVAL,
                             "the list of allowed bootstrap addresses has the entry '%s': %s",
                             shown, problem);
        allowed |= allow_entry_matches(&entry, host, port);
    }
    if (!allowed)
        return error_set(
            err, BATON_EAUTH,
            "this worker may not call the bootstrap address '%s'; if it should, add it "
            "to the list of allowed bootstrap addresses",
            addr);
    return BATON_OK;
}
