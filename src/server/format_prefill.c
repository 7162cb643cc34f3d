/* SPDX-License-Identifier: Apache-2.0 */
/* POST /prefill at a prefill worker: computes a prompt for a decode worker that asks by itself. The
 * answer, {"bootstrap_host", "bootstrap_port", "bootstrap_room"}, comes at once; the prompt is sent into
 * the room, and whatever becomes of it is told there. */
#include "remote_prefill.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static void prefill_read(struct reply *reply, const struct request_reader *reader)
{
    generate_format.read(reply, reader);
    reply->stream = false;
    if (reply->server->role != ROLE_PREFILL)
        request_refuse(reader->error, 400, NULL, "this is not a prefill worker");
    if (reply->prompt_count > 1)
        request_refuse(reader->error, 400, "input_ids", "one prompt at a time is taken here");
    if (reader->error->status)
        return;
    uint64_t room = 0;
    while (room == 0)
        if (getrandom(&room, sizeof(room), 0) != sizeof(room))
            room = atomic_fetch_add(&reply->server->id_next, 1) + 1;
        else
            room &= INT64_MAX >> 1; /* n choices are counted up from it */
    reply_rooms_free(&reply->rooms);
    reply->rooms.rooms = json_integer((json_int_t)room);
    if (!reply->rooms.rooms)
        request_refuse(reader->error, 503, NULL, "out of memory");
}

/* The host by which we were called is the one by which the bootstrap server is reached. */
static void host_copy(const struct reply *reply, char *out, size_t size)
{
    const char *host = http_exchange_header(reply->exchange, "Host");
    snprintf(out, size, "%s", host && *host ? host : "127.0.0.1");
    char *port = out[0] == '[' ? strchr(out, ']') : strchr(out, ':');
    if (port && *port == ']')
        port++;
    if (port)
        *port = '\0';
}

static void prefill_submitted(struct reply *reply)
{
    char host[256];
    struct json_writer *out = &reply->out;
    host_copy(reply, host, sizeof(host));
    json_put_open(out, '{');
    json_put_key_text(out, "bootstrap_host", host);
    json_put_key_int(out, "bootstrap_port", reply->server->bootstrap_port);
    json_put_key_int(out, "bootstrap_room", json_integer_value(reply->rooms.rooms));
    json_put_close(out, '}');
    struct http_exchange *exchange = reply->exchange;
    reply->exchange = NULL;
    api_reply_json(reply->server, exchange, out);
}

static void nothing_more(struct reply *reply)
{
    (void)reply;
}

static void no_events(struct reply *reply, struct reply_choice *choice)
{
    (void)reply;
    (void)choice;
}

const struct reply_format prefill_format = {
    .id_prefix = "",
    .read = prefill_read,
    .submitted = prefill_submitted,
    .events = no_events,
    .last_events = nothing_more,
    .whole = nothing_more,
};
