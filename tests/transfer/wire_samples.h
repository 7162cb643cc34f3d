/* SPDX-License-Identifier: Apache-2.0 */
/* Random frames that are right in every respect, one maker per frame, and what the wire's tests do
 * with any frame. The storage that a frame points into belongs to the sample and is freed with it.
 * Everything is random from one seed, which is printed; BATON_SEED=n repeats a run. */
#ifndef BATON_TESTS_WIRE_SAMPLES_H
#define BATON_TESTS_WIRE_SAMPLES_H

#include "wire_recode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <cmocka.h>

struct sample {
    uint64_t random; /* the generator's state, not 0 */
    void *blocks[512];
    size_t block_count;
};

static inline uint64_t sample_u64(struct sample *sample)
{
    sample->random ^= sample->random << 13; /* xorshift64 */
    sample->random ^= sample->random >> 7;
    sample->random ^= sample->random << 17;
    return sample->random * 0x9e3779b97f4a7c15u;
}

static inline uint64_t sample_seed(void)
{
    static uint64_t seed;
    if (!seed) {
        const char *given = getenv("BATON_SEED");
        seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
        printf("BATON_SEED=%llu\n", (unsigned long long)seed);
        fflush(stdout);
    }
    return seed;
}

static inline struct sample sample_start(uint64_t salt)
{
    struct sample sample = {.random = (sample_seed() * 0x9e3779b97f4a7c15u + salt) | 1};
    for (int i = 0; i < 8; i++)
        sample_u64(&sample);
    return sample;
}

static inline uint32_t sample_u32(struct sample *sample)
{
    return (uint32_t)(sample_u64(sample) >> 32);
}

static inline uint32_t sample_below(struct sample *sample, uint32_t limit)
{
    return sample_u32(sample) % limit;
}

static inline uint64_t sample_room(struct sample *sample)
{
    return sample_below(sample, 8) ? sample_u64(sample) >> 1 : (uint64_t)INT64_MAX;
}

static inline void *sample_block(struct sample *sample, size_t size)
{
    void *block = calloc(1, size ? size : 1);
    if (!block || sample->block_count == sizeof(sample->blocks) / sizeof(sample->blocks[0]))
        abort();
    sample->blocks[sample->block_count++] = block;
    return block;
}

static inline void sample_free(struct sample *sample)
{
    while (sample->block_count)
        free(sample->blocks[--sample->block_count]);
}

static inline uint8_t *sample_bytes(struct sample *sample, size_t size)
{
    uint8_t *bytes = sample_block(sample, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)sample_u32(sample);
    return bytes;
}

/* Text of at most max bytes, with characters of one to four bytes. */
static inline struct wire_string sample_text(struct sample *sample, size_t max)
{
    static const char *const characters[] = {"a",
                                             "Z",
                                             " ",
                                             "7",
                                             "~",
                                             "\xc3\xa4",
                                             "\xe2\x82\xac",
                                             "\xf0\x9f\x8f\x83",
                                             "\xc2\xa0",
                                             "\xed\x9f\xbf"};
    size_t goal = sample_below(sample, (uint32_t)max + 1), size = 0;
    char *text = sample_block(sample, max + 1);
    for (;;) {
        const char *next = characters[sample_below(sample, 10)];
        if (size + strlen(next) > goal)
            return (struct wire_string){text, (uint32_t)size};
        memcpy(text + size, next, strlen(next));
        size += strlen(next);
    }
}

static inline struct wire_pages sample_pages(struct sample *sample, uint32_t count)
{
    int32_t *pages = sample_block(sample, count * sizeof(*pages));
    for (uint32_t i = 0; i < count; i++)
        pages[i] = (int32_t)(sample_u32(sample) & INT32_MAX);
    return (struct wire_pages){(const uint8_t *)pages, count};
}

static inline uint32_t sample_states(struct sample *sample, struct wire_state_pages *states)
{
    uint32_t count = sample_below(sample, 4);
    for (uint32_t i = 0; i < count; i++)
        states[i] =
            (struct wire_state_pages){1 + i * 5 + sample_below(sample, 5), sample_u32(sample),
                                      sample_pages(sample, sample_below(sample, 5))};
    return count;
}

static inline struct wire_hello sample_hello(struct sample *sample)
{
    struct wire_hello hello = {
        .kind = sample_below(sample, 2) ? WIRE_KIND_LINK : WIRE_KIND_STREAM,
        .rank = sample_u32(sample),
        .tp_size = sample_u32(sample),
        .pp_rank = sample_u32(sample),
        .pp_size = sample_u32(sample),
        .dp_rank = sample_u32(sample),
        .pid = sample_u32(sample),
        .authenticate = sample_below(sample, 2),
        .process = sample_u64(sample),
        .session = sample_u64(sample),
        .expected_epoch = sample_u64(sample),
        .host_id = sample_text(sample, WIRE_TEXT_MAX),
        .unix_name = sample_text(sample, 107),
    };
    if (hello.kind == WIRE_KIND_STREAM)
        hello.stream = (uint16_t)sample_below(sample, WIRE_STREAMS_MAX);
    memcpy(hello.nonce, sample_bytes(sample, WIRE_NONCE_BYTES), WIRE_NONCE_BYTES);
    return hello;
}

static inline struct wire_proof sample_proof(struct sample *sample)
{
    struct wire_proof proof;
    memcpy(proof.proof, sample_bytes(sample, WIRE_PROOF_BYTES), WIRE_PROOF_BYTES);
    return proof;
}

/* A sound layout: one of the four usual orders, or opaque. */
static inline struct layout sample_layout(struct sample *sample)
{
    uint32_t order = sample_below(sample, 5);
    uint32_t layers = 1 + sample_below(sample, 4), kv = 1 + sample_below(sample, 2);
    uint64_t item_bytes = 1 + sample_below(sample, 4096);
    baton_layout layout = BATON_LAYOUT_INIT;
    layout.memory = sample_below(sample, 2);
    layout.dtype = sample_below(sample, BATON_DTYPE_U64 + 1);
    layout.pages = 1 + sample_below(sample, 1000);
    layout.layers = layers;
    layout.first_layer = sample_below(sample, 100);
    layout.kv = kv;
    if (order < 4) {
        layout.tokens_per_page = 1u << sample_below(sample, 7);
        layout.heads = 1 + sample_below(sample, 8);
        layout.first_head = sample_below(sample, 8);
        layout.total_heads = layout.heads + layout.first_head + sample_below(sample, 8);
        layout.head_bytes = 1 + sample_below(sample, 256);
        if (baton_layout_fill(&layout, (int)order, &item_bytes))
            abort();
    }
    uint32_t count = order == 4 ? layers : order < 2 ? 1 : layers * kv;
    baton_base *bases = sample_block(sample, count * sizeof(*bases));
    for (uint32_t i = 0; i < count; i++)
        bases[i] =
            (baton_base){(void *)(uintptr_t)(1 + (sample_u64(sample) >> 8)),
                         layout.pages * item_bytes + sample_below(sample, 64), item_bytes};
    layout.bases = bases;
    layout.base_count = count;

    struct layout out;
    char text[256];
    if (layout_from_public(&layout, &out, ERROR_BUFFER(text))) {
        fprintf(stderr, "sample_layout: %s\n", text);
        abort();
    }
    sample->blocks[sample->block_count++] = out.bases;
    return out;
}

static inline void sample_name(char *out, size_t size, const char *stem, uint32_t number)
{
    memset(out, 0, size);
    snprintf(out, size, "%s%u", stem, number % 100);
}

static inline struct wire_register sample_register(struct sample *sample)
{
    static const uint32_t sizes[] = {1, 1, 1, 1, 1, 2, 2, 4, 8, 4, 4, 8, 8};
    struct wire_register frame = {0};
    wire_string_copy(sample_text(sample, WIRE_NAME_MAX - 1), frame.fingerprint, WIRE_NAME_MAX);
    frame.region_count = sample_below(sample, 5);
    for (uint32_t i = 0; i < frame.region_count; i++) {
        sample_name(frame.regions[i].name, WIRE_NAME_MAX, "region \xc3\xa4 ", i);
        frame.regions[i].kind = sample_below(sample, BATON_REGION_SEQUENCE + 1);
        frame.regions[i].layout = sample_layout(sample);
    }
    frame.aux_slots = sample_below(sample, 4);
    for (uint32_t i = 0; frame.aux_slots && i < 3; i++) {
        struct wire_aux_field *field = &frame.aux_fields[frame.aux_field_count++];
        sample_name(field->name, WIRE_NAME_MAX, "field", i);
        field->dtype = sample_below(sample, BATON_DTYPE_U64 + 1);
        field->count = 1 + sample_below(sample, 100);
        field->offset = frame.aux_slot_bytes;
        frame.aux_slot_bytes += (uint64_t)field->count * sizes[field->dtype];
    }
    frame.backend_count = sample_below(sample, WIRE_BACKENDS_MAX + 1);
    for (uint32_t i = 0; i < frame.backend_count; i++) {
        sample_name(frame.backends[i].name, sizeof(frame.backends[i].name), "backend", i);
        frame.backends[i].key_bytes = sample_below(sample, 50);
        frame.backends[i].key = sample_bytes(sample, frame.backends[i].key_bytes);
    }
    frame.attach = sample_below(sample, 2);
    frame.verify = sample_below(sample, 2);
    return frame;
}

static inline struct wire_choice sample_choice(struct sample *sample)
{
    if (sample_below(sample, 2))
        return (struct wire_choice){-(int32_t)(1 + sample_below(sample, 18)),
                                    {"", 0},
                                    sample_text(sample, WIRE_TEXT_MAX)};
    return (struct wire_choice){0, {"shm", 3}, sample_text(sample, WIRE_TEXT_MAX)};
}

static inline struct wire_open sample_open(struct sample *sample)
{
    return (struct wire_open){sample_room(sample), sample_u32(sample), sample_u32(sample),
                              sample_u32(sample),  sample_u32(sample), sample_u32(sample)};
}

static inline struct wire_grant sample_grant(struct sample *sample)
{
    struct wire_grant grant = {
        .room = sample_room(sample),
        .ticket = sample_u32(sample),
        .flags = sample_below(sample, 2) ? WIRE_GRANT_DUMMY : 0,
        .time_left_ms = sample_u32(sample),
        .rank = sample_u32(sample),
        .required_dst = sample_u32(sample),
        .prefix = sample_u32(sample),
        .aux_slot = (int32_t)sample_below(sample, INT32_MAX) - 1,
        .pages = sample_pages(sample, sample_below(sample, 40)),
    };
    grant.state_count = sample_states(sample, grant.states);
    return grant;
}

static inline struct wire_commit sample_commit(struct sample *sample)
{
    struct wire_commit commit = {
        .room = sample_room(sample),
        .ticket = sample_u32(sample),
        .flags = sample_below(sample, 4),
        .watermark = sample_u64(sample),
        .aux_bytes = sample_u32(sample),
        .sum = sample_u64(sample),
        .lane_count = sample_below(sample, WIRE_STREAMS_MAX + 1),
    };
    for (uint32_t i = 0; i < commit.lane_count; i++)
        commit.lanes[i] =
            (struct wire_lane){sample_u64(sample), sample_u64(sample), sample_u64(sample)};
    if (!(commit.flags & WIRE_COMMIT_SOURCE))
        return commit;
    commit.first_token = sample_u32(sample);
    commit.tokens = sample_u32(sample);
    commit.page_offset = sample_u32(sample) / 2;
    commit.pages = sample_pages(sample, sample_below(sample, 40));
    commit.total_pages = commit.page_offset + commit.pages.count + sample_below(sample, 9);
    if (commit.flags & WIRE_COMMIT_LAST)
        commit.state_count = sample_states(sample, commit.states);
    return commit;
}

static inline struct wire_aux sample_aux(struct sample *sample)
{
    struct wire_aux aux = {sample_room(sample), sample_u32(sample), sample_u32(sample) / 2,
                           NULL, sample_below(sample, 300)};
    aux.bytes = sample_bytes(sample, aux.length);
    return aux;
}

static inline struct wire_room sample_room_frame(struct sample *sample)
{
    return (struct wire_room){sample_room(sample), sample_u32(sample)};
}

static inline struct wire_abort sample_abort(struct sample *sample)
{
    return (struct wire_abort){sample_room(sample), sample_u32(sample),
                               -(int32_t)(1 + sample_below(sample, INT32_MAX)),
                               sample_text(sample, WIRE_TEXT_MAX)};
}

static inline struct wire_heartbeat sample_heartbeat(struct sample *sample)
{
    return (struct wire_heartbeat){sample_u64(sample), sample_u32(sample)};
}

static inline struct wire_bye sample_bye(struct sample *sample)
{
    return (struct wire_bye){-(int32_t)sample_below(sample, 19),
                             sample_text(sample, WIRE_TEXT_MAX)};
}

static inline struct wire_signal sample_signal(struct sample *sample)
{
    struct wire_signal signal = {NULL, sample_below(sample, 300)};
    signal.bytes = sample_bytes(sample, signal.length);
    return signal;
}

static inline struct wire_attach sample_attach(struct sample *sample)
{
    return (struct wire_attach){sample_u64(sample), sample_below(sample, WIRE_FDS_MAX + 1)};
}

/* Fills runs and returns how many; *bytes is their sum. */
static inline uint32_t sample_runs(struct sample *sample, struct wire_data_run *runs,
                                   uint64_t *bytes)
{
    uint32_t count =
        1 + sample_below(sample, sample_below(sample, 8) ? 20 : WIRE_DATA_RUNS_MAX);
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        runs[i] = (struct wire_data_run){
            (uint16_t)sample_u32(sample), (uint16_t)sample_u32(sample),
            1 + sample_below(sample, UINT32_MAX), sample_u64(sample) >> 1};
        *bytes += runs[i].length;
    }
    return count;
}

/* ---- any frame ---- */

static inline struct wire_header header_of(uint16_t type)
{
    return (struct wire_header){
        .type = type, .sequence = 0x01020304, .epoch = 0x1112131415161718u};
}

/* Appends one random, correct frame of the type. */
static inline void frame_make(struct sample *sample, uint16_t type, struct wire_buffer *out)
{
    struct wire_header header = header_of(type);
    switch (type) {
#define MAKE(name, frame, make)                  \
    case name: {                                 \
        struct wire_##frame made = make(sample); \
        wire_##frame##_put(out, header, &made);  \
        break;                                   \
    }
        MAKE(WIRE_HELLO, hello, sample_hello)
        MAKE(WIRE_PROOF, proof, sample_proof)
        MAKE(WIRE_REGISTER, register, sample_register)
        MAKE(WIRE_CHOICE, choice, sample_choice)
        MAKE(WIRE_OPEN, open, sample_open)
        MAKE(WIRE_GRANT, grant, sample_grant)
        MAKE(WIRE_COMMIT, commit, sample_commit)
        MAKE(WIRE_AUX, aux, sample_aux)
        MAKE(WIRE_LANDED, room, sample_room_frame)
        MAKE(WIRE_ABORT, abort, sample_abort)
        MAKE(WIRE_FENCED, room, sample_room_frame)
        MAKE(WIRE_QUERY, room, sample_room_frame)
        MAKE(WIRE_HEARTBEAT, heartbeat, sample_heartbeat)
        MAKE(WIRE_BYE, bye, sample_bye)
        MAKE(WIRE_ATTACH, attach, sample_attach)
        MAKE(WIRE_SIGNAL, signal, sample_signal)
#undef MAKE
    case WIRE_DATA: {
        struct wire_data_run runs[WIRE_DATA_RUNS_MAX];
        uint64_t bytes;
        uint32_t count = sample_runs(sample, runs, &bytes);
        recode_data_append(out, header, sample_u32(sample), bytes, runs, count);
        break;
    }
    default: fail();
    }
    assert_false(out->failed);
}

/* Decodes from a block of exactly this size, so that a sanitizer sees one byte too far. */
static inline int decode(uint16_t type, const uint8_t *payload, size_t length,
                         struct wire_buffer *again, char *text, size_t text_size)
{
    uint8_t *block = malloc(length ? length : 1);
    if (length)
        memcpy(block, payload, length);
    int rc =
        wire_recode(header_of(type), block, length, again, (struct error){text, text_size});
    free(block);
    return rc;
}

static inline void assert_string_same(struct wire_string a, struct wire_string b)
{
    assert_int_equal(a.length, b.length);
    if (a.length)
        assert_memory_equal(a.bytes, b.bytes, a.length);
}

/* Checks the header of the frame in the buffer and returns its payload. */
static inline const uint8_t *payload_of(const struct wire_buffer *buffer, uint16_t type,
                                        size_t *length)
{
    struct wire_header header;
    char text[256] = "";
    assert_false(buffer->failed);
    int rc = wire_header_get(buffer->bytes, &header, ERROR_BUFFER(text));
    assert_string_equal(text, "");
    assert_int_equal(rc, 0);
    assert_int_equal(header.version, WIRE_VERSION);
    assert_int_equal(header.type, type);
    assert_int_equal(header.sequence, 0x01020304);
    assert_true(header.epoch == 0x1112131415161718u);
    assert_int_equal(header.length, buffer->size - WIRE_HEADER_BYTES);
    *length = header.length;
    return buffer->bytes + WIRE_HEADER_BYTES;
}

#endif
