/* SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files for the tests; gguf.c draws the format. */
#include "gguf_writer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ------------------------------------------------------------------------------- */

void bytes_add(struct bytes *bytes, const void *data, size_t size)
{
    if (bytes->size + size > bytes->capacity) {
        bytes->capacity = 2 * (bytes->size + size);
        bytes->data = realloc(bytes->data, bytes->capacity);
        assert_non_null(bytes->data);
    }
    if (size)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

void bytes_pad(struct bytes *bytes, size_t alignment)
{
    while (bytes->size % alignment)
        bytes_add(bytes, "", 1);
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

static void add_u32(struct bytes *bytes, uint32_t value)
{
    bytes_add(bytes, &value, sizeof(value));
}

static void add_u64(struct bytes *bytes, uint64_t value)
{
    bytes_add(bytes, &value, sizeof(value));
}

static void add_string(struct bytes *bytes, const char *text)
{
    add_u64(bytes, strlen(text));
    bytes_add(bytes, text, strlen(text));
}

/* ---- keys -------------------------------------------------------------------------------- */

void gguf_writer_init(struct gguf_writer *writer)
{
    *writer = (struct gguf_writer){.version = 3, .alignment = 32};
}

void gguf_writer_free(struct gguf_writer *writer)
{
    bytes_free(&writer->keys);
    bytes_free(&writer->tensors);
    bytes_free(&writer->data);
}

void gguf_writer_key(struct gguf_writer *writer, const char *key, uint32_t type,
                     const void *value, size_t size)
{
    add_string(&writer->keys, key);
    add_u32(&writer->keys, type);
    bytes_add(&writer->keys, value, size);
    writer->key_count++;
}

void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
    gguf_writer_key(writer, key, GGUF_UINT32, &value, sizeof(value));
}

void gguf_writer_float(struct gguf_writer *writer, const char *key, float value)
{
    gguf_writer_key(writer, key, GGUF_FLOAT32, &value, sizeof(value));
}

void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value)
{
    gguf_writer_key(writer, key, GGUF_STRING, NULL, 0);
    add_string(&writer->keys, value);
}

void gguf_writer_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                         uint64_t count)
{
    gguf_writer_key(writer, key, GGUF_ARRAY, NULL, 0);
    add_u32(&writer->keys, GGUF_STRING);
    add_u64(&writer->keys, count);
    for (uint64_t i = 0; i < count; i++)
        add_string(&writer->keys, values[i]);
}

/* ---- tensors ----------------------------------------------------------------------------- */

uint32_t gguf_writer_type(enum tensor_type type)
{
    static const uint32_t numbers[TENSOR_TYPE_COUNT] = {
        [TENSOR_F32] = 0,   [TENSOR_F16] = 1,   [TENSOR_Q4_0] = 2,  [TENSOR_Q4_1] = 3,
        [TENSOR_Q5_0] = 6,  [TENSOR_Q5_1] = 7,  [TENSOR_Q8_0] = 8,  [TENSOR_Q4_K] = 12,
        [TENSOR_Q5_K] = 13, [TENSOR_Q6_K] = 14, [TENSOR_BF16] = 30,
    };
    return numbers[type];
}

void gguf_writer_describe(struct gguf_writer *writer, const char *name, uint32_t dimensions,
                          const uint64_t *sizes, uint32_t type, uint64_t offset)
{
    add_string(&writer->tensors, name);
    add_u32(&writer->tensors, dimensions);
    bytes_add(&writer->tensors, sizes, dimensions * sizeof(*sizes));
    add_u32(&writer->tensors, type);
    add_u64(&writer->tensors, offset);
    writer->tensor_count++;
}

void gguf_writer_tensor(struct gguf_writer *writer, const char *name, enum tensor_type type,
                        uint64_t rows, uint64_t columns, const void *data)
{
    uint64_t sizes[2] = {columns, rows}, row_bytes;
    assert_int_equal(tensor_row_bytes(type, columns, &row_bytes), BATON_OK);
    bytes_pad(&writer->data, writer->alignment);
    gguf_writer_describe(writer, name, rows ? 2 : 1, sizes, gguf_writer_type(type),
                         writer->data.size);
    bytes_add(&writer->data, data, (rows ? rows : 1) * row_bytes);
}

struct bytes gguf_writer_finish(const struct gguf_writer *writer)
{
    struct bytes file = {0};
    bytes_add(&file, "GGUF", 4);
    add_u32(&file, writer->version);
    add_u64(&file, writer->tensor_count);
    add_u64(&file, writer->key_count);
    bytes_add(&file, writer->keys.data, writer->keys.size);
    bytes_add(&file, writer->tensors.data, writer->tensors.size);
    if (writer->tensor_count)
        bytes_pad(&file, writer->alignment);
    bytes_add(&file, writer->data.data, writer->data.size);
    return file;
}
