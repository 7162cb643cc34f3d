/* SPDX-License-Identifier: Apache-2.0 */
/* PUT /route: who has the rank now, and may this process take it? The rules are at the head of
 * bootstrap_table.c. A registration that would take a place from a process not known to be
 * dead becomes a question (bootstrap_pending); it is applied when the answer is in. */
#include "bootstrap_parts.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct bootstrap_pending {
    struct bootstrap_registration registration;
    uint32_t count;
    struct bootstrap_endpoint endpoints[]; /* ascending by slot */
};

/* ---- addresses ------------------------------------------------------------------------- */

/* "10.0.0.1:17000", "[::1]:17000" */
struct address_text {
    char text[BOOTSTRAP_IP_SIZE + 16];
};
static struct address_text address_format(const char *ip, uint16_t port)
{
    struct address_text out;
    bool bare_v6 = strchr(ip, ':') && *ip != '[';
    snprintf(out.text, sizeof(out.text), bare_v6 ? "[%s]:%u" : "%s:%u", ip, (unsigned)port);
    return out;
}

static bool address_equal(const char *ip_a, uint16_t port_a, const char *ip_b, uint16_t port_b)
{
    return port_a == port_b && strcasecmp(ip_a, ip_b) == 0;
}

/* What a connect needs; false for names, which could be resolved only by waiting. */
static bool address_numeric(const char *ip, char out[BOOTSTRAP_IP_SIZE])
{
    struct in6_addr ignored;
    size_t length = strlen(ip);
    bool bracketed = length > 2 && ip[0] == '[' && ip[length - 1] == ']';
    snprintf(out, BOOTSTRAP_IP_SIZE, "%.*s", (int)(bracketed ? length - 2 : length),
             ip + bracketed);
    if (strcasecmp(out, "localhost") == 0)
        strcpy(out, "127.0.0.1");
    return inet_pton(AF_INET, out, &ignored) == 1 || inet_pton(AF_INET6, out, &ignored) == 1;
}

/* ---- who has the rank now? ------------------------------------------------------------- */

uint32_t bootstrap_rank_slot(const struct bootstrap_shape *shape,
                             const struct bootstrap_shape *rank)
{
    return ((rank->dp * shape->cp + rank->cp) * shape->tp + rank->tp) * shape->pp + rank->pp;
}

static bool shape_equal(const struct bootstrap_shape *a, const struct bootstrap_shape *b)
{
    return a->dp == b->dp && a->cp == b->cp && a->tp == b->tp && a->pp == b->pp;
}

/* Epochs decide where both sides have them; else the address must do. */
static bool rank_is_process(const struct bootstrap_rank_entry *rank,
                            const struct bootstrap_registration *registration)
{
    if (rank->epoch && registration->epoch)
        return rank->epoch == registration->epoch;
    return address_equal(rank->ip, rank->port, registration->ip, registration->port);
}

static bool pending_knows_gone(const struct bootstrap_pending *gone, uint32_t slot,
                               uint64_t serial)
{
    uint32_t low = 0, high = gone ? gone->count : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gone->endpoints[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return gone && low < gone->count && gone->endpoints[low].slot == slot &&
           gone->endpoints[low].serial == serial;
}

/* Must somebody ask whether the process in this slot lives, before it loses its place? On yes,
 * numeric is where to ask. */
static bool rank_in_doubt(const struct bootstrap_rank_entry *rank, uint32_t slot,
                          const struct bootstrap_registration *registration,
                          const struct bootstrap_pending *gone, char numeric[BOOTSTRAP_IP_SIZE])
{
    if (!rank->serial || rank_is_process(rank, registration))
        return false;
    /* Two processes cannot listen on one port: the old one is gone. */
    if (address_equal(rank->ip, rank->port, registration->ip, registration->port))
        return false;
    if (pending_knows_gone(gone, slot, rank->serial))
        return false;
    return address_numeric(rank->ip, numeric);
}

/* After a restart another rank may have got this rank's old port; a connect would find that
 * one. */
static bool rank_lost_its_address(const struct bootstrap_table *table, uint32_t slot)
{
    const struct bootstrap_rank_entry *rank = &table->ranks[slot];
    for (uint32_t i = 0; i < table->rank_count; i++) {
        const struct bootstrap_rank_entry *other = &table->ranks[i];
        if (other->serial > rank->serial &&
            address_equal(rank->ip, rank->port, other->ip, other->port))
            return true;
    }
    return false;
}

/* The slots that this registration would take from somebody: its own, or all if the sizes
 * differ. */
struct slot_range {
    uint32_t first, end;
};
static struct slot_range slots_claimed(const struct bootstrap_table *table,
                                       const struct bootstrap_registration *registration)
{
    if (!shape_equal(&table->shape, &registration->shape))
        return (struct slot_range){0, table->rank_count};
    uint32_t slot = bootstrap_rank_slot(&table->shape, &registration->rank);
    if (rank_lost_its_address(table, slot))
        return (struct slot_range){slot, slot};
    return (struct slot_range){slot, slot + 1};
}

static uint32_t doubts_collect(const struct bootstrap_table *table,
                               const struct bootstrap_registration *registration,
                               const struct bootstrap_pending *gone,
                               struct bootstrap_endpoint *out)
{
    struct slot_range range = slots_claimed(table, registration);
    char numeric[BOOTSTRAP_IP_SIZE];
    uint32_t count = 0;
    for (uint32_t slot = range.first; slot < range.end; slot++) {
        const struct bootstrap_rank_entry *rank = &table->ranks[slot];
        if (!rank_in_doubt(rank, slot, registration, gone, numeric))
            continue;
        if (out) {
            struct bootstrap_endpoint *endpoint = &out[count];
            *endpoint = (struct bootstrap_endpoint){
                .port = rank->port, .slot = slot, .serial = rank->serial};
            memcpy(endpoint->ip, numeric, sizeof(numeric));
        }
        count++;
    }
    return count;
}

static void group_describe(struct bootstrap_group *group, const struct bootstrap_group *said,
                           bool founder)
{
    if (founder)
        *group = *said;
    if (group->page_size < 0)
        group->page_size = said->page_size;
    if (group->http_port < 0)
        group->http_port = said->http_port;
    if (!*group->kv_cache_dtype)
        memcpy(group->kv_cache_dtype, said->kv_cache_dtype, BOOTSTRAP_DTYPE_SIZE);
    if (said->page_size >= 0 && said->page_size != group->page_size)
        LOG_WARNING(bootstrap,
                    "a rank registers page size %" PRId64 " in a group of page size %" PRId64
                    "; the first one stays",
                    said->page_size, group->page_size);
}

static bool table_reshape(struct bootstrap_table *table,
                          const struct bootstrap_registration *registration)
{
    const struct bootstrap_shape *shape = &registration->shape;
    uint32_t count = shape->dp * shape->cp * shape->tp * shape->pp;
    struct bootstrap_rank_entry *ranks = calloc(count, sizeof(*ranks));
    if (!ranks)
        return false;
    free(table->ranks);
    table->ranks = ranks;
    table->rank_count = count;
    table->ranks_present = 0;
    table->shape = *shape;
    table->founder = bootstrap_rank_slot(shape, &registration->rank);
    return true;
}

static void rank_store(struct bootstrap_table *table,
                       const struct bootstrap_registration *registration)
{
    uint32_t slot = bootstrap_rank_slot(&table->shape, &registration->rank);
    struct bootstrap_rank_entry *rank = &table->ranks[slot];
    bool fresh = !rank->serial || !rank_is_process(rank, registration);
    group_describe(&table->group, &registration->group, fresh && slot == table->founder);
    table->ranks_present += !rank->serial;
    LOG_INFO(bootstrap, "rank dp %u cp %u tp %u pp %u %s at %s, %u of %u registered",
             registration->rank.dp, registration->rank.cp, registration->rank.tp,
             registration->rank.pp, rank->serial ? "again" : "new",
             address_format(registration->ip, registration->port).text, table->ranks_present,
             table->rank_count);
    *rank = (struct bootstrap_rank_entry){
        .serial = ++table->serial, .epoch = registration->epoch, .port = registration->port};
    memcpy(rank->ip, registration->ip, sizeof(rank->ip));
}

static struct bootstrap_pending *pending_new(const struct bootstrap_table *table,
                                             const struct bootstrap_registration *registration,
                                             uint32_t count)
{
    struct bootstrap_pending *pending =
        malloc(sizeof(*pending) + count * sizeof(pending->endpoints[0]));
    if (!pending)
        return NULL;
    pending->registration = *registration;
    pending->count = doubts_collect(table, registration, NULL, pending->endpoints);
    return pending;
}

static void reply_changed(struct bootstrap_reply *reply)
{
    bootstrap_reply_text(reply, 503, "another process registered in the meantime; ask again");
}

/* gone: a question that was answered "all gone", or NULL when nobody has been asked yet. */
static struct bootstrap_pending *
registration_apply(struct bootstrap_table *table,
                   const struct bootstrap_registration *registration,
                   const struct bootstrap_pending *gone, struct bootstrap_reply *reply)
{
    uint32_t doubts = doubts_collect(table, registration, gone, NULL);
    if (doubts && !gone) {
        struct bootstrap_pending *pending = pending_new(table, registration, doubts);
        if (!pending)
            bootstrap_reply_text(reply, 500, "out of memory");
        return pending;
    }
    if (doubts) {
        reply_changed(reply);
        return NULL;
    }
    if (!shape_equal(&table->shape, &registration->shape) &&
        !table_reshape(table, registration)) {
        bootstrap_reply_text(reply, 500, "out of memory");
        return NULL;
    }
    rank_store(table, registration);
    bootstrap_reply_text(reply, 200, "OK");
    return NULL;
}

struct bootstrap_pending *bootstrap_route_put(struct bootstrap_table *table,
                                              const struct bootstrap_request *request,
                                              struct bootstrap_reply *reply)
{
    struct bootstrap_registration registration;
    json_t *json = bootstrap_body_parse(request, reply);
    if (!json)
        return NULL;
    bool ok = bootstrap_registration_read(json, &registration, reply);
    json_decref(json);
    return ok ? registration_apply(table, &registration, NULL, reply) : NULL;
}

uint32_t bootstrap_pending_count(const struct bootstrap_pending *pending)
{
    return pending->count;
}

const struct bootstrap_endpoint *
bootstrap_pending_endpoint(const struct bootstrap_pending *pending, uint32_t index)
{
    BATON_ASSERT(index < pending->count);
    return &pending->endpoints[index];
}

void bootstrap_pending_free(struct bootstrap_pending *pending)
{
    free(pending);
}

static void reply_conflict(const struct bootstrap_table *table,
                           const struct bootstrap_registration *registration,
                           const struct bootstrap_endpoint *alive,
                           struct bootstrap_reply *reply)
{
    const struct bootstrap_shape *new = &registration->shape, *old = &table->shape;
    const struct bootstrap_shape *rank = &registration->rank;
    struct address_text address = address_format(alive->ip, alive->port);
    char cp[32] = "";
    if (!shape_equal(new, old)) {
        bootstrap_reply_text(
            reply, 409,
            "this rank says dp %u x cp %u x tp %u x pp %u, but the group registered here is "
            "dp %u x cp %u x tp %u x pp %u and its process at %s lives; start all ranks of a "
            "group with the same sizes, or stop the old group first",
            new->dp, new->cp, new->tp, new->pp, old->dp, old->cp, old->tp, old->pp,
            address.text);
        return;
    }
    if (old->cp > 1)
        snprintf(cp, sizeof(cp), " cp %u", rank->cp);
    bootstrap_reply_text(
        reply, 409,
        "rank tp %u pp %u dp %u%s is already registered by a live process at %s; stop that "
        "one first, or start this one as another rank",
        rank->tp, rank->pp, rank->dp, cp, address.text);
}

static bool endpoint_current(const struct bootstrap_table *table,
                             const struct bootstrap_endpoint *endpoint)
{
    return endpoint->slot < table->rank_count &&
           table->ranks[endpoint->slot].serial == endpoint->serial;
}

void bootstrap_pending_finish(struct bootstrap_table *table, struct bootstrap_pending *pending,
                              int64_t alive, struct bootstrap_reply *reply)
{
    BATON_ASSERT(alive < (int64_t)pending->count);
    if (alive >= 0 && !endpoint_current(table, &pending->endpoints[alive])) {
        reply_changed(reply);
    } else if (alive >= 0) {
        reply_conflict(table, &pending->registration, &pending->endpoints[alive], reply);
        LOG_WARNING(bootstrap, "refused a registration from %s: %s",
                    address_format(pending->registration.ip, pending->registration.port).text,
                    reply->body ? reply->body : "");
    } else if (alive == BOOTSTRAP_UNKNOWN) {
        bootstrap_reply_text(
            reply, 503,
            "cannot find out now whether the process registered before for this rank lives; "
            "ask again");
    } else {
        registration_apply(table, &pending->registration, pending, reply);
    }
    free(pending);
}
