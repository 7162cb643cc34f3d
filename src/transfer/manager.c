/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a manager (checking all that the caller said, copying it, starting to listen) and closing
 * it without leaving a thread in its memory. */
#include "manager.h"

#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "net/socket.h"
#include "net/tls.h"
#include "route.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define MANAGER_ROOMS_DEFAULT 16384
#define MANAGER_ROOMS_MAX (1u << 20)
#define MANAGER_LATE_TICK_MS 1000

/* ---- checking and copying options ---- */

static int name_copy(char *out, const char *name, const char *what, struct error err)
{
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= WIRE_NAME_MAX || !wire_text_valid(name, length))
        return error_set(err, BATON_EINVAL, "%s needs a printable name of 1 to %d bytes", what,
                         WIRE_NAME_MAX - 1);
    memcpy(out, name, length + 1);
    return BATON_OK;
}

static int text_copy(char *out, size_t size, const char *text, const char *what,
                     struct error err)
{
    if (text && strlen(text) >= size)
        return error_set(err, BATON_EINVAL, "%s is longer than %zu bytes", what, size - 1);
    snprintf(out, size, "%s", text ? text : "");
    return BATON_OK;
}

static int manager_copy_config(struct manager *manager, const baton_manager_options *options,
                               struct error err)
{
    struct manager_config *config = &manager->config;
    config->rank = options->rank;
    config->tp_size = options->tp_size;
    config->pp_rank = options->pp_rank;
    config->pp_size = options->pp_size;
    config->dp_rank = options->dp_rank;
    config->dp_size = options->dp_size;
    config->max_rooms = options->max_rooms ? options->max_rooms : MANAGER_ROOMS_DEFAULT;
    config->copy_threads = options->copy_threads ? options->copy_threads : 2;
    config->tcp_streams = options->tcp_streams ? options->tcp_streams : 2;
    config->heartbeat_ms = options->heartbeat_ms ? options->heartbeat_ms : 1000;
    config->silent_ms = options->silent_ms ? options->silent_ms : 5000;
    config->match_timeout_ms = options->match_timeout_ms ? options->match_timeout_ms : 10000;
    config->reach_timeout_ms =
        options->reach_timeout_ms ? options->reach_timeout_ms : config->match_timeout_ms;
    config->deadline_ms = options->deadline_ms ? options->deadline_ms : 300000;
    config->max_inflight = options->max_inflight;
    config->max_sge = options->max_sge;
    config->register_rank = options->register_rank;
    config->verify = options->verify;
    config->verbose = options->verbose;
    if (options->tp_size && options->rank >= options->tp_size)
        return error_set(err, BATON_EINVAL, "rank %u of a group of %u", options->rank,
                         options->tp_size);
    if (config->max_rooms > MANAGER_ROOMS_MAX)
        return error_set(err, BATON_EINVAL, "max_rooms %u is over %u", config->max_rooms,
                         MANAGER_ROOMS_MAX);
    if (config->tcp_streams > WIRE_STREAMS_MAX || config->copy_threads > RUNTIME_WORKERS_MAX)
        return error_set(err, BATON_EINVAL, "at most %d streams and %d copy threads",
                         WIRE_STREAMS_MAX, RUNTIME_WORKERS_MAX);
    if (options->port > 65535)
        return error_set(err, BATON_EINVAL, "port %u", options->port);
    int code = text_copy(config->host, sizeof(config->host), options->host, "host", err);
    if (code == BATON_OK)
        code = text_copy(config->ib_device, sizeof(config->ib_device), options->ib_device,
                         "ib_device", err);
    if (code == BATON_OK)
        code = text_copy(config->bootstrap, sizeof(config->bootstrap), options->bootstrap,
                         "bootstrap", err);
    if (code == BATON_OK)
        code = text_copy(config->bootstrap_allow, sizeof(config->bootstrap_allow),
                         options->bootstrap_allow, "bootstrap_allow", err);
    if (code == BATON_OK)
        code = text_copy(config->fingerprint, sizeof(config->fingerprint), options->fingerprint,
                         "fingerprint", err);
    if (code == BATON_OK)
        code = text_copy(config->kv_cache_dtype, sizeof(config->kv_cache_dtype),
                         options->kv_cache_dtype ? options->kv_cache_dtype : "auto",
                         "kv_cache_dtype", err);
    if (code == BATON_OK)
        code = text_copy(config->key, sizeof(config->key), options->key, "key", err);
    return code;
}

static int manager_copy_regions(struct manager *manager, const baton_manager_options *options,
                                struct error err)
{
    char why[256];
    if (options->region_count > WIRE_REGIONS_MAX)
        return error_set(err, BATON_EINVAL, "%u regions, at most %d", options->region_count,
                         WIRE_REGIONS_MAX);
    for (uint32_t i = 0; i < options->region_count; i++) {
        const baton_region *from = &options->regions[i];
        struct region *region = &manager->regions[i];
        int code = name_copy(region->name, from->name, "a region", err);
        if (code != BATON_OK)
            return code;
        if (manager_region_named(manager, region->name) >= 0)
            return error_set(err, BATON_EINVAL, "two regions are called '%s'", region->name);
        if ((i == 0) != (from->kind == BATON_REGION_KV))
            return error_set(err, BATON_EINVAL,
                             "region 0, and only it, is the KV cache ('%s' is not)",
                             region->name);
        if (from->layout.memory != BATON_MEMORY_HOST)
            return error_set(err, BATON_EUNSUPPORTED,
                             "region '%s' is in GPU memory, and this build has no CUDA backend",
                             region->name);
        region->kind = from->kind;
        code = layout_from_public(&from->layout, &region->layout, ERROR_BUFFER(why));
        if (code != BATON_OK)
            return error_set(err, code, "region '%s': %s", region->name, why);
        manager->region_count = i + 1;
        region->page_ticket = calloc(region->layout.pages, sizeof(*region->page_ticket));
        if (!region->page_ticket)
            return error_set(err, BATON_ENOMEM, "out of memory for region '%s'", region->name);
    }
    return BATON_OK;
}

static int manager_copy_aux(struct manager *manager, const baton_aux *aux, struct error err)
{
    if (!aux)
        return BATON_OK;
    if (aux->struct_size < sizeof(*aux) || !aux->address || !aux->slots || !aux->slot_bytes ||
        aux->slot_bytes > UINT32_MAX || aux->field_count > WIRE_AUX_FIELDS_MAX)
        return error_set(err, BATON_EINVAL,
                         "the aux block needs an address, slots, slot_bytes below 4 GiB and at "
                         "most %d fields",
                         WIRE_AUX_FIELDS_MAX);
    manager->aux_address = aux->address;
    manager->aux_slots = aux->slots;
    manager->aux_slot_bytes = aux->slot_bytes;
    if (!aux->field_count) {
        manager->aux_field_count = 1;
        manager->aux_fields[0] = (struct wire_aux_field){
            .name = "aux", .dtype = BATON_DTYPE_OPAQUE, .count = (uint32_t)aux->slot_bytes};
        return BATON_OK;
    }
    for (uint32_t i = 0; i < aux->field_count; i++) {
        struct wire_aux_field *field = &manager->aux_fields[i];
        int code = name_copy(field->name, aux->fields[i].name, "an aux field", err);
        if (code != BATON_OK)
            return code;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(manager->aux_fields[k].name, field->name) == 0)
                return error_set(err, BATON_EINVAL, "two aux fields are called '%s'",
                                 field->name);
        field->dtype = aux->fields[i].dtype;
        field->count = aux->fields[i].count;
        field->offset = aux->fields[i].offset;
        if (field->dtype > BATON_DTYPE_U64 || field->offset > aux->slot_bytes ||
            !field->count || aux_field_bytes(field) > aux->slot_bytes - field->offset)
            return error_set(err, BATON_EINVAL,
                             "aux field '%s' does not fit into the slot of %llu bytes",
                             field->name, (unsigned long long)aux->slot_bytes);
    }
    manager->aux_field_count = aux->field_count;
    return BATON_OK;
}

static int manager_make_table(struct manager *manager, struct error err)
{
    uint32_t rooms = manager->config.max_rooms, slots = 1;
    while (slots < 2 * rooms)
        slots *= 2;
    manager->room_mask = slots - 1;
    manager->rooms = calloc(slots, sizeof(*manager->rooms));
    manager->room_index = calloc(slots, sizeof(*manager->room_index));
    manager->outcomes = calloc(slots, sizeof(*manager->outcomes));
    manager->tombstones = calloc(MANAGER_TOMBSTONES, sizeof(*manager->tombstones));
    for (uint32_t stack = 0; stack < 2; stack++)
        manager->free_slots[stack] = malloc(rooms * sizeof(uint32_t));
    if (!manager->rooms || !manager->free_slots[0] || !manager->free_slots[1] ||
        !manager->room_index || !manager->outcomes || !manager->tombstones)
        return error_set(err, BATON_ENOMEM, "out of memory for %u rooms", rooms);
    for (uint32_t i = 2 * rooms; i-- > 0;) {
        struct room *room = &manager->rooms[i];
        uint32_t stack = i >= rooms;
        room->manager = manager;
        room->slot = i;
        runtime_job_init(&room->job, room_job);
        manager->free_slots[stack][manager->free_count[stack]++] = i;
    }
    return BATON_OK;
}

/* ---- listening ---- */

static void manager_on_accept(struct evconnlistener *listener, evutil_socket_t fd,
                              struct sockaddr *address, int length, void *arg)
{
    (void)listener;
    (void)address;
    (void)length;
    connection_accept(arg, fd);
}

static void manager_on_attach(struct evconnlistener *listener, evutil_socket_t fd,
                              struct sockaddr *address, int length, void *arg)
{
    (void)listener;
    (void)address;
    (void)length;
    link_attach_accept(arg, fd);
}

/* Out of descriptors: the listener would stay readable and the thread spin. The tick tries again. */
static void manager_on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct manager *manager = arg;
    LOG_WARNING(link,
                "cannot accept connections: %s; raise the limit of open files (ulimit -n)",
                strerror(errno));
    evconnlistener_disable(listener);
    manager->accept_paused = true;
}

struct manager_start {
    struct manager *manager;
    int tcp_fd, unix_fd;
    bool ok;
};

static void manager_start_on_link_thread(void *arg)
{
    struct manager_start *start = arg;
    struct manager *manager = start->manager;
    struct runtime *runtime = manager->runtime;
    unsigned flags = LEV_OPT_CLOSE_ON_EXEC;
    manager->listener =
        evconnlistener_new(runtime->base, manager_on_accept, manager, flags, 0, start->tcp_fd);
    manager->unix_listener =
        evconnlistener_new(runtime->base, manager_on_attach, manager, flags, 0, start->unix_fd);
    start->ok = manager->listener && manager->unix_listener;
    if (start->ok) {
        evconnlistener_set_error_cb(manager->listener, manager_on_accept_error);
        evconnlistener_set_error_cb(manager->unix_listener, manager_on_accept_error);
    }
    manager->ticked_ns = clock_now_ns();
    manager->next = runtime->managers;
    runtime->managers = manager;
    if (start->ok && manager->config.register_rank)
        manager_register_rank(manager, manager->config.bootstrap);
}

static void manager_free_memory(struct manager *manager)
{
    for (uint32_t i = 0; i < manager->backend_count; i++)
        if (manager->backends[i].opened)
            manager->backends[i].ops->close(manager, manager->backends[i].state);
    for (uint32_t i = 0; i < manager->region_count; i++) {
        layout_free(&manager->regions[i].layout);
        free((void *)manager->regions[i].page_ticket);
    }
    backend_list_free(manager->backends, manager->backend_count);
    tls_close(manager->tls);
    free(manager->rooms);
    free(manager->free_slots[0]);
    free(manager->free_slots[1]);
    free(manager->room_index);
    free(manager->outcomes);
    free(manager->tombstones);
    pthread_mutex_destroy(&manager->lock);
    if (manager->event_fd >= 0)
        close(manager->event_fd);
    free(manager);
}

/* A backend that cannot be opened is passed over; none at all is an error. */
static int manager_open_backends(struct manager *manager, struct error err)
{
    uint32_t opened = 0;
    const char *why = "";
    for (uint32_t i = 0; i < manager->backend_count; i++) {
        struct backend_entry *entry = &manager->backends[i];
        entry->opened =
            entry->ops->open(manager, &entry->state, ERROR_BUFFER(entry->why)) == BATON_OK;
        if (entry->opened) {
            opened++;
            continue;
        }
        why = entry->why;
        LOG_INFO(manager, "backend %s is left out: %s", entry->ops->name, why);
    }
    return opened ? BATON_OK
                  : error_set(err, BATON_EUNSUPPORTED, "no backend can be used: %s", why);
}

static int manager_check(struct manager *manager, const baton_manager_options *options,
                         struct error err)
{
    int code = manager_copy_config(manager, options, err);
    if (code == BATON_OK)
        code = manager_copy_regions(manager, options, err);
    if (code == BATON_OK)
        code = manager_copy_aux(manager, options->aux, err);
    if (code == BATON_OK)
        code = backend_list_parse(options->backends, manager->backends, &manager->backend_count,
                                  err);
    if (code == BATON_OK)
        code = manager_open_backends(manager, err);
    if (code == BATON_OK && (options->tls_certificate || options->tls_key || options->tls_ca))
        code = tls_open(options->tls_certificate, options->tls_key, options->tls_ca,
                        &manager->tls, err);
    if (code == BATON_OK)
        code = manager_make_table(manager, err);
    return code;
}

int baton_manager_open(const baton_manager_options *options, baton_manager **out,
                       char *err_text, size_t err_size)
{
    struct error err = {err_text, err_size};
    if (!options || !out || options->struct_size < sizeof(*options))
        return error_set(err, BATON_EINVAL, "options (with struct_size) and out are needed");
    baton_manager *handle = calloc(1, sizeof(*handle));
    if (!handle)
        return error_set(err, BATON_ENOMEM, "out of memory for a manager");
    struct manager *manager = &handle->m;
    struct manager_start start = {.manager = manager, .tcp_fd = -1, .unix_fd = -1};
    pthread_mutex_init(&manager->lock, NULL);
    manager->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int code = manager_check(manager, options, err);
    if (code == BATON_OK && manager->event_fd < 0)
        code = error_set(err, BATON_ESYSTEM, "cannot create an eventfd: %s", strerror(errno));
    while (code == BATON_OK && manager->epoch == 0)
        if (getrandom(&manager->epoch, sizeof(manager->epoch), 0) != sizeof(manager->epoch))
            code = error_set(err, BATON_ESYSTEM, "cannot draw an epoch: %s", strerror(errno));
    if (code != BATON_OK)
        goto free_memory;
    manager->port = (uint16_t)options->port;
    snprintf(manager->unix_name, sizeof(manager->unix_name), "baton-%016llx",
             (unsigned long long)manager->epoch);
    code = socket_listen(manager->config.host[0] ? manager->config.host : NULL, &manager->port,
                         &start.tcp_fd, err);
    if (code == BATON_OK)
        code = socket_listen_unix(manager->unix_name, &start.unix_fd, err);
    if (code != BATON_OK)
        goto close_sockets;
    uint32_t workers = manager->config.copy_threads;
    if (manager->config.tcp_streams > workers && workers > 1)
        workers = manager->config.tcp_streams;
    code = runtime_acquire(&manager->runtime, workers, err);
    if (code != BATON_OK)
        goto close_sockets;
    runtime_call(manager->runtime, manager_start_on_link_thread, &start);
    *out = handle;
    if (start.ok)
        return BATON_OK;
    baton_manager_close(handle);
    return error_set(err, BATON_ENOMEM, "out of memory for listeners");

close_sockets:
    socket_close(start.tcp_fd);
    socket_close(start.unix_fd);
free_memory:
    manager_free_memory(manager);
    return code;
}

/* ---- closing ---- */

static void listener_close(struct evconnlistener **listener)
{
    if (!*listener)
        return;
    int fd = evconnlistener_get_fd(*listener);
    evconnlistener_free(*listener);
    socket_close(fd);
    *listener = NULL;
}

/* First: nothing new, and every room told. */
static void manager_shut(void *arg)
{
    struct manager *manager = arg;
    manager->closing = true;
    listener_close(&manager->listener);
    listener_close(&manager->unix_listener);
    registration_drop(manager);
    for (struct room *room = manager->live, *next; room; room = next) {
        next = room->live_next;
        uint32_t generation = room->generation;
        room_job(&room->job); /* what its owner asked for may still be on its way here */
        if (room->role == ROOM_FREE || room->generation != generation)
            continue;
        room->owned = false;
        if (!room_ended(room))
            room_fail(room, BATON_EPEER, "the manager was closed");
        else
            room_settle(room);
    }
}

/* Then, when our lanes have stopped and FENCED has been said: goodbye. */
static void manager_part(void *arg)
{
    struct manager *manager = arg;
    for (struct link *link = manager->links, *next; link; link = next) {
        next = link->next;
        link_close(link, BATON_EPEER, "the rank was closed");
    }
}

struct manager_rest {
    struct manager *manager;
    bool rooms, objects, flushed;
};

static void manager_check_rest(void *arg)
{
    struct manager_rest *check = arg;
    struct manager *manager = check->manager;
    check->objects = atomic_load_explicit(&manager->worker_objects, memory_order_acquire) == 0;
    check->rooms = true;
    for (struct room *room = manager->live; room; room = room->live_next)
        check->rooms &= room_local_rest(room);
    check->flushed = manager->connections == NULL;
}

/* Last: what is left belongs to the link thread alone. */
static void manager_bury(void *arg)
{
    struct manager *manager = arg;
    while (manager->live) {
        struct room *room = manager->live;
        for (struct leg *leg = room->legs; leg; leg = leg->next)
            leg->fence_remote = leg->abort_owed = false;
        room->owned = false;
        room->abort_unresolved = false;
        room_settle(room);
    }
    while (manager->links)
        link_drop(manager->links);
    while (manager->connections)
        connection_drop(manager->connections);
    link_attach_drop_all(manager);
    route_drop_all(manager);
    link_sweep(manager);
    struct manager **slot = &manager->runtime->managers;
    while (*slot != manager)
        slot = &(*slot)->next;
    *slot = manager->next;
}

void baton_manager_close(baton_manager *handle)
{
    if (!handle)
        return;
    struct manager *manager = &handle->m;
    struct runtime *runtime = manager->runtime;
    struct manager_rest check = {.manager = manager};
    runtime_call(runtime, manager_shut, manager);
    do {
        usleep(1000);
        runtime_call(runtime, manager_check_rest, &check);
    } while (!check.rooms); /* workers always come to rest */
    runtime_call(runtime, manager_part, manager);
    for (int waited_ms = 0; !check.objects || (!check.flushed && waited_ms < 200);
         waited_ms++) {
        /* A BYE that the peer does not read gets 200 ms. */
        usleep(1000);
        runtime_call(runtime, manager_check_rest, &check);
    }
    runtime_call(runtime, manager_bury, manager);
    runtime_release(runtime);
    manager_free_memory(manager);
}

/* ---- small things ---- */

uint32_t baton_manager_port(const baton_manager *manager)
{
    return manager->m.port;
}

int baton_manager_eventfd(const baton_manager *manager)
{
    return manager->m.event_fd;
}

void baton_manager_tick(baton_manager *manager)
{
    /* Not an atomic add: one owner ticks, and a lost tick of two is no harm. */
    uint64_t tick = atomic_load_explicit(&manager->m.tick, memory_order_relaxed);
    atomic_store_explicit(&manager->m.tick, tick + 1, memory_order_relaxed);
}

int baton_manager_counters(const baton_manager *handle, baton_counters *out)
{
    if (!handle || !out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    const struct manager *manager = &handle->m;
    *out = (baton_counters){
        .struct_size = sizeof(*out),
        .rooms_open = atomic_load(&manager->rooms_open),
        .rooms_quarantined = atomic_load(&manager->rooms_quarantined),
        .pages_quarantined = atomic_load(&manager->pages_quarantined),
        .links_up = atomic_load(&manager->links_up),
        .links_degraded = atomic_load(&manager->links_degraded),
        .rooms_succeeded = atomic_load(&manager->rooms_succeeded),
        .rooms_failed = atomic_load(&manager->rooms_failed),
        .rooms_refused = atomic_load(&manager->rooms_refused),
        .bytes_sent = atomic_load(&manager->bytes_sent),
        .operations_sent = atomic_load(&manager->operations_sent),
        .bytes_received = atomic_load(&manager->bytes_received),
        .frames_bad = atomic_load(&manager->frames_bad),
        .frames_stale = atomic_load(&manager->frames_stale),
        .links_lost = atomic_load(&manager->links_lost),
        .links_refused = atomic_load(&manager->links_refused),
        .fallbacks = atomic_load(&manager->fallbacks),
        .fences = atomic_load(&manager->fences),
    };
    return BATON_OK;
}

void manager_note_refusal(struct manager *manager, const char *text)
{
    snprintf(manager->refusal, sizeof(manager->refusal), "%s", text);
    manager->refusal_ns = clock_now_ns();
}

void manager_notify(struct manager *manager)
{
    uint64_t one = 1;
    if (write(manager->event_fd, &one, sizeof(one)) < 0)
        one = 0; /* full means readable */
    runtime_changed(manager->runtime);
}

void manager_tick(struct manager *manager)
{
    uint64_t now = clock_now_ns();
    /* We were late (stopped, or starved): what came meanwhile is read before anyone is judged. */
    bool judge = (now - manager->ticked_ns) / NS_PER_MS < MANAGER_LATE_TICK_MS;
    manager->ticked_ns = now;
    link_sweep(manager);
    manager_reap(manager);
    if (manager->closing)
        return;
    if (manager->accept_paused) {
        manager->accept_paused = false;
        evconnlistener_enable(manager->listener);
        evconnlistener_enable(manager->unix_listener);
    }
    link_attach_tick(manager, now);
    for (struct connection *connection = manager->connections, *next; connection;
         connection = next) {
        next = connection->next;
        connection_tick(connection, now);
    }
    for (struct link *link = manager->links, *next; link; link = next) {
        next = link->next;
        link_tick(link, now, judge);
    }
    for (struct room *room = manager->live, *next; room; room = next) {
        next = room->live_next;
        room_tick(room, now);
    }
    route_tick(manager, now);
    registration_tick(manager, now);
}
