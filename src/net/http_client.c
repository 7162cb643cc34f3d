/* SPDX-License-Identifier: Apache-2.0 */
/* See http_client.h: the client, its hosts, and the connections they keep. The newest kept connection is
 * used first, so that those beyond what the load needs grow old and are closed. */
#include "http_client_parts.h"

#include "net/socket.h"
#include "net/tls.h"

#include "base/clock.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IDLE_MAX 256
#define IDLE_SECONDS 30
#define NS_PER_SECOND 1000000000ull

/* ---- hosts -------------------------------------------------------------------------------- */

static uint32_t host_bucket(const struct http_url *url)
{
    uint32_t hash = 2166136261u + url->tls;
    for (const char *at = url->authority; *at; at++)
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    return hash % HTTP_CLIENT_BUCKETS;
}

struct http_host *http_host_get(struct http_client *client, const struct http_url *url)
{
    uint32_t bucket = host_bucket(url);
    struct http_host *host;
    SLIST_FOREACH(host, &client->buckets[bucket], bucket_entry)
    {
        if (host->tls == url->tls && !strcmp(host->authority, url->authority))
            return host;
    }
    host = calloc(1, sizeof(*host));
    if (!host)
        return NULL;
    TAILQ_INIT(&host->idle);
    host->tls = url->tls;
    host->port = url->port;
    memcpy(host->name, url->host, sizeof(host->name));
    memcpy(host->authority, url->authority, sizeof(host->authority));
    SLIST_INSERT_HEAD(&client->buckets[bucket], host, bucket_entry);
    return host;
}

static void idle_remove(struct http_link *link)
{
    TAILQ_REMOVE(&link->host->idle, link, idle_entry);
    link->host->idle_count--;
    link->client->idle_count--;
}

struct http_link *http_host_take_idle(struct http_host *host)
{
    struct http_link *link = TAILQ_FIRST(&host->idle);
    if (link)
        idle_remove(link);
    return link;
}

/* Reading stays on: the server's goodbye is seen while nobody uses it. */
void http_link_keep(struct http_link *link)
{
    struct http_host *host = link->host;
    link->request = NULL;
    link->used = true;
    link->idle_since_ns = clock_now_ns();
    TAILQ_INSERT_HEAD(&host->idle, link, idle_entry);
    host->idle_count++;
    link->client->idle_count++;
    if (host->idle_count > link->client->idle_max)
        http_link_bury(TAILQ_LAST(&host->idle, http_link_list));
}

/* ---- ends --------------------------------------------------------------------------------- */

/* Not freed here: libevent and OpenSSL look at a stream once more after its callback. */
void http_link_bury(struct http_link *link)
{
    if (link->dead)
        return;
    if (!link->request && link->ready)
        idle_remove(link);
    link->dead = true;
    link->request = NULL;
    if (link->connecting)
        event_del(link->connecting);
    if (link->stream) {
        bufferevent_setcb(link->stream, NULL, NULL, NULL, NULL);
        bufferevent_disable(link->stream, EV_READ | EV_WRITE);
    }
    shutdown(link->fd, SHUT_RDWR); /* the server is to know now */
    SLIST_INSERT_HEAD(&link->client->dead, link, dead_entry);
    event_active(link->client->reaper, 0, 0);
}

static void links_reap(evutil_socket_t fd, short what, void *context)
{
    struct http_client *client = context;
    struct http_link *link;
    (void)fd, (void)what;
    while ((link = SLIST_FIRST(&client->dead))) {
        SLIST_REMOVE_HEAD(&client->dead, dead_entry);
        if (link->connecting)
            event_free(link->connecting);
        if (link->stream)
            bufferevent_free(link->stream);
        SSL_free(link->tls);
        socket_close(link->fd);
        free(link);
    }
}

static void host_expire(struct http_client *client, struct http_host *host, uint64_t now)
{
    struct http_link *oldest;
    while ((oldest = TAILQ_LAST(&host->idle, http_link_list)) &&
           now - oldest->idle_since_ns > client->idle_ns)
        http_link_bury(oldest);
}

static void client_tick(evutil_socket_t fd, short what, void *context)
{
    struct http_client *client = context;
    struct http_host *host;
    uint64_t now = clock_now_ns();
    (void)fd, (void)what;
    for (uint32_t i = 0; i < HTTP_CLIENT_BUCKETS; i++)
        SLIST_FOREACH(host, &client->buckets[i], bucket_entry)
    host_expire(client, host, now);
}

/* ---- open and close ----------------------------------------------------------------------- */

int http_client_open(const struct http_client_options *options, struct http_client **out,
                     struct error err)
{
    static const struct timeval second = {1, 0};
    struct http_client *client = calloc(1, sizeof(*client));
    if (!client)
        return error_set(err, BATON_ENOMEM, "out of memory for the HTTP client");
    client->base = options->base;
    client->idle_max = options->idle_max ? options->idle_max : IDLE_MAX;
    client->idle_ns =
        (options->idle_seconds ? options->idle_seconds : IDLE_SECONDS) * NS_PER_SECOND;
    client->tls_unchecked = options->tls_unchecked;
    TAILQ_INIT(&client->requests);
    client->tick = event_new(client->base, -1, EV_PERSIST, client_tick, client);
    client->reaper = event_new(client->base, -1, 0, links_reap, client);
    if (options->tls_authority)
        client->tls_authority = strdup(options->tls_authority);
    if (!client->tick || !client->reaper || event_add(client->tick, &second) != 0 ||
        (options->tls_authority && !client->tls_authority)) {
        http_client_close(client);
        return error_set(err, BATON_ENOMEM, "out of memory for the HTTP client");
    }
    *out = client;
    return BATON_OK;
}

static void host_free(struct http_host *host)
{
    while (!TAILQ_EMPTY(&host->idle))
        http_link_bury(TAILQ_FIRST(&host->idle));
}

void http_client_close(struct http_client *client)
{
    struct http_host *host;
    if (!client)
        return;
    while (!TAILQ_EMPTY(&client->requests))
        http_request_cancel(TAILQ_FIRST(&client->requests));
    for (uint32_t i = 0; i < HTTP_CLIENT_BUCKETS; i++) {
        while ((host = SLIST_FIRST(&client->buckets[i]))) {
            host_free(host);
            SLIST_REMOVE_HEAD(&client->buckets[i], bucket_entry);
            free(host);
        }
    }
    links_reap(-1, 0, client);
    if (client->dns)
        evdns_base_free(client->dns, 0);
    if (client->tick)
        event_free(client->tick);
    if (client->reaper)
        event_free(client->reaper);
    tls_close(client->tls);
    free(client->tls_authority);
    free(client);
}

uint32_t http_client_idle(const struct http_client *client)
{
    return client->idle_count;
}
