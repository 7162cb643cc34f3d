/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format's rules, one by one: for each a frame that breaks this rule and no other, and
 * that it is this rule which refuses it; and that encoders keep the limits from their side. */
#include "wire_samples.h"

#include <endian.h>

/* ---- headers --------------------------------------------------------------------------------- */

static void header_refused(struct wire_header header, const uint8_t *magic, const char *reason)
{
    struct wire_buffer buffer = {0};
    wire_header_put(&buffer, &header);
    if (magic)
        memcpy(buffer.bytes, magic, 4);
    struct wire_header out = {.epoch = 42};
    char text[256] = "";
    assert_int_equal(wire_header_get(buffer.bytes, &out, ERROR_BUFFER(text)), BATON_EPROTOCOL);
    assert_int_equal(out.epoch, 42);
    if (!strstr(text, reason))
        fail_msg("\"%s\" does not say \"%s\"", text, reason);
    wire_buffer_free(&buffer);
}

static void test_bad_headers_are_refused(void **state)
{
    (void)state;
    struct wire_header good = {.version = WIRE_VERSION, .type = WIRE_OPEN, .length = 28};
    struct wire_header header = good;
    header_refused(header, (const uint8_t *)"GET ", "47 45 54 20");
    header.version = 2;
    header_refused(header, NULL, "wire version 2 and this library speaks version 1");
    header.version = 0;
    header_refused(header, NULL, "wire version 0 and this library speaks version 1");
    header = good;
    static const uint16_t types[] = {0, WIRE_SIGNAL + 1, 255, UINT16_MAX};
    for (size_t i = 0; i < 4; i++) {
        header.type = types[i];
        header_refused(header, NULL, "unknown type");
    }
}

static void test_lengths_have_a_limit_per_type(void **state)
{
    (void)state;
    static const uint32_t limits[] = {
        [WIRE_HELLO] = WIRE_HELLO_MAX,
        [WIRE_PROOF] = WIRE_PROOF_BYTES,
        [WIRE_CHOICE] = 539,
        [WIRE_REGISTER] = WIRE_PAYLOAD_MAX,
        [WIRE_OPEN] = 28,
        [WIRE_GRANT] = WIRE_PAYLOAD_MAX,
        [WIRE_COMMIT] = WIRE_PAYLOAD_MAX,
        [WIRE_AUX] = WIRE_PAYLOAD_MAX,
        [WIRE_LANDED] = 12,
        [WIRE_ABORT] = 532,
        [WIRE_FENCED] = 12,
        [WIRE_QUERY] = 12,
        [WIRE_HEARTBEAT] = 12,
        [WIRE_BYE] = 520,
        [WIRE_DATA] = 16400,
        [WIRE_ATTACH] = 12,
        [WIRE_SIGNAL] = 65540,
    };
    for (uint16_t type = WIRE_HELLO; type <= WIRE_SIGNAL; type++) {
        struct wire_header header = {WIRE_VERSION, type, limits[type], 1, 2}, out;
        struct wire_buffer buffer = {0};
        wire_header_put(&buffer, &header);
        assert_int_equal(wire_header_get(buffer.bytes, &out, ERROR_NONE), 0);
        assert_int_equal(out.length, limits[type]);
        wire_buffer_free(&buffer);
        header.length++;
        header_refused(header, NULL, wire_type_name(type));
        header.length = UINT32_MAX;
        header_refused(header, NULL, "are allowed");
    }
}

/* ---- forged frames: each rule of the decoders, and that it is this rule that refuses ---------- */

static void frame_refused(uint16_t type, struct wire_buffer *frame, const char *reason)
{
    char text[256] = "";
    struct wire_buffer again = {0};
    assert_false(frame->failed);
    int rc = decode(type, frame->bytes + WIRE_HEADER_BYTES, frame->size - WIRE_HEADER_BYTES,
                    &again, text, sizeof(text));
    assert_int_equal(rc, BATON_EPROTOCOL);
    if (!strstr(text, reason))
        fail_msg("\"%s\" does not say \"%s\"", text, reason);
    wire_buffer_free(frame);
    wire_buffer_free(&again);
}

/* Encodes `bent`, a wire_<frame> that the encoder does not look at, and wants it refused. */
#define REFUSED(frame, type, bent, reason)                      \
    do {                                                        \
        struct wire_buffer refused = {0};                       \
        wire_##frame##_put(&refused, header_of(type), &(bent)); \
        frame_refused(type, &refused, reason);                  \
    } while (0)

/* Overwrites the first occurrence of `from` in an encoded frame and wants the frame refused. */
static void refused_after(uint16_t type, struct wire_buffer *frame, const void *from,
                          const void *to, size_t size, const char *reason)
{
    uint8_t *at = frame->bytes + WIRE_HEADER_BYTES, *end = frame->bytes + frame->size;
    while (at + size <= end && memcmp(at, from, size) != 0)
        at++;
    assert_true(at + size <= end);
    memcpy(at, to, size);
    frame_refused(type, frame, reason);
}

static void test_forged_hello_is_refused(void **state)
{
    (void)state;
    struct wire_hello good = {.kind = WIRE_KIND_LINK, .host_id = wire_string_of("the-host")};
    struct wire_hello bent = good;
    bent.kind = 3;
    REFUSED(hello, WIRE_HELLO, bent, "neither link nor stream");
    bent = good;
    bent.stream = 1;
    REFUSED(hello, WIRE_HELLO, bent, "stream index");
    bent.kind = WIRE_KIND_STREAM;
    bent.stream = WIRE_STREAMS_MAX;
    REFUSED(hello, WIRE_HELLO, bent, "stream index");
    bent = good;
    bent.authenticate = 2;
    REFUSED(hello, WIRE_HELLO, bent, "neither 0 nor 1");

    static const char *const names[] = {"the\0host",      "the\nhost",         "the\x1bhost",
                                        "the\x7fhost",    "the\xffhost",       "th\xc2\x9bhost",
                                        "th\xc0\xafhost", "t\xed\xa0\x80host", "the-hos\xc3"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct wire_buffer frame = {0};
        wire_hello_put(&frame, header_of(0), &good);
        refused_after(WIRE_HELLO, &frame, "the-host", names[i], 8, "control characters");
    }
}

static void test_forged_rooms_are_refused(void **state)
{
    (void)state;
    struct wire_room room = {.room = (uint64_t)INT64_MAX + 1};
    REFUSED(room, WIRE_LANDED, room, "above 2^63-1");
    struct wire_open open = {.room = UINT64_MAX};
    REFUSED(open, WIRE_OPEN, open, "above 2^63-1");
    struct wire_grant grant = {.room = UINT64_MAX};
    REFUSED(grant, WIRE_GRANT, grant, "above 2^63-1");
    struct wire_commit commit = {.room = UINT64_MAX};
    REFUSED(commit, WIRE_COMMIT, commit, "above 2^63-1");
    struct wire_aux aux = {.room = UINT64_MAX};
    REFUSED(aux, WIRE_AUX, aux, "above 2^63-1");
    struct wire_abort failed = {.room = UINT64_MAX, .code = -1};
    REFUSED(abort, WIRE_ABORT, failed, "above 2^63-1");
}

static void test_forged_grant_is_refused(void **state)
{
    (void)state;
    int32_t pages[] = {0, 3, -1, 4};
    struct wire_grant bent = {.flags = 2};
    REFUSED(grant, WIRE_GRANT, bent, "unknown flag");
    bent = (struct wire_grant){.aux_slot = -2};
    REFUSED(grant, WIRE_GRANT, bent, "aux slot below -1");
    bent = (struct wire_grant){.pages = {(const uint8_t *)pages, 4}};
    REFUSED(grant, WIRE_GRANT, bent, "negative page");
    bent = (struct wire_grant){.state_count = 1, .states = {{0, 0, {NULL, 0}}}};
    REFUSED(grant, WIRE_GRANT, bent, "region 0");
    bent.states[0].region = WIRE_REGIONS_MAX;
    REFUSED(grant, WIRE_GRANT, bent, "no such state region");
    bent.states[0].region = UINT32_MAX;
    REFUSED(grant, WIRE_GRANT, bent, "no such state region");
    bent =
        (struct wire_grant){.state_count = 2, .states = {{3, 0, {NULL, 0}}, {3, 1, {NULL, 0}}}};
    REFUSED(grant, WIRE_GRANT, bent, "twice for one region");
    bent =
        (struct wire_grant){.state_count = 1, .states = {{1, 0, {(const uint8_t *)pages, 3}}}};
    REFUSED(grant, WIRE_GRANT, bent, "negative page");
}

static void test_forged_commit_is_refused(void **state)
{
    (void)state;
    int32_t pages[] = {1, 2};
    struct wire_commit bent = {.flags = 4};
    REFUSED(commit, WIRE_COMMIT, bent, "unknown flag");
    struct wire_commit source = {
        .flags = WIRE_COMMIT_SOURCE, .total_pages = 2, .pages = {(const uint8_t *)pages, 2}};
    bent = source;
    bent.page_offset = 1;
    REFUSED(commit, WIRE_COMMIT, bent, "beyond the announced end");
    bent.page_offset = UINT32_MAX;
    REFUSED(commit, WIRE_COMMIT, bent, "beyond the announced end");
    bent = source;
    bent.state_count = 1;
    bent.states[0].region = 1;
    REFUSED(commit, WIRE_COMMIT, bent, "before the last COMMIT");

    /* 17 lanes cannot be encoded: 16 are, and the count and length are forged. */
    struct wire_commit lanes = {.lane_count = WIRE_STREAMS_MAX};
    struct wire_buffer frame = {0};
    wire_commit_put(&frame, header_of(0), &lanes);
    frame.bytes = realloc(frame.bytes, frame.size + 16);
    memset(frame.bytes + frame.size, 0, 16);
    frame.size += 16;
    frame.bytes[WIRE_HEADER_BYTES + 36] = WIRE_STREAMS_MAX + 1;
    frame_refused(WIRE_COMMIT, &frame, "above its limit");
}

static void test_forged_codes_and_texts_are_refused(void **state)
{
    (void)state;
    struct wire_abort failed = {.code = 0, .text = wire_string_of("reason")};
    REFUSED(abort, WIRE_ABORT, failed, "not negative");
    failed.code = BATON_AGAIN;
    REFUSED(abort, WIRE_ABORT, failed, "not negative");
    struct wire_bye bye = {.code = 1};
    REFUSED(bye, WIRE_BYE, bye, "positive");
    struct wire_choice choice = {.code = 1, .backend = wire_string_of("tcp")};
    REFUSED(choice, WIRE_CHOICE, choice, "positive");
    choice = (struct wire_choice){.code = 0};
    REFUSED(choice, WIRE_CHOICE, choice, "no backend");
    struct wire_attach attach = {.fd_count = WIRE_FDS_MAX + 1};
    REFUSED(attach, WIRE_ATTACH, attach, "descriptors");
    struct wire_aux aux = {.offset = UINT32_MAX, .bytes = (const uint8_t *)"x", .length = 1};
    REFUSED(aux, WIRE_AUX, aux, "largest possible slot");

    struct wire_buffer frame = {0};
    failed.code = -1;
    wire_abort_put(&frame, header_of(0), &failed);
    refused_after(WIRE_ABORT, &frame, "reason", "rea\tso", 6, "control characters");

    uint8_t payload[20 + WIRE_TEXT_MAX + 1] = {0};
    memset(payload + 12, 0xff, 4);
    payload[16] = (WIRE_TEXT_MAX + 1) & 0xff;
    payload[17] = (WIRE_TEXT_MAX + 1) >> 8;
    memset(payload + 20, 'a', WIRE_TEXT_MAX + 1);
    struct wire_abort out;
    assert_int_equal(wire_abort_get(payload, sizeof(payload), &out, ERROR_NONE),
                     BATON_EPROTOCOL);
    payload[16]--; /* with one byte less all is well */
    assert_int_equal(wire_abort_get(payload, sizeof(payload) - 1, &out, ERROR_NONE), 0);
}

static void data_refused(uint64_t bytes, const struct wire_data_run *runs, uint32_t count,
                         const char *reason)
{
    struct wire_buffer frame = {0};
    recode_data_append(&frame, header_of(0), 1, bytes, runs, count);
    frame_refused(WIRE_DATA, &frame, reason);
}

static void test_forged_data_is_refused(void **state)
{
    (void)state;
    struct wire_data_run runs[] = {{0, 0, 10, 0}, {0, 1, 20, 64}};
    data_refused(29, runs, 2, "add up to 30 bytes, it claims 29");
    data_refused(31, runs, 2, "add up to 30 bytes, it claims 31");
    runs[0].length = 0;
    data_refused(20, runs, 2, "a run without bytes");
    runs[0] = (struct wire_data_run){0, 0, 10, UINT64_MAX - 9};
    data_refused(30, runs, 2, "beyond the end of memory");

    struct wire_data_run *many = calloc(WIRE_DATA_RUNS_MAX + 1, sizeof(*many));
    for (uint32_t i = 0; i <= WIRE_DATA_RUNS_MAX; i++)
        many[i].length = 1;
    struct wire_buffer frame = {0};
    recode_data_append(&frame, header_of(0), 1, WIRE_DATA_RUNS_MAX, many, WIRE_DATA_RUNS_MAX);
    frame.bytes = realloc(frame.bytes, frame.size + WIRE_DATA_RUN_BYTES);
    memcpy(frame.bytes + frame.size, many, WIRE_DATA_RUN_BYTES);
    frame.size += WIRE_DATA_RUN_BYTES;
    frame.bytes[WIRE_HEADER_BYTES + 4]++;
    frame_refused(WIRE_DATA, &frame, "1025 runs");
    free(many);

    uint8_t none[16] = {1};
    struct wire_data out;
    assert_int_equal(wire_data_get(none, sizeof(none), &out, ERROR_NONE), BATON_EPROTOCOL);
}

/* A small REGISTER with one or two of everything, to bend. */
struct small {
    struct sample sample;
    struct wire_register frame;
};

static struct small small_make(void)
{
    struct small small = {.sample = sample_start(77)};
    struct wire_register *frame = &small.frame;
    frame->region_count = 2;
    sample_name(frame->regions[0].name, WIRE_NAME_MAX, "region", 0);
    sample_name(frame->regions[1].name, WIRE_NAME_MAX, "region", 1);
    frame->regions[1].kind = BATON_REGION_SLOT;
    frame->regions[0].layout = sample_layout(&small.sample);
    frame->regions[1].layout = sample_layout(&small.sample);
    frame->aux_slots = 4;
    frame->aux_slot_bytes = 64;
    frame->aux_field_count = 2;
    frame->aux_fields[0] = (struct wire_aux_field){"field0", BATON_DTYPE_I64, 4, 0};
    frame->aux_fields[1] = (struct wire_aux_field){"field1", BATON_DTYPE_F32, 8, 32};
    frame->backend_count = 2;
    frame->backends[0] = (struct wire_backend_key){"backend0", (uint8_t *)"key", 3};
    frame->backends[1] = (struct wire_backend_key){"backend1", NULL, 0};
    return small;
}

static void register_refused(struct small *small, const char *reason)
{
    REFUSED(register, WIRE_REGISTER, small->frame, reason);
    sample_free(&small->sample);
}

static void register_refused_after(const void *from, const void *to, size_t size,
                                   const char *reason)
{
    struct small small = small_make();
    struct wire_buffer frame = {0};
    wire_register_put(&frame, header_of(0), &small.frame);
    refused_after(WIRE_REGISTER, &frame, from, to, size, reason);
    sample_free(&small.sample);
}

static void test_forged_register_is_refused(void **state)
{
    (void)state;
    struct small small;
    register_refused_after("region1", "region0", 7, "used before");
    register_refused_after("field1", "field0", 6, "used before");
    register_refused_after("backend1", "backend0", 8, "used before");
    register_refused_after("region1", "reg\0on1", 7, "control characters");
    register_refused_after("field1", "fi\neld", 6, "control characters");
    register_refused_after("backend1", "back\r\n 1", 8, "control characters");

#define BENT(change, reason)              \
    do {                                  \
        small = small_make();             \
        small.frame.change;               \
        register_refused(&small, reason); \
    } while (0)
    BENT(regions[0].name[0] = '\0', "empty name");
    BENT(regions[1].kind = BATON_REGION_SEQUENCE + 1, "unknown kind of region");
    BENT(regions[1].layout.memory = 2, "unknown kind of memory");
    BENT(regions[1].layout.dtype = BATON_DTYPE_U64 + 1, "unknown dtype");
    BENT(regions[1].layout.base_count = 0, "without bases");
    BENT(regions[1].layout.bases[0].bytes = 0, "region \"region1\"");
    BENT(regions[0].layout.pages = 0, "region \"region0\"");
    BENT(aux_fields[0].name[0] = '\0', "empty name");
    BENT(aux_fields[1].dtype = BATON_DTYPE_U64 + 1, "unknown dtype");
    BENT(aux_fields[1].count = 9, "does not lie in its slot");
    BENT(aux_fields[1].count = UINT32_MAX, "does not lie in its slot");
    BENT(aux_fields[1].offset = 33, "does not lie in its slot");
    BENT(aux_fields[1].offset = UINT64_MAX - 16, "does not lie in its slot");
    BENT(aux_slots = 0, "aux slots without bytes, or bytes without slots");
    BENT(aux_slot_bytes = 0, "aux slots without bytes, or bytes without slots");
    BENT(aux_slot_bytes = 1ull << 32, "4 GiB");
    BENT(backends[1].name[0] = '\0', "empty name");
    BENT(attach = 2, "neither 0 nor 1");
    BENT(verify = UINT32_MAX, "neither 0 nor 1");
#undef BENT
    small = small_make(); /* and unbent it passes */
    struct wire_buffer frame = {0};
    struct wire_register out;
    wire_register_put(&frame, header_of(0), &small.frame);
    assert_int_equal(wire_register_get(frame.bytes + WIRE_HEADER_BYTES,
                                       frame.size - WIRE_HEADER_BYTES, &out, ERROR_NONE),
                     0);
    wire_register_free(&out);
    wire_buffer_free(&frame);
    sample_free(&small.sample);
}

/* Counts that promise more than follows, or more than is allowed: refused at the count, before
 * anything is allocated or walked. */
static void test_counts_that_lie_are_refused(void **state)
{
    (void)state;
    static const uint32_t lies[] = {1, 100, 4096, 4097, 1u << 30, UINT32_MAX};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        uint8_t grant[40] = {0}, regions[8] = {0}, aux[20] = {0};
        struct wire_grant grant_out;
        struct wire_register register_out;
        struct wire_aux aux_out;
        char text[256] = "";
        memcpy(grant + 36, &(uint32_t){htole32(lies[i])}, 4);
        assert_int_equal(wire_grant_get(grant, sizeof(grant), &grant_out, ERROR_BUFFER(text)),
                         BATON_EPROTOCOL);
        assert_non_null(strstr(text, "a length or count"));
        memcpy(regions + 4, &(uint32_t){htole32(lies[i])}, 4);
        assert_int_equal(wire_register_get(regions, 8, &register_out, ERROR_BUFFER(text)),
                         BATON_EPROTOCOL);
        assert_non_null(strstr(text, "a length or count"));
        memcpy(aux + 16, &(uint32_t){htole32(lies[i])}, 4);
        assert_int_equal(wire_aux_get(aux, sizeof(aux), &aux_out, ERROR_BUFFER(text)),
                         BATON_EPROTOCOL);
        assert_non_null(strstr(text, "a length or count"));
    }
}

static void test_refusal_leaves_the_output_alone(void **state)
{
    (void)state;
    struct wire_open open, before;
    memset(&open, 0x5a, sizeof(open));
    memcpy(&before, &open, sizeof(open));
    assert_int_equal(wire_open_get((const uint8_t *)"short", 5, &open, ERROR_NONE),
                     BATON_EPROTOCOL);
    assert_memory_equal(&open, &before, sizeof(open));
    assert_int_equal(wire_open_get(NULL, 0, &open, ERROR_NONE), BATON_EPROTOCOL);
    assert_memory_equal(&open, &before, sizeof(open));
}

/* ---- encoders -------------------------------------------------------------------------------- */

static void text_arrives_as(const char *sent, size_t size, const char *expected)
{
    struct wire_bye bye = {.text = {sent, (uint32_t)size}}, out;
    struct wire_buffer buffer = {0};
    wire_bye_put(&buffer, header_of(0), &bye);
    size_t length;
    const uint8_t *payload = payload_of(&buffer, WIRE_BYE, &length);
    assert_int_equal(wire_bye_get(payload, length, &out, ERROR_NONE), 0);
    assert_string_same(out.text, wire_string_of(expected));
    wire_buffer_free(&buffer);
}

static void test_texts_are_made_to_fit(void **state)
{
    (void)state;
    char longer[700], expected[WIRE_TEXT_MAX + 1];
    for (size_t first = 0; first < 4; first++) { /* cut at each place of a 3-byte character */
        memset(longer, 'a', first);
        for (size_t i = first; i + 3 <= sizeof(longer); i += 3)
            memcpy(longer + i, "\xe2\x82\xac", 3);
        size_t kept = first + (WIRE_TEXT_MAX - first) / 3 * 3;
        memcpy(expected, longer, kept);
        expected[kept] = '\0';
        text_arrives_as(longer, 690, expected);
    }
    text_arrives_as("two\nlines\0and \x1b[31mred", 22, "two lines and  [31mred");
    text_arrives_as("\xff\xfe latin \xe4", 10, "?? latin ?");
    text_arrives_as("\xc2\x9b", 2, "??");
    text_arrives_as("\xf4\x8f\xbf\xbf", 4, "\xf4\x8f\xbf\xbf");
    text_arrives_as("\xf4\x90\x80\x80", 4, "????");
    text_arrives_as(NULL, 0, "");
}

static void test_string_copy_cuts_between_characters(void **state)
{
    (void)state;
    char out[8];
    memset(out, 'x', sizeof(out));
    wire_string_copy(wire_string_of("ab\xe2\x82\xac"), out, 5);
    assert_string_equal(out, "ab");
    wire_string_copy(wire_string_of("ab\xe2\x82\xac"), out, 6);
    assert_string_equal(out, "ab\xe2\x82\xac");
    wire_string_copy(wire_string_of("abcdefghij"), out, sizeof(out));
    assert_string_equal(out, "abcdefg");
    out[0] = 'x';
    wire_string_copy(wire_string_of("abc"), out, 0);
    assert_int_equal(out[0], 'x');
    wire_string_copy(wire_string_of(NULL), out, 1);
    assert_string_equal(out, "");
}

/* What cannot be encoded leaves the frames before it whole, and is not half there. */
static void encoder_fails(void (*put)(struct wire_buffer *))
{
    struct wire_buffer buffer = {0};
    struct wire_heartbeat heartbeat = {1, 2};
    wire_heartbeat_put(&buffer, header_of(0), &heartbeat);
    put(&buffer);
    assert_true(buffer.failed);
    assert_int_equal(buffer.size, WIRE_HEADER_BYTES + 12);
    size_t length;
    buffer.failed = 0;
    payload_of(&buffer, WIRE_HEARTBEAT, &length);
    buffer.failed = 1;
    wire_heartbeat_put(&buffer, header_of(0), &heartbeat); /* stays failed until reset */
    assert_int_equal(buffer.size, WIRE_HEADER_BYTES + 12);
    wire_buffer_free(&buffer);
    assert_false(buffer.failed);
}

static void put_grant_too_long(struct wire_buffer *out)
{
    uint32_t count = WIRE_PAYLOAD_MAX / 4;
    int32_t *pages = calloc(count, sizeof(*pages));
    struct wire_grant grant = {.pages = {(const uint8_t *)pages, count}};
    wire_grant_put(out, header_of(0), &grant);
    free(pages);
}

static void put_grant_impossible(struct wire_buffer *out)
{
    int32_t page = 0;
    struct wire_grant grant = {.pages = {(const uint8_t *)&page, UINT32_MAX}};
    wire_grant_put(out, header_of(0), &grant);
}

static void put_too_many_states(struct wire_buffer *out)
{
    struct wire_grant grant = {.state_count = WIRE_REGIONS_MAX + 1};
    wire_grant_put(out, header_of(0), &grant);
}

static void put_too_many_lanes(struct wire_buffer *out)
{
    struct wire_commit commit = {.lane_count = WIRE_STREAMS_MAX + 1};
    wire_commit_put(out, header_of(0), &commit);
}

static void put_bad_name(struct wire_buffer *out)
{
    struct wire_hello hello = {.kind = WIRE_KIND_LINK, .host_id = wire_string_of("a\nb")};
    wire_hello_put(out, header_of(0), &hello);
}

static void put_long_name(struct wire_buffer *out)
{
    char name[109];
    memset(name, 'a', 108);
    name[108] = '\0';
    struct wire_hello hello = {.kind = WIRE_KIND_LINK, .unix_name = wire_string_of(name)};
    wire_hello_put(out, header_of(0), &hello);
}

static void put_unterminated_name(struct wire_buffer *out)
{
    struct small small = small_make();
    memset(small.frame.regions[0].name, 'a', WIRE_NAME_MAX);
    wire_register_put(out, header_of(0), &small.frame);
    sample_free(&small.sample);
}

static void put_too_many_bases(struct wire_buffer *out)
{
    struct small small = small_make();
    small.frame.regions[1].layout.base_count = LAYOUT_BASES_MAX + 1;
    wire_register_put(out, header_of(0), &small.frame);
    sample_free(&small.sample);
}

static void put_long_key(struct wire_buffer *out)
{
    struct small small = small_make();
    small.frame.backends[0].key_bytes = WIRE_KEY_MAX + 1;
    wire_register_put(out, header_of(0), &small.frame);
    sample_free(&small.sample);
}

static void test_encoders_keep_the_limits(void **state)
{
    (void)state;
    encoder_fails(put_grant_too_long);
    encoder_fails(put_grant_impossible);
    encoder_fails(put_too_many_states);
    encoder_fails(put_too_many_lanes);
    encoder_fails(put_bad_name);
    encoder_fails(put_long_name);
    encoder_fails(put_unterminated_name);
    encoder_fails(put_too_many_bases);
    encoder_fails(put_long_key);
}

static void test_largest_frames_fit(void **state)
{
    (void)state;
    uint32_t count = (WIRE_PAYLOAD_MAX - 44) / 4;
    int32_t *pages = calloc(count, sizeof(*pages));
    struct wire_grant grant = {.pages = {(const uint8_t *)pages, count}}, grant_out;
    struct wire_buffer buffer = {0};
    wire_grant_put(&buffer, header_of(0), &grant);
    size_t length;
    const uint8_t *payload = payload_of(&buffer, WIRE_GRANT, &length);
    assert_int_equal(length, WIRE_PAYLOAD_MAX);
    assert_int_equal(wire_grant_get(payload, length, &grant_out, ERROR_NONE), 0);
    assert_int_equal(grant_out.pages.count, count);
    wire_buffer_free(&buffer);
    free(pages);

    char host[WIRE_TEXT_MAX + 1] = "", name[108] = "";
    memset(host, 'h', WIRE_TEXT_MAX);
    memset(name, 'n', 107);
    struct wire_hello hello = {.kind = WIRE_KIND_LINK,
                               .host_id = wire_string_of(host),
                               .unix_name = wire_string_of(name)};
    wire_hello_put(&buffer, header_of(0), &hello);
    assert_in_range(buffer.size, 1, WIRE_HEADER_BYTES + WIRE_HELLO_MAX);
    wire_buffer_free(&buffer);
}

static void test_type_names(void **state)
{
    (void)state;
    assert_string_equal(wire_type_name(WIRE_HELLO), "HELLO");
    assert_string_equal(wire_type_name(WIRE_SIGNAL), "SIGNAL");
    assert_string_equal(wire_type_name(0), "?");
    assert_string_equal(wire_type_name(WIRE_SIGNAL + 1), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_headers_are_refused),
        cmocka_unit_test(test_lengths_have_a_limit_per_type),
        cmocka_unit_test(test_forged_hello_is_refused),
        cmocka_unit_test(test_forged_rooms_are_refused),
        cmocka_unit_test(test_forged_grant_is_refused),
        cmocka_unit_test(test_forged_commit_is_refused),
        cmocka_unit_test(test_forged_codes_and_texts_are_refused),
        cmocka_unit_test(test_forged_data_is_refused),
        cmocka_unit_test(test_forged_register_is_refused),
        cmocka_unit_test(test_counts_that_lie_are_refused),
        cmocka_unit_test(test_refusal_leaves_the_output_alone),
        cmocka_unit_test(test_texts_are_made_to_fit),
        cmocka_unit_test(test_string_copy_cuts_between_characters),
        cmocka_unit_test(test_encoders_keep_the_limits),
        cmocka_unit_test(test_largest_frames_fit),
        cmocka_unit_test(test_type_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
