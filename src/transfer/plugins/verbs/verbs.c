/* SPDX-License-Identifier: Apache-2.0 */
/* The two backends of this plugin, and the link thread's half of a rail's life (see verbs_rail.c).
 *
 *   verbs       prefill writes into decode's pages and sends the ticket behind them
 *   verbs-read  decode reads prefill's pages when COMMIT says that they are ready
 *
 * Rails: port k of ours is joined with port k of the peer's (each modulo its number of ports) where the
 * two can talk at all. A copy takes the rails that are up, small ones only the least loaded.
 *
 * A SIGNAL: u8 kind | u8 rail | u8 mtu | u8 - | u32 life | u32 number | u32 sequence | u16 lid | u16 -
 *           | gid 16 | text */
#include "verbs.h"

#include "transfer/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNAL_BYTES 36
#define RAIL_PATIENCE_NS 15000000000ull /* a step of the handshake takes no longer */
#define RAIL_STABLE_NS 5000000000ull    /* up for so long: its failures are forgotten */
#define RAIL_RETRY_MAX_NS 2000000000ull /* probed this often while it is down */
#define RAIL_SILENCE_NS 4000000000ull /* no completion for so long is a break, and longer by */
#define RAIL_BYTE_NS 2000             /* this for each byte under way: 0.5 MB/s is a wire too */
#define RAIL_TRIES 3                  /* of every rail, before another backend is taken */
#define SMALL_COPY_BYTES (512u << 10) /* one rail is enough */

enum signal_kind {
    SIGNAL_OFFER = 1,
    SIGNAL_ACCEPT = 2,
    SIGNAL_READY = 3,
    SIGNAL_BROKEN = 4,
    SIGNAL_PROBED = 5,
};

const struct plugin_host *verbs_host;

static void rail_signal(struct verbs_rail *rail, enum signal_kind kind, const char *text)
{
    pthread_mutex_lock(&rail->lock);
    struct verbs_half ours = rail->ours;
    pthread_mutex_unlock(&rail->lock);
    uint8_t bytes[SIGNAL_BYTES + VERBS_WHY_MAX] = {(uint8_t)kind, (uint8_t)rail->index,
                                                   ours.mtu};
    size_t length = text ? strlen(text) : 0;
    memcpy(bytes + 4, &rail->life, 4);
    memcpy(bytes + 8, &ours.number, 4);
    memcpy(bytes + 12, &ours.sequence, 4);
    memcpy(bytes + 16, &ours.lid, 2);
    memcpy(bytes + 20, ours.gid.raw, 16);
    if (length)
        memcpy(bytes + SIGNAL_BYTES, text, length);
    if (rail->owner->endpoint)
        verbs_host->endpoint_signal(rail->owner->endpoint, bytes,
                                    (uint32_t)(SIGNAL_BYTES + length));
}

/* ---- the life of a rail ---- */

static void rail_enter(struct verbs_rail *rail, enum verbs_rail_state state)
{
    rail->state = state;
    rail->since_ns = verbs_host->clock_now_ns();
}

/* Lanes that wait for the rail need not wait any longer. */
static void rail_deny(struct verbs_rail *rail, const char *why)
{
    pthread_mutex_lock(&rail->lock);
    snprintf(rail->text, sizeof(rail->text), "%s", why);
    pthread_mutex_unlock(&rail->lock);
    verbs_rail_order(rail, VERBS_ORDER_DENY);
}

/* Cut first: whatever the peer still has under way is not stored after this line. */
static void rail_break(struct verbs_rail *rail, const char *why, bool tell)
{
    uint64_t now = verbs_host->clock_now_ns();
    verbs_rail_cut(rail);
    if (rail->state == VERBS_RAIL_LOST || rail->state == VERBS_RAIL_DOWN)
        return;
    if (rail->state == VERBS_RAIL_UP && now - rail->since_ns > RAIL_STABLE_NS)
        rail->failures = 0;
    rail->failures++;
    rail->ever_failed = true;
    int level = strcmp(rail->why, why) == 0 ? 3 : 1; /* it is probed for ever: said once */
    snprintf(rail->why, sizeof(rail->why), "%s", why);
    pthread_mutex_lock(&rail->lock);
    snprintf(rail->text, sizeof(rail->text), "%s", why); /* for the lanes */
    pthread_mutex_unlock(&rail->lock);
    if (verbs_host->log_enabled(level) && !rail->owner->stopped)
        verbs_host->log_write(level, "verbs", "rail %u to %s is down: %s", rail->index,
                              rail->owner->endpoint ? rail->owner->endpoint->peer->name : "?",
                              why);
    if (tell)
        rail_signal(rail, SIGNAL_BROKEN, why);
    rail_enter(rail, VERBS_RAIL_LOST);
    verbs_rail_order(rail, VERBS_ORDER_DROP);
    if (rail->failures > 1 || rail->owner->stopped)
        rail_deny(rail, why);
}

/* A new queue pair is about to be ordered: what is made from here on is not cut. */
static void rail_order_pair(struct verbs_rail *rail)
{
    atomic_fetch_add_explicit(&rail->made, 1, memory_order_release);
    pthread_mutex_lock(&rail->lock);
    rail->cut = false;
    pthread_mutex_unlock(&rail->lock);
}

static void rail_make_again(struct verbs_rail *rail)
{
    rail->life++;
    rail_order_pair(rail);
    rail_enter(rail, VERBS_RAIL_MAKING);
    verbs_rail_order(rail, VERBS_ORDER_MAKE);
}

/* No rail has ever come up, and each was tried more than once. */
static bool endpoint_is_hopeless(const struct verbs_endpoint *owner)
{
    for (uint32_t i = 0; i < owner->rail_count; i++)
        if (owner->rails[i].ever_up || owner->rails[i].failures < RAIL_TRIES)
            return false;
    return true;
}

static void rail_dropped(struct verbs_rail *rail)
{
    struct verbs_endpoint *owner = rail->owner;
    if (rail->state != VERBS_RAIL_LOST)
        return;
    uint64_t wait = 0;
    for (uint32_t i = 1; i < rail->failures && wait < RAIL_RETRY_MAX_NS; i++)
        wait = wait ? wait * 4 : 50000000ull;
    if (wait > RAIL_RETRY_MAX_NS)
        wait = RAIL_RETRY_MAX_NS;
    rail_enter(rail, VERBS_RAIL_DOWN);
    rail->retry_ns = rail->since_ns + wait;
    if (owner->endpoint && owner->offers)
        verbs_host->endpoint_rail_lost(owner->endpoint, rail->index, rail->why);
    if (!owner->endpoint || owner->stopped || !owner->offers)
        return;
    if (endpoint_is_hopeless(owner))
        verbs_host->endpoint_give_up(owner->endpoint, rail->why);
    else if (!wait)
        rail_make_again(rail);
}

static void rail_probe(struct verbs_rail *rail)
{
    rail_enter(rail, VERBS_RAIL_PROBING);
    verbs_rail_order(rail, VERBS_ORDER_PROBE);
}

static void rail_came_up(struct verbs_rail *rail)
{
    rail_enter(rail, VERBS_RAIL_UP);
    rail->ever_up = true;
    rail->why[0] = 0;
    if (!rail->owner->offers)
        rail_signal(rail, SIGNAL_PROBED, NULL);
    atomic_store_explicit(&rail->usable, true, memory_order_relaxed);
    if (verbs_host->log_enabled(2))
        verbs_host->log_write(2, "verbs", "rail %u to %s is up: %s port %d", rail->index,
                              rail->owner->endpoint->peer->name, rail->port->name,
                              rail->port->number);
    verbs_host->endpoint_wake(rail->owner->endpoint);
}

/* What the worker has done. */
static void rail_told(struct runtime_job *job)
{
    struct verbs_rail *rail =
        (struct verbs_rail *)((char *)job - offsetof(struct verbs_rail, told));
    struct verbs_endpoint *owner = rail->owner;
    uint32_t news = atomic_exchange_explicit(&rail->news, 0, memory_order_acq_rel);
    bool live = owner->endpoint && !owner->stopped &&
                atomic_load_explicit(&rail->told_made, memory_order_acquire) ==
                    atomic_load_explicit(&rail->made, memory_order_relaxed);
    char text[VERBS_WHY_MAX];
    if (news & VERBS_NEWS_DROPPED)
        rail_dropped(rail);
    if (news & VERBS_NEWS_MADE && live && rail->state == VERBS_RAIL_MAKING) {
        rail_enter(rail, VERBS_RAIL_OFFERED);
        rail_signal(rail, SIGNAL_OFFER, NULL);
    }
    if (news & VERBS_NEWS_JOINED && live && rail->state == VERBS_RAIL_JOINING) {
        rail_signal(rail, owner->offers ? SIGNAL_READY : SIGNAL_ACCEPT, NULL);
        if (owner->offers && owner->executes)
            rail_probe(rail);
        else
            rail_enter(rail, owner->offers ? VERBS_RAIL_UP : VERBS_RAIL_PROBING);
    }
    if (news & VERBS_NEWS_PROBED && live && rail->state == VERBS_RAIL_PROBING)
        rail_came_up(rail);
    if (news & VERBS_NEWS_BROKEN && live) {
        pthread_mutex_lock(&rail->lock);
        snprintf(text, sizeof(text), "%s", rail->text);
        pthread_mutex_unlock(&rail->lock);
        rail_break(rail, text, true);
    }
}

/* The worker's last touch of a rail was to post this. */
static void rail_finished(struct runtime_job *job)
{
    struct verbs_rail *rail =
        (struct verbs_rail *)((char *)job - offsetof(struct verbs_rail, finished));
    struct verbs_endpoint *owner = rail->owner;
    struct manager *manager = owner->manager;
    if (atomic_load_explicit(&rail->told.queued, memory_order_acquire)) {
        verbs_host->runtime_post(manager->runtime,
                                 &rail->finished); /* behind it in the queue */
        return;
    }
    if (--owner->rails_left)
        return;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        verbs_rail_free(&owner->rails[i]);
    verbs_peer_free(&owner->theirs);
    free(owner);
    atomic_fetch_sub_explicit(&manager->worker_objects, 1, memory_order_release);
}

/* ---- signals ---- */

static void rail_take_theirs(struct verbs_rail *rail, const struct verbs_half *theirs)
{
    pthread_mutex_lock(&rail->lock);
    rail->theirs = *theirs;
    pthread_mutex_unlock(&rail->lock);
}

static int rail_on_offer(struct verbs_rail *rail, uint32_t life,
                         const struct verbs_half *theirs)
{
    rail_break(rail, "the peer makes the queue pair anew", false);
    rail->life = life;
    rail_take_theirs(rail, theirs);
    rail_order_pair(rail);
    rail_enter(rail, VERBS_RAIL_JOINING);
    verbs_rail_order(rail, VERBS_ORDER_DROP | VERBS_ORDER_MAKE | VERBS_ORDER_JOIN);
    return BATON_OK;
}

static int verbs_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length,
                        struct error err)
{
    struct verbs_endpoint *owner = endpoint->state;
    if (length < SIGNAL_BYTES || length > SIGNAL_BYTES + VERBS_WHY_MAX ||
        bytes[1] >= owner->rail_count)
        return verbs_host->error_set(err, BATON_EPROTOCOL, "a malformed signal about a rail");
    struct verbs_rail *rail = &owner->rails[bytes[1]];
    struct verbs_half theirs = {.mtu = bytes[2]};
    uint32_t life;
    memcpy(&life, bytes + 4, 4);
    memcpy(&theirs.number, bytes + 8, 4);
    memcpy(&theirs.sequence, bytes + 12, 4);
    memcpy(&theirs.lid, bytes + 16, 2);
    memcpy(theirs.gid.raw, bytes + 20, 16);
    bool malformed = theirs.mtu < IBV_MTU_256 || theirs.mtu > IBV_MTU_4096;
    char text[VERBS_WHY_MAX];
    switch (bytes[0]) {
    case SIGNAL_OFFER:
        if (owner->offers || malformed || life <= rail->life)
            break;
        return rail_on_offer(rail, life, &theirs);
    case SIGNAL_ACCEPT:
        if (!owner->offers || malformed)
            break;
        if (life != rail->life || rail->state != VERBS_RAIL_OFFERED)
            return BATON_OK; /* of a queue pair that is gone */
        rail_take_theirs(rail, &theirs);
        rail_enter(rail, VERBS_RAIL_JOINING);
        verbs_rail_order(rail, VERBS_ORDER_JOIN);
        return BATON_OK;
    case SIGNAL_READY:
        if (owner->offers)
            break;
        if (life != rail->life || rail->state != VERBS_RAIL_PROBING)
            return BATON_OK;
        if (owner->executes)
            rail_probe(rail);
        else
            rail_enter(rail, VERBS_RAIL_UP);
        return BATON_OK;
    case SIGNAL_PROBED:
        if (life == rail->life)
            rail->ever_up = true;
        return BATON_OK;
    case SIGNAL_BROKEN:
        if (life >= rail->life) {
            snprintf(text, sizeof(text), "%.*s", (int)(length - SIGNAL_BYTES),
                     (const char *)bytes + SIGNAL_BYTES);
            for (char *at = text; *at; at++)
                if ((unsigned char)*at < 32 || (unsigned char)*at > 126)
                    *at = '?';
            if (life == rail->life)
                rail_break(rail, text, false);
            else
                rail_deny(rail, text); /* it could not even be offered */
        }
        return BATON_OK;
    }
    return verbs_host->error_set(err, BATON_EPROTOCOL, "a signal about a rail out of place");
}

/* Some devices try for ever. */
static bool rail_is_silent(struct verbs_rail *rail, uint64_t now_ns)
{
    uint64_t quiet_ns = atomic_load_explicit(&rail->quiet_ns, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&rail->load, memory_order_relaxed);
    return quiet_ns && now_ns > quiet_ns + RAIL_SILENCE_NS + bytes * RAIL_BYTE_NS;
}

static void verbs_tick(struct endpoint *endpoint, uint64_t now_ns)
{
    struct verbs_endpoint *owner = endpoint->state;
    for (uint32_t i = 0; i < owner->rail_count; i++) {
        struct verbs_rail *rail = &owner->rails[i];
        bool waits = rail->state == VERBS_RAIL_MAKING || rail->state == VERBS_RAIL_OFFERED ||
                     rail->state == VERBS_RAIL_JOINING || rail->state == VERBS_RAIL_PROBING;
        if (owner->offers && rail->state == VERBS_RAIL_DOWN && now_ns >= rail->retry_ns)
            rail_make_again(rail);
        else if (rail_is_silent(rail, now_ns))
            rail_break(rail,
                       "the other side's port acknowledges nothing: is it up, does the path "
                       "carry the MTU?",
                       true);
        else if (waits && now_ns > rail->since_ns + RAIL_PATIENCE_NS)
            rail_break(rail, "the other side did not answer in time", true);
    }
}

/* ---- links ---- */

/* Which ports become rails, the same on both sides. Returns how many; out: {ours, theirs} each. */
static uint32_t pairs_make(const struct verbs_manager *mine, const struct verbs_peer *theirs,
                           uint32_t out[VERBS_RAILS_MAX][2])
{
    uint32_t most =
        mine->port_count > theirs->port_count ? mine->port_count : theirs->port_count;
    uint32_t count = 0;
    for (uint32_t i = 0; i < most; i++) {
        uint32_t here = i % mine->port_count, there = i % theirs->port_count;
        if (!verbs_ports_match(&mine->ports[here], &theirs->ports[there]))
            continue;
        if (out) {
            out[count][0] = here;
            out[count][1] = there;
        }
        count++;
    }
    return count;
}

static int verbs_can_reach(struct manager *manager, void *state, struct peer *peer,
                           struct error why)
{
    const struct verbs_manager *mine = state;
    struct verbs_peer theirs;
    (void)manager;
    /* Its name is that of the backend which is being asked about: either has the same key. */
    const struct wire_backend_key *key = verbs_host->peer_backend_key(peer, "verbs");
    if (!key)
        key = verbs_host->peer_backend_key(peer, "verbs-read");
    int code = verbs_peer_read(key, &theirs, why);
    if (code != BATON_OK)
        return BATON_EUNREACHABLE;
    uint32_t rails = pairs_make(mine, &theirs, NULL);
    const struct verbs_port *here = &mine->ports[0];
    const struct verbs_peer_port *there = &theirs.ports[0];
    if (!rails && here->attributes.link_layer != there->link_layer)
        verbs_host->error_set(why, BATON_EUNREACHABLE,
                              "one side has InfiniBand ports, the other Ethernet (RoCE) ports");
    else if (!rails)
        verbs_host->error_set(why, BATON_EUNREACHABLE,
                              "%s has %s GID here, %s %s one there: name the GID index in "
                              "ib_device (device:port:index)",
                              here->name, verbs_address_kind(&here->gid), there->name,
                              verbs_address_kind(&there->gid));
    verbs_peer_free(&theirs);
    return rails ? BATON_OK : BATON_EUNREACHABLE;
}

static int verbs_connect(struct endpoint *endpoint, struct error err)
{
    struct manager *manager = endpoint->manager;
    uint32_t workers =
        atomic_load_explicit(&manager->runtime->worker_count, memory_order_acquire);
    struct verbs_endpoint *owner = calloc(1, sizeof(*owner));
    if (!owner)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for rails");
    owner->endpoint = endpoint;
    owner->manager = manager;
    owner->mine = endpoint->opened;
    owner->session = endpoint->link->session;
    owner->reads = endpoint->ops->capabilities & BACKEND_GET;
    owner->offers = endpoint->link->initiator; /* the receiver */
    owner->executes = owner->reads == owner->offers;
    int code = verbs_peer_read(
        verbs_host->peer_backend_key(endpoint->peer, endpoint->ops->name), &owner->theirs, err);
    uint32_t pairs[VERBS_RAILS_MAX][2];
    uint32_t rails = code == BATON_OK ? pairs_make(owner->mine, &owner->theirs, pairs) : 0;
    if (code == BATON_OK && !rails)
        code = verbs_host->error_set(err, BATON_EUNREACHABLE, "no two ports can talk");
    for (uint32_t i = 0; code == BATON_OK && i < rails; i++) {
        struct verbs_rail *rail = &owner->rails[owner->rail_count++];
        rail->owner = owner;
        rail->index = i;
        rail->port = &owner->mine->ports[pairs[i][0]];
        rail->peer_port = pairs[i][1];
        rail->worker = endpoint->workers[i] = manager->runtime->workers[i % workers];
        rail->told.run = rail_told;
        rail->finished.run = rail_finished;
        code = verbs_rail_start(rail, err);
    }
    if (code != BATON_OK) {
        for (uint32_t i = 0; i < owner->rail_count; i++)
            verbs_rail_free(&owner->rails[i]);
        verbs_peer_free(&owner->theirs);
        free(owner);
        return code;
    }
    endpoint->rail_count = owner->rails_left = owner->rail_count;
    endpoint->state = owner;
    atomic_fetch_add_explicit(&manager->worker_objects, 1, memory_order_relaxed);
    for (uint32_t i = 0; owner->offers && i < owner->rail_count; i++)
        rail_make_again(&owner->rails[i]);
    return BATON_OK;
}

static void verbs_stop(struct endpoint *endpoint)
{
    struct verbs_endpoint *owner = endpoint->state;
    owner->stopped = true;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        rail_break(&owner->rails[i], "the link is gone", false);
}

static void verbs_disconnect(struct endpoint *endpoint)
{
    struct verbs_endpoint *owner = endpoint->state;
    owner->endpoint = NULL;
    for (uint32_t i = 0; i < owner->rail_count; i++) {
        verbs_rail_cut(&owner->rails[i]);
        verbs_rail_order(&owner->rails[i], VERBS_ORDER_FINISH);
    }
}

/* Those that are up; else those that may still come up; a lane on a rail that does not is failed. */
static uint32_t verbs_spread(struct endpoint *endpoint, uint64_t bytes,
                             uint32_t rails[WIRE_STREAMS_MAX])
{
    struct verbs_endpoint *owner = endpoint->state;
    uint32_t count = 0, best = 0;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        if (atomic_load_explicit(&owner->rails[i].usable, memory_order_relaxed))
            rails[count++] = i;
    for (uint32_t i = 0; !count && i < owner->rail_count; i++)
        if (!owner->rails[best].ever_failed || !owner->rails[i].ever_failed)
            best = owner->rails[best].ever_failed ? i : best;
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

static uint32_t verbs_rails_up(const struct endpoint *endpoint)
{
    const struct verbs_endpoint *owner = endpoint->state;
    uint32_t count = 0;
    for (uint32_t i = 0; i < owner->rail_count; i++)
        count += owner->rails[i].ever_up && owner->rails[i].state == VERBS_RAIL_UP;
    return count;
}

/* ---- the tables ---- */

#define VERBS_OPERATIONS                                                               \
    .run_bytes_min = 0, .gather_max = VERBS_SGE_MAX, .available = verbs_available,     \
    .open = verbs_open, .close = verbs_close, .export_key = verbs_export_key,          \
    .can_reach = verbs_can_reach, .connect = verbs_connect, .stop = verbs_stop,        \
    .disconnect = verbs_disconnect, .stream = verbs_no_stream, .signal = verbs_signal, \
    .tick = verbs_tick, .spread = verbs_spread, .rails_up = verbs_rails_up,            \
    .copy = verbs_copy, .flush = verbs_flush, .revoke = verbs_revoke,                  \
    .describe = verbs_describe

static int verbs_no_stream(struct endpoint *endpoint, uint32_t index, int fd,
                           struct connection_rest *rest, struct error err)
{
    return verbs_host->backend_no_stream(endpoint, index, fd, rest, err);
}

static int verbs_revoke(struct endpoint *endpoint, uint32_t ticket, struct copy_fence *fence)
{
    return verbs_host->backend_revoke_by_barrier(endpoint, ticket, fence);
}

static const struct backend_ops backend_verbs = {
    .name = "verbs",
    .about = "RDMA: prefill writes straight into decode's pages (InfiniBand, RoCE)",
    .capabilities = BACKEND_PUT | BACKEND_REMOTE_WRITER | BACKEND_COUNTED | BACKEND_CUTS,
    VERBS_OPERATIONS,
};

static const struct backend_ops backend_verbs_read = {
    .name = "verbs-read",
    .about = "RDMA: decode reads prefill's pages when they are ready",
    .capabilities = BACKEND_GET | BACKEND_CUTS,
    VERBS_OPERATIONS,
};

static const struct backend_ops *const verbs_backends[] = {&backend_verbs, &backend_verbs_read,
                                                           NULL};

__attribute__((visibility("default"))) const struct plugin *
baton_plugin_enter(const struct plugin_host *host);

const struct plugin *baton_plugin_enter(const struct plugin_host *host)
{
    static const struct plugin plugin = {.stamp = PLUGIN_STAMP, .backends = verbs_backends};
    verbs_host = host;
    return &plugin;
}
