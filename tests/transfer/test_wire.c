/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format: what is encoded comes back, what is cut or bent does not get in unseen, and the
 * bytes stay the ones that other releases expect. (Each single rule: test_wire_limits.c.)
 *
 * With BATON_WIRE_CORPUS=folder the program writes the fuzzer's first inputs there instead, see
 * fuzz/fuzz_wire.c. */
#include "wire_samples.h"

#define ROUNDS 200

/* ---- what goes in comes out ------------------------------------------------------------------ */

/* native: as encoded, wired: as decoded. */
static void assert_pages_same(struct wire_pages native, struct wire_pages wired)
{
    assert_int_equal(native.count, wired.count);
    int32_t *copy = calloc(wired.count + 1, sizeof(*copy));
    wire_pages_copy(wired, copy);
    if (native.count)
        assert_memory_equal(copy, native.bytes, native.count * sizeof(*copy));
    free(copy);
}

static void assert_states_same(const struct wire_state_pages *native,
                               const struct wire_state_pages *wired, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(native[i].region, wired[i].region);
        assert_int_equal(native[i].first_token, wired[i].first_token);
        assert_pages_same(native[i].pages, wired[i].pages);
    }
}

/* Encodes a random frame, decodes it into `out`, and leaves `in` as it was encoded. */
#define ROUND_TRIP(frame, type_name, make, in, out)                         \
    struct wire_##frame in = make(&sample), out;                            \
    struct wire_buffer buffer = {0};                                        \
    wire_##frame##_put(&buffer, header_of(type_name), &in);                 \
    size_t length;                                                          \
    const uint8_t *payload = payload_of(&buffer, type_name, &length);       \
    char text[256] = "";                                                    \
    int rc = wire_##frame##_get(payload, length, &out, ERROR_BUFFER(text)); \
    assert_string_equal(text, "");                                          \
    assert_int_equal(rc, 0)

#define SAME(field) assert_true(in.field == out.field)

static void hello_round(struct sample sample)
{
    ROUND_TRIP(hello, WIRE_HELLO, sample_hello, in, out);
    SAME(kind);
    SAME(stream);
    SAME(rank);
    SAME(tp_size);
    SAME(pp_rank);
    SAME(pp_size);
    SAME(dp_rank);
    SAME(pid);
    SAME(authenticate);
    SAME(process);
    SAME(session);
    SAME(expected_epoch);
    assert_memory_equal(in.nonce, out.nonce, WIRE_NONCE_BYTES);
    assert_string_same(in.host_id, out.host_id);
    assert_string_same(in.unix_name, out.unix_name);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void proof_round(struct sample sample)
{
    ROUND_TRIP(proof, WIRE_PROOF, sample_proof, in, out);
    assert_memory_equal(in.proof, out.proof, WIRE_PROOF_BYTES);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void assert_layout_same(const struct layout *in, const struct layout *out)
{
    struct layout a = *in, b = *out;
    a.bases = b.bases = NULL;
    assert_int_equal(a.memory, b.memory);
    assert_int_equal(a.dtype, b.dtype);
    assert_int_equal(a.pages, b.pages);
    assert_int_equal(a.tokens_per_page, b.tokens_per_page);
    assert_int_equal(a.layers, b.layers);
    assert_int_equal(a.first_layer, b.first_layer);
    assert_int_equal(a.kv, b.kv);
    assert_int_equal(a.heads, b.heads);
    assert_int_equal(a.first_head, b.first_head);
    assert_int_equal(a.total_heads, b.total_heads);
    assert_int_equal(a.head_bytes, b.head_bytes);
    assert_true(a.page_stride == b.page_stride);
    assert_true(a.layer_stride == b.layer_stride);
    assert_true(a.kv_stride == b.kv_stride);
    assert_true(a.head_stride == b.head_stride);
    assert_true(a.token_stride == b.token_stride);
    assert_int_equal(a.base_count, b.base_count);
    assert_memory_equal(in->bases, out->bases, a.base_count * sizeof(*in->bases));
}

static void register_round(struct sample sample)
{
    ROUND_TRIP(register, WIRE_REGISTER, sample_register, in, out);
    assert_string_equal(in.fingerprint, out.fingerprint);
    SAME(region_count);
    for (uint32_t i = 0; i < in.region_count; i++) {
        assert_string_equal(in.regions[i].name, out.regions[i].name);
        SAME(regions[i].kind);
        assert_layout_same(&in.regions[i].layout, &out.regions[i].layout);
    }
    SAME(aux_slots);
    SAME(aux_slot_bytes);
    SAME(aux_field_count);
    for (uint32_t i = 0; i < in.aux_field_count; i++) {
        assert_string_equal(in.aux_fields[i].name, out.aux_fields[i].name);
        SAME(aux_fields[i].dtype);
        SAME(aux_fields[i].count);
        SAME(aux_fields[i].offset);
    }
    SAME(backend_count);
    for (uint32_t i = 0; i < in.backend_count; i++) {
        assert_string_equal(in.backends[i].name, out.backends[i].name);
        SAME(backends[i].key_bytes);
        if (in.backends[i].key_bytes)
            assert_memory_equal(in.backends[i].key, out.backends[i].key,
                                in.backends[i].key_bytes);
    }
    SAME(attach);
    SAME(verify);
    wire_register_free(&out);
    assert_int_equal(out.region_count, 0);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void choice_round(struct sample sample)
{
    ROUND_TRIP(choice, WIRE_CHOICE, sample_choice, in, out);
    SAME(code);
    assert_string_same(in.backend, out.backend);
    assert_string_same(in.text, out.text);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void open_round(struct sample sample)
{
    ROUND_TRIP(open, WIRE_OPEN, sample_open, in, out);
    SAME(room);
    SAME(ticket);
    SAME(time_left_ms);
    SAME(queue_position);
    SAME(rank);
    SAME(required_dst);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void grant_round(struct sample sample)
{
    ROUND_TRIP(grant, WIRE_GRANT, sample_grant, in, out);
    SAME(room);
    SAME(ticket);
    SAME(flags);
    SAME(time_left_ms);
    SAME(rank);
    SAME(required_dst);
    SAME(prefix);
    SAME(aux_slot);
    assert_pages_same(in.pages, out.pages);
    SAME(state_count);
    assert_states_same(in.states, out.states, in.state_count);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void commit_round(struct sample sample)
{
    ROUND_TRIP(commit, WIRE_COMMIT, sample_commit, in, out);
    SAME(room);
    SAME(ticket);
    SAME(flags);
    SAME(watermark);
    SAME(aux_bytes);
    SAME(sum);
    SAME(lane_count);
    for (uint32_t i = 0; i < in.lane_count; i++) {
        SAME(lanes[i].bytes);
        SAME(lanes[i].operations);
        SAME(lanes[i].landings);
    }
    SAME(total_pages);
    SAME(first_token);
    SAME(tokens);
    SAME(page_offset);
    assert_pages_same(in.pages, out.pages);
    SAME(state_count);
    assert_states_same(in.states, out.states, in.state_count);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void aux_round(struct sample sample)
{
    ROUND_TRIP(aux, WIRE_AUX, sample_aux, in, out);
    SAME(room);
    SAME(ticket);
    SAME(offset);
    SAME(length);
    if (in.length)
        assert_memory_equal(in.bytes, out.bytes, in.length);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void room_round(struct sample sample)
{
    static const uint16_t types[] = {WIRE_LANDED, WIRE_FENCED, WIRE_QUERY};
    uint16_t type = types[sample_below(&sample, 3)];
    ROUND_TRIP(room, type, sample_room_frame, in, out);
    SAME(room);
    SAME(ticket);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void abort_round(struct sample sample)
{
    ROUND_TRIP(abort, WIRE_ABORT, sample_abort, in, out);
    SAME(room);
    SAME(ticket);
    SAME(code);
    assert_string_same(in.text, out.text);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void heartbeat_round(struct sample sample)
{
    ROUND_TRIP(heartbeat, WIRE_HEARTBEAT, sample_heartbeat, in, out);
    SAME(tick);
    SAME(rooms);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void bye_round(struct sample sample)
{
    ROUND_TRIP(bye, WIRE_BYE, sample_bye, in, out);
    SAME(code);
    assert_string_same(in.text, out.text);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void signal_round(struct sample sample)
{
    ROUND_TRIP(signal, WIRE_SIGNAL, sample_signal, in, out);
    SAME(length);
    assert_memory_equal(in.bytes, out.bytes, in.length);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void attach_round(struct sample sample)
{
    ROUND_TRIP(attach, WIRE_ATTACH, sample_attach, in, out);
    SAME(session);
    SAME(fd_count);
    wire_buffer_free(&buffer);
    sample_free(&sample);
}

static void data_round(struct sample sample)
{
    struct wire_data_run runs[WIRE_DATA_RUNS_MAX], run;
    uint64_t bytes;
    uint32_t count = sample_runs(&sample, runs, &bytes);
    struct wire_buffer buffer = {0};
    recode_data_append(&buffer, header_of(WIRE_DATA), 77, bytes, runs, count);
    size_t length;
    const uint8_t *payload = payload_of(&buffer, WIRE_DATA, &length);
    struct wire_data data;
    assert_int_equal(wire_data_get(payload, length, &data, ERROR_NONE), 0);
    assert_int_equal(data.ticket, 77);
    assert_int_equal(data.run_count, count);
    assert_true(data.bytes == bytes);
    for (uint32_t i = 0; i < count; i++) {
        wire_data_run_get(data.runs + i * WIRE_DATA_RUN_BYTES, &run);
        assert_memory_equal(&run, &runs[i], sizeof(run));
    }
    wire_buffer_free(&buffer);
}

static void test_frames_come_back_equal(void **state)
{
    (void)state;
    static void (*const rounds[])(struct sample) = {
        hello_round,     proof_round,  register_round, choice_round, open_round,
        grant_round,     commit_round, aux_round,      room_round,   abort_round,
        heartbeat_round, bye_round,    attach_round,   data_round,   signal_round,
    };
    for (uint64_t i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++)
        for (uint64_t round = 0; round < ROUNDS; round++)
            rounds[i](sample_start(i << 32 | round));
}

static void test_frames_have_one_spelling(void **state)
{
    (void)state;
    for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
        for (uint64_t round = 0; round < ROUNDS; round++) {
            struct sample sample = sample_start((uint64_t)type << 40 | round);
            struct wire_buffer first = {0}, again = {0};
            frame_make(&sample, type, &first);
            int rc = decode(type, first.bytes + WIRE_HEADER_BYTES,
                            first.size - WIRE_HEADER_BYTES, &again, NULL, 0);
            assert_int_equal(rc, 0);
            assert_int_equal(again.size, first.size);
            assert_memory_equal(again.bytes, first.bytes, first.size);
            wire_buffer_free(&first);
            wire_buffer_free(&again);
            sample_free(&sample);
        }
    }
}

/* ---- the bytes themselves: a change here is a new WIRE_VERSION ------------------------------- */

#define HEADER_GOLDEN(type, length)                                                         \
    'B', 'A', 'T', 'N', 1, 0, type, 0, length, 0, 0, 0, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, \
        0x14, 0x13, 0x12, 0x11

static void assert_golden(struct wire_buffer *buffer, const uint8_t *golden, size_t size)
{
    assert_false(buffer->failed);
    assert_int_equal(buffer->size, size);
    assert_memory_equal(buffer->bytes, golden, size);
    wire_buffer_free(buffer);
}

static void test_hello_has_these_bytes(void **state)
{
    (void)state;
    /* clang-format off */
    static const uint8_t golden[] = {
        HEADER_GOLDEN(1, 86),
        2, 0, 3, 0,                                           /* kind, stream */
        1, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0,       /* rank, tp_size, pp_rank, pp_size */
        7, 0, 0, 0, 0xd2, 4, 0, 0, 1, 0, 0, 0,                /* dp_rank, pid, authenticate */
        8, 7, 6, 5, 4, 3, 2, 1,                               /* process */
        9, 0, 0, 0, 0, 0, 0, 0,                               /* session */
        10, 0, 0, 0, 0, 0, 0, 0x80,                           /* expected_epoch */
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, /* nonce */
        4, 0, 0, 0, 'h', 'o', 's', 't',                       /* host_id */
        2, 0, 0, 0, 'u', 'x',                                 /* unix_name */
    };
    /* clang-format on */
    struct wire_hello hello = {
        .kind = WIRE_KIND_STREAM,
        .stream = 3,
        .rank = 1,
        .tp_size = 4,
        .pp_rank = 5,
        .pp_size = 6,
        .dp_rank = 7,
        .pid = 1234,
        .authenticate = 1,
        .process = 0x0102030405060708u,
        .session = 9,
        .expected_epoch = 0x800000000000000au,
        .nonce = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        .host_id = wire_string_of("host"),
        .unix_name = wire_string_of("ux"),
    };
    struct wire_buffer buffer = {0};
    wire_hello_put(&buffer, header_of(0), &hello);
    assert_golden(&buffer, golden, sizeof(golden));
}

static void test_grant_has_these_bytes(void **state)
{
    (void)state;
    /* clang-format off */
    static const uint8_t golden[] = {
        HEADER_GOLDEN(6, 68),
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,       /* room */
        0xef, 0xbe, 0xad, 0xde,                               /* ticket */
        1, 0, 0, 0, 0x30, 0x75, 0, 0,                         /* flags, time_left_ms */
        2, 0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0,                  /* rank, required_dst, prefix */
        0xff, 0xff, 0xff, 0xff,                               /* aux_slot */
        2, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0,                   /* pages */
        1, 0, 0, 0,                                           /* states */
        5, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0,       /* region, first_token, pages */
    };
    /* clang-format on */
    int32_t pages[] = {7, 256};
    struct wire_grant grant = {
        .room = INT64_MAX,
        .ticket = 0xdeadbeef,
        .flags = WIRE_GRANT_DUMMY,
        .time_left_ms = 30000,
        .rank = 2,
        .required_dst = 3,
        .prefix = 16,
        .aux_slot = -1,
        .pages = {(const uint8_t *)pages, 2},
        .states = {{5, 9, {(const uint8_t *)pages, 1}}},
        .state_count = 1,
    };
    struct wire_buffer buffer = {0};
    wire_grant_put(&buffer, header_of(0), &grant);
    assert_golden(&buffer, golden, sizeof(golden));
}

static void test_commit_has_these_bytes(void **state)
{
    (void)state;
    /* clang-format off */
    static const uint8_t golden[] = {
        HEADER_GOLDEN(7, 92),
        1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0,       /* room, ticket, flags */
        4, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0,                   /* watermark, aux_bytes */
        6, 0, 0, 0, 0, 0, 0, 2,                               /* sum */
        1, 0, 0, 0,                                           /* lanes */
        7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,       /* bytes, operations */
        9, 0, 0, 0, 0, 0, 0, 0,                               /* landings */
        10, 0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 0,    /* total, first, tokens, offset */
        1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f,                   /* pages */
        0, 0, 0, 0,                                           /* states */
    };
    /* clang-format on */
    int32_t page = INT32_MAX;
    struct wire_commit commit = {
        .room = 1,
        .ticket = 2,
        .flags = WIRE_COMMIT_LAST | WIRE_COMMIT_SOURCE,
        .watermark = 0x0100000000000004u,
        .aux_bytes = 5,
        .sum = 0x0200000000000006u,
        .lanes = {{7, 8, 9}},
        .lane_count = 1,
        .total_pages = 10,
        .first_token = 11,
        .tokens = 12,
        .page_offset = 9,
        .pages = {(const uint8_t *)&page, 1},
    };
    struct wire_buffer buffer = {0};
    wire_commit_put(&buffer, header_of(0), &commit);
    assert_golden(&buffer, golden, sizeof(golden));
}

static void test_data_has_these_bytes(void **state)
{
    (void)state;
    /* clang-format off */
    static const uint8_t golden[] = {
        HEADER_GOLDEN(15, 48),
        1, 2, 3, 4, 2, 0, 0, 0, 0xff, 0, 0, 0, 1, 0, 0, 0,    /* ticket, run_count, bytes */
        1, 0, 2, 0, 0, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0x40,    /* region, base, length, offset */
        0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
    };
    /* clang-format on */
    struct wire_data_run runs[] = {{1, 2, 256, 0x4000000000000003u},
                                   {0xffff, 0xfffe, UINT32_MAX, 0}};
    struct wire_buffer buffer = {0};
    recode_data_append(&buffer, header_of(0), 0x04030201, 0x1000000ffu, runs, 2);
    assert_golden(&buffer, golden, sizeof(golden));
}

/* ---- cut, lengthened, bent ------------------------------------------------------------------- */

static void test_every_truncation_is_refused(void **state)
{
    (void)state;
    for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
        for (uint64_t round = 0; round < 4; round++) {
            struct sample sample = sample_start((uint64_t)type << 48 | round);
            struct wire_buffer frame = {0}, again = {0};
            frame_make(&sample, type, &frame);
            for (size_t size = 0; size < frame.size - WIRE_HEADER_BYTES; size++) {
                char text[256] = "";
                int rc = decode(type, frame.bytes + WIRE_HEADER_BYTES, size, &again, text,
                                sizeof(text));
                assert_int_equal(rc, BATON_EPROTOCOL);
                assert_non_null(strstr(text, "bad "));
            }
            assert_int_equal(again.size, 0);
            wire_buffer_free(&frame);
            wire_buffer_free(&again);
            sample_free(&sample);
        }
    }
}

static void test_bytes_after_the_last_field_are_refused(void **state)
{
    (void)state;
    for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
        struct sample sample = sample_start(type);
        struct wire_buffer frame = {0}, again = {0};
        frame_make(&sample, type, &frame);
        size_t length = frame.size - WIRE_HEADER_BYTES;
        uint8_t *longer = calloc(1, length + 16);
        memcpy(longer, frame.bytes + WIRE_HEADER_BYTES, length);
        assert_int_equal(decode(type, longer, length, &again, NULL, 0), 0);
        for (size_t more = 1; more <= 16; more++)
            assert_int_equal(decode(type, longer, length + more, &again, NULL, 0),
                             BATON_EPROTOCOL);
        free(longer);
        wire_buffer_free(&frame);
        wire_buffer_free(&again);
        sample_free(&sample);
    }
}

/* A flipped bit gives another correct frame or a refusal, never a third thing. */
static void test_bit_flips_do_no_harm(void **state)
{
    (void)state;
    for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
        struct sample sample = sample_start((uint64_t)type << 24);
        struct wire_buffer frame = {0};
        frame_make(&sample, type, &frame);
        uint8_t *payload = frame.bytes + WIRE_HEADER_BYTES;
        size_t length = frame.size - WIRE_HEADER_BYTES;
        for (size_t bit = 0; bit < length * 8; bit++) {
            struct wire_buffer again = {0};
            char text[256] = "";
            payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
            int rc = decode(type, payload, length, &again, text, sizeof(text));
            if (rc) {
                assert_int_equal(rc, BATON_EPROTOCOL);
                assert_string_not_equal(text, "");
            } else {
                assert_int_equal(again.size, frame.size);
                assert_memory_equal(again.bytes + WIRE_HEADER_BYTES, payload, length);
            }
            payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
            wire_buffer_free(&again);
        }
        wire_buffer_free(&frame);
        sample_free(&sample);
    }
}

/* ---- first inputs for the fuzzer ------------------------------------------------------------- */

static int corpus_write(const char *folder, const char *name, uint64_t round, uint8_t selector,
                        const uint8_t *bytes, size_t size)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s-%llu", folder, name, (unsigned long long)round);
    FILE *file = fopen(path, "wb");
    if (!file || fputc(selector, file) == EOF || fwrite(bytes, 1, size, file) != size ||
        fclose(file)) {
        fprintf(stderr, "test_wire: cannot write %s: %m\n", path);
        return 1;
    }
    return 0;
}

static int corpus_make(const char *folder)
{
    int rc = 0;
    for (uint64_t round = 0; round < 3; round++) {
        struct wire_buffer all = {0};
        for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
            struct sample sample = sample_start((uint64_t)type << 8 | round);
            struct wire_buffer frame = {0};
            frame_make(&sample, type, &frame);
            rc |= corpus_write(folder, wire_type_name(type), round, (uint8_t)type,
                               frame.bytes + WIRE_HEADER_BYTES, frame.size - WIRE_HEADER_BYTES);
            if (round == 0)
                rc |= corpus_write(folder, "header", type, 0, frame.bytes, WIRE_HEADER_BYTES);
            if (frame.size < 600 && type != WIRE_DATA) { /* its bytes would have to follow */
                uint8_t *grown = realloc(all.bytes, all.size + frame.size);
                memcpy(grown + all.size, frame.bytes, frame.size);
                all.bytes = grown;
                all.size += frame.size;
            }
            wire_buffer_free(&frame);
            sample_free(&sample);
        }
        struct wire_data_run run = {0, 0, 8, 64};
        recode_data_append(&all, header_of(0), 1, 8, &run, 1);
        all.bytes = realloc(all.bytes, all.size + 8);
        memset(all.bytes + all.size, 'p', 8);
        all.size += 8;
        rc |= corpus_write(folder, "connection", round, 'C', all.bytes, all.size);
        wire_buffer_free(&all);
    }
    return rc;
}

int main(void)
{
    const char *folder = getenv("BATON_WIRE_CORPUS");
    if (folder)
        return corpus_make(folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_come_back_equal),
        cmocka_unit_test(test_frames_have_one_spelling),
        cmocka_unit_test(test_hello_has_these_bytes),
        cmocka_unit_test(test_grant_has_these_bytes),
        cmocka_unit_test(test_commit_has_these_bytes),
        cmocka_unit_test(test_data_has_these_bytes),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_bytes_after_the_last_field_are_refused),
        cmocka_unit_test(test_bit_flips_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
