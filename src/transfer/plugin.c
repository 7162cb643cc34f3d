/* SPDX-License-Identifier: Apache-2.0 */
/* See plugin.h. A plugin is opened once and never closed: its code may be on a worker's stack. */
#include "plugin.h"

#include "base/clock.h"
#include "base/log.h"
#include "manager.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct plugin_host plugin_host = {
    .error_set = error_set,
    .log_enabled = log_enabled,
    .log_write = log_write,
    .assert_failed = assert_failed,
    .clock_now_ns = clock_now_ns,
    .worker_post = worker_post,
    .worker_watch_add = worker_watch_add,
    .worker_watch_remove = worker_watch_remove,
    .runtime_post = runtime_post,
    .lane_post = lane_post,
    .lane_fail = lane_fail,
    .leg_of_ticket = leg_of_ticket,
    .leg_count_landed = leg_count_landed,
    .endpoint_signal = endpoint_signal,
    .endpoint_wake = endpoint_wake,
    .endpoint_rail_lost = endpoint_rail_lost,
    .endpoint_give_up = endpoint_give_up,
    .endpoint_hold = endpoint_hold,
    .endpoint_release = endpoint_release,
    .peer_backend_key = peer_backend_key,
    .device_list_parse = device_list_parse,
    .backend_no_stream = backend_no_stream,
    .backend_revoke_by_barrier = backend_revoke_by_barrier,
};

static struct plugin_slot {
    const char *name;
    bool tried;
    const struct plugin *plugin;
    char why[256];
} plugin_slots[] = {{.name = "verbs"}, {.name = "ucx"}};
static pthread_mutex_t plugin_lock = PTHREAD_MUTEX_INITIALIZER;

/* The folder of the file that this code is in: libbaton.so, or the program. */
static void plugin_own_folder(char *out, size_t size)
{
    Dl_info info;
    out[0] = 0;
    if (!dladdr((void *)(uintptr_t)&plugin_backend, &info) || !info.dli_fname)
        return;
    char *path = realpath(info.dli_fname, NULL);
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash)
        snprintf(out, size, "%.*s", (int)(slash - path), path);
    free(path);
}

static void *plugin_open(const char *name, char *why, size_t why_size)
{
    const char *named = getenv("BATON_PLUGINS");
    char own[512], path[640];
    plugin_own_folder(own, sizeof(own));
    /* In an installation the program is in bin/, its plugins are in lib/. */
    const char *folders[] = {named, own, "", NULL};
    const char *endings[] = {"", "/../lib", "/../lib/baton"};
    for (int i = 0; i < 3; i++) {
        if (!folders[i])
            continue;
        for (int ending = 0; ending < (i == 1 ? 3 : 1); ending++) {
            snprintf(path, sizeof(path), "%s%s%slibbaton_%s.so", folders[i], endings[ending],
                     folders[i][0] ? "/" : "", name);
            void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (handle)
                return handle;
            const char *said = dlerror();
            bool missing = said && strstr(said, "No such file") && strstr(said, path);
            if (said && !missing) {
                snprintf(why, why_size, "%s",
                         said); /* it is there, but something else is not */
                return NULL;
            }
        }
    }
    snprintf(why, why_size,
             "libbaton_%s.so is not installed (looked in $BATON_PLUGINS, beside libbaton, and "
             "where the system looks)",
             name);
    return NULL;
}

static void plugin_load(struct plugin_slot *slot)
{
    slot->tried = true;
    void *handle = plugin_open(slot->name, slot->why, sizeof(slot->why));
    if (!handle)
        return;
    plugin_enter_function enter = (plugin_enter_function)(uintptr_t)dlsym(handle, PLUGIN_ENTER);
    const struct plugin *plugin = enter ? enter(&plugin_host) : NULL;
    if (!plugin || plugin->stamp != PLUGIN_STAMP) {
        snprintf(slot->why, sizeof(slot->why),
                 "libbaton_%s.so is of another build than libbaton", slot->name);
        return;
    }
    slot->plugin = plugin;
}

const struct backend_ops *plugin_backend(const char *name, const char *backend,
                                         struct error why)
{
    const struct backend_ops *found = NULL;
    pthread_mutex_lock(&plugin_lock);
    for (size_t i = 0; i < sizeof(plugin_slots) / sizeof(plugin_slots[0]); i++) {
        struct plugin_slot *slot = &plugin_slots[i];
        if (strcmp(slot->name, name) != 0)
            continue;
        if (!slot->tried)
            plugin_load(slot);
        for (uint32_t k = 0; slot->plugin && slot->plugin->backends[k]; k++)
            if (strcmp(slot->plugin->backends[k]->name, backend) == 0)
                found = slot->plugin->backends[k];
        if (!found)
            error_set(why, BATON_EUNSUPPORTED, "backend %s: %s", backend,
                      slot->plugin ? "the plugin does not have it" : slot->why);
    }
    pthread_mutex_unlock(&plugin_lock);
    return found;
}
