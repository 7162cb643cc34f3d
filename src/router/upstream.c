/* SPDX-License-Identifier: Apache-2.0 */
#include "upstream.h"

#include "base/clock.h"
#include "net/http_url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const role_names[UPSTREAM_ROLES] = {"mixed", "prefill", "decode"};

const char *upstream_role_name(enum upstream_role role)
{
    return role_names[role];
}

bool upstream_role_parse(const char *name, enum upstream_role *out)
{
    if (strcmp(name, "regular") == 0)
        name = "mixed";
    for (uint32_t i = 0; i < UPSTREAM_ROLES; i++)
        if (strcmp(role_names[i], name) == 0) {
            *out = (enum upstream_role)i;
            return true;
        }
    return false;
}

/* A host that is put into JSON and a URL as it is. */
static bool host_is_plain(const char *host)
{
    return *host && strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                 "0123456789.-_:") == strlen(host);
}

int upstream_open(enum upstream_role role, const char *url, int bootstrap_port,
                  struct upstream **out, struct error err)
{
    static _Atomic uint64_t numbers = 1;
    struct http_url parts;
    int rc = http_url_parse(url, &parts, err);
    if (rc)
        return rc;
    size_t length = strlen(url);
    while (length && url[length - 1] == '/')
        length--;
    if (strspn(parts.target, "/") != strlen(parts.target) || !host_is_plain(parts.host))
        return error_set(err, BATON_EINVAL,
                         "\"%.200s\" is no address of a worker: http://HOST:PORT is", url);
    struct upstream *upstream = calloc(1, sizeof(*upstream));
    if (!upstream)
        return error_set(err, BATON_ENOMEM, "out of memory for a worker");
    if (length >= sizeof(upstream->url)) {
        free(upstream);
        return error_set(err, BATON_EINVAL, "the worker's address is too long");
    }
    upstream->number = atomic_fetch_add(&numbers, 1);
    upstream->role = role;
    memcpy(upstream->url, url, length);
    memcpy(upstream->host, parts.host, sizeof(upstream->host));
    upstream->port_given = bootstrap_port != UPSTREAM_PORT_UNKNOWN;
    atomic_init(&upstream->bootstrap_port, bootstrap_port);
    atomic_init(&upstream->holders, 1);
    *out = upstream;
    return BATON_OK;
}

struct upstream *upstream_hold(struct upstream *upstream)
{
    atomic_fetch_add_explicit(&upstream->holders, 1, memory_order_relaxed);
    return upstream;
}

/* Release, so that whoever frees it sees what the others did with it. */
void upstream_release(struct upstream *upstream)
{
    if (upstream && atomic_fetch_sub_explicit(&upstream->holders, 1, memory_order_acq_rel) == 1)
        free(upstream);
}

/* ---- what is known of one ------------------------------------------------------------------- */

bool upstream_is_up(const struct upstream *upstream)
{
    return atomic_load_explicit(&upstream->state, memory_order_relaxed) == UPSTREAM_UP;
}

bool upstream_usable(const struct upstream *upstream, uint64_t now_ns)
{
    if (!upstream_is_up(upstream) ||
        now_ns < atomic_load_explicit(&upstream->rests_until_ns, memory_order_relaxed))
        return false;
    if (atomic_load_explicit(&upstream->failures, memory_order_relaxed) < UPSTREAM_FAILURES_MAX)
        return true;
    return now_ns >= atomic_load_explicit(&upstream->shut_until_ns, memory_order_relaxed) &&
           atomic_load_explicit(&upstream->in_flight, memory_order_relaxed) == 0;
}

bool upstream_set_state(struct upstream *upstream, enum upstream_state state)
{
    return atomic_exchange_explicit(&upstream->state, state, memory_order_relaxed) != state;
}

bool upstream_answered(struct upstream *upstream)
{
    return atomic_exchange_explicit(&upstream->failures, 0, memory_order_relaxed) >=
           UPSTREAM_FAILURES_MAX;
}

bool upstream_failed(struct upstream *upstream)
{
    atomic_fetch_add_explicit(&upstream->failures_total, 1, memory_order_relaxed);
    atomic_store_explicit(&upstream->doubted, true, memory_order_relaxed);
    uint32_t before = atomic_fetch_add_explicit(&upstream->failures, 1, memory_order_relaxed);
    if (before + 1 < UPSTREAM_FAILURES_MAX)
        return false;
    atomic_store_explicit(&upstream->shut_until_ns,
                          clock_now_ns() + UPSTREAM_SHUT_MS * NS_PER_MS, memory_order_relaxed);
    return before + 1 == UPSTREAM_FAILURES_MAX;
}

void upstream_rests(struct upstream *upstream)
{
    atomic_store_explicit(&upstream->rests_until_ns,
                          clock_now_ns() + UPSTREAM_REST_MS * NS_PER_MS, memory_order_relaxed);
    atomic_store_explicit(&upstream->doubted, true, memory_order_relaxed);
}

bool upstream_unreachable(struct upstream *upstream)
{
    atomic_fetch_add_explicit(&upstream->failures_total, 1, memory_order_relaxed);
    return upstream_set_state(upstream, UPSTREAM_DOWN);
}
