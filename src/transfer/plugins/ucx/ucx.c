/* SPDX-License-Identifier: Apache-2.0 */
/* The backend, and the link thread's half of a rail's life (see ucx_rail.c): prefill's copy workers put
 * pages into decode's memory through UCP.
 *
 * Rails: one per copy worker, as many as both sides have. Each has its own UCP worker, so that copies
 * run beside each other without a lock, and so that one link can be cut without touching another.
 * What UCX makes of several network devices it decides inside a rail.
 *
 * A SIGNAL: u8 kind | u8 rail | u16 - | u32 life | OFFER: the UCP worker's address; BROKEN: why
 *
 * Life counts the receiver's offers. The sender knows only those that it has read. */
#include "ucx.h"

#include "transfer/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNAL_BYTES 8
#define RAIL_PATIENCE_NS 30000000000ull /* the probe takes no longer */
#define RAIL_STABLE_NS 5000000000ull    /* up for so long: its failures are forgotten */
#define RAIL_RETRY_MAX_NS 2000000000ull /* offered this often while it is down */
#define RAIL_TRIES 3                    /* of every rail, before another backend is taken */
#define SMALL_COPY_BYTES (512u << 10)   /* one rail is enough */

enum signal_kind { SIGNAL_OFFER = 1, SIGNAL_JOINED = 2, SIGNAL_READY = 3, SIGNAL_BROKEN = 4 };

const struct plugin_host *ucx_host;

static void rail_signal(struct ucx_rail *rail, enum signal_kind kind, const void *rest,
                        uint32_t length)
{
    uint8_t *bytes = calloc(1, SIGNAL_BYTES + (size_t)length);
    if (!bytes || !rail->owner->endpoint) {
        free(bytes); /* the other side waits, and says so after a while */
        return;
    }
    bytes[0] = (uint8_t)kind;
    bytes[1] = (uint8_t)rail->index;
    memcpy(bytes + 4, &rail->life, 4);
    if (length)
        memcpy(bytes + SIGNAL_BYTES, rest, length);
    ucx_host->endpoint_signal(rail->owner->endpoint, bytes, SIGNAL_BYTES + length);
    free(bytes);
}

/* ---- the life of a rail ---- */

static void rail_enter(struct ucx_rail *rail, enum ucx_rail_state state)
{
    rail->state = state;
    rail->since_ns = ucx_host->clock_now_ns();
}

static void rail_say(struct ucx_rail *rail, const char *why)
{
    pthread_mutex_lock(&rail->lock);
    snprintf(rail->text, sizeof(rail->text), "%s", why); /* for the lanes */
    pthread_mutex_unlock(&rail->lock);
}

/* Lanes that wait for the rail need not wait any longer. */
static void rail_deny(struct ucx_rail *rail, const char *why)
{
    rail_say(rail, why);
    ucx_rail_order(rail, UCX_ORDER_DENY);
}

/* Cut first: whatever the peer still has under way is not stored after this line. */
static void rail_break(struct ucx_rail *rail, const char *why, bool tell)
{
    const struct ucx_endpoint *owner = rail->owner;
    uint64_t now = ucx_host->clock_now_ns();
    ucx_rail_cut(rail);
    if (rail->state == UCX_RAIL_LOST || rail->state == UCX_RAIL_DOWN)
        return;
    if (rail->state == UCX_RAIL_UP && now - rail->since_ns > RAIL_STABLE_NS)
        rail->failures = 0;
    rail->failures++;
    rail->ever_failed = true;
    /* A peer that closes takes an idle rail with it before its goodbye on the link is read; and one
     * that does not come up is tried for ever: said once. */
    int level = atomic_load_explicit(&rail->load, memory_order_relaxed) ? 1 : 2;
    level = strcmp(rail->why, why) == 0 ? 3 : level;
    snprintf(rail->why, sizeof(rail->why), "%s", why);
    rail_say(rail, why);
    if (ucx_host->log_enabled(level) && !owner->stopped)
        ucx_host->log_write(level, "ucx", "rail %u to %s is down: %s", rail->index,
                            owner->endpoint ? owner->endpoint->peer->name : "?", why);
    if (tell)
        rail_signal(rail, SIGNAL_BROKEN, rail->why, (uint32_t)strlen(rail->why));
    rail_enter(rail, UCX_RAIL_LOST);
    ucx_rail_order(rail, UCX_ORDER_DROP);
    if (rail->failures > 1 || owner->stopped)
        rail_deny(rail, why);
}

static void rail_make_again(struct ucx_rail *rail)
{
    rail->life++;
    atomic_store_explicit(&rail->joined, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&rail->made, 1, memory_order_release);
    rail_enter(rail, UCX_RAIL_MAKING);
    ucx_rail_order(rail, UCX_ORDER_MAKE);
}

/* No rail has ever come up, and each was tried more than once. */
static bool endpoint_is_hopeless(const struct ucx_endpoint *owner)
{
    for (uint32_t i = 0; i < owner->rail_count; i++)
        if (owner->rails[i].ever_up || owner->rails[i].failures < RAIL_TRIES)
            return false;
    return true;
}

static void rail_dropped(struct ucx_rail *rail)
{
    const struct ucx_endpoint *owner = rail->owner;
    uint64_t wait = 0;
    if (rail->state != UCX_RAIL_LOST)
        return;
    for (uint32_t i = 1; i < rail->failures && wait < RAIL_RETRY_MAX_NS; i++)
        wait = wait ? wait * 4 : 50000000ull;
    if (wait > RAIL_RETRY_MAX_NS)
        wait = RAIL_RETRY_MAX_NS;
    rail_enter(rail, UCX_RAIL_DOWN);
    rail->retry_ns = rail->since_ns + wait;
    if (!owner->endpoint || owner->stopped || !owner->receives)
        return;
    if (endpoint_is_hopeless(owner))
        ucx_host->endpoint_give_up(owner->endpoint, rail->why);
    else if (!wait)
        rail_make_again(rail);
}

/* Receiver: the address goes out. Sender: its probe has come through. */
static void rail_made(struct ucx_rail *rail)
{
    uint8_t *address = NULL;
    uint32_t length = 0;
    rail_enter(rail, UCX_RAIL_TOLD);
    if (!rail->owner->receives) {
        rail_signal(rail, SIGNAL_JOINED, NULL, 0);
        return;
    }
    pthread_mutex_lock(&rail->lock);
    address = rail->address;
    length = rail->address_bytes;
    rail->address = NULL;
    pthread_mutex_unlock(&rail->lock);
    rail_signal(rail, SIGNAL_OFFER, address, length);
    free(address);
}

static void rail_came_up(struct ucx_rail *rail)
{
    struct endpoint *endpoint = rail->owner->endpoint;
    rail_enter(rail, UCX_RAIL_UP);
    rail->ever_up = true;
    rail->why[0] = 0;
    if (ucx_host->log_enabled(2))
        ucx_host->log_write(2, "ucx", "rail %u to %s is up", rail->index, endpoint->peer->name);
    if (rail->owner->receives) {
        atomic_store_explicit(&rail->joined, true, memory_order_release);
        rail_signal(rail, SIGNAL_READY, NULL, 0);
        return;
    }
    ucx_rail_order(rail, UCX_ORDER_USE);
    atomic_store_explicit(&rail->usable, true, memory_order_relaxed);
    ucx_host->endpoint_wake(endpoint);
}

/* What the worker has done. */
static void rail_told(struct runtime_job *job)
{
    struct ucx_rail *rail = (struct ucx_rail *)((char *)job - offsetof(struct ucx_rail, told));
    const struct ucx_endpoint *owner = rail->owner;
    uint32_t news = atomic_exchange_explicit(&rail->news, 0, memory_order_acq_rel);
    bool live = owner->endpoint && !owner->stopped &&
                atomic_load_explicit(&rail->told_made, memory_order_acquire) ==
                    atomic_load_explicit(&rail->made, memory_order_relaxed);
    char text[UCX_WHY_MAX];
    if (news & UCX_NEWS_DROPPED)
        rail_dropped(rail);
    if (news & UCX_NEWS_MADE && live && rail->state == UCX_RAIL_MAKING)
        rail_made(rail);
    if (news & UCX_NEWS_BROKEN && live) {
        pthread_mutex_lock(&rail->lock);
        memcpy(text, rail->text, sizeof(text));
        pthread_mutex_unlock(&rail->lock);
        rail_break(rail, text, true);
    }
}

/* Its worker has let go of it for good. */
static void rail_gone(struct runtime_job *job)
{
    struct ucx_rail *rail = (struct ucx_rail *)((char *)job - offsetof(struct ucx_rail, gone));
    struct ucx_endpoint *owner = rail->owner;
    struct manager *manager = owner->manager;
    if (--owner->rails_left)
        return;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        ucx_rail_free(&owner->rails[i]);
    ucx_peer_free(&owner->theirs);
    free(owner);
    atomic_fetch_sub_explicit(&manager->worker_objects, 1, memory_order_release);
}

/* ---- signals ---- */

static int rail_on_offer(struct ucx_rail *rail, uint32_t life, const uint8_t *address,
                         uint32_t length, struct error err)
{
    uint8_t *copy = calloc(1, (size_t)length + UCX_KEY_SLACK);
    if (!copy)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for a rail");
    memcpy(copy, address, length);
    rail_break(rail, "the peer makes the rail anew", false);
    rail->life = life;
    pthread_mutex_lock(&rail->lock);
    free(rail->address);
    rail->address = copy;
    rail->address_bytes = length;
    pthread_mutex_unlock(&rail->lock);
    atomic_fetch_add_explicit(&rail->made, 1, memory_order_release);
    rail_enter(rail, UCX_RAIL_MAKING);
    ucx_rail_order(rail, UCX_ORDER_DROP | UCX_ORDER_MAKE);
    return BATON_OK;
}

static void rail_on_broken(struct ucx_rail *rail, uint32_t life, const uint8_t *words,
                           uint32_t length)
{
    char text[UCX_WHY_MAX];
    snprintf(text, sizeof(text), "%.*s", (int)length, (const char *)words);
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < 32 || (unsigned char)*at > 126)
            *at = '?';
    if (life == rail->life)
        rail_break(rail, text, false);
    else if (life > rail->life)
        rail_deny(rail, text); /* it could not even be offered */
}

static int ucx_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length,
                      struct error err)
{
    struct ucx_endpoint *owner = endpoint->state;
    if (length < SIGNAL_BYTES || bytes[1] >= owner->rail_count)
        return ucx_host->error_set(err, BATON_EPROTOCOL, "a malformed signal about a rail");
    struct ucx_rail *rail = &owner->rails[bytes[1]];
    const uint8_t *rest = bytes + SIGNAL_BYTES;
    uint32_t life;
    memcpy(&life, bytes + 4, 4);
    length -= SIGNAL_BYTES;
    switch (bytes[0]) {
    case SIGNAL_OFFER:
        if (owner->receives || !length || life <= rail->life)
            break;
        return rail_on_offer(rail, life, rest, length, err);
    case SIGNAL_JOINED:
    case SIGNAL_READY:
        if (owner->receives != (bytes[0] == SIGNAL_JOINED))
            break;
        if (life == rail->life && rail->state == UCX_RAIL_TOLD)
            rail_came_up(rail);
        return BATON_OK;
    case SIGNAL_BROKEN:
        if (length >= UCX_WHY_MAX)
            break;
        rail_on_broken(rail, life, rest, length);
        return BATON_OK;
    }
    return ucx_host->error_set(err, BATON_EPROTOCOL, "a signal about a rail out of place");
}

static void ucx_tick(struct endpoint *endpoint, uint64_t now_ns)
{
    struct ucx_endpoint *owner = endpoint->state;
    for (uint32_t i = 0; i < owner->rail_count; i++) {
        struct ucx_rail *rail = &owner->rails[i];
        bool meets = rail->state == UCX_RAIL_MAKING || rail->state == UCX_RAIL_TOLD;
        if (owner->receives && rail->state == UCX_RAIL_DOWN && now_ns >= rail->retry_ns)
            rail_make_again(rail);
        else if (meets && now_ns > rail->since_ns + RAIL_PATIENCE_NS)
            rail_break(rail, "the other side did not answer in time", true);
    }
}

/* ---- links ---- */

static int ucx_can_reach(struct manager *manager, void *state, struct peer *peer,
                         struct error why)
{
    struct ucx_peer theirs;
    (void)manager;
    (void)state;
    if (ucx_peer_read(ucx_host->peer_backend_key(peer, "ucx"), &theirs, why) != BATON_OK)
        return BATON_EUNREACHABLE;
    ucx_peer_free(&theirs);
    return BATON_OK; /* whether their transports meet only a probe can tell */
}

static uint32_t ucx_rail_count(const struct manager *manager, const struct ucx_peer *theirs)
{
    uint32_t rails = manager->config.copy_threads;
    if (rails > UCX_RAILS_MAX)
        rails = UCX_RAILS_MAX;
    return rails < theirs->rails ? rails : theirs->rails;
}

static int ucx_connect(struct endpoint *endpoint, struct error err)
{
    struct manager *manager = endpoint->manager;
    uint32_t workers =
        atomic_load_explicit(&manager->runtime->worker_count, memory_order_acquire);
    struct ucx_endpoint *owner = calloc(1, sizeof(*owner));
    if (!owner)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for rails");
    owner->endpoint = endpoint;
    owner->manager = manager;
    owner->mine = endpoint->opened;
    owner->receives = endpoint->link->initiator;
    int code =
        ucx_peer_read(ucx_host->peer_backend_key(endpoint->peer, "ucx"), &owner->theirs, err);
    uint32_t rails = ucx_rail_count(manager, &owner->theirs);
    for (uint32_t i = 0; code == BATON_OK && i < rails; i++) {
        struct ucx_rail *rail = &owner->rails[owner->rail_count++];
        rail->owner = owner;
        rail->index = i;
        rail->worker = endpoint->workers[i] = manager->runtime->workers[i % workers];
        rail->told.run = rail_told;
        rail->gone.run = rail_gone;
        code = ucx_rail_start(rail, err);
    }
    if (code != BATON_OK) {
        for (uint32_t i = 0; i < owner->rail_count; i++)
            ucx_rail_free(&owner->rails[i]);
        ucx_peer_free(&owner->theirs);
        free(owner);
        return code;
    }
    endpoint->rail_count = owner->rails_left = owner->rail_count;
    endpoint->state = owner;
    atomic_fetch_add_explicit(&manager->worker_objects, 1, memory_order_relaxed);
    for (uint32_t i = 0; owner->receives && i < owner->rail_count; i++)
        rail_make_again(&owner->rails[i]);
    return BATON_OK;
}

static void ucx_stop(struct endpoint *endpoint)
{
    struct ucx_endpoint *owner = endpoint->state;
    owner->stopped = true;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        rail_break(&owner->rails[i], "the link is gone", false);
}

static void ucx_disconnect(struct endpoint *endpoint)
{
    struct ucx_endpoint *owner = endpoint->state;
    owner->endpoint = NULL;
    for (uint32_t i = 0; i < owner->rail_count; i++) {
        ucx_rail_cut(&owner->rails[i]);
        ucx_host->worker_post(owner->rails[i].worker, &owner->rails[i].finish);
    }
}

/* Those that are up; else one that may still come up; a lane on a rail that does not is failed. Small
 * copies take only the least loaded. */
static uint32_t ucx_spread(struct endpoint *endpoint, uint64_t bytes,
                           uint32_t rails[WIRE_STREAMS_MAX])
{
    struct ucx_endpoint *owner = endpoint->state;
    uint32_t count = 0, best = 0;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        if (atomic_load_explicit(&owner->rails[i].usable, memory_order_relaxed))
            rails[count++] = i;
    for (uint32_t i = 1; !count && i < owner->rail_count; i++)
        if (owner->rails[best].ever_failed && !owner->rails[i].ever_failed)
            best = i;
    if (!count)
        rails[count++] = best;
    if (bytes > SMALL_COPY_BYTES || count == 1)
        return count;
    best = rails[0];
    for (uint32_t i = 1; i < count; i++)
        if (atomic_load_explicit(&owner->rails[rails[i]].load, memory_order_relaxed) <
            atomic_load_explicit(&owner->rails[best].load, memory_order_relaxed))
            best = rails[i];
    rails[0] = best;
    return 1;
}

static uint32_t ucx_rails_up(const struct endpoint *endpoint)
{
    const struct ucx_endpoint *owner = endpoint->state;
    uint32_t count = 0;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        count += owner->rails[i].state == UCX_RAIL_UP;
    return count;
}

/* ---- the table ---- */

static int ucx_no_stream(struct endpoint *endpoint, uint32_t index, int fd,
                         struct connection_rest *rest, struct error err)
{
    return ucx_host->backend_no_stream(endpoint, index, fd, rest, err);
}

/* Our workers do not know tickets: the sender's flush, or a cut, ends what they store for it. */
static int ucx_revoke(struct endpoint *endpoint, uint32_t ticket, struct copy_fence *fence)
{
    (void)endpoint;
    (void)ticket;
    (void)fence;
    return 0;
}

static const struct backend_ops backend_ucx = {
    .name = "ucx",
    .about = "puts through UCX: InfiniBand, RoCE, EFA, tcp; only for those who ask for it",
    .capabilities = BACKEND_PUT | BACKEND_REMOTE_WRITER | BACKEND_CUTS,
    .run_bytes_min = 0,
    .available = ucx_available,
    .open = ucx_open,
    .close = ucx_close,
    .export_key = ucx_export_key,
    .can_reach = ucx_can_reach,
    .connect = ucx_connect,
    .stop = ucx_stop,
    .disconnect = ucx_disconnect,
    .stream = ucx_no_stream,
    .signal = ucx_signal,
    .tick = ucx_tick,
    .spread = ucx_spread,
    .rails_up = ucx_rails_up,
    .copy = ucx_copy,
    .flush = ucx_flush,
    .revoke = ucx_revoke,
};

static const struct backend_ops *const ucx_backends[] = {&backend_ucx, NULL};

__attribute__((visibility("default"))) const struct plugin *
baton_plugin_enter(const struct plugin_host *host);

const struct plugin *baton_plugin_enter(const struct plugin_host *host)
{
    static const struct plugin plugin = {.stamp = PLUGIN_STAMP, .backends = ucx_backends};
    ucx_host = host;
    ucx_library_enter();
    return &plugin;
}
