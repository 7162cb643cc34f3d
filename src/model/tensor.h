/* SPDX-License-Identifier: Apache-2.0 */
/* What a tensor in a model file is, whichever format the file has: a name, a shape, a type and
 * bytes in a mapping that somebody else owns. Nothing here computes. */
#ifndef BATON_MODEL_TENSOR_H
#define BATON_MODEL_TENSOR_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* A row of a quantised type is a sequence of blocks; tensor_blocks.h draws them. */
enum tensor_type {
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_Q4_0,
    TENSOR_Q4_1,
    TENSOR_Q5_0,
    TENSOR_Q5_1,
    TENSOR_Q8_0,
    TENSOR_Q4_K,
    TENSOR_Q5_K,
    TENSOR_Q6_K,
    TENSOR_TYPE_COUNT,
    TENSOR_OPAQUE = TENSOR_TYPE_COUNT /* bytes of a type that nothing here can read */
};

const char *tensor_type_name(enum tensor_type type); /* "Q4_K" */
const char *tensor_type_list(void);                  /* "F32, F16, ..." for error texts */
uint32_t tensor_type_block_values(enum tensor_type type);
uint32_t tensor_type_block_bytes(enum tensor_type type);
uint32_t tensor_type_alignment(enum tensor_type type); /* of the widest number in a block */

/* The bytes of a row of `columns` values. EINVAL when it is not a whole number of blocks. */
int tensor_row_bytes(enum tensor_type type, uint64_t columns, uint64_t *out);

#define TENSOR_NAME_BYTES 128
#define TENSOR_DIMENSIONS_MAX 8

struct tensor {
    char name[TENSOR_NAME_BYTES];
    enum tensor_type type;
    const char *type_name;    /* what the file calls it; static */
    uint32_t dimension_count; /* 0: a single value */
    uint64_t
        shape[TENSOR_DIMENSIONS_MAX]; /* outermost first, as numpy prints it: rows, columns */
    const uint8_t *data;
    uint64_t bytes;
};

/* "49152x576", for error texts. */
#define TENSOR_SHAPE_TEXT_BYTES 184
const char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT_BYTES]);

/* Printable ASCII: what may come out of a file into a message as it is. */
bool text_is_printable(const char *bytes, uint64_t length);

/* EINVAL or ELIMIT when the name is not printable or too long. */
int tensor_name_set(struct tensor *tensor, const char *bytes, uint64_t length,
                    struct error err);

/* The tensors of a model, by name. `items` is sorted by name. */
struct tensor_table {
    struct tensor *items;
    uint32_t count;
};

/* Sorts; EINVAL when two tensors have one name. */
int tensor_table_sort(struct tensor_table *table, struct error err);
const struct tensor *tensor_table_find(const struct tensor_table *table, const char *name);

#endif
