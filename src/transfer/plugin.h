/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: backends that need libraries which most machines lack (libibverbs, UCX). Each is a shared
 * object that is opened when its name is first asked for, so that libbaton itself depends on
 * nothing. A plugin is part of this source tree and sees the same structs; what it calls comes
 * to it in a table, because libbaton shows no internals and `baton` is not linked to libbaton. */
#ifndef BATON_TRANSFER_PLUGIN_H
#define BATON_TRANSFER_PLUGIN_H

#include "backend.h"
#include "device_list.h"
#include "room.h"
#include "runtime.h"

/* What a plugin may call. One for one the functions of the same names. */
struct plugin_host {
    int (*error_set)(struct error err, int code, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    int (*log_enabled)(int level);
    void (*log_write)(int level, const char *module, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    void (*assert_failed)(const char *condition, const char *file, int line)
        __attribute__((noreturn));
    uint64_t (*clock_now_ns)(void);
    void (*worker_post)(struct worker *worker, struct worker_job *job);
    int (*worker_watch_add)(struct worker *worker, struct worker_watch *watch, uint32_t events);
    void (*worker_watch_remove)(struct worker *worker, struct worker_watch *watch);
    void (*runtime_post)(struct runtime *runtime, struct runtime_job *job);
    void (*lane_post)(struct lane *lane);
    void (*lane_fail)(struct lane *lane, int code);
    struct leg *(*leg_of_ticket)(struct manager *manager, uint64_t session, uint32_t ticket);
    void (*leg_count_landed)(struct leg *leg, uint32_t rail, uint64_t amount);
    void (*endpoint_signal)(struct endpoint *endpoint, const uint8_t *bytes, uint32_t length);
    void (*endpoint_wake)(struct endpoint *endpoint);
    void (*endpoint_rail_lost)(struct endpoint *endpoint, uint32_t rail, const char *why);
    void (*endpoint_give_up)(struct endpoint *endpoint, const char *why);
    struct endpoint *(*endpoint_hold)(struct endpoint *endpoint);
    void (*endpoint_release)(struct endpoint *endpoint);
    const struct wire_backend_key *(*peer_backend_key)(const struct peer *peer,
                                                       const char *name);
    int (*device_list_parse)(const char *text, uint32_t rank, struct device_choice *out,
                             uint32_t max, uint32_t *count, struct error err);
    int (*backend_no_stream)(struct endpoint *endpoint, uint32_t index, int fd,
                             struct connection_rest *rest, struct error err);
    int (*backend_revoke_by_barrier)(struct endpoint *endpoint, uint32_t ticket,
                                     struct copy_fence *fence);
};

/* Both sides were compiled from the same headers, or the plugin is refused. */
#define PLUGIN_STAMP                                                                        \
    (BATON_VERSION_MAJOR * 10007u + BATON_VERSION_MINOR * 101u + BATON_VERSION_PATCH +      \
     ((uint64_t)sizeof(struct manager) << 40 ^ (uint64_t)sizeof(struct backend_ops) << 32 ^ \
      (uint64_t)sizeof(struct leg) << 16 ^ (uint64_t)sizeof(struct lane) << 4 ^             \
      (uint64_t)sizeof(struct endpoint) ^ (uint64_t)sizeof(struct plugin_host) << 24))

struct plugin {
    uint64_t stamp;
    const struct backend_ops *const *backends; /* NULL at the end */
};

/* The one symbol of a plugin. */
typedef const struct plugin *(*plugin_enter_function)(const struct plugin_host *host);
#define PLUGIN_ENTER "baton_plugin_enter"

/* The backend `name` out of libbaton_<plugin>.so, looked for in $BATON_PLUGINS, beside libbaton.so or
 * the program, and where the system looks. NULL and why. */
const struct backend_ops *plugin_backend(const char *plugin, const char *name,
                                         struct error why);

#endif
