/* SPDX-License-Identifier: Apache-2.0 */
/* REGISTER: all that a peer must know of our memory before the first room, said once per link.
 * It is the only frame whose decoding allocates (the bases of layouts, the backends' keys), and
 * the one that decides where we may store later. So a layout that came over the wire passes the
 * same layout_check() as one of our own, and whatever fails takes the whole frame with it.
 * What one frame can make us allocate is less than its own length: every count is compared with
 * the bytes that really follow it first. */
#include "wire_codec.h"

#include <stdlib.h>

#define BASE_BYTES 24
#define REGION_BYTES_MIN (4 + 4 + 11 * 4 + 5 * 8 + 4 + BASE_BYTES)
#define AUX_FIELD_BYTES_MIN (4 + 4 + 4 + 8)
#define BACKEND_BYTES_MIN (4 + 4)

static struct wire_string name_of(const char *name, size_t size)
{
    return (struct wire_string){name, (uint32_t)strnlen(name, size)};
}

/* Names are kept with their NUL: one without it is longer than size - 1, and refused. */
static void name_put(struct wire_buffer *out, const char *name, size_t size)
{
    wire_put_name(out, name_of(name, size), (uint32_t)size - 1);
}

/* ---- encode ---- */

static void layout_put(struct wire_buffer *out, const struct layout *layout)
{
    wire_put_u32(out, layout->memory);
    wire_put_u32(out, layout->dtype);
    wire_put_u32(out, layout->pages);
    wire_put_u32(out, layout->tokens_per_page);
    wire_put_u32(out, layout->layers);
    wire_put_u32(out, layout->first_layer);
    wire_put_u32(out, layout->kv);
    wire_put_u32(out, layout->heads);
    wire_put_u32(out, layout->first_head);
    wire_put_u32(out, layout->total_heads);
    wire_put_u32(out, layout->head_bytes);
    wire_put_u64(out, layout->page_stride);
    wire_put_u64(out, layout->layer_stride);
    wire_put_u64(out, layout->kv_stride);
    wire_put_u64(out, layout->head_stride);
    wire_put_u64(out, layout->token_stride);
    if (!wire_put_count(out, layout->base_count, LAYOUT_BASES_MAX))
        return;
    for (uint32_t i = 0; i < layout->base_count; i++) {
        wire_put_u64(out, layout->bases[i].address);
        wire_put_u64(out, layout->bases[i].bytes);
        wire_put_u64(out, layout->bases[i].item_bytes);
    }
}

static void regions_put(struct wire_buffer *out, const struct wire_register *frame)
{
    if (!wire_put_count(out, frame->region_count, WIRE_REGIONS_MAX))
        return;
    for (uint32_t i = 0; i < frame->region_count; i++) {
        name_put(out, frame->regions[i].name, sizeof(frame->regions[i].name));
        wire_put_u32(out, frame->regions[i].kind);
        layout_put(out, &frame->regions[i].layout);
    }
}

static void aux_put(struct wire_buffer *out, const struct wire_register *frame)
{
    wire_put_u32(out, frame->aux_slots);
    wire_put_u64(out, frame->aux_slot_bytes);
    if (!wire_put_count(out, frame->aux_field_count, WIRE_AUX_FIELDS_MAX))
        return;
    for (uint32_t i = 0; i < frame->aux_field_count; i++) {
        name_put(out, frame->aux_fields[i].name, sizeof(frame->aux_fields[i].name));
        wire_put_u32(out, frame->aux_fields[i].dtype);
        wire_put_u32(out, frame->aux_fields[i].count);
        wire_put_u64(out, frame->aux_fields[i].offset);
    }
}

static void backends_put(struct wire_buffer *out, const struct wire_register *frame)
{
    if (!wire_put_count(out, frame->backend_count, WIRE_BACKENDS_MAX))
        return;
    for (uint32_t i = 0; i < frame->backend_count; i++) {
        name_put(out, frame->backends[i].name, sizeof(frame->backends[i].name));
        wire_put_blob(out, frame->backends[i].key, frame->backends[i].key_bytes, WIRE_KEY_MAX);
    }
}

void wire_register_put(struct wire_buffer *out, struct wire_header header,
                       const struct wire_register *frame)
{
    size_t begin = wire_frame_begin(out, header, WIRE_REGISTER);
    name_put(out, frame->fingerprint, sizeof(frame->fingerprint));
    regions_put(out, frame);
    aux_put(out, frame);
    backends_put(out, frame);
    wire_put_u32(out, frame->attach);
    wire_put_u32(out, frame->verify);
    wire_frame_end(out, begin);
}

/* ---- decode: each function fills its part of frame and frees nothing; wire_register_get does,
 * when any of them has left a problem in the reader or returned an error. ---- */

static uint64_t dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
    case BATON_DTYPE_F16:
    case BATON_DTYPE_BF16: return 2;
    case BATON_DTYPE_F32:
    case BATON_DTYPE_I32:
    case BATON_DTYPE_U32: return 4;
    case BATON_DTYPE_F64:
    case BATON_DTYPE_I64:
    case BATON_DTYPE_U64: return 8;
    default: return 1;
    }
}

static uint32_t dtype_read(struct wire_reader *in)
{
    uint32_t dtype = wire_read_u32(in);
    wire_reader_check(in, dtype <= BATON_DTYPE_U64, "an unknown dtype");
    return dtype;
}

static void layout_read_shape(struct wire_reader *in, struct layout *layout)
{
    layout->memory = wire_read_u32(in);
    wire_reader_check(in, layout->memory <= BATON_MEMORY_CUDA, "an unknown kind of memory");
    layout->dtype = dtype_read(in);
    layout->pages = wire_read_u32(in);
    layout->tokens_per_page = wire_read_u32(in);
    layout->layers = wire_read_u32(in);
    layout->first_layer = wire_read_u32(in);
    layout->kv = wire_read_u32(in);
    layout->heads = wire_read_u32(in);
    layout->first_head = wire_read_u32(in);
    layout->total_heads = wire_read_u32(in);
    layout->head_bytes = wire_read_u32(in);
    layout->page_stride = wire_read_u64(in);
    layout->layer_stride = wire_read_u64(in);
    layout->kv_stride = wire_read_u64(in);
    layout->head_stride = wire_read_u64(in);
    layout->token_stride = wire_read_u64(in);
}

/* Returns 0 or ENOMEM; what else is wrong is in the reader. */
static int layout_read_bases(struct wire_reader *in, struct layout *layout)
{
    uint32_t count = wire_read_count(in, LAYOUT_BASES_MAX, BASE_BYTES);
    wire_reader_check(in, count > 0, "a layout without bases");
    if (in->problem)
        return 0;
    layout->bases = calloc(count, sizeof(*layout->bases));
    if (!layout->bases)
        return BATON_ENOMEM;
    layout->base_count = count;
    for (uint32_t i = 0; i < count; i++) {
        layout->bases[i].address = wire_read_u64(in);
        layout->bases[i].bytes = wire_read_u64(in);
        layout->bases[i].item_bytes = wire_read_u64(in);
    }
    return 0;
}

/* `names` is the first of i names so far that lie `stride` bytes apart; the i-th is the new one. */
static void name_check(struct wire_reader *in, const void *names, size_t stride, uint32_t i)
{
    const char *name = (const char *)names + i * stride;
    wire_reader_check(in, name[0] != '\0', "an empty name");
    for (uint32_t k = 0; k < i; k++)
        wire_reader_check(in, strcmp((const char *)names + k * stride, name) != 0,
                          "a name that was used before");
}

static int regions_read(struct wire_reader *in, struct wire_register *frame, struct error err)
{
    uint32_t count = wire_read_count(in, WIRE_REGIONS_MAX, REGION_BYTES_MIN);
    for (uint32_t i = 0; i < count; i++) {
        struct wire_region *region = &frame->regions[i];
        frame->region_count = i + 1; /* from here on wire_register_free looks at it */
        wire_read_name(in, region->name, sizeof(region->name));
        name_check(in, frame->regions[0].name, sizeof(*region), i);
        region->kind = wire_read_u32(in);
        wire_reader_check(in, region->kind <= BATON_REGION_SEQUENCE,
                          "an unknown kind of region");
        layout_read_shape(in, &region->layout);
        if (layout_read_bases(in, &region->layout))
            return error_set(err, BATON_ENOMEM, "no memory for the peer's region \"%s\"",
                             region->name);
        if (in->problem)
            return 0;
        char text[256] = "";
        if (layout_check(&region->layout, ERROR_BUFFER(text)))
            return error_set(err, BATON_EPROTOCOL, "bad REGISTER frame: region \"%s\": %s",
                             region->name, text);
    }
    return 0;
}

static void aux_read(struct wire_reader *in, struct wire_register *frame)
{
    frame->aux_slots = wire_read_u32(in);
    frame->aux_slot_bytes = wire_read_u64(in);
    wire_reader_check(in, frame->aux_slot_bytes <= UINT32_MAX, "aux slots of 4 GiB or more");
    wire_reader_check(in, !frame->aux_slots == !frame->aux_slot_bytes,
                      "aux slots without bytes, or bytes without slots");
    uint32_t count = wire_read_count(in, WIRE_AUX_FIELDS_MAX, AUX_FIELD_BYTES_MIN);
    for (uint32_t i = 0; i < count && !in->problem; i++) {
        struct wire_aux_field *field = &frame->aux_fields[i];
        frame->aux_field_count = i + 1;
        wire_read_name(in, field->name, sizeof(field->name));
        name_check(in, frame->aux_fields[0].name, sizeof(*field), i);
        field->dtype = dtype_read(in);
        field->count = wire_read_u32(in);
        field->offset = wire_read_u64(in);
        uint64_t bytes = field->count * dtype_bytes(field->dtype);
        wire_reader_check(in,
                          field->offset <= frame->aux_slot_bytes &&
                              bytes <= frame->aux_slot_bytes - field->offset,
                          "an aux field that does not lie in its slot");
    }
}

static int backends_read(struct wire_reader *in, struct wire_register *frame, struct error err)
{
    uint32_t count = wire_read_count(in, WIRE_BACKENDS_MAX, BACKEND_BYTES_MIN);
    for (uint32_t i = 0; i < count && !in->problem; i++) {
        struct wire_backend_key *backend = &frame->backends[i];
        frame->backend_count = i + 1;
        wire_read_name(in, backend->name, sizeof(backend->name));
        name_check(in, frame->backends[0].name, sizeof(*backend), i);
        uint32_t key_bytes;
        const uint8_t *key = wire_read_blob(in, WIRE_KEY_MAX, &key_bytes);
        if (in->problem || !key_bytes)
            continue;
        backend->key = malloc(key_bytes);
        if (!backend->key)
            return error_set(err, BATON_ENOMEM, "no memory for the peer's key for backend %s",
                             backend->name);
        memcpy(backend->key, key, key_bytes);
        backend->key_bytes = key_bytes;
    }
    return 0;
}

static int register_read(struct wire_reader *in, struct wire_register *frame, struct error err)
{
    wire_read_name(in, frame->fingerprint, sizeof(frame->fingerprint));
    int rc = regions_read(in, frame, err);
    if (rc)
        return rc;
    aux_read(in, frame);
    rc = backends_read(in, frame, err);
    if (rc)
        return rc;
    frame->attach = wire_read_flag(in);
    frame->verify = wire_read_flag(in);
    return wire_reader_end(in, "REGISTER", err);
}

int wire_register_get(const uint8_t *payload, size_t length, struct wire_register *out,
                      struct error err)
{
    struct wire_reader in = wire_reader_of(payload, length);
    struct wire_register frame = {0};
    int rc = register_read(&in, &frame, err);
    if (rc)
        wire_register_free(&frame);
    else
        *out = frame;
    return rc;
}

void wire_register_free(struct wire_register *frame)
{
    for (uint32_t i = 0; i < frame->region_count; i++)
        layout_free(&frame->regions[i].layout);
    for (uint32_t i = 0; i < frame->backend_count; i++)
        free(frame->backends[i].key);
    *frame = (struct wire_register){0};
}
