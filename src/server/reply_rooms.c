/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap fields of a request, which a router puts in when prefill and decode are apart, and what a
 * worker makes of them in its role. */
#include "reply.h"

#include <stdio.h>
#include <string.h>

static json_t *field_keep(const struct request_reader *reader, const char *name)
{
    return json_incref((json_t *)request_any(reader, name));
}

void reply_rooms_read(struct reply *reply, const struct request_reader *reader)
{
    reply->rooms.hosts = field_keep(reader, "bootstrap_host");
    reply->rooms.ports = field_keep(reader, "bootstrap_port");
    reply->rooms.rooms = field_keep(reader, "bootstrap_room");
}

void reply_rooms_free(struct reply_rooms *rooms)
{
    json_decref(rooms->hosts);
    json_decref(rooms->ports);
    json_decref(rooms->rooms);
    *rooms = (struct reply_rooms){0};
}

/* The field's value for choice `index`; NULL: there is none. */
static const json_t *field_at(struct reply *reply, const json_t *field, uint32_t index,
                              const char *name)
{
    if (!json_is_array(field))
        return field;
    if (json_array_size(field) != reply->choice_count) {
        request_refuse(&reply->error, 400, name, "\"%s\" has %zu values for %u choices", name,
                       json_array_size(field), reply->choice_count);
        return NULL;
    }
    const json_t *value = json_array_get(field, index);
    return json_is_null(value) ? NULL : value;
}

static void room_set(struct reply *reply, uint32_t index, struct handover *out)
{
    const json_t *room = field_at(reply, reply->rooms.rooms, index, "bootstrap_room");
    json_int_t number = json_integer_value(room);
    if (room && (!json_is_integer(room) || number < 0))
        request_refuse(&reply->error, 400, "bootstrap_room",
                       "\"bootstrap_room\" must be an integer from 0 to 2^63-1");
    /* One number for several choices: the first one's. */
    out->room = (uint64_t)number + (json_is_array(reply->rooms.rooms) ? 0 : index);
    if (out->room > INT64_MAX)
        out->room -= (uint64_t)INT64_MAX;
}

/* "host:port"; false: it does not fit. */
static bool address_write(const char *host, json_int_t port, struct handover *out)
{
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    int length = snprintf(out->bootstrap, sizeof(out->bootstrap), bare_v6 ? "[%s]:%d" : "%s:%d",
                          host, (int)port);
    return length >= 0 && (size_t)length < sizeof(out->bootstrap);
}

static void address_set(struct reply *reply, uint32_t index, struct handover *out)
{
    const json_t *host = field_at(reply, reply->rooms.hosts, index, "bootstrap_host");
    const json_t *port = field_at(reply, reply->rooms.ports, index, "bootstrap_port");
    const char *name = json_string_value(host);
    json_int_t number =
        port ? json_integer_value(port) : (json_int_t)reply->server->bootstrap_port;
    if (!name || !*name)
        request_refuse(&reply->error, 400, "bootstrap_host",
                       "\"bootstrap_host\" is missing: where is the prefill worker?");
    else if ((port && !json_is_integer(port)) || number < 0 || number > 65535)
        request_refuse(&reply->error, 400, "bootstrap_port",
                       "\"bootstrap_port\" must be an integer from 0 to 65535");
    else if (!address_write(name, number, out))
        request_refuse(&reply->error, 400, "bootstrap_host", "\"bootstrap_host\" is too long");
}

/* The index of the prompt's first choice. */
static uint32_t prompt_first(const struct reply *reply, const struct reply_prompt *prompt)
{
    uint32_t first = 0;
    while (reply->choices[first].prompt != prompt)
        first++;
    return first;
}

bool reply_rooms_apply(struct reply *reply, uint32_t index, struct handover *out)
{
    const struct reply_rooms *rooms = &reply->rooms;
    enum worker_role role = reply->server->role;
    const struct reply_prompt *prompt = reply->choices[index].prompt;
    if (role == ROLE_MIXED)
        return true;
    if (prompt->bootstrap[0]) { /* a room that we asked for; n choices are counted up */
        out->kind = HANDOVER_RECEIVE;
        out->room = prompt->room + (index - prompt_first(reply, prompt));
        memcpy(out->bootstrap, prompt->bootstrap, sizeof(prompt->bootstrap));
        return true;
    }
    if (!rooms->rooms) {
        if (role == ROLE_PREFILL || rooms->hosts)
            request_refuse(&reply->error, 400, "bootstrap_room",
                           role == ROLE_PREFILL
                               ? "\"bootstrap_room\" is missing: this is a prefill worker, "
                                 "requests come to it through a router"
                               : "\"bootstrap_host\" without \"bootstrap_room\"");
        return !reply->error.status;
    }
    room_set(reply, index, out);
    if (role == ROLE_DECODE)
        address_set(reply, index, out);
    else
        memcpy(out->bootstrap, reply->server->own_bootstrap, sizeof(out->bootstrap));
    out->kind = role == ROLE_PREFILL ? HANDOVER_SEND : HANDOVER_RECEIVE;
    return !reply->error.status;
}

/* ---- refusals ------------------------------------------------------------------------------- */

/* Of a field that may be a list: its value for room `index`. */
static const json_t *value_at(const json_t *field, size_t index)
{
    return json_is_array(field) ? json_array_get(field, index) : field;
}

/* Room `index` of the body, if what it says is sound. */
static bool room_read(const struct reply *reply, size_t index, struct handover *out)
{
    const struct reply_rooms *rooms = &reply->rooms;
    const json_t *room = value_at(rooms->rooms, index), *port = value_at(rooms->ports, index);
    const char *host = json_string_value(value_at(rooms->hosts, index));
    json_int_t number = json_is_integer(port)
                            ? json_integer_value(port)
                            : (json_int_t)reply->server->options.bootstrap_port;
    if (!json_is_integer(room) || json_integer_value(room) < 0)
        return false;
    out->room = (uint64_t)json_integer_value(room);
    if (reply->server->role == ROLE_DECODE) {
        out->kind = HANDOVER_RECEIVE;
        return host && *host && address_write(host, number, out);
    }
    out->kind = HANDOVER_SEND;
    memcpy(out->bootstrap, reply->server->own_bootstrap, sizeof(out->bootstrap));
    return true;
}

void reply_rooms_refuse(struct reply *reply)
{
    struct scheduler *scheduler = reply->server->scheduler;
    const json_t *rooms = reply->rooms.rooms;
    size_t count = json_is_array(rooms) ? json_array_size(rooms) : rooms != NULL;
    int code = reply->error.status == 400 ? BATON_EINVAL : BATON_EABORTED;
    if (reply->server->role == ROLE_MIXED)
        return;
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        const struct handover *handover = &reply->choices[i].generation.handover;
        if (handover->kind == HANDOVER_SEND ||
            (handover->kind == HANDOVER_RECEIVE && handover->bootstrap[0]))
            scheduler_refuse_room(scheduler, handover, code, reply->error.text);
    }
    for (size_t i = 0; !reply->choice_count && i < count && i < REPLY_CHOICES_MAX; i++) {
        struct handover handover = {0};
        if (room_read(reply, i, &handover))
            scheduler_refuse_room(scheduler, &handover, code, reply->error.text);
    }
}
