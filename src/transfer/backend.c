/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends, and the small operations that several of them share. */
#include "backend.h"

#include "base/clock.h"
#include "base/log.h"
#include "connection.h"
#include "device_list.h"
#include "link.h"
#include "manager.h"
#include "net/socket.h"
#include "plugin.h"
#include "route.h"

#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKEND_AVOIDED_NS (60 * 1000 * NS_PER_MS)

/* Built in, or the name of the plugin that has it, and what it would be for. */
static const struct backend_known {
    const char *name;
    const struct backend_ops *ops;
    const char *plugin, *about;
} backend_all[] = {
    {"loopback", &backend_loopback, NULL, NULL},
    {"shm", &backend_shm, NULL, NULL},
    {"cma", &backend_cma, NULL, NULL},
    {"verbs", NULL, "verbs", "RDMA: prefill writes; a plugin"},
    {"verbs-read", NULL, "verbs", "RDMA: decode reads; a plugin"},
    {"ucx", NULL, "ucx", "RDMA and more through UCX; a plugin"},
    {"tcp", &backend_tcp, NULL, NULL},
};
#define BACKEND_COUNT (sizeof(backend_all) / sizeof(backend_all[0]))

/* verbs-read and ucx are for those who ask for them. What cannot be loaded here is passed over. */
static const char backend_default_list[] = "loopback,shm,cma,verbs,tcp";

const struct backend_ops *backend_get(const char *name, struct error why)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (strcmp(backend_all[i].name, name) == 0)
            return backend_all[i].ops ? backend_all[i].ops
                                      : plugin_backend(backend_all[i].plugin, name, why);
    }
    error_set(
        why, BATON_EINVAL,
        "no backend is called '%s'; there are loopback, shm, cma, verbs, verbs-read, ucx, "
        "tcp, and faulty:NAME:... around them",
        name);
    return NULL;
}

static int backend_entry_parse(const char *word, struct backend_entry *out, struct error err)
{
    *out = (struct backend_entry){0};
    if (strncmp(word, "faulty:", 7) == 0)
        return fault_parse(word + 7, &out->ops, &out->fault, err);
    out->ops = backend_get(word, err);
    return out->ops ? BATON_OK : BATON_EINVAL;
}

int backend_list_parse(const char *list, struct backend_entry *out, uint32_t *count,
                       struct error err)
{
    char copy[512];
    char *rest = NULL;
    if (!list || !*list)
        list = getenv("BATON_BACKENDS");
    bool chosen = list && *list;
    if (!chosen)
        list = backend_default_list;
    snprintf(copy, sizeof(copy), "%s", list);
    *count = 0;
    for (char *word = strtok_r(copy, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        if (*count == WIRE_BACKENDS_MAX)
            return error_set(err, BATON_EINVAL, "more than %d backends in '%s'",
                             WIRE_BACKENDS_MAX, list);
        int code = backend_entry_parse(word, &out[*count], err);
        if (code != BATON_OK && !chosen)
            continue;
        if (code != BATON_OK) {
            backend_list_free(out, *count);
            return code;
        }
        ++*count;
    }
    if (*count == 0)
        return error_set(err, BATON_EINVAL, "the list of backends is empty");
    return BATON_OK;
}

void backend_list_free(struct backend_entry *entries, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        fault_free(entries[i].fault);
}

/* "backend verbs: its reason" -> "its reason", where the name stands beside it anyway. */
static const char *backend_reason(const char *name, const char *why)
{
    size_t length = strlen(name);
    if (strncmp(why, "backend ", 8) == 0 && strncmp(why + 8, name, length) == 0 &&
        strncmp(why + 8 + length, ": ", 2) == 0)
        return why + 8 + length + 2;
    return why;
}

/* What is too long is cut so that it can be seen. */
static void text_fit(char *out, size_t size, const char *text)
{
    static const char dots[] = "...";
    size_t length = strlen(text);
    bool whole = length < size;
    size_t kept = whole ? length : size - sizeof(dots);
    memcpy(out, text, kept);
    memcpy(out + kept, whole ? "" : dots, whole ? 1 : sizeof(dots));
}

int baton_backend_info_get(uint32_t index, baton_backend_info *out)
{
    if (!out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    if (index >= BACKEND_COUNT)
        return BATON_ENOTFOUND;
    memset(out, 0, sizeof(*out));
    out->struct_size = sizeof(*out);
    char why[256];
    const char *name = backend_all[index].name;
    const struct backend_ops *ops = backend_get(name, ERROR_BUFFER(why));
    snprintf(out->name, sizeof(out->name), "%s", name);
    if (!ops) {
        snprintf(out->about, sizeof(out->about), "%s", backend_all[index].about);
        text_fit(out->why, sizeof(out->why), backend_reason(name, why));
        return BATON_OK;
    }
    snprintf(out->about, sizeof(out->about), "%s", ops->about);
    out->available = ops->available(why, sizeof(why)) == 0;
    text_fit(out->why, sizeof(out->why), why);
    return BATON_OK;
}

/* ---- devices ---- */

/* The first backend that has some, or that would have if its plugin could be loaded. */
int baton_device_list_open(const char *ib_device, uint32_t rank, baton_device_list **out,
                           char *err_text, size_t err_size)
{
    struct error err = {err_text, err_size};
    const struct backend_ops *ops = NULL;
    char why[256] = "";
    if (!out)
        return error_set(err, BATON_EINVAL, "out is needed");
    for (size_t i = 0; i < BACKEND_COUNT && !(ops && ops->describe); i++) {
        char trouble[256];
        ops = backend_get(backend_all[i].name, ERROR_BUFFER(trouble));
        if (!ops && !why[0])
            snprintf(why, sizeof(why), "%s", backend_reason(backend_all[i].name, trouble));
    }
    if (!ops || !ops->describe)
        return error_set(err, BATON_EUNSUPPORTED, "%s", why);
    baton_device_list *list = calloc(1, sizeof(*list));
    if (!list)
        return error_set(err, BATON_ENOMEM, "out of memory for a list of devices");
    int code = ops->describe(ib_device, rank, list, err);
    if (code != BATON_OK) {
        baton_device_list_close(list);
        return code;
    }
    *out = list;
    return BATON_OK;
}

void baton_device_list_close(baton_device_list *list)
{
    if (!list)
        return;
    free(list->ports);
    free(list->gids);
    free(list);
}

const char *baton_device_list_problem(const baton_device_list *list)
{
    return list->problem;
}

int baton_device_list_port(const baton_device_list *list, uint32_t index, baton_port_info *out)
{
    if (!list || !out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    if (index >= list->port_count)
        return BATON_ENOTFOUND;
    *out = list->ports[index];
    out->struct_size = sizeof(*out);
    return BATON_OK;
}

int baton_device_list_gid(const baton_device_list *list, uint32_t port, uint32_t index,
                          baton_gid_info *out)
{
    uint32_t first = 0;
    if (!list || !out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    if (port >= list->port_count || index >= list->ports[port].gid_count)
        return BATON_ENOTFOUND;
    for (uint32_t i = 0; i < port; i++)
        first += list->ports[i].gid_count;
    *out = list->gids[first + index];
    out->struct_size = sizeof(*out);
    return BATON_OK;
}

/* ---- for all of them ---- */

void endpoint_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length)
{
    struct wire_signal signal = {bytes, length};
    if (endpoint->link && endpoint->link->state == LINK_READY)
        LINK_SEND(endpoint->link, signal, WIRE_SIGNAL, &signal);
}

void endpoint_wake(struct endpoint *endpoint)
{
    for (struct leg *leg = endpoint->link ? endpoint->link->legs : NULL; leg;
         leg = leg->link_next)
        copy_wake(&leg->copy);
}

void endpoint_rail_lost(struct endpoint *endpoint, uint32_t rail, const char *why)
{
    struct manager *manager = endpoint->manager;
    for (struct room *room = manager->live, *next; room; room = next) {
        next = room->live_next;
        for (struct leg *leg = room->legs; leg && !room_ended(room); leg = leg->next) {
            if (room->role == ROOM_RECEIVER && leg->endpoint == endpoint && leg->last_seen &&
                atomic_load_explicit(&leg->arrived[rail], memory_order_acquire) <
                    leg->expected[rail].landings)
                room_fail(room, BATON_EPEER, "rail %u to %s broke before all of it came: %s",
                          rail, leg->peer->name, why);
        }
    }
}

void endpoint_give_up(struct endpoint *endpoint, const char *why)
{
    struct link *link = endpoint->link;
    if (!link || !link->route)
        return;
    route_avoid(link->route, endpoint->ops->name, why, clock_now_ns() + BACKEND_AVOIDED_NS);
    LOG_WARNING(link, "%s does not work with %s, another backend is taken for a minute: %s",
                endpoint->ops->name, link->peer->name, why);
    link_close(link, BATON_EPEER, "%s does not work between these two: %s", endpoint->ops->name,
               why);
}

const struct wire_backend_key *peer_backend_key(const struct peer *peer, const char *name)
{
    for (uint32_t i = 0; i < peer->memory.backend_count; i++)
        if (strcmp(peer->memory.backends[i].name, name) == 0)
            return &peer->memory.backends[i];
    return NULL;
}

static void barrier_passed(void *arg, uint32_t ticket)
{
    (void)arg;
    (void)ticket;
}

int backend_revoke_by_barrier(struct endpoint *endpoint, uint32_t ticket,
                              struct copy_fence *fence)
{
    struct runtime *runtime = endpoint->manager->runtime;
    void *nothing[RUNTIME_WORKERS_MAX] = {0};
    (void)ticket;
    return copy_fence_start(fence, runtime->worker_count, runtime->workers, barrier_passed,
                            nothing);
}

/* ---- defaults ---- */

int backend_open_nothing(struct manager *manager, void **state, struct error err)
{
    (void)manager;
    (void)err;
    *state = NULL;
    return BATON_OK;
}

void backend_close_nothing(struct manager *manager, void *state)
{
    (void)manager;
    (void)state;
}

int backend_no_signal(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length,
                      struct error err)
{
    (void)bytes;
    (void)length;
    return error_set(err, BATON_EPROTOCOL, "backend %s knows no signals", endpoint->ops->name);
}

void backend_no_tick(struct endpoint *endpoint, uint64_t now_ns)
{
    (void)endpoint;
    (void)now_ns;
}

uint32_t backend_all_rails(struct endpoint *endpoint, uint64_t bytes,
                           uint32_t rails[WIRE_STREAMS_MAX])
{
    (void)bytes;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        rails[i] = i;
    return endpoint->rail_count;
}

int backend_always_available(char *why, size_t why_size)
{
    if (why_size)
        why[0] = 0;
    return 0;
}

int backend_no_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                   struct error err)
{
    (void)state;
    (void)manager;
    (void)err;
    *key = NULL;
    *key_bytes = 0;
    return BATON_OK;
}

int backend_no_stream(struct endpoint *endpoint, uint32_t index, int fd,
                      struct connection_rest *rest, struct error err)
{
    (void)index;
    stream_refuse(fd, rest);
    return error_set(err, BATON_EPROTOCOL, "backend %s has no data connections",
                     endpoint->ops->name);
}

void stream_refuse(int fd, struct connection_rest *rest)
{
    if (rest->ssl)
        SSL_free(rest->ssl);
    free(rest->bytes);
    socket_close(fd);
}

int backend_nothing_in_flight(struct lane *lane)
{
    (void)lane;
    return 1;
}

int backend_nothing_to_revoke(struct endpoint *endpoint, uint32_t ticket,
                              struct copy_fence *fence)
{
    (void)endpoint;
    (void)ticket;
    (void)fence;
    return 0;
}

void backend_keep_nothing(struct endpoint *endpoint)
{
    (void)endpoint;
}

/* Copies nothing: for a sender whose peer reads, and wants a sum to compare with. */
static int sums_can_reach(struct manager *manager, void *state, struct peer *peer,
                          struct error why)
{
    (void)state;
    (void)manager;
    (void)peer;
    return error_set(why, BATON_EUNREACHABLE, "it copies nothing");
}

static int sums_connect(struct endpoint *endpoint, struct error err)
{
    (void)endpoint;
    return error_set(err, BATON_EUNSUPPORTED, "it copies nothing");
}

static int sums_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    (void)lane;
    (void)runs;
    return (int)count;
}

const struct backend_ops backend_sums = {
    .name = "sums",
    .about = "no medium: lanes only add up what they would have copied",
    .capabilities = BACKEND_PUT,
    .available = backend_always_available,
    .open = backend_open_nothing,
    .close = backend_close_nothing,
    .export_key = backend_no_key,
    .can_reach = sums_can_reach,
    .connect = sums_connect,
    .stop = backend_keep_nothing,
    .disconnect = backend_keep_nothing,
    .stream = backend_no_stream,
    .signal = backend_no_signal,
    .tick = backend_no_tick,
    .spread = backend_all_rails,
    .copy = sums_copy,
    .flush = backend_nothing_in_flight,
    .revoke = backend_nothing_to_revoke,
};

void backend_rails_from_threads(struct endpoint *endpoint)
{
    struct runtime *runtime = endpoint->manager->runtime;
    uint32_t workers = atomic_load_explicit(&runtime->worker_count, memory_order_acquire);
    endpoint->rail_count = endpoint->manager->config.copy_threads;
    if (endpoint->rail_count > workers)
        endpoint->rail_count = workers;
    if (endpoint->rail_count > WIRE_STREAMS_MAX)
        endpoint->rail_count = WIRE_STREAMS_MAX;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        endpoint->workers[i] = runtime->workers[i % workers];
}
