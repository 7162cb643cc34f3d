/* SPDX-License-Identifier: Apache-2.0 */
/* A prefill rank in the bootstrap server's table: PUT /route, again while the server is not there,
 * and once in a while afterwards, so that a restarted server learns of us. A refusal (another live
 * process has our rank) is kept: senders opened meanwhile fail with it. Link thread only. */
#include "base/clock.h"
#include "base/log.h"
#include "manager.h"
#include "net/socket.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REGISTRATION_RENEW_MS 5000
#define REGISTRATION_RETRY_MAX_MS 1000
/* A process that was just killed may still seem alive while its memory is torn down. */
#define REGISTRATION_PATIENCE_MS 2000

struct registration {
    struct manager *manager;
    char address[128];
    struct bootstrap_route route;
    struct bootstrap_call *call;
    uint64_t next_ns;
    uint32_t backoff_ms;
    bool refused;
    uint64_t refused_ns; /* when it was refused first, 0: it is not */
    char text[WIRE_TEXT_MAX];
};

/* Our address as the bootstrap server's host would see it. Names are not resolved here: this is the
 * link thread, and a resolver can take seconds. */
static void registration_own_address(const struct manager *manager, const char *bootstrap,
                                     char *out, size_t size)
{
    char host[64];
    uint16_t port;
    snprintf(out, size, "127.0.0.1");
    if (manager->config.host[0] && strcmp(manager->config.host, "0.0.0.0") != 0 &&
        strcmp(manager->config.host, "::") != 0) {
        snprintf(out, size, "%s", manager->config.host);
        return;
    }
    if (bootstrap_address_parse(bootstrap, host, sizeof(host), &port, ERROR_NONE) != BATON_OK ||
        strcmp(host, "localhost") == 0)
        return;
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *numeric = NULL;
    if (getaddrinfo(host, NULL, &hints, &numeric) == 0) {
        freeaddrinfo(numeric);
        socket_local_address(host, port, out, size);
        return;
    }
    struct ifaddrs *interfaces = NULL;
    if (getifaddrs(&interfaces) != 0)
        return;
    for (struct ifaddrs *one = interfaces; one; one = one->ifa_next) {
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET &&
            !(one->ifa_flags & IFF_LOOPBACK) &&
            getnameinfo(one->ifa_addr, sizeof(struct sockaddr_in), out, (socklen_t)size, NULL,
                        0, NI_NUMERICHOST) == 0)
            break;
    }
    freeifaddrs(interfaces);
}

static void registration_done(void *arg, int code, const char *text)
{
    struct registration *registration = arg;
    registration->call = NULL;
    uint64_t now = clock_now_ns();
    if (code != BATON_EEXIST)
        registration->refused_ns = 0;
    else if (!registration->refused_ns)
        registration->refused_ns = now;
    registration->refused =
        registration->refused_ns &&
        now - registration->refused_ns >= REGISTRATION_PATIENCE_MS * NS_PER_MS;
    snprintf(registration->text, sizeof(registration->text), "%s", text ? text : "");
    if (code == BATON_OK) {
        registration->backoff_ms = 0;
        registration->next_ns = clock_now_ns() + REGISTRATION_RENEW_MS * NS_PER_MS;
        return;
    }
    if (code != BATON_AGAIN && (code != BATON_EEXIST || registration->refused))
        LOG_WARNING(bootstrap, "rank %u could not register at %s: %s",
                    registration->manager->config.rank, registration->address, text);
    registration->backoff_ms = registration->backoff_ms ? registration->backoff_ms * 2 : 20;
    if (registration->backoff_ms > REGISTRATION_RETRY_MAX_MS)
        registration->backoff_ms = REGISTRATION_RETRY_MAX_MS;
    registration->next_ns = clock_now_ns() + registration->backoff_ms * NS_PER_MS;
}

void registration_tick(struct manager *manager, uint64_t now_ns)
{
    struct registration *registration = manager->registration;
    if (registration && !registration->call && now_ns >= registration->next_ns)
        registration->call =
            bootstrap_put_route(manager->runtime->bootstrap, registration->address,
                                &registration->route, registration_done, registration);
}

void manager_register_rank(struct manager *manager, const char *bootstrap)
{
    if (manager->registration || !*bootstrap)
        return;
    struct registration *registration = calloc(1, sizeof(*registration));
    if (!registration)
        return; /* the next sender tries again */
    registration->manager = manager;
    snprintf(registration->address, sizeof(registration->address), "%s", bootstrap);
    struct bootstrap_route *route = &registration->route;
    route->tp_size = manager_tp_size(manager);
    route->tp_rank = manager_tp_rank(manager);
    route->pp_size = manager_pp_size(manager);
    route->pp_rank = manager->config.pp_rank;
    route->dp_size = manager->config.dp_size ? manager->config.dp_size : 1;
    route->dp_rank = manager->config.dp_rank;
    route->rank_port = manager->port;
    route->page_size = manager->region_count ? manager->regions[0].layout.tokens_per_page : 1;
    route->epoch = manager->epoch;
    snprintf(route->kv_cache_dtype, sizeof(route->kv_cache_dtype), "%s",
             manager->config.kv_cache_dtype);
    registration_own_address(manager, bootstrap, route->rank_ip, sizeof(route->rank_ip));
    manager->registration = registration;
    registration_tick(manager, clock_now_ns());
}

const char *manager_registration_refused(const struct manager *manager)
{
    return manager->registration && manager->registration->refused ? manager->registration->text
                                                                   : NULL;
}

void registration_drop(struct manager *manager)
{
    struct registration *registration = manager->registration;
    if (!registration)
        return;
    if (registration->call)
        bootstrap_cancel(registration->call);
    free(registration);
    manager->registration = NULL;
}
