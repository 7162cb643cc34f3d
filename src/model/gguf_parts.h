/* SPDX-License-Identifier: Apache-2.0 */
/* What gguf.c and gguf_metadata.c share, and nobody else sees. */
#ifndef BATON_MODEL_GGUF_PARTS_H
#define BATON_MODEL_GGUF_PARTS_H

#include "gguf.h"
#include "model_file_map.h"

/* A key and its value, in the mapping. */
struct gguf_value {
    struct gguf_string key;
    enum gguf_type type;
    const uint8_t *number;     /* the bytes of a number or a boolean, unaligned */
    struct gguf_string string; /* of GGUF_STRING */
    struct gguf_array array;   /* of GGUF_ARRAY */
};

struct gguf {
    char *path;
    struct file_map map; /* empty when the bytes are the caller's */
    uint32_t version;
    struct gguf_value *values; /* in the order of the file */
    const struct gguf_value **by_key;
    uint32_t value_count;
    struct tensor_table tensors;
};

/* Reads on from `position`; never past the end. */
struct gguf_cursor {
    const uint8_t *bytes;
    uint64_t size, position;
    const char *path;
};

/* The next `size` bytes. NULL, and a sentence, when the file does not have that many (EINVAL). */
const uint8_t *gguf_take(struct gguf_cursor *cursor, uint64_t size, const char *what,
                         struct error err);
int gguf_take_u32(struct gguf_cursor *cursor, const char *what, uint32_t *out,
                  struct error err);
int gguf_take_u64(struct gguf_cursor *cursor, const char *what, uint64_t *out,
                  struct error err);
int gguf_take_string(struct gguf_cursor *cursor, const char *what, struct gguf_string *out,
                     struct error err);

/* Fills values, by_key and value_count of `file`. On failure what was allocated is still the
 * file's, to be freed with it. */
int gguf_metadata_parse(struct gguf *file, struct gguf_cursor *cursor, uint64_t count,
                        struct error err);

#endif
