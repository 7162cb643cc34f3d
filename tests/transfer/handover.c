/* SPDX-License-Identifier: Apache-2.0 */
/* See handover.h. First the memory and its model, then what a side can do (tasks), then the
 * driver's half, last the certificates. */
#include "handover.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REGION_BASES_MAX 64u
#define REGION_MARGIN 104u /* noise before, between and behind the bases */

struct side_region {
    struct shape shape;
    baton_layout layout;
    baton_base bases[REGION_BASES_MAX];
    baton_pool *pool; /* NULL: malloc */
    uint8_t *memory, *expected;
    size_t bytes;
};

struct side_rank {
    baton_manager *manager;
    uint32_t index, tp_rank, pp_rank;
    struct side_region regions[SIDE_REGIONS_MAX];
    uint8_t *aux, *aux_expected;
};

struct side_trip {
    struct trip trip;
    baton_sender *senders[SIDE_RANKS_MAX];
    baton_receiver *receivers[SIDE_RANKS_MAX];
};

struct side {
    enum role role;
    const struct medium *medium;
    struct group groups[2]; /* both: the model wants to know what the other side has */
    uint32_t rank_count;
    struct side_rank ranks[SIDE_RANKS_MAX];
    baton_bootstrap *bootstrap_server;
    char bootstrap[64];
    struct side_trip *trips[SIDE_TRIPS_MAX];
};

static struct side sides[2];

static void answer_fail(struct answer *answer, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void answer_fail(struct answer *answer, int code, const char *format, ...)
{
    va_list args;
    if (answer->code)
        return; /* the first one is the reason */
    answer->code = code ? code : BATON_EINVAL;
    va_start(args, format);
    vsnprintf(answer->text, sizeof(answer->text), format, args);
    va_end(args);
}

uint32_t handover_wait_ms(void)
{
    const char *patience = getenv("FLEET_PATIENCE");
    int factor = patience ? atoi(patience) : 1;
    return 30000u * (uint32_t)(factor > 0 ? factor : 1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- values ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static void bytes_fill(uint8_t *to, size_t bytes, uint64_t key)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = mix(key + at);
        memcpy(to + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

static size_t field_bytes(const struct field *field)
{
    switch (field->dtype) {
    case BATON_DTYPE_F16:
    case BATON_DTYPE_BF16: return field->count * 2;
    case BATON_DTYPE_F32:
    case BATON_DTYPE_I32:
    case BATON_DTYPE_U32: return field->count * 4;
    case BATON_DTYPE_F64:
    case BATON_DTYPE_I64:
    case BATON_DTYPE_U64: return field->count * 8;
    default: return field->count;
    }
}

static uint64_t name_key(const char *name)
{
    uint64_t key = 0;
    while (*name)
        key = mix(key + (unsigned char)*name++);
    return key;
}

/* ---- a region's memory ------------------------------------------------------------------- */

static uint32_t ranks_of(const struct group *group)
{
    return group->tp_size * group->pp_size;
}

/* Tensor-parallel ranks share the heads out; where there are more ranks, neighbours have the
 * same. */
static void shape_heads(const struct shape *shape, uint32_t tp_size, uint32_t tp_rank,
                        uint32_t *first, uint32_t *count)
{
    *count = shape->heads >= tp_size ? shape->heads / tp_size : 1;
    *first = shape->heads >= tp_size ? tp_rank * *count : tp_rank * shape->heads / tp_size;
}

static uint64_t layout_strides(baton_layout *layout, enum shape_order order)
{
    uint64_t item_bytes = 0;
    if (order != ORDER_LAYER_BASES) {
        baton_layout_fill(layout, (int)order, &item_bytes);
        return item_bytes;
    }
    layout->token_stride = layout->head_bytes;
    layout->head_stride = layout->token_stride * layout->tokens_per_page;
    layout->kv_stride = layout->head_stride * layout->heads;
    layout->layer_stride = 0;
    item_bytes = layout->kv_stride * layout->kv;
    layout->page_stride = item_bytes;
    return item_bytes;
}

static uint32_t region_base_count(const struct side_region *region)
{
    const baton_layout *layout = &region->layout;
    switch (region->shape.order) {
    case ORDER_LAYER_MAJOR:
    case ORDER_HEAD_MAJOR: return 1;
    case ORDER_PER_LAYER:
    case ORDER_TOKEN_MAJOR: return layout->layers * layout->kv;
    default: return layout->layers;
    }
}

static void region_describe(struct side_region *region, const struct group *group,
                            const struct side_rank *rank)
{
    const struct shape *shape = &region->shape;
    baton_layout *layout = &region->layout;
    *layout = (baton_layout)BATON_LAYOUT_INIT;
    layout->pages = shape->pages;
    layout->layers = shape->layers / group->pp_size;
    layout->first_layer = rank->pp_rank * layout->layers;
    if (shape->order == ORDER_OPAQUE)
        return;
    layout->dtype = BATON_DTYPE_BF16;
    layout->tokens_per_page = shape->tokens_per_page;
    layout->kv = shape->kv;
    layout->head_bytes = shape->head_bytes;
    layout->total_heads = shape->heads;
    shape_heads(shape, group->tp_size, rank->tp_rank, &layout->first_head, &layout->heads);
}

static bool region_allocate(struct side_region *region, bool shared, struct answer *answer)
{
    char why[256] = "";
    int code;
    region->expected = malloc(region->bytes);
    if (!shared) {
        region->memory = malloc(region->bytes);
    } else if ((code = baton_pool_alloc(region->bytes, &region->pool, why, sizeof(why)))) {
        answer_fail(answer, code, "baton_pool_alloc: %s", why);
        return false;
    } else {
        region->memory = baton_pool_address(region->pool);
    }
    if (!region->memory || !region->expected)
        answer_fail(answer, BATON_ENOMEM, "out of memory for a region");
    return !answer->code;
}

static void region_open(struct side *side, struct side_rank *rank, uint32_t index,
                        struct answer *answer)
{
    const struct group *group = &side->groups[side->role];
    struct side_region *region = &rank->regions[index];
    *region = (struct side_region){.shape = group->regions[index]};
    region_describe(region, group, rank);
    bool opaque = region->shape.order == ORDER_OPAQUE;
    uint64_t item = opaque ? 0 : layout_strides(&region->layout, region->shape.order);
    uint64_t offsets[REGION_BASES_MAX];
    uint32_t bases = region_base_count(region);
    if (!opaque)
        region->layout.page_stride += region->shape.page_gap;
    region->bytes = REGION_MARGIN;
    for (uint32_t base = 0; base < bases; base++) {
        uint64_t stride = opaque ? region->shape.item_bytes[base] : region->layout.page_stride;
        offsets[base] = region->bytes;
        region->bases[base] = (baton_base){.bytes = stride * region->shape.pages,
                                           .item_bytes = opaque ? stride : item};
        region->bytes += region->bases[base].bytes + REGION_MARGIN;
    }
    bool shared = side->role == DECODE && strcmp(side->medium->carrier, "shm") == 0;
    if (!region_allocate(region, shared, answer))
        return;
    for (uint32_t base = 0; base < bases; base++)
        region->bases[base].address = region->memory + offsets[base];
    region->layout.bases = region->bases;
    region->layout.base_count = bases;
    bytes_fill(region->memory, region->bytes, mix(index + 77) + rank->index);
    memcpy(region->expected, region->memory, region->bytes);
}

static void region_close(struct side_region *region)
{
    free(region->expected);
    if (region->pool)
        baton_pool_free(region->pool);
    else
        free(region->memory);
    *region = (struct side_region){0};
}

/* Where (page, layer, k|v, head, token) is, counted from the start of the region's memory, as
 * baton.h says; layer and head are those of this rank. */
static size_t element_at(const struct side_region *region, uint32_t page, uint32_t layer,
                         uint32_t kv, uint32_t head, uint32_t token, size_t *bytes)
{
    const baton_layout *layout = &region->layout;
    uint32_t base = 0;
    size_t offset = 0;
    if (region->shape.order == ORDER_OPAQUE) {
        base = layer;
        *bytes = region->shape.item_bytes[layer];
        offset = page * *bytes;
    } else {
        bool layer_bases = region->shape.order >= ORDER_PER_LAYER;
        bool kv_bases = layer_bases && region->shape.order != ORDER_LAYER_BASES;
        base = (layer_bases ? layer : 0) + (kv_bases ? kv * layout->layers : 0);
        offset = page * layout->page_stride + (layer_bases ? 0 : layer * layout->layer_stride) +
                 (kv_bases ? 0 : kv * layout->kv_stride) + head * layout->head_stride +
                 token * layout->token_stride;
        *bytes = layout->head_bytes;
    }
    return (size_t)((uint8_t *)region->bases[base].address - region->memory) + offset;
}

/* Ranks use different pages of their regions for the same place in the sequence. */
static int32_t rank_page(const struct side_rank *rank, const struct shape *shape, int32_t page)
{
    if (page < 0 || (uint32_t)page >= shape->pages)
        return page; /* a test wants it refused */
    return (int32_t)(((uint32_t)page + rank->index * 5) % shape->pages);
}

/* Part of a sequence: list positions, layers of this rank, token positions. */
struct extent {
    const int32_t *pages;
    uint32_t first; /* token position of the list's first page */
    uint32_t from, to;
    uint32_t layer_from, layer_to;
    uint64_t begin, end;
};

/* Writes what the room says into what is expected, and into the memory too if asked to; returns
 * the number of bytes. */
static uint64_t region_write(const struct side_rank *rank, struct side_region *region,
                             uint64_t seed, const struct extent *extent, bool memory)
{
    const baton_layout *layout = &region->layout;
    bool opaque = region->shape.order == ORDER_OPAQUE;
    uint32_t tokens = opaque ? 1 : layout->tokens_per_page, kvs = opaque ? 1 : layout->kv;
    uint32_t heads = opaque ? 1 : layout->heads;
    uint64_t written = 0, region_key = mix(seed + name_key(region->shape.name));
    for (uint32_t i = extent->from; i < extent->to; i++) {
        uint32_t page = (uint32_t)rank_page(rank, &region->shape, extent->pages[i]);
        for (uint32_t layer = extent->layer_from; layer < extent->layer_to; layer++)
            for (uint32_t kv = 0; kv < kvs; kv++)
                for (uint32_t head = 0; head < heads; head++)
                    for (uint32_t token = 0; token < tokens; token++) {
                        uint64_t position = extent->first + (uint64_t)i * tokens + token;
                        uint64_t key = mix(region_key + (layout->first_layer + layer) * 2 + kv);
                        size_t bytes,
                            at = element_at(region, page, layer, kv, head, token, &bytes);
                        if (position < extent->begin || position >= extent->end)
                            continue;
                        key = mix(mix(key + layout->first_head + head) + position);
                        bytes_fill(region->expected + at, bytes, key);
                        if (memory)
                            memcpy(region->memory + at, region->expected + at, bytes);
                        written += bytes;
                    }
    }
    return written;
}

static uint32_t shape_tokens(const struct shape *shape)
{
    return shape->order == ORDER_OPAQUE ? 1 : shape->tokens_per_page;
}

/* ---- tasks: opening and closing ---------------------------------------------------------- */

struct open_order {
    struct group groups[2];
    char bootstrap[64];
};

static void rank_open_aux(struct side_rank *rank, const struct group *group,
                          struct answer *answer)
{
    size_t bytes = (size_t)group->aux_slots * group->aux_slot_bytes;
    rank->aux = malloc(bytes + 1);
    rank->aux_expected = malloc(bytes + 1);
    if (!rank->aux || !rank->aux_expected) {
        answer_fail(answer, BATON_ENOMEM, "out of memory for aux");
        return;
    }
    bytes_fill(rank->aux, bytes, mix(rank->index + 991));
    memcpy(rank->aux_expected, rank->aux, bytes);
}

static void medium_apply(const struct medium *medium, enum role role,
                         baton_manager_options *options, char paths[3][128])
{
    static const char *const files[] = {"certificate.pem", "key.pem", "ca.pem"};
    options->backends = medium->backends;
    options->tcp_streams = medium->tcp_streams;
    options->ib_device = medium->devices[role];
    options->verify = medium->verify;
    options->key = medium->key ? "a secret that both sides know" : NULL;
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], 128, "%s/%s", medium->tls_folder, files[i]);
    if (medium->tls) {
        options->tls_certificate = paths[0];
        options->tls_key = paths[1];
        options->tls_ca = paths[2];
    }
}

static void rank_open(struct side *side, struct side_rank *rank, struct answer *answer)
{
    const struct group *group = &side->groups[side->role];
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    baton_region regions[SIDE_REGIONS_MAX];
    baton_aux_field fields[GROUP_FIELDS_MAX];
    char paths[3][128], why[256] = "";
    for (uint32_t i = 0; i < group->region_count && !answer->code; i++) {
        region_open(side, rank, i, answer);
        regions[i] = (baton_region){.struct_size = sizeof(baton_region),
                                    .kind = group->regions[i].kind,
                                    .name = group->regions[i].name,
                                    .layout = rank->regions[i].layout};
    }
    rank_open_aux(rank, group, answer);
    if (answer->code)
        return;
    for (uint32_t i = 0; i < group->field_count; i++)
        fields[i] = (baton_aux_field){group->fields[i].name, group->fields[i].dtype,
                                      group->fields[i].count, group->fields[i].offset};
    /* A slot without fields is one field called "aux". */
    bool plain = group->field_count == 1 && strcmp(group->fields[0].name, "aux") == 0;
    baton_aux aux = {.struct_size = sizeof(aux),
                     .slots = group->aux_slots,
                     .address = rank->aux,
                     .slot_bytes = group->aux_slot_bytes,
                     .fields = fields,
                     .field_count = plain ? 0 : group->field_count};
    options.rank = rank->tp_rank;
    options.tp_size = group->tp_size;
    options.pp_rank = rank->pp_rank;
    options.pp_size = group->pp_size;
    options.host = "127.0.0.1";
    options.register_rank = side->role == PREFILL;
    options.bootstrap = side->bootstrap;
    options.fingerprint = "conformance";
    options.regions = regions;
    options.region_count = group->region_count;
    options.max_rooms = SIDE_TRIPS_MAX + 64;
    options.aux = group->aux_slots ? &aux : NULL;
    options.silent_ms = HANDOVER_WAIT_MS; /* a busy machine is not a dead peer */
    medium_apply(side->medium, side->role, &options, paths);
    int code = baton_manager_open(&options, &rank->manager, why, sizeof(why));
    if (code)
        answer_fail(answer, code, "baton_manager_open: %s", why);
}

static void side_open(struct side *side, const void *argument, struct answer *answer)
{
    const struct open_order *order = argument;
    char why[256] = "";
    memcpy(side->groups, order->groups, sizeof(side->groups));
    snprintf(side->bootstrap, sizeof(side->bootstrap), "%s", order->bootstrap);
    if (side->role == PREFILL) {
        int code =
            baton_bootstrap_open("127.0.0.1", 0, &side->bootstrap_server, why, sizeof(why));
        if (code) {
            answer_fail(answer, code, "baton_bootstrap_open: %s", why);
            return;
        }
        answer->number = baton_bootstrap_port(side->bootstrap_server);
        snprintf(side->bootstrap, sizeof(side->bootstrap), "127.0.0.1:%u",
                 (unsigned)answer->number);
    }
    const struct group *group = &side->groups[side->role];
    for (uint32_t i = 0; i < ranks_of(group) && !answer->code; i++) {
        struct side_rank *rank = &side->ranks[i];
        *rank = (struct side_rank){
            .index = i, .tp_rank = i % group->tp_size, .pp_rank = i / group->tp_size};
        side->rank_count = i + 1;
        rank_open(side, rank, answer);
    }
}

static void side_trip_close(struct side *side, uint32_t slot)
{
    struct side_trip *held = side->trips[slot];
    for (uint32_t i = 0; held && i < SIDE_RANKS_MAX; i++) {
        baton_sender_close(held->senders[i]);
        baton_receiver_close(held->receivers[i]);
        held->senders[i] = NULL;
        held->receivers[i] = NULL;
    }
}

static void side_lose_managers(struct side *side, const void *argument, struct answer *answer)
{
    (void)argument;
    (void)answer;
    for (uint32_t slot = 0; slot < SIDE_TRIPS_MAX; slot++)
        side_trip_close(side, slot);
    for (uint32_t i = 0; i < side->rank_count; i++) {
        baton_manager_close(side->ranks[i].manager);
        side->ranks[i].manager = NULL;
    }
}

static void side_close(struct side *side, const void *argument, struct answer *answer)
{
    side_lose_managers(side, argument, answer);
    for (uint32_t slot = 0; slot < SIDE_TRIPS_MAX; slot++) {
        free(side->trips[slot]);
        side->trips[slot] = NULL;
    }
    for (uint32_t i = 0; i < side->rank_count; i++) {
        struct side_rank *rank = &side->ranks[i];
        for (uint32_t r = 0; r < SIDE_REGIONS_MAX; r++)
            region_close(&rank->regions[r]);
        free(rank->aux);
        free(rank->aux_expected);
        *rank = (struct side_rank){0};
    }
    side->rank_count = 0;
    if (side->bootstrap_server)
        baton_bootstrap_close(side->bootstrap_server);
    side->bootstrap_server = NULL;
}

/* ---- tasks: checking --------------------------------------------------------------------- */

static void memory_compare(const struct side_rank *rank, const char *what,
                           const uint8_t *memory, const uint8_t *expected, size_t bytes,
                           struct answer *answer)
{
    size_t at = 0, wrong = 0;
    if (memcmp(memory, expected, bytes) == 0)
        return;
    while (memory[at] == expected[at])
        at++;
    for (size_t i = at; i < bytes; i++)
        wrong += memory[i] != expected[i];
    answer_fail(
        answer, BATON_ECORRUPT,
        "rank %u, %s: %zu of %zu bytes are not what they must be, the first at %zu: %02x "
        "instead of %02x",
        rank->index, what, wrong, bytes, at, memory[at], expected[at]);
}

/* Where a page lies in one of its bases, counted from the start of the region's memory. */
static size_t page_at(const struct side_rank *rank, const struct side_region *region,
                      uint32_t base, int32_t page)
{
    const baton_base *at = &region->bases[base];
    uint64_t stride =
        region->shape.order == ORDER_OPAQUE ? at->item_bytes : region->layout.page_stride;
    return (size_t)((uint8_t *)at->address - region->memory) +
           (uint32_t)rank_page(rank, &region->shape, page) * stride;
}

static void region_compare_page(const struct side_rank *rank, const struct side_region *region,
                                int32_t page, struct answer *answer)
{
    for (uint32_t base = 0; base < region->layout.base_count; base++) {
        size_t at = page_at(rank, region, base, page);
        memory_compare(rank, region->shape.name, region->memory + at, region->expected + at,
                       region->bases[base].item_bytes, answer);
    }
}

static void side_check_memory(struct side *side, const void *argument, struct answer *answer)
{
    const struct group *group = &side->groups[side->role];
    (void)argument;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        const struct side_rank *rank = &side->ranks[i];
        for (uint32_t r = 0; r < group->region_count; r++) {
            const struct side_region *region = &rank->regions[r];
            memory_compare(rank, region->shape.name, region->memory, region->expected,
                           region->bytes, answer);
        }
        memory_compare(rank, "aux", rank->aux, rank->aux_expected,
                       (size_t)group->aux_slots * group->aux_slot_bytes, answer);
    }
}

/* Slots come back to the manager a moment after the close. */
static void side_count(struct side *side, const void *argument, struct answer *answer)
{
    uint64_t until = now_ms() + HANDOVER_WAIT_MS;
    (void)argument;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        baton_counters *counters = &answer->counters[i];
        counters->struct_size = sizeof(*counters);
        if (!side->ranks[i].manager)
            continue;
        do {
            baton_manager_counters(side->ranks[i].manager, counters);
            if (counters->rooms_open)
                usleep(500);
        } while (counters->rooms_open && now_ms() < until);
        if (counters->rooms_open || counters->rooms_quarantined || counters->pages_quarantined)
            answer_fail(answer, BATON_EBUSY,
                        "rank %u still has %u rooms, %u rooms and %u pages in quarantine", i,
                        counters->rooms_open, counters->rooms_quarantined,
                        counters->pages_quarantined);
    }
}

/* ---- tasks: rooms ------------------------------------------------------------------------ */

struct trip_order {
    uint32_t slot;
    uint32_t ranks;
    uint32_t from, count, layer;
    bool last;
    int state;
    char text[128];
};

#define WAIT_ENDED 100
#define WAIT_FENCED 101

static bool wants_rank(uint32_t ranks, uint32_t index)
{
    return ranks >> index & 1;
}

static uint64_t pages_bound(const struct trip *trip, const struct trip_pages *pages)
{
    return trip->end && pages == &trip->kv ? trip->end : UINT64_MAX;
}

struct open_trip_order {
    struct trip trip;
    uint32_t ranks;
};

static int sender_open(struct side *side, struct side_trip *held, uint32_t rank, char *why,
                       size_t size)
{
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    options.room = held->trip.room;
    options.bootstrap = side->bootstrap;
    options.layerwise = held->trip.layerwise;
    return baton_sender_open(side->ranks[rank].manager, &options, &held->senders[rank], why,
                             size);
}

static int receiver_open(struct side *side, struct side_trip *held, uint32_t rank, char *why,
                         size_t size)
{
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    options.room = held->trip.room;
    options.bootstrap = side->bootstrap;
    return baton_receiver_open(side->ranks[rank].manager, &options, &held->receivers[rank], why,
                               size);
}

static void side_trip_open(struct side *side, const void *argument, struct answer *answer)
{
    const struct open_trip_order *order = argument;
    struct side_trip *held = side->trips[order->trip.slot];
    char why[256] = "";
    if (!held)
        held = side->trips[order->trip.slot] = calloc(1, sizeof(*held));
    if (!held) {
        answer_fail(answer, BATON_ENOMEM, "out of memory for a trip");
        return;
    }
    held->trip = order->trip;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        if (!wants_rank(order->ranks, i))
            continue;
        int code = side->role == PREFILL ? sender_open(side, held, i, why, sizeof(why))
                                         : receiver_open(side, held, i, why, sizeof(why));
        if (code)
            answer_fail(answer, code, "room %llu, rank %u: %s",
                        (unsigned long long)held->trip.room, i, why);
    }
}

/* This rank's page ids; the caller frees. */
static int32_t *rank_pages(const struct side_rank *rank, const struct shape *shape,
                           const int32_t *pages, uint32_t count)
{
    int32_t *mine = malloc((count + 1) * sizeof(*mine));
    for (uint32_t i = 0; mine && i < count; i++)
        mine[i] = rank_page(rank, shape, pages[i]);
    return mine;
}

static int sender_init(const struct side_rank *rank, const struct trip *trip,
                       baton_sender *sender)
{
    baton_sender_init_options options = BATON_SENDER_INIT_OPTIONS_INIT;
    options.pages = trip->kv.source_count;
    options.first_token = trip->kv.source_first;
    options.tokens = trip->end ? trip->end - trip->kv.source_first : 0;
    options.aux_slot = trip->source_aux;
    int code = baton_sender_init(sender, &options);
    for (uint32_t i = 0; i < trip->state_count && !code; i++) {
        const struct trip_pages *state = &trip->states[i];
        int32_t *pages = rank_pages(rank, &rank->regions[state->source_region].shape,
                                    state->source, state->source_count);
        code = baton_sender_state(sender, state->source_region, pages, state->source_count,
                                  state->source_first);
        free(pages);
    }
    return code;
}

static int receiver_init(const struct side_rank *rank, const struct trip *trip,
                         baton_receiver *receiver)
{
    baton_receiver_init_options options = BATON_RECEIVER_INIT_OPTIONS_INIT;
    baton_state_pages states[TRIP_STATES_MAX];
    int32_t *pages =
        rank_pages(rank, &rank->regions[0].shape, trip->kv.dest, trip->kv.dest_count);
    options.page_count = trip->kv.dest_count;
    options.pages = pages;
    options.prefix = trip->kv.dest_first;
    options.aux_slot = trip->dest_aux;
    options.states = states;
    options.state_count = trip->state_count;
    for (uint32_t i = 0; i < trip->state_count; i++) {
        const struct trip_pages *state = &trip->states[i];
        states[i] = (baton_state_pages){
            .region = state->dest_region,
            .first_token = state->dest_first,
            .pages = rank_pages(rank, &rank->regions[state->dest_region].shape, state->dest,
                                state->dest_count),
            .count = state->dest_count};
    }
    int code = baton_receiver_init(receiver, &options);
    for (uint32_t i = 0; i < trip->state_count; i++)
        free((void *)(uintptr_t)states[i].pages);
    free(pages);
    return code;
}

static void side_trip_init(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    for (uint32_t i = 0; i < side->rank_count; i++) {
        if (!wants_rank(order->ranks, i))
            continue;
        const struct side_rank *rank = &side->ranks[i];
        int code = side->role == PREFILL ? sender_init(rank, &held->trip, held->senders[i])
                                         : receiver_init(rank, &held->trip, held->receivers[i]);
        char why[256] = "";
        if (!code)
            continue;
        if (side->role == PREFILL)
            baton_sender_failure(held->senders[i], why, sizeof(why));
        else
            baton_receiver_failure(held->receivers[i], why, sizeof(why));
        answer_fail(answer, code, "init of room %llu on rank %u: %s %s",
                    (unsigned long long)held->trip.room, i, baton_error_name(code), why);
    }
}

/* What goes with the last chunk: states and aux. */
static void rank_write_last(struct side *side, struct side_rank *rank, const struct trip *trip)
{
    const struct group *group = &side->groups[PREFILL];
    for (uint32_t i = 0; i < trip->state_count; i++) {
        const struct trip_pages *state = &trip->states[i];
        struct side_region *region = &rank->regions[state->source_region];
        struct extent all = {.pages = state->source,
                             .first = state->source_first,
                             .to = state->source_count,
                             .layer_to = region->layout.layers,
                             .end = UINT64_MAX};
        region_write(rank, region, trip->seed, &all, true);
    }
    if (trip->source_aux < 0)
        return;
    size_t slot = (size_t)trip->source_aux * group->aux_slot_bytes;
    for (uint32_t i = 0; i < group->field_count; i++) {
        const struct field *field = &group->fields[i];
        bytes_fill(rank->aux + slot + field->offset, field_bytes(field),
                   mix(trip->seed + name_key(field->name)));
    }
    memcpy(rank->aux_expected + slot, rank->aux + slot, group->aux_slot_bytes);
}

static void side_send(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    const struct trip *trip = &held->trip;
    bool last = order->last || order->from + order->count == trip->kv.source_count;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        if (!wants_rank(order->ranks, i))
            continue;
        struct side_rank *rank = &side->ranks[i];
        struct side_region *region = &rank->regions[0];
        struct extent chunk = {.pages = trip->kv.source,
                               .first = trip->kv.source_first,
                               .from = order->from,
                               .to = order->from + order->count,
                               .layer_to = region->layout.layers,
                               .end = pages_bound(trip, &trip->kv)};
        if (!trip->layerwise)
            region_write(rank, region, trip->seed, &chunk, true);
        if (last)
            rank_write_last(side, rank, trip);
        int32_t *pages =
            rank_pages(rank, &region->shape, trip->kv.source + order->from, order->count);
        int code = baton_sender_send(held->senders[i], pages, order->count, order->last);
        free(pages);
        if (code)
            answer_fail(answer, code, "send of %u pages of room %llu on rank %u: %s",
                        order->count, (unsigned long long)trip->room, i,
                        baton_error_name(code));
    }
}

static void side_release(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    const struct trip *trip = &held->trip;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        struct side_rank *rank = &side->ranks[i];
        struct extent layer = {.pages = trip->kv.source,
                               .first = trip->kv.source_first,
                               .from = order->from,
                               .to = order->from + order->count,
                               .layer_from = order->layer,
                               .layer_to = order->layer + 1,
                               .end = pages_bound(trip, &trip->kv)};
        region_write(rank, &rank->regions[0], trip->seed, &layer, true);
        int code = baton_sender_layer_ready(held->senders[i], order->layer);
        if (code)
            answer_fail(answer, code, "layer_ready(%u) of room %llu on rank %u: %s",
                        order->layer, (unsigned long long)trip->room, i,
                        baton_error_name(code));
    }
}

static int held_state(const struct side *side, const struct side_trip *held, uint32_t rank)
{
    return side->role == PREFILL ? baton_sender_poll(held->senders[rank])
                                 : baton_receiver_poll(held->receivers[rank]);
}

static bool held_reached(const struct side *side, const struct side_trip *held, uint32_t rank,
                         int wanted)
{
    int state = held_state(side, held, rank);
    if (wanted == WAIT_FENCED)
        return side->role == PREFILL ? baton_sender_fenced(held->senders[rank])
                                     : baton_receiver_fenced(held->receivers[rank]);
    if (wanted == WAIT_ENDED)
        return state == BATON_FAILED || state == BATON_SUCCESS;
    return state == BATON_FAILED || state >= wanted;
}

static bool held_all_reached(const struct side *side, const struct side_trip *held,
                             const struct trip_order *order)
{
    for (uint32_t i = 0; i < side->rank_count; i++)
        if (wants_rank(order->ranks, i) && !held_reached(side, held, i, order->state))
            return false;
    return true;
}

/* Waits by the eventfds alone, so that a change they do not tell of is found. */
static void side_wait(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    struct pollfd fds[SIDE_RANKS_MAX];
    uint64_t until = now_ms() + HANDOVER_WAIT_MS;
    bool told = true;
    for (uint32_t i = 0; i < side->rank_count; i++)
        fds[i] = (struct pollfd){baton_manager_eventfd(side->ranks[i].manager), POLLIN, 0};
    for (;;) {
        uint64_t count;
        for (uint32_t i = 0; i < side->rank_count; i++)
            if (read(fds[i].fd, &count, sizeof(count)) < 0)
                count = 0; /* nothing had happened */
        bool reached = held_all_reached(side, held, order);
        if (reached && !told)
            answer_fail(answer, BATON_ESTATE,
                        "room %llu came to state %d, but the eventfd did not tell",
                        (unsigned long long)held->trip.room, order->state);
        if (reached)
            break;
        if (now_ms() > until) {
            answer_fail(answer, BATON_ETIMEOUT,
                        "room %llu did not come to state %d in %u ms, rank 0 is in state %d",
                        (unsigned long long)held->trip.room, order->state, HANDOVER_WAIT_MS,
                        held_state(side, held, 0));
            break;
        }
        told = poll(fds, side->rank_count, 3000) > 0;
    }
    for (uint32_t i = 0; i < side->rank_count; i++)
        if (wants_rank(order->ranks, i))
            answer->states[i] = held_state(side, held, i);
}

static void side_abort(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    for (uint32_t i = 0; i < side->rank_count; i++) {
        if (!wants_rank(order->ranks, i))
            continue;
        int code = side->role == PREFILL
                       ? baton_sender_abort(held->senders[i], order->text)
                       : baton_receiver_abort(held->receivers[i], order->text);
        if (code)
            answer_fail(answer, code, "abort: %s", baton_error_name(code));
    }
}

/* How it ended: reasons and timelines. */
static void side_report(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    for (uint32_t i = 0; i < side->rank_count; i++) {
        char *text = answer->failures[i];
        size_t size = sizeof(answer->failures[i]);
        baton_timeline *timeline = &answer->timelines[i];
        timeline->struct_size = sizeof(*timeline);
        answer->states[i] = held_state(side, held, i);
        answer->codes[i] = side->role == PREFILL
                               ? baton_sender_failure(held->senders[i], text, size)
                               : baton_receiver_failure(held->receivers[i], text, size);
        int code = side->role == PREFILL
                       ? baton_sender_timeline(held->senders[i], timeline)
                       : baton_receiver_timeline(held->receivers[i], timeline);
        if (code)
            answer_fail(answer, code, "no timeline of room %llu on rank %u: %s",
                        (unsigned long long)held->trip.room, i, baton_error_name(code));
    }
    for (uint32_t i = 0; side->role == PREFILL && i < side->rank_count; i++)
        answer->written += baton_sender_written(held->senders[i]);
    if (side->role == PREFILL)
        answer->number = baton_sender_prefix(held->senders[0]);
    for (uint32_t i = 0; side->role == DECODE && i < side->rank_count; i++) {
        int code = baton_receiver_landed(held->receivers[i], &answer->landed[i]);
        if (code != (answer->states[i] == BATON_FAILED ? BATON_OK : BATON_ESTATE))
            answer_fail(answer, code ? code : BATON_ESTATE, "what landed: %s",
                        baton_error_name(code));
    }
}

static void rank_accept_aux(struct side *side, struct side_rank *rank, const struct trip *trip)
{
    const struct group *source = &side->groups[PREFILL], *dest = &side->groups[DECODE];
    if (trip->source_aux < 0 || trip->dest_aux < 0)
        return;
    uint8_t *slot = rank->aux_expected + (size_t)trip->dest_aux * dest->aux_slot_bytes;
    for (uint32_t i = 0; i < dest->field_count; i++)
        for (uint32_t k = 0; k < source->field_count; k++)
            if (strcmp(dest->fields[i].name, source->fields[k].name) == 0)
                bytes_fill(slot + dest->fields[i].offset, field_bytes(&dest->fields[i]),
                           mix(trip->seed + name_key(dest->fields[i].name)));
}

/* The room succeeded: from now on its bytes are expected. number: how many. */
static void side_accept(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    const struct trip *trip = &held->trip;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        struct side_rank *rank = &side->ranks[i];
        for (uint32_t s = 0; s < trip->state_count + 1; s++) {
            const struct trip_pages *pages = s ? &trip->states[s - 1] : &trip->kv;
            struct side_region *region = &rank->regions[pages->dest_region];
            uint32_t tokens =
                shape_tokens(&side->groups[PREFILL].regions[pages->source_region]);
            struct extent extent = {.pages = pages->dest,
                                    .first = pages->dest_first,
                                    .to = pages->dest_count,
                                    .layer_to = region->layout.layers,
                                    .begin = pages->source_first,
                                    .end = pages->source_first +
                                           (uint64_t)pages->source_count * tokens};
            if (pages_bound(trip, pages) < extent.end)
                extent.end = pages_bound(trip, pages);
            answer->number += region_write(rank, region, trip->seed, &extent, false);
        }
        rank_accept_aux(side, rank, trip);
    }
}

/* Is every byte of the room's pages what it must be, now? */
static void side_check_trip(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    const struct trip *trip = &side->trips[order->slot]->trip;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        const struct side_rank *rank = &side->ranks[i];
        for (uint32_t s = 0; s < trip->state_count + 1; s++) {
            const struct trip_pages *pages = s ? &trip->states[s - 1] : &trip->kv;
            const struct side_region *region = &rank->regions[pages->dest_region];
            for (uint32_t k = 0; k < pages->dest_count; k++)
                region_compare_page(rank, region, pages->dest[k], answer);
        }
    }
}

/* The same of the first `count` tokens of a room that failed; the rest may be anything. */
static void side_check_landed(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    const struct trip *trip = &side->trips[order->slot]->trip;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        const struct side_rank *rank = &side->ranks[i];
        struct side_region *region = &side->ranks[i].regions[trip->kv.dest_region];
        const struct extent extent = {.pages = trip->kv.dest,
                                      .first = trip->kv.dest_first,
                                      .to = trip->kv.dest_count,
                                      .layer_to = region->layout.layers,
                                      .begin = trip->kv.dest_first,
                                      .end = order->count};
        for (uint32_t k = 0; k < trip->kv.dest_count; k++)
            for (uint32_t base = 0; base < region->layout.base_count; base++) {
                size_t at = page_at(rank, region, base, trip->kv.dest[k]);
                memcpy(region->expected + at, region->memory + at,
                       region->bases[base].item_bytes);
            }
        region_write(rank, region, trip->seed, &extent, false);
        for (uint32_t k = 0; k < trip->kv.dest_count; k++)
            region_compare_page(rank, region, trip->kv.dest[k], answer);
    }
}

static void region_renew(const struct side_rank *rank, struct side_region *region,
                         const int32_t *pages, uint32_t count, uint64_t key)
{
    /* Quickly, and from the end: that is where somebody who still stores is going. */
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = count; i-- > 0;)
            for (uint32_t base = 0; base < region->layout.base_count; base++)
                memset((pass ? region->expected : region->memory) +
                           page_at(rank, region, base, pages[i]),
                       (int)(mix(key + i) + base) & 0xff, region->bases[base].item_bytes);
}

/* The room failed and is fenced: its pages are ours again, and get new noise. */
static void side_renew(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    const struct trip *trip = &side->trips[order->slot]->trip;
    size_t slot_bytes = side->groups[DECODE].aux_slot_bytes;
    (void)answer;
    for (uint32_t i = 0; i < side->rank_count; i++) {
        struct side_rank *rank = &side->ranks[i];
        uint64_t key = mix(trip->seed + i);
        region_renew(rank, &rank->regions[0], trip->kv.dest, trip->kv.dest_count, key);
        for (uint32_t s = 0; s < trip->state_count; s++)
            region_renew(rank, &rank->regions[trip->states[s].dest_region],
                         trip->states[s].dest, trip->states[s].dest_count, key + s);
        if (trip->dest_aux >= 0) {
            uint8_t *slot = rank->aux + (size_t)trip->dest_aux * slot_bytes;
            bytes_fill(slot, slot_bytes, key);
            memcpy(rank->aux_expected + (slot - rank->aux), slot, slot_bytes);
        }
    }
}

static void held_spin(const struct side *side, const struct side_trip *held, int wanted,
                      struct answer *answer)
{
    struct trip_order order = {.ranks = ALL_RANKS, .state = wanted};
    uint64_t until = now_ms() + HANDOVER_WAIT_MS;
    while (!held_all_reached(side, held, &order)) {
        if (now_ms() > until) {
            answer_fail(answer, BATON_ETIMEOUT, "room %llu did not come to state %d",
                        (unsigned long long)held->trip.room, wanted);
            return;
        }
        sched_yield();
    }
}

/* The shortest way from an abort to the next use of the pages: end, fence, new noise, and a look
 * at it now and a little later. number: 1 when the room had succeeded instead. */
static void side_reclaim(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    struct side_trip *held = side->trips[order->slot];
    if (order->text[0]) {
        usleep(order->count);
        for (uint32_t i = 0; i < side->rank_count; i++)
            baton_receiver_abort(held->receivers[i], order->text);
    }
    held_spin(side, held, WAIT_ENDED, answer);
    answer->number = held_state(side, held, 0) == BATON_SUCCESS;
    if (answer->number || answer->code)
        return;
    held_spin(side, held, WAIT_FENCED, answer);
    if (answer->code)
        return;
    side_renew(side, argument, answer);
    side_check_trip(side, argument, answer);
    usleep(1000);
    side_check_trip(side, argument, answer);
}

static void side_close_trip(struct side *side, const void *argument, struct answer *answer)
{
    const struct trip_order *order = argument;
    (void)answer;
    side_trip_close(side, order->slot);
}

/* ---- tasks: poll sets -------------------------------------------------------------------- */

struct watch_order {
    uint32_t count, members;
    uint32_t slots[SIDE_TRIPS_MAX];
};

static int watch_add(struct side *side, baton_pollset *set, uint32_t group, uint32_t slot)
{
    struct side_trip *held = side->trips[slot];
    int code = 0;
    for (uint32_t i = 0; i < side->rank_count && !code; i++)
        code = side->role == PREFILL
                   ? baton_pollset_add_sender(set, group, held->senders[i])
                   : baton_pollset_add_receiver(set, group, held->receivers[i]);
    return code;
}

static bool watch_all(baton_pollset *set, uint32_t groups, struct answer *answer)
{
    uint8_t states[SIDE_TRIPS_MAX];
    uint64_t until = now_ms() + HANDOVER_WAIT_MS;
    uint32_t open = groups;
    while (open) {
        int changed = baton_pollset_wait(set, states, groups, 1000);
        open = 0;
        for (uint32_t i = 0; i < groups; i++) {
            open += states[i] != BATON_SUCCESS;
            if (states[i] == BATON_FAILED)
                answer_fail(answer, BATON_ESTATE, "a room of group %u failed", i);
        }
        if (changed < 0 || answer->code || (open && now_ms() > until)) {
            answer_fail(answer, BATON_ETIMEOUT, "%u groups are still open in the poll set",
                        open);
            return false;
        }
    }
    return true;
}

static void side_watch(struct side *side, const void *argument, struct answer *answer)
{
    const struct watch_order *order = argument;
    uint32_t groups = (order->count + order->members - 1) / order->members;
    uint8_t states[SIDE_TRIPS_MAX];
    baton_pollset *set = NULL;
    /* One group more, which stays empty. */
    int code = baton_pollset_open(groups + 1, &set);
    for (uint32_t i = 0; i < order->count && !code; i++)
        code = watch_add(side, set, i / order->members, order->slots[i]);
    if (code)
        answer_fail(answer, code, "cannot make a poll set: %s", baton_error_name(code));
    else if (watch_all(set, groups, answer)) {
        if (baton_poll_many(set, states, groups + 1) > 1 || states[groups] != BATON_SUCCESS)
            answer_fail(answer, BATON_ESTATE, "an empty group is in state %u", states[groups]);
        for (uint32_t i = 0; i < order->count; i++)
            for (uint32_t rank = 0; rank < side->rank_count; rank++)
                if (held_state(side, side->trips[order->slots[i]], rank) != BATON_SUCCESS)
                    answer_fail(answer, BATON_ESTATE, "group %u is through, but room %u is not",
                                i / order->members, i);
    }
    baton_pollset_close(set);
}

/* ---- two processes ----------------------------------------------------------------------- */

struct call {
    side_task task; /* NULL: end */
    size_t bytes;
};

static bool pipe_move(int fd, void *bytes, size_t count, bool out)
{
    for (size_t at = 0; at < count;) {
        ssize_t moved = out ? send(fd, (char *)bytes + at, count - at, MSG_NOSIGNAL)
                            : recv(fd, (char *)bytes + at, count - at, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return false;
        at += (size_t)moved;
    }
    return true;
}

static int side_serve(struct side *side, int fd)
{
    struct call call;
    struct answer answer;
    while (pipe_move(fd, &call, sizeof(call), false) && call.task) {
        void *argument = malloc(call.bytes + 1);
        if (!argument || !pipe_move(fd, argument, call.bytes, false)) {
            free(argument);
            return 1;
        }
        memset(&answer, 0, sizeof(answer));
        call.task(side, argument, &answer);
        free(argument);
        if (!pipe_move(fd, &answer, sizeof(answer), true))
            return 1;
    }
    return 0;
}

void handover_start(struct handover *handover, const struct medium *medium)
{
    int fds[2];
    *handover = (struct handover){.medium = *medium, .far_fd = -1, .random = 20240229};
    for (int role = 0; role < 2; role++)
        sides[role] = (struct side){.role = (enum role)role, .medium = &handover->medium};
    if (medium->one_process)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        perror("socketpair");
        exit(1);
    }
    handover->far_pid = fork();
    if (handover->far_pid < 0) {
        perror("fork");
        exit(1);
    }
    if (handover->far_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        exit(side_serve(&sides[PREFILL], fds[1])); /* exit: leaks are looked for there too */
    }
    close(fds[1]);
    handover->far_fd = fds[0];
}

int handover_stop(struct handover *handover)
{
    struct call end = {0};
    int status = 0;
    if (handover->far_fd < 0)
        return 0;
    pipe_move(handover->far_fd, &end, sizeof(end), true);
    close(handover->far_fd);
    waitpid(handover->far_pid, &status, 0);
    if (status)
        fprintf(stderr, "the process of the prefill side ended with %s %d\n",
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return status;
}

struct answer *handover_try(struct handover *handover, enum role role, side_task task,
                            const void *argument, size_t bytes)
{
    struct answer *answer = &handover->answer;
    struct call call = {task, bytes};
    memset(answer, 0, sizeof(*answer));
    if (role == DECODE || handover->medium.one_process) {
        task(&sides[role], argument, answer);
    } else if (!pipe_move(handover->far_fd, &call, sizeof(call), true) ||
               !pipe_move(handover->far_fd, (void *)(uintptr_t)argument, bytes, true) ||
               !pipe_move(handover->far_fd, answer, sizeof(*answer), false)) {
        memset(answer, 0, sizeof(*answer));
        answer_fail(answer, BATON_EPEER, "the process of the prefill side is gone");
    }
    return answer;
}

struct answer *handover_ask(struct handover *handover, enum role role, side_task task,
                            const void *argument, size_t bytes)
{
    struct answer *answer = handover_try(handover, role, task, argument, bytes);
    if (answer->code)
        fail_msg("%s: %s (%s)", role == PREFILL ? "prefill" : "decode", answer->text,
                 baton_error_name(answer->code));
    return answer;
}

static struct answer *trip_ask(struct handover *handover, const struct trip *trip,
                               enum role role, side_task task)
{
    struct trip_order order = {.slot = trip->slot, .ranks = ALL_RANKS};
    return handover_ask(handover, role, task, &order, sizeof(order));
}

/* ---- driver: groups ---------------------------------------------------------------------- */

uint64_t handover_draw(struct handover *handover, uint64_t below)
{
    return mix(handover->random++) % below;
}

void handover_open(struct handover *handover, const struct group *prefill,
                   const struct group *decode)
{
    struct open_order order = {.groups = {*prefill, *decode}};
    memcpy(handover->groups, order.groups, sizeof(handover->groups));
    handover->succeeded = handover->failed = handover->bytes = 0;
    handover->links_break = false;
    handover->open = true;
    struct answer *answer = handover_ask(handover, PREFILL, side_open, &order, sizeof(order));
    snprintf(order.bootstrap, sizeof(order.bootstrap), "127.0.0.1:%u",
             (unsigned)answer->number);
    handover_ask(handover, DECODE, side_open, &order, sizeof(order));
}

void handover_check_memory(struct handover *handover)
{
    handover_ask(handover, PREFILL, side_check_memory, NULL, 0);
    handover_ask(handover, DECODE, side_check_memory, NULL, 0);
}

static void counters_check(struct handover *handover, enum role role)
{
    const char *who = role == PREFILL ? "prefill" : "decode";
    struct answer *answer = handover_ask(handover, role, side_count, NULL, 0);
    uint32_t ranks = ranks_of(&handover->groups[role]);
    uint64_t succeeded = 0, failed = 0, sent = 0, received = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        const baton_counters *counters = &answer->counters[i];
        if (counters->frames_bad || counters->fallbacks || counters->links_refused)
            fail_msg("%s rank %u: %llu bad frames, %llu fallbacks, %llu links refused", who, i,
                     (unsigned long long)counters->frames_bad,
                     (unsigned long long)counters->fallbacks,
                     (unsigned long long)counters->links_refused);
        if (counters->links_lost && !handover->links_break)
            fail_msg("%s rank %u lost %llu links", who, i,
                     (unsigned long long)counters->links_lost);
        succeeded += counters->rooms_succeeded;
        failed += counters->rooms_failed;
        sent += counters->bytes_sent;
        received += counters->bytes_received;
    }
    uint64_t carried = role == PREFILL ? sent : received;
    if (handover->links_break)
        return; /* a manager that was closed took its counters with it */
    if (succeeded != handover->succeeded * ranks || failed != handover->failed * ranks)
        fail_msg(
            "%s counts %llu rooms succeeded and %llu failed on %u ranks, not %llu and %llu "
            "each",
            who, (unsigned long long)succeeded, (unsigned long long)failed, ranks,
            (unsigned long long)handover->succeeded, (unsigned long long)handover->failed);
    if (carried != handover->bytes)
        fail_msg("%s counts %llu bytes, the model %llu", who, (unsigned long long)carried,
                 (unsigned long long)handover->bytes);
}

static void handover_forget(struct handover *handover)
{
    for (uint32_t i = 0; i < SIDE_TRIPS_MAX; i++) {
        free(handover->trips[i]);
        handover->trips[i] = NULL;
    }
    memset(handover->used_pages, 0, sizeof(handover->used_pages));
    memset(handover->used_aux, 0, sizeof(handover->used_aux));
    memset(handover->used_slots, 0, sizeof(handover->used_slots));
    handover->open = false;
}

void handover_drop(struct handover *handover)
{
    if (!handover->open)
        return;
    handover_try(handover, DECODE, side_close, NULL, 0);
    handover_try(handover, PREFILL, side_close, NULL, 0);
    handover_forget(handover);
}

void handover_close(struct handover *handover)
{
    for (uint32_t i = 0; i < SIDE_TRIPS_MAX; i++)
        assert_null(handover->trips[i]);
    handover_check_memory(handover);
    counters_check(handover, PREFILL);
    counters_check(handover, DECODE);
    handover_drop(handover);
}

void handover_lose(struct handover *handover, enum role role)
{
    handover->links_break = true;
    handover_ask(handover, role, side_lose_managers, NULL, 0);
}

/* ---- driver: rooms ----------------------------------------------------------------------- */

/* A run upwards, a run downwards, or anywhere: what is contiguous on one side need not be on the
 * other. */
static void pages_draw(struct handover *handover, enum role role, uint32_t region,
                       uint32_t count, int32_t *out)
{
    bool *used = handover->used_pages[role][region];
    uint32_t pages = handover->groups[role].regions[region].pages;
    uint64_t manner = handover_draw(handover, 3), at = handover_draw(handover, pages);
    assert_in_range(pages, 1, SIDE_PAGES_MAX);
    assert_in_range(count, 0, TRIP_PAGES_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t tried = 0;
        if (manner == 2)
            at = handover_draw(handover, pages);
        while (used[at]) {
            if (++tried > pages)
                fail_msg("the test has no free page left in region %u", region);
            at = manner == 1 ? (at + pages - 1) % pages : (at + 1) % pages;
        }
        used[at] = true;
        out[i] = (int32_t)at;
    }
}

static int32_t aux_draw(struct handover *handover, enum role role)
{
    for (uint32_t i = 0; i < handover->groups[role].aux_slots; i++) {
        if (!handover->used_aux[role][i]) {
            handover->used_aux[role][i] = true;
            return (int32_t)i;
        }
    }
    return -1;
}

static struct trip *trip_place(struct handover *handover)
{
    uint32_t slot = 0;
    while (handover->used_slots[slot])
        slot++;
    assert_in_range(slot, 0, SIDE_TRIPS_MAX - 1);
    struct trip *trip = calloc(1, sizeof(*trip));
    assert_non_null(trip);
    handover->used_slots[slot] = true;
    handover->trips[slot] = trip;
    trip->slot = slot;
    return trip;
}

static void trip_draw(struct handover *handover, struct trip *trip)
{
    trip->room = 1000 + handover->rooms_used++;
    trip->seed = mix(trip->room);
    trip->receiver_first = handover_draw(handover, 2);
    trip->grant_late = handover_draw(handover, 2);
    trip->patient = handover_draw(handover, 2);
    trip->sender_open = trip->receiver_open = trip->announced = trip->granted = false;
    trip->sent = 0;
}

static uint32_t pages_between(uint32_t first, uint32_t end, const struct shape *shape)
{
    uint32_t tokens = shape_tokens(shape);
    return end > first ? (end - first + tokens - 1) / tokens : 0;
}

struct trip *trip_new(struct handover *handover, struct trip_options options)
{
    struct trip *trip = trip_place(handover);
    trip_draw(handover, trip);
    trip->end = options.whole_pages ? 0 : options.tokens;
    trip->layerwise = options.layerwise;
    trip->kv.source_first = options.first_token;
    trip->kv.dest_first = options.prefix;
    trip->kv.source_count = pages_between(options.first_token, options.tokens,
                                          &handover->groups[PREFILL].regions[0]);
    trip->kv.dest_count =
        pages_between(options.prefix, options.tokens, &handover->groups[DECODE].regions[0]);
    pages_draw(handover, PREFILL, 0, trip->kv.source_count, trip->kv.source);
    pages_draw(handover, DECODE, 0, trip->kv.dest_count, trip->kv.dest);
    trip->source_aux = options.no_aux ? -1 : aux_draw(handover, PREFILL);
    trip->dest_aux = options.no_aux ? -1 : aux_draw(handover, DECODE);
    return trip;
}

/* The bits of the pages stay set: the new trip has them. */
struct trip *trip_again(struct handover *handover, const struct trip *trip)
{
    struct trip copy = *trip;
    struct trip *again = trip_place(handover);
    uint32_t slot = again->slot;
    *again = copy;
    again->slot = slot;
    trip_draw(handover, again);
    for (uint32_t s = 0; s < again->state_count + 1; s++) {
        const struct trip_pages *pages = s ? &again->states[s - 1] : &again->kv;
        for (uint32_t i = 0; i < pages->source_count; i++)
            handover->used_pages[PREFILL][pages->source_region][pages->source[i]] = true;
        for (uint32_t i = 0; i < pages->dest_count; i++)
            handover->used_pages[DECODE][pages->dest_region][pages->dest[i]] = true;
    }
    if (again->source_aux >= 0)
        handover->used_aux[PREFILL][again->source_aux] = true;
    if (again->dest_aux >= 0)
        handover->used_aux[DECODE][again->dest_aux] = true;
    return again;
}

void trip_leave_source(struct handover *handover, struct trip *trip)
{
    /* The old ones stay marked as used. */
    pages_draw(handover, PREFILL, 0, trip->kv.source_count, trip->kv.source);
}

static uint32_t region_named(const struct group *group, const char *name)
{
    uint32_t region = 0;
    while (region < group->region_count && strcmp(group->regions[region].name, name) != 0)
        region++;
    assert_in_range(region, 1, group->region_count - 1);
    return region;
}

void trip_add_state(struct handover *handover, struct trip *trip, const char *name,
                    uint32_t source_first, uint32_t source_count, uint32_t dest_first,
                    uint32_t dest_count)
{
    assert_in_range(trip->state_count, 0, TRIP_STATES_MAX - 1);
    struct trip_pages *pages = &trip->states[trip->state_count++];
    pages->source_region = region_named(&handover->groups[PREFILL], name);
    pages->dest_region = region_named(&handover->groups[DECODE], name);
    pages->source_first = source_first;
    pages->source_count = source_count;
    pages->dest_first = dest_first;
    pages->dest_count = dest_count;
    pages_draw(handover, PREFILL, pages->source_region, source_count, pages->source);
    pages_draw(handover, DECODE, pages->dest_region, dest_count, pages->dest);
}

void trip_open(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks)
{
    struct open_trip_order order = {.trip = *trip, .ranks = ranks};
    *(role == PREFILL ? &trip->sender_open : &trip->receiver_open) = true;
    handover_ask(handover, role, side_trip_open, &order, sizeof(order));
}

int trip_try_init(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks)
{
    struct trip_order order = {.slot = trip->slot, .ranks = ranks};
    return handover_try(handover, role, side_trip_init, &order, sizeof(order))->code;
}

void trip_init(struct handover *handover, struct trip *trip, enum role role)
{
    *(role == PREFILL ? &trip->announced : &trip->granted) = true;
    trip_ask(handover, trip, role, side_trip_init);
}

void trip_renew(struct handover *handover, struct trip *trip)
{
    trip_ask(handover, trip, DECODE, side_renew);
}

void trip_start(struct handover *handover, struct trip *trip)
{
    if (trip->receiver_first)
        trip_open(handover, trip, DECODE, ALL_RANKS);
    if (trip->receiver_first && !trip->grant_late)
        trip_init(handover, trip, DECODE);
    trip_open(handover, trip, PREFILL, ALL_RANKS);
    trip_init(handover, trip, PREFILL);
    if (!trip->receiver_first)
        trip_open(handover, trip, DECODE, ALL_RANKS);
    if (trip->patient)
        assert_in_range(trip_wait(handover, trip, DECODE, BATON_WAITING_FOR_INPUT),
                        BATON_WAITING_FOR_INPUT, BATON_SUCCESS);
    if (!trip->granted && !trip->grant_late)
        trip_init(handover, trip, DECODE);
    if (trip->granted && trip->patient)
        assert_in_range(trip_wait(handover, trip, PREFILL, BATON_WAITING_FOR_INPUT),
                        BATON_WAITING_FOR_INPUT, BATON_SUCCESS);
}

void trip_send_from(struct handover *handover, struct trip *trip, uint32_t ranks, uint32_t from,
                    uint32_t count, bool last)
{
    struct trip_order order = {
        .slot = trip->slot, .ranks = ranks, .from = from, .count = count, .last = last};
    handover_ask(handover, PREFILL, side_send, &order, sizeof(order));
    trip->sent = from + count;
}

void trip_send(struct handover *handover, struct trip *trip, uint32_t count, bool last)
{
    trip_send_from(handover, trip, ALL_RANKS, trip->sent, count, last);
}

void trip_send_rest(struct handover *handover, struct trip *trip)
{
    trip_send(handover, trip, trip->kv.source_count - trip->sent, true);
}

void trip_release(struct handover *handover, struct trip *trip, uint32_t from, uint32_t layer)
{
    struct trip_order order = {
        .slot = trip->slot, .from = from, .count = trip->sent - from, .layer = layer};
    handover_ask(handover, PREFILL, side_release, &order, sizeof(order));
}

static int trip_wait_for(struct handover *handover, const struct trip *trip, enum role role,
                         int wanted)
{
    struct trip_order order = {.slot = trip->slot, .ranks = ALL_RANKS, .state = wanted};
    struct answer *answer = handover_ask(handover, role, side_wait, &order, sizeof(order));
    int least = BATON_SUCCESS;
    for (uint32_t i = 0; i < ranks_of(&handover->groups[role]); i++)
        if (answer->states[i] < least)
            least = answer->states[i];
    return least;
}

int trip_wait(struct handover *handover, struct trip *trip, enum role role, int state)
{
    return trip_wait_for(handover, trip, role, state);
}

int trip_wait_ended(struct handover *handover, struct trip *trip, enum role role)
{
    return trip_wait_for(handover, trip, role, WAIT_ENDED);
}

void trip_wait_fenced(struct handover *handover, struct trip *trip, enum role role)
{
    trip_wait_for(handover, trip, role, WAIT_FENCED);
}

int trip_abort(struct handover *handover, struct trip *trip, enum role role, uint32_t ranks,
               const char *reason)
{
    struct trip_order order = {.slot = trip->slot, .ranks = ranks};
    snprintf(order.text, sizeof(order.text), "%s", reason);
    return handover_try(handover, role, side_abort, &order, sizeof(order))->code;
}

/* ---- driver: how it must have ended ------------------------------------------------------ */

struct answer *trip_report(struct handover *handover, const struct trip *trip, enum role role)
{
    return trip_ask(handover, trip, role, side_report);
}

/* With how many ranks of the other side one rank deals, dummies included. */
static uint32_t peers_expected(const struct handover *handover, enum role role)
{
    const struct group *mine = &handover->groups[role], *theirs = &handover->groups[1 - role];
    uint32_t tp = theirs->tp_size > mine->tp_size ? theirs->tp_size / mine->tp_size : 1;
    uint32_t pp = theirs->pp_size > mine->pp_size ? theirs->pp_size / mine->pp_size : 1;
    return tp * pp;
}

static void timeline_check(struct handover *handover, enum role role, uint32_t rank,
                           const baton_timeline *timeline)
{
    const char *who = role == PREFILL ? "prefill" : "decode";
    if (timeline->state != BATON_SUCCESS)
        fail_msg("%s rank %u: the timeline says state %u", who, rank, timeline->state);
    if (!timeline->bootstrapped_ns || !timeline->granted_ns || !timeline->ended_ns)
        fail_msg("%s rank %u: the timeline lacks a time", who, rank);
    if (timeline->bootstrapped_ns > timeline->granted_ns ||
        timeline->granted_ns > timeline->ended_ns ||
        timeline->last_byte_ns > timeline->ended_ns)
        fail_msg("%s rank %u: the timeline's times are not in order", who, rank);
    if (timeline->peers != peers_expected(handover, role))
        fail_msg("%s rank %u: the timeline has %u peers, not %u", who, rank, timeline->peers,
                 peers_expected(handover, role));
    /* A rank that only has replicas to offer carries nothing, by no backend. */
    if (timeline->bytes && strcmp(timeline->backend, handover->medium.carrier) != 0)
        fail_msg("%s rank %u: '%s' carried the room (%s), not %s", who, rank, timeline->backend,
                 timeline->reason, handover->medium.carrier);
}

static uint64_t timelines_check(struct handover *handover, const struct trip *trip,
                                enum role role, uint64_t *operations)
{
    struct answer *answer = trip_report(handover, trip, role);
    uint32_t ranks = ranks_of(&handover->groups[role]);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        timeline_check(handover, role, i, &answer->timelines[i]);
        bytes += answer->timelines[i].bytes;
        *operations += answer->timelines[i].operations;
    }
    return bytes;
}

void trip_succeeded(struct handover *handover, struct trip *trip)
{
    uint64_t written = trip_ask(handover, trip, DECODE, side_accept)->number;
    uint64_t put = 0, got = 0;
    trip_ask(handover, trip, DECODE, side_check_trip);
    uint64_t sent = timelines_check(handover, trip, PREFILL, &put);
    uint32_t prefix = (uint32_t)handover->answer.number;
    uint64_t told = handover->answer.written;
    uint64_t received = timelines_check(handover, trip, DECODE, &got);
    handover->succeeded++;
    handover->bytes += written;
    if (sent != written || received != written)
        fail_msg("room %llu: the model has %llu bytes, the senders' timelines %llu, the "
                 "receivers' %llu",
                 (unsigned long long)trip->room, (unsigned long long)written,
                 (unsigned long long)sent, (unsigned long long)received);
    if (told != (handover->medium.reads ? 0 : written))
        fail_msg("room %llu: the senders say that they wrote %llu bytes of %llu",
                 (unsigned long long)trip->room, (unsigned long long)told,
                 (unsigned long long)written);
    /* Who executes the copies counts them. */
    if (!handover->medium.reads && put != got)
        fail_msg("room %llu: senders count %llu operations, receivers %llu",
                 (unsigned long long)trip->room, (unsigned long long)put,
                 (unsigned long long)got);
    if (!got != !written)
        fail_msg("room %llu: %llu bytes in %llu operations", (unsigned long long)trip->room,
                 (unsigned long long)written, (unsigned long long)got);
    if (prefix != trip->kv.dest_first)
        fail_msg("room %llu: the sender sees a prefix of %u tokens, decode said %u",
                 (unsigned long long)trip->room, prefix, trip->kv.dest_first);
    trip_wait_fenced(handover, trip, DECODE);
    trip_wait_fenced(handover, trip, PREFILL);
}

static void state_expect(struct handover *handover, struct trip *trip, enum role role,
                         int wanted)
{
    int state = trip_wait_ended(handover, trip, role);
    if (state == wanted)
        return;
    struct answer *answer = trip_report(handover, trip, role);
    for (uint32_t i = 0; i < ranks_of(&handover->groups[role]); i++)
        if (answer->states[i] != wanted)
            fail_msg("room %llu on %s rank %u ended as %s: %s (%s)",
                     (unsigned long long)trip->room, role == PREFILL ? "prefill" : "decode", i,
                     baton_state_name(answer->states[i]), answer->failures[i],
                     baton_error_name(answer->codes[i]));
}

void trip_succeed(struct handover *handover, struct trip *trip)
{
    if (!trip->granted)
        trip_init(handover, trip, DECODE);
    state_expect(handover, trip, DECODE, BATON_SUCCESS);
    state_expect(handover, trip, PREFILL, BATON_SUCCESS);
    trip_succeeded(handover, trip);
}

static void failure_check(struct handover *handover, const struct trip *trip, enum role role,
                          int code, const char *text)
{
    const char *who = role == PREFILL ? "prefill" : "decode";
    struct answer *answer = trip_report(handover, trip, role);
    for (uint32_t i = 0; i < ranks_of(&handover->groups[role]); i++) {
        if (answer->codes[i] != code || !strstr(answer->failures[i], text))
            fail_msg("room %llu failed on %s rank %u with %s '%s', not with %s '%s'",
                     (unsigned long long)trip->room, who, i, baton_error_name(answer->codes[i]),
                     answer->failures[i], baton_error_name(code), text);
        if (answer->timelines[i].state != BATON_FAILED || !answer->timelines[i].ended_ns)
            fail_msg("room %llu on %s rank %u: the timeline does not say that it failed",
                     (unsigned long long)trip->room, who, i);
    }
}

void trip_fail(struct handover *handover, struct trip *trip, int code, const char *text)
{
    for (int role = 0; role < 2; role++) {
        if (!(role == PREFILL ? trip->sender_open : trip->receiver_open))
            continue;
        if (trip_wait_ended(handover, trip, (enum role)role) != BATON_FAILED)
            fail_msg("room %llu succeeded", (unsigned long long)trip->room);
        failure_check(handover, trip, (enum role)role, code, text);
        trip_wait_fenced(handover, trip, (enum role)role);
    }
    handover->failed++;
    if (trip->receiver_open)
        trip_renew(handover, trip);
}

uint32_t trip_landed(struct handover *handover, const struct trip *trip)
{
    const struct answer *report = trip_report(handover, trip, DECODE);
    struct trip_order order = {.slot = trip->slot, .count = report->landed[0]};
    for (uint32_t i = 1; i < ranks_of(&handover->groups[DECODE]); i++)
        if (report->landed[i] < order.count)
            order.count = report->landed[i];
    handover_ask(handover, DECODE, side_check_landed, &order, sizeof(order));
    return order.count;
}

bool trip_reclaim(struct handover *handover, struct trip *trip, uint32_t delay_us,
                  const char *reason)
{
    struct trip_order order = {.slot = trip->slot, .count = delay_us};
    snprintf(order.text, sizeof(order.text), "%s", reason ? reason : "");
    return !handover_ask(handover, DECODE, side_reclaim, &order, sizeof(order))->number;
}

void trip_close_end(struct handover *handover, struct trip *trip, enum role role)
{
    *(role == PREFILL ? &trip->sender_open : &trip->receiver_open) = false;
    trip_ask(handover, trip, role, side_close_trip);
}

static void pages_return(struct handover *handover, const struct trip_pages *pages)
{
    for (uint32_t i = 0; i < pages->source_count; i++)
        handover->used_pages[PREFILL][pages->source_region][pages->source[i]] = false;
    for (uint32_t i = 0; i < pages->dest_count; i++)
        handover->used_pages[DECODE][pages->dest_region][pages->dest[i]] = false;
}

void trip_close(struct handover *handover, struct trip *trip)
{
    if (trip->sender_open)
        trip_close_end(handover, trip, PREFILL);
    if (trip->receiver_open)
        trip_close_end(handover, trip, DECODE);
    pages_return(handover, &trip->kv);
    for (uint32_t i = 0; i < trip->state_count; i++)
        pages_return(handover, &trip->states[i]);
    if (trip->source_aux >= 0)
        handover->used_aux[PREFILL][trip->source_aux] = false;
    if (trip->dest_aux >= 0)
        handover->used_aux[DECODE][trip->dest_aux] = false;
    handover->used_slots[trip->slot] = false;
    handover->trips[trip->slot] = NULL;
    free(trip);
}

void trip_run(struct handover *handover, struct trip *trip)
{
    trip_start(handover, trip);
    trip_send_rest(handover, trip);
    trip_succeed(handover, trip);
    trip_close(handover, trip);
}

void trips_watch(struct handover *handover, enum role role, struct trip **trips, uint32_t count,
                 uint32_t members)
{
    struct watch_order order = {.count = count, .members = members};
    for (uint32_t i = 0; i < count; i++)
        order.slots[i] = trips[i]->slot;
    handover_ask(handover, role, side_watch, &order, sizeof(order));
}

/* ---- the medium -------------------------------------------------------------------------- */

int medium_parse(int argc, char **argv, struct medium *out)
{
    *out = (struct medium){0};
    if (argc < 2)
        return -1;
    snprintf(out->backends, sizeof(out->backends), "%s", argv[1]);
    const char *name = argv[1];
    if (strncmp(name, "faulty:", 7) == 0)
        name += 7;
    snprintf(out->carrier, sizeof(out->carrier), "%.*s", (int)strcspn(name, ":"), name);
    out->one_process = strcmp(out->carrier, "loopback") == 0;
    out->reads = strcmp(out->carrier, "cma") == 0 || strcmp(out->carrier, "verbs-read") == 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "here") == 0)
            out->one_process = true;
        else if (strcmp(argv[i], "key") == 0)
            out->key = true;
        else if (strcmp(argv[i], "verify") == 0)
            out->verify = true;
        else if (strcmp(argv[i], "tls") == 0)
            out->tls = true;
        else if (strncmp(argv[i], "only=", 5) == 0)
            cmocka_set_test_filter(argv[i] + 5);
        else if (strncmp(argv[i], "streams=", 8) == 0)
            out->tcp_streams = (uint32_t)strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "prefill=", 8) == 0)
            snprintf(out->devices[PREFILL], sizeof(out->devices[0]), "%s", argv[i] + 8);
        else if (strncmp(argv[i], "decode=", 7) == 0)
            snprintf(out->devices[DECODE], sizeof(out->devices[0]), "%s", argv[i] + 7);
        else
            return -1;
    }
    return 0;
}

/* ---- certificates ------------------------------------------------------------------------ */

static X509 *certificate_new(EVP_PKEY *key, const char *name, long serial)
{
    X509 *certificate = X509_new();
    if (!certificate)
        return NULL;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    return certificate;
}

static bool certificate_sign(X509 *certificate, X509 *issuer, EVP_PKEY *issuer_key,
                             bool authority)
{
    X509V3_CTX context;
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(
        NULL, &context, NID_basic_constraints, authority ? "critical,CA:TRUE" : "CA:FALSE");
    if (!extension)
        return false;
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    return X509_sign(certificate, issuer_key, EVP_sha256()) > 0;
}

static FILE *folder_create(const char *folder, const char *name)
{
    char path[192];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return fopen(path, "w");
}

static bool certificate_write(const char *folder, const char *name, X509 *certificate)
{
    FILE *file = folder_create(folder, name);
    bool done = file && PEM_write_X509(file, certificate);
    return file && fclose(file) == 0 && done;
}

static bool key_write(const char *folder, const char *name, EVP_PKEY *key)
{
    FILE *file = folder_create(folder, name);
    bool done = file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    return file && fclose(file) == 0 && done;
}

int certificates_make(const char *folder)
{
    EVP_PKEY *authority_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
    X509 *authority =
        authority_key ? certificate_new(authority_key, "test authority", 1) : NULL;
    X509 *certificate = key ? certificate_new(key, "test rank", 2) : NULL;
    bool done = authority && certificate &&
                certificate_sign(authority, authority, authority_key, true) &&
                certificate_sign(certificate, authority, authority_key, false) &&
                certificate_write(folder, "ca.pem", authority) &&
                certificate_write(folder, "certificate.pem", certificate) &&
                key_write(folder, "key.pem", key);
    X509_free(authority);
    X509_free(certificate);
    EVP_PKEY_free(authority_key);
    EVP_PKEY_free(key);
    return done ? 0 : -1;
}
