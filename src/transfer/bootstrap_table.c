/* SPDX-License-Identifier: Apache-2.0 */
/* The table behind the bootstrap server: its rules, and which part of it answers which request.
 *
 * Problem. Prefill ranks come up in any order, die and come back; decode ranks ask where they
 * are. SGLang's server keeps the last PUT of each rank and calls the group complete when it
 * has counted enough PUTs: a rank that registers twice stands in for one that is missing, and
 * of two processes started by mistake as the same rank each takes half of the traffic. Here
 *
 *  - the group is complete when each of dp x cp x tp x pp ranks is there, however often it
 *    called;
 *  - a rank belongs to a process. The same process (its epoch, our extra key; or its
 *    ip:port) may register again at will. Another one takes the place of a dead one and is
 *    refused by a live one. Only a connect tells dead from alive, and the table does no
 *    I/O: it returns a question (bootstrap_pending) and is told the answer. Requests go on
 *    meanwhile, so the question names the registration it was asked about, and an answer
 *    about an older one is not used;
 *  - a PUT with other sizes is a mistake while anybody of the old group lives, and the
 *    first sign of a new group once all of them are gone: then the table starts afresh.
 *
 * Of what describes the group beside its sizes (page size, dtype, ...) the first PUT wins, as
 * in SGLang, until that first rank (the founder) is replaced by a new process: that one's
 * word then counts, or a restarted group would for ever be described by its predecessor.
 *
 * Threads: one at a time; the server calls from its event loop only.
 * Limits: BOOTSTRAP_RANKS_MAX ranks, rooms_max rooms for BOOTSTRAP_ROOM_TTL_NS.
 * Deliberately not here: who may register. The port belongs on a trusted network. */
#include "bootstrap_parts.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PATH_SIZE 64 /* longer than any path we serve */

/* Cuts the URI into path and query. evhttp's own parser takes the "health" of "//health" for
 * a host, so the raw URI is read here, with repeated slashes collapsed. */
static const char *uri_split(const char *uri, char path[PATH_SIZE])
{
    if (strncasecmp(uri, "http://", 7) == 0)
        uri += 7 + strcspn(uri + 7, "/?#");
    size_t length = 0, end = strcspn(uri, "?#");
    for (size_t i = 0; i < end && length < PATH_SIZE - 1; i++) {
        if (uri[i] != '/' || !length || path[length - 1] != '/')
            path[length++] = uri[i];
    }
    path[length] = '\0';
    return uri[end] == '?' ? uri + end + 1 : "";
}

static void reply_wrong_method(struct bootstrap_reply *reply, const char *path,
                               const char *allow)
{
    bootstrap_reply_text(reply, 405, "Method not allowed: %s takes %s", path, allow);
    reply->allow = allow;
}

static struct bootstrap_pending *route_handle(struct bootstrap_table *table, const char *query,
                                              const struct bootstrap_request *request,
                                              struct bootstrap_reply *reply)
{
    if (strcmp(request->method, "PUT") == 0)
        return bootstrap_route_put(table, request, reply);
    if (strcmp(request->method, "GET") == 0)
        bootstrap_route_get(table, query, reply);
    else
        reply_wrong_method(reply, "/route", "GET, PUT");
    return NULL;
}

struct bootstrap_pending *bootstrap_table_handle(struct bootstrap_table *table,
                                                 const struct bootstrap_request *request,
                                                 struct bootstrap_reply *reply)
{
    char path[PATH_SIZE];
    const char *query = uri_split(request->uri, path);
    bool is_post = strcmp(request->method, "POST") == 0;
    if (strcmp(path, "/route") == 0)
        return route_handle(table, query, request, reply);
    if (strcmp(path, "/register_dp_rank") == 0 && is_post)
        bootstrap_rooms_register(table->rooms, request, reply);
    else if (strcmp(path, "/query_dp_ranks") == 0 && is_post)
        bootstrap_rooms_query(table->rooms, request, reply);
    else if (strcmp(path, "/register_dp_rank") == 0 || strcmp(path, "/query_dp_ranks") == 0)
        reply_wrong_method(reply, path, "POST");
    else if (strcmp(path, "/health") != 0)
        bootstrap_reply_text(reply, 404,
                             "Not found: this bootstrap server has /route, /register_dp_rank, "
                             "/query_dp_ranks and /health");
    else if (strcmp(request->method, "GET") == 0 || strcmp(request->method, "HEAD") == 0)
        bootstrap_reply_text(reply, 200, "OK");
    else
        reply_wrong_method(reply, path, "GET, HEAD");
    return NULL;
}

struct bootstrap_table *bootstrap_table_new(uint32_t rooms_max)
{
    struct bootstrap_table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    table->rooms = bootstrap_rooms_new(rooms_max);
    if (!table->rooms) {
        free(table);
        return NULL;
    }
    return table;
}

void bootstrap_table_free(struct bootstrap_table *table)
{
    if (!table)
        return;
    bootstrap_rooms_free(table->rooms);
    free(table->ranks);
    free(table);
}
