/* SPDX-License-Identifier: Apache-2.0 */
/* Writes GGUF files into memory, sound ones and, where a test wants it, wrong ones: nothing that
 * is put in is checked. Runs out of memory by failing the test. */
#ifndef BATON_TESTS_GGUF_WRITER_H
#define BATON_TESTS_GGUF_WRITER_H

#include "model/gguf.h"

struct bytes {
    uint8_t *data;
    size_t size, capacity;
};

void bytes_add(struct bytes *bytes, const void *data, size_t size);
void bytes_pad(struct bytes *bytes, size_t alignment);
void bytes_free(struct bytes *bytes);

struct gguf_writer {
    struct bytes keys, tensors, data;
    uint64_t key_count, tensor_count;
    uint32_t version, alignment; /* of the data; the key general.alignment is the caller's */
};

void gguf_writer_init(struct gguf_writer *writer); /* version 3, alignment 32 */
void gguf_writer_free(struct gguf_writer *writer);

/* A key and whatever bytes follow its type. */
void gguf_writer_key(struct gguf_writer *writer, const char *key, uint32_t type,
                     const void *value, size_t size);
void gguf_writer_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_writer_float(struct gguf_writer *writer, const char *key, float value);
void gguf_writer_string(struct gguf_writer *writer, const char *key, const char *value);
void gguf_writer_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                         uint64_t count);

/* A tensor's description, as the format has it: sizes innermost first, ggml's type number. */
void gguf_writer_describe(struct gguf_writer *writer, const char *name, uint32_t dimensions,
                          const uint64_t *sizes, uint32_t type, uint64_t offset);
/* A description and its data behind what is there already. Rows 0: a vector. */
void gguf_writer_tensor(struct gguf_writer *writer, const char *name, enum tensor_type type,
                        uint64_t rows, uint64_t columns, const void *data);

/* The whole file; the caller frees it. */
struct bytes gguf_writer_finish(const struct gguf_writer *writer);

uint32_t gguf_writer_type(enum tensor_type type); /* ggml's number */

#endif
