/* SPDX-License-Identifier: Apache-2.0 */
/* The public bootstrap server: bootstrap_server.c on the process's link thread. */
#include "bootstrap.h"
#include "runtime.h"

#include <stdlib.h>

struct baton_bootstrap {
    struct runtime *runtime;
    struct bootstrap_server *server;
    uint16_t port;
};

struct bootstrap_start {
    baton_bootstrap *handle;
    const char *host;
    uint16_t port;
    struct error err;
    int code;
};

static void bootstrap_start_on_link_thread(void *arg)
{
    struct bootstrap_start *start = arg;
    start->code = bootstrap_server_open(start->handle->runtime->base, start->host, start->port,
                                        &start->handle->server, start->err);
}

static void bootstrap_stop_on_link_thread(void *arg)
{
    bootstrap_server_close(arg);
}

int baton_bootstrap_open(const char *host, uint32_t port, baton_bootstrap **out, char *err_text,
                         size_t err_size)
{
    struct error err = {err_text, err_size};
    if (!out || port > 65535)
        return error_set(err, BATON_EINVAL, "a port from 0 to 65535 and out are needed");
    baton_bootstrap *handle = calloc(1, sizeof(*handle));
    if (!handle)
        return error_set(err, BATON_ENOMEM, "out of memory for a bootstrap server");
    int code = runtime_acquire(&handle->runtime, 0, err);
    if (code != BATON_OK) {
        free(handle);
        return code;
    }
    struct bootstrap_start start = {
        .handle = handle, .host = host, .port = (uint16_t)port, .err = err};
    runtime_call(handle->runtime, bootstrap_start_on_link_thread, &start);
    if (start.code != BATON_OK) {
        runtime_release(handle->runtime);
        free(handle);
        return start.code;
    }
    handle->port = bootstrap_server_port(handle->server);
    *out = handle;
    return BATON_OK;
}

uint32_t baton_bootstrap_port(const baton_bootstrap *server)
{
    return server->port;
}

void baton_bootstrap_close(baton_bootstrap *server)
{
    if (!server)
        return;
    runtime_call(server->runtime, bootstrap_stop_on_link_thread, server->server);
    runtime_release(server->runtime);
    free(server);
}
