/* SPDX-License-Identifier: Apache-2.0 */
/* What the wire_*.c files share: numbers in little-endian, a writer that appends to a growing
 * buffer, and a reader that cannot leave the payload. Nobody else includes this.
 *
 * Both writer and reader remember their first failure and go on harmlessly (the reader returns
 * zeros), so that an encoder or decoder is a plain list of its fields with one check at the end. */
#ifndef BATON_TRANSFER_WIRE_CODEC_H
#define BATON_TRANSFER_WIRE_CODEC_H

#include "wire.h"

#include <endian.h>
#include <string.h>

/* Where this is 1, arrays of integers are on the wire as they are in memory. */
#define WIRE_NATIVE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

static inline uint16_t wire_load16(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof(value));
    return le16toh(value);
}

static inline uint32_t wire_load32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof(value));
    return le32toh(value);
}

static inline uint64_t wire_load64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof(value));
    return le64toh(value);
}

static inline void wire_store16(uint8_t *to, uint16_t value)
{
    value = htole16(value);
    memcpy(to, &value, sizeof(value));
}

static inline void wire_store32(uint8_t *to, uint32_t value)
{
    value = htole32(value);
    memcpy(to, &value, sizeof(value));
}

static inline void wire_store64(uint8_t *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof(value));
}

/* The most payload bytes a frame of this type can have; 0: no such type. */
uint32_t wire_length_max(uint16_t type);

/* ---- writer ---- */

/* Appends the header and returns where the frame begins, for wire_frame_end. */
size_t wire_frame_begin(struct wire_buffer *out, struct wire_header header, uint16_t type);
/* Patches the length in; takes a failed frame out again. */
void wire_frame_end(struct wire_buffer *out, size_t begin);

/* Room for `bytes` more at the end, or NULL and failed. */
uint8_t *wire_extend(struct wire_buffer *out, size_t bytes);
void wire_put_u16(struct wire_buffer *out, uint16_t value);
void wire_put_u32(struct wire_buffer *out, uint32_t value);
void wire_put_u64(struct wire_buffer *out, uint64_t value);
void wire_put_bytes(struct wire_buffer *out, const void *bytes, size_t length);
/* A count before a list; fails above max. Returns whether the list may be walked. */
int wire_put_count(struct wire_buffer *out, uint32_t count, uint32_t max);
void wire_put_blob(struct wire_buffer *out, const void *bytes, uint32_t length, uint32_t max);
void wire_put_name(struct wire_buffer *out, struct wire_string name, uint32_t max);
void wire_put_text(struct wire_buffer *out, struct wire_string text);
void wire_put_pages(struct wire_buffer *out, struct wire_pages pages);

/* ---- reader ---- */

struct wire_reader {
    const uint8_t *start;
    const uint8_t *field; /* what was read last: where a problem is said to be */
    const uint8_t *at;
    const uint8_t *end;
    const char *problem; /* the first; NULL: none yet */
    size_t problem_at;
};

struct wire_reader wire_reader_of(const uint8_t *payload, size_t length);
void wire_reader_check(struct wire_reader *in, int condition, const char *problem);
/* 0 if all went well and nothing is left over, else EPROTOCOL and a sentence. */
int wire_reader_end(struct wire_reader *in, const char *frame, struct error err);

/* The next bytes of the payload, or NULL. */
const uint8_t *wire_read_bytes(struct wire_reader *in, size_t length);
uint16_t wire_read_u16(struct wire_reader *in);
uint32_t wire_read_u32(struct wire_reader *in);
uint64_t wire_read_u64(struct wire_reader *in);
uint32_t wire_read_flag(struct wire_reader *in); /* 0 or 1 */
uint64_t wire_read_room(struct wire_reader *in);
/* A list's count: at most max, and so many elements of element_bytes or more can still follow,
 * so that a count never makes us allocate or loop beyond what the peer has really sent. */
uint32_t wire_read_count(struct wire_reader *in, uint32_t max, size_t element_bytes);
const uint8_t *wire_read_blob(struct wire_reader *in, uint32_t max, uint32_t *length);
struct wire_string wire_read_string(struct wire_reader *in, uint32_t max);
void wire_read_name(struct wire_reader *in, char *out, size_t size); /* terminated */
struct wire_pages wire_read_pages(struct wire_reader *in);

#endif
