/* SPDX-License-Identifier: Apache-2.0 */
/* The list of backends, and the small operations that several of them share. */
#include "backend.h"

#include "connection.h"
#include "manager.h"
#include "net/socket.h"

#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct backend_ops *const backend_all[] = {
    &backend_loopback,
    &backend_shm,
    &backend_cma,
    &backend_tcp,
};
#define BACKEND_COUNT (sizeof(backend_all) / sizeof(backend_all[0]))

static const char backend_default_list[] = "loopback,shm,cma,tcp";

const struct backend_ops *backend_find(const char *name)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++)
        if (strcmp(backend_all[i]->name, name) == 0)
            return backend_all[i];
    return NULL;
}

static int backend_entry_parse(const char *word, struct backend_entry *out, struct error err)
{
    *out = (struct backend_entry){0};
    if (strncmp(word, "faulty:", 7) == 0)
        return fault_parse(word + 7, &out->ops, &out->fault, err);
    out->ops = backend_find(word);
    if (!out->ops)
        return error_set(
            err, BATON_EINVAL,
            "no backend is called '%s'; there are %s, and faulty:NAME:... around them", word,
            backend_default_list);
    return BATON_OK;
}

int backend_list_parse(const char *list, struct backend_entry *out, uint32_t *count,
                       struct error err)
{
    char copy[512];
    char *rest = NULL;
    if (!list || !*list)
        list = getenv("BATON_BACKENDS");
    if (!list || !*list)
        list = backend_default_list;
    snprintf(copy, sizeof(copy), "%s", list);
    *count = 0;
    for (char *word = strtok_r(copy, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        if (*count == WIRE_BACKENDS_MAX)
            return error_set(err, BATON_EINVAL, "more than %d backends in '%s'",
                             WIRE_BACKENDS_MAX, list);
        int code = backend_entry_parse(word, &out[*count], err);
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

int baton_backend_info_get(uint32_t index, baton_backend_info *out)
{
    if (!out || out->struct_size < sizeof(*out))
        return BATON_EINVAL;
    if (index >= BACKEND_COUNT)
        return BATON_ENOTFOUND;
    const struct backend_ops *ops = backend_all[index];
    memset(out, 0, sizeof(*out));
    out->struct_size = sizeof(*out);
    snprintf(out->name, sizeof(out->name), "%s", ops->name);
    snprintf(out->about, sizeof(out->about), "%s", ops->about);
    out->available = ops->available(out->why, sizeof(out->why)) == 0;
    return BATON_OK;
}

int backend_always_available(char *why, size_t why_size)
{
    if (why_size)
        why[0] = 0;
    return 0;
}

int backend_no_key(struct manager *manager, uint8_t **key, uint32_t *key_bytes,
                   struct error err)
{
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
static int sums_can_reach(struct manager *manager, struct peer *peer, struct error why)
{
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
    .export_key = backend_no_key,
    .can_reach = sums_can_reach,
    .connect = sums_connect,
    .stop = backend_keep_nothing,
    .disconnect = backend_keep_nothing,
    .stream = backend_no_stream,
    .copy = sums_copy,
    .flush = backend_nothing_in_flight,
    .revoke = backend_nothing_to_revoke,
};

void backend_lanes_from_threads(struct endpoint *endpoint)
{
    struct runtime *runtime = endpoint->manager->runtime;
    uint32_t workers = atomic_load_explicit(&runtime->worker_count, memory_order_acquire);
    endpoint->lane_count = endpoint->manager->config.copy_threads;
    if (endpoint->lane_count > workers)
        endpoint->lane_count = workers;
    if (endpoint->lane_count > WIRE_STREAMS_MAX)
        endpoint->lane_count = WIRE_STREAMS_MAX;
    for (uint32_t i = 0; i < endpoint->lane_count; i++)
        endpoint->workers[i] = runtime->workers[i % workers];
}
