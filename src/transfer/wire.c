/* SPDX-License-Identifier: Apache-2.0 */
/* The header that every frame has, and the frames about the connection itself: who is there
 * (HELLO, PROOF), what carries the bytes (CHOICE, ATTACH), whether it is alive (HEARTBEAT) and
 * that it ends (BYE). REGISTER, the frames about rooms, and DATA have files of their own:
 * wire_register.c, wire_room.c, wire_data.c. docs/protocol.md draws all of them.
 *
 * One version is spoken at a time and there are no optional fields: both sides of a hand-over
 * must store into the same page by the same rules, so "mostly understood" is not good enough.
 * A change of any frame is a new WIRE_VERSION, and the golden bytes in test_wire.c notice. */
#include "wire_codec.h"

#define UNIX_NAME_MAX 107 /* sun_path without the leading NUL */
#define BACKEND_NAME_MAX (sizeof(((struct wire_backend_key *)0)->name) - 1)

static const struct {
    const char *name;
    uint32_t length_max;
} wire_types[] = {
    [WIRE_HELLO] = {"HELLO", WIRE_HELLO_MAX},
    [WIRE_PROOF] = {"PROOF", WIRE_PROOF_BYTES},
    [WIRE_REGISTER] = {"REGISTER", WIRE_PAYLOAD_MAX},
    [WIRE_CHOICE] = {"CHOICE", 4 + 4 + BACKEND_NAME_MAX + 4 + WIRE_TEXT_MAX},
    [WIRE_OPEN] = {"OPEN", 28},
    [WIRE_GRANT] = {"GRANT", WIRE_PAYLOAD_MAX},
    [WIRE_COMMIT] = {"COMMIT", WIRE_PAYLOAD_MAX},
    [WIRE_AUX] = {"AUX", WIRE_PAYLOAD_MAX},
    [WIRE_LANDED] = {"LANDED", 12},
    [WIRE_ABORT] = {"ABORT", 16 + 4 + WIRE_TEXT_MAX},
    [WIRE_FENCED] = {"FENCED", 12},
    [WIRE_QUERY] = {"QUERY", 12},
    [WIRE_HEARTBEAT] = {"HEARTBEAT", 12},
    [WIRE_BYE] = {"BYE", 4 + 4 + WIRE_TEXT_MAX},
    [WIRE_DATA] = {"DATA", 16 + WIRE_DATA_RUNS_MAX *WIRE_DATA_RUN_BYTES},
    [WIRE_ATTACH] = {"ATTACH", 12},
    [WIRE_SIGNAL] = {"SIGNAL", 4 + WIRE_KEY_MAX},
};
#define WIRE_TYPE_LAST (sizeof(wire_types) / sizeof(wire_types[0]) - 1)

const char *wire_type_name(uint16_t type)
{
    return type && type <= WIRE_TYPE_LAST ? wire_types[type].name : "?";
}

uint32_t wire_length_max(uint16_t type)
{
    return type <= WIRE_TYPE_LAST ? wire_types[type].length_max : 0;
}

void wire_header_put(struct wire_buffer *out, const struct wire_header *header)
{
    uint8_t *at = wire_extend(out, WIRE_HEADER_BYTES);
    if (!at)
        return;
    wire_store32(at, WIRE_MAGIC);
    wire_store16(at + 4, header->version);
    wire_store16(at + 6, header->type);
    wire_store32(at + 8, header->length);
    wire_store32(at + 12, header->sequence);
    wire_store64(at + 16, header->epoch);
}

int wire_header_get(const uint8_t *bytes, struct wire_header *out, struct error err)
{
    struct wire_header header = {
        .version = wire_load16(bytes + 4),
        .type = wire_load16(bytes + 6),
        .length = wire_load32(bytes + 8),
        .sequence = wire_load32(bytes + 12),
        .epoch = wire_load64(bytes + 16),
    };
    if (wire_load32(bytes) != WIRE_MAGIC)
        return error_set(err, BATON_EPROTOCOL,
                         "no Baton frame: it starts with bytes %02x %02x %02x %02x instead of "
                         "\"BATN\"; is something else talking to this port?",
                         bytes[0], bytes[1], bytes[2], bytes[3]);
    if (header.version != WIRE_VERSION)
        return error_set(err, BATON_EPROTOCOL,
                         "the peer speaks wire version %u and this library speaks version %u: "
                         "run the same release on both sides",
                         header.version, WIRE_VERSION);
    if (!header.type || header.type > WIRE_TYPE_LAST)
        return error_set(err, BATON_EPROTOCOL,
                         "frame of unknown type %u: wire version %u has types 1 to %zu",
                         header.type, WIRE_VERSION, WIRE_TYPE_LAST);
    if (header.length > wire_length_max(header.type))
        return error_set(err, BATON_EPROTOCOL, "%s frame of %u bytes: at most %u are allowed",
                         wire_type_name(header.type), header.length,
                         wire_length_max(header.type));
    *out = header;
    return 0;
}

/* ---- HELLO ---- */

void wire_hello_put(struct wire_buffer *out, struct wire_header header,
                    const struct wire_hello *hello)
{
    size_t begin = wire_frame_begin(out, header, WIRE_HELLO);
    wire_put_u16(out, hello->kind);
    wire_put_u16(out, hello->stream);
    wire_put_u32(out, hello->rank);
    wire_put_u32(out, hello->tp_size);
    wire_put_u32(out, hello->pp_rank);
    wire_put_u32(out, hello->pp_size);
    wire_put_u32(out, hello->dp_rank);
    wire_put_u32(out, hello->pid);
    wire_put_u32(out, hello->authenticate);
    wire_put_u64(out, hello->process);
    wire_put_u64(out, hello->session);
    wire_put_u64(out, hello->expected_epoch);
    wire_put_bytes(out, hello->nonce, WIRE_NONCE_BYTES);
    wire_put_name(out, hello->host_id, WIRE_TEXT_MAX);
    wire_put_name(out, hello->unix_name, UNIX_NAME_MAX);
    wire_frame_end(out, begin);
}

int wire_hello_get(const uint8_t *payload, size_t length, struct wire_hello *out,
                   struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_hello hello;
    hello.kind = wire_read_u16(&in);
    wire_reader_check(&in, hello.kind == WIRE_KIND_LINK || hello.kind == WIRE_KIND_STREAM,
                      "a connection that is neither link nor stream");
    hello.stream = wire_read_u16(&in);
    wire_reader_check(
        &in, hello.kind == WIRE_KIND_LINK ? hello.stream == 0 : hello.stream < WIRE_STREAMS_MAX,
        "a stream index above its limit");
    hello.rank = wire_read_u32(&in);
    hello.tp_size = wire_read_u32(&in);
    hello.pp_rank = wire_read_u32(&in);
    hello.pp_size = wire_read_u32(&in);
    hello.dp_rank = wire_read_u32(&in);
    hello.pid = wire_read_u32(&in);
    hello.authenticate = wire_read_flag(&in);
    hello.process = wire_read_u64(&in);
    hello.session = wire_read_u64(&in);
    hello.expected_epoch = wire_read_u64(&in);
    const uint8_t *nonce = wire_read_bytes(&in, WIRE_NONCE_BYTES);
    hello.host_id = wire_read_string(&in, WIRE_TEXT_MAX);
    hello.unix_name = wire_read_string(&in, UNIX_NAME_MAX);
    int rc = wire_reader_end(&in, "HELLO", err);
    if (rc)
        return rc;
    memcpy(hello.nonce, nonce, WIRE_NONCE_BYTES);
    *out = hello;
    return 0;
}

/* ---- PROOF ---- */

void wire_proof_put(struct wire_buffer *out, struct wire_header header,
                    const struct wire_proof *proof)
{
    size_t begin = wire_frame_begin(out, header, WIRE_PROOF);
    wire_put_bytes(out, proof->proof, WIRE_PROOF_BYTES);
    wire_frame_end(out, begin);
}

int wire_proof_get(const uint8_t *payload, size_t length, struct wire_proof *out,
                   struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    const uint8_t *proof = wire_read_bytes(&in, WIRE_PROOF_BYTES);
    int rc = wire_reader_end(&in, "PROOF", err);
    if (rc)
        return rc;
    memcpy(out->proof, proof, WIRE_PROOF_BYTES);
    return 0;
}

/* ---- CHOICE ---- */

void wire_choice_put(struct wire_buffer *out, struct wire_header header,
                     const struct wire_choice *choice)
{
    size_t begin = wire_frame_begin(out, header, WIRE_CHOICE);
    wire_put_u32(out, (uint32_t)choice->code);
    wire_put_name(out, choice->backend, BACKEND_NAME_MAX);
    wire_put_text(out, choice->text);
    wire_frame_end(out, begin);
}

int wire_choice_get(const uint8_t *payload, size_t length, struct wire_choice *out,
                    struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_choice choice;
    choice.code = (int32_t)wire_read_u32(&in);
    wire_reader_check(&in, choice.code <= 0, "a positive error code");
    choice.backend = wire_read_string(&in, BACKEND_NAME_MAX);
    wire_reader_check(&in, choice.code || choice.backend.length, "a choice of no backend");
    choice.text = wire_read_string(&in, WIRE_TEXT_MAX);
    int rc = wire_reader_end(&in, "CHOICE", err);
    if (!rc)
        *out = choice;
    return rc;
}

/* ---- ATTACH ---- */

void wire_attach_put(struct wire_buffer *out, struct wire_header header,
                     const struct wire_attach *attach)
{
    size_t begin = wire_frame_begin(out, header, WIRE_ATTACH);
    wire_put_u64(out, attach->session);
    wire_put_u32(out, attach->fd_count);
    wire_frame_end(out, begin);
}

int wire_attach_get(const uint8_t *payload, size_t length, struct wire_attach *out,
                    struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_attach attach;
    attach.session = wire_read_u64(&in);
    attach.fd_count = wire_read_u32(&in);
    wire_reader_check(&in, attach.fd_count <= WIRE_FDS_MAX,
                      "more descriptors than one message can carry");
    int rc = wire_reader_end(&in, "ATTACH", err);
    if (!rc)
        *out = attach;
    return rc;
}

/* ---- HEARTBEAT ---- */

void wire_heartbeat_put(struct wire_buffer *out, struct wire_header header,
                        const struct wire_heartbeat *heartbeat)
{
    size_t begin = wire_frame_begin(out, header, WIRE_HEARTBEAT);
    wire_put_u64(out, heartbeat->tick);
    wire_put_u32(out, heartbeat->rooms);
    wire_frame_end(out, begin);
}

int wire_heartbeat_get(const uint8_t *payload, size_t length, struct wire_heartbeat *out,
                       struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_heartbeat heartbeat;
    heartbeat.tick = wire_read_u64(&in);
    heartbeat.rooms = wire_read_u32(&in);
    int rc = wire_reader_end(&in, "HEARTBEAT", err);
    if (!rc)
        *out = heartbeat;
    return rc;
}

/* ---- SIGNAL ---- */

void wire_signal_put(struct wire_buffer *out, struct wire_header header,
                     const struct wire_signal *signal)
{
    size_t begin = wire_frame_begin(out, header, WIRE_SIGNAL);
    wire_put_blob(out, signal->bytes, signal->length, WIRE_KEY_MAX);
    wire_frame_end(out, begin);
}

int wire_signal_get(const uint8_t *payload, size_t length, struct wire_signal *out,
                    struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_signal signal;
    signal.bytes = wire_read_blob(&in, WIRE_KEY_MAX, &signal.length);
    int rc = wire_reader_end(&in, "SIGNAL", err);
    if (!rc)
        *out = signal;
    return rc;
}

/* ---- BYE ---- */

void wire_bye_put(struct wire_buffer *out, struct wire_header header,
                  const struct wire_bye *bye)
{
    size_t begin = wire_frame_begin(out, header, WIRE_BYE);
    wire_put_u32(out, (uint32_t)bye->code);
    wire_put_text(out, bye->text);
    wire_frame_end(out, begin);
}

int wire_bye_get(const uint8_t *payload, size_t length, struct wire_bye *out, struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_bye bye;
    bye.code = (int32_t)wire_read_u32(&in);
    wire_reader_check(&in, bye.code <= 0, "a positive error code");
    bye.text = wire_read_string(&in, WIRE_TEXT_MAX);
    int rc = wire_reader_end(&in, "BYE", err);
    if (!rc)
        *out = bye;
    return rc;
}
