/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files, versions 2 and 3: metadata by key and tensors by name, in a read-only mapping.
 *
 *   struct gguf *file;
 *   struct gguf_array tokens;
 *   if ((rc = gguf_open(path, &file, err)) ||
 *       (rc = gguf_get_array(file, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, err)))
 *       ...
 *
 * Opening checks every length, count and offset of the file once; what the getters hand out
 * afterwards lies inside the mapping and lives as long as the file is open. Nothing is changed
 * after opening, so any number of threads may read. */
#ifndef BATON_MODEL_GGUF_H
#define BATON_MODEL_GGUF_H

#include "tensor.h"

#include <stdbool.h>
#include <stddef.h>

struct gguf;

enum gguf_type { /* the numbers of the format */
                 GGUF_UINT8 = 0,
                 GGUF_INT8 = 1,
                 GGUF_UINT16 = 2,
                 GGUF_INT16 = 3,
                 GGUF_UINT32 = 4,
                 GGUF_INT32 = 5,
                 GGUF_FLOAT32 = 6,
                 GGUF_BOOL = 7,
                 GGUF_STRING = 8,
                 GGUF_ARRAY = 9,
                 GGUF_UINT64 = 10,
                 GGUF_INT64 = 11,
                 GGUF_FLOAT64 = 12,
                 GGUF_TYPE_COUNT
};

/* Bytes in the mapping. Not terminated; may hold any bytes, not only UTF-8. */
struct gguf_string {
    const char *bytes;
    size_t length;
};

struct gguf_array {
    enum gguf_type type; /* of the elements; never GGUF_ARRAY */
    uint64_t count;
    const uint8_t *bytes; /* the elements, unaligned; strings each with their length before */
};

/* ---- open and close ---------------------------------------------------------------------- */

/* EINVAL: not a GGUF file, or damaged; EUNSUPPORTED: sound, but of a kind that is not read here.
 * The error names the file and the key or tensor. */
int gguf_open(const char *path, struct gguf **out, struct error err);

/* The same for bytes in memory, which stay the caller's and must outlive the gguf. `path` is
 * for error texts. */
int gguf_parse(const uint8_t *bytes, size_t size, const char *path, struct gguf **out,
               struct error err);

void gguf_close(struct gguf *file); /* NULL is fine */

const char *gguf_path(const struct gguf *file);
uint32_t gguf_version(const struct gguf *file);
const struct tensor_table *gguf_tensors(const struct gguf *file);

/* ---- metadata ---------------------------------------------------------------------------- */

bool gguf_has(const struct gguf *file, const char *key);

/* Each returns ENOTFOUND when the key is missing and EINVAL when its value is something else or
 * out of range, with a sentence that names the file and the key; *out is then as it was, so that
 * it can hold a default. Integers of any width are accepted where they fit, floats of both. */
int gguf_get_u32(const struct gguf *file, const char *key, uint32_t *out, struct error err);
int gguf_get_u64(const struct gguf *file, const char *key, uint64_t *out, struct error err);
int gguf_get_i64(const struct gguf *file, const char *key, int64_t *out, struct error err);
int gguf_get_float(const struct gguf *file, const char *key, float *out, struct error err);
int gguf_get_bool(const struct gguf *file, const char *key, bool *out, struct error err);
int gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out,
                    struct error err);
/* The elements must be of this very type. */
int gguf_get_array(const struct gguf *file, const char *key, enum gguf_type type,
                   struct gguf_array *out, struct error err);

/* Element i < count. Booleans and all integers but uint64_t above 2^63 - 1, which read as
 * 2^63 - 1; asserts that the array holds integers. */
int64_t gguf_array_integer(const struct gguf_array *array, uint64_t i);
/* Of an array of floats of either width. */
double gguf_array_float(const struct gguf_array *array, uint64_t i);
/* All strings of an array of strings, in order, in a table that the caller frees. */
int gguf_array_strings(const struct gguf_array *array, struct gguf_string **out,
                       struct error err);

bool gguf_string_equal(struct gguf_string string, const char *text);
const char *gguf_type_name(enum gguf_type type); /* "uint32" */

/* For listings: the i-th key in the order of the file, and what it holds. */
uint32_t gguf_key_count(const struct gguf *file);
struct gguf_string gguf_key_name(const struct gguf *file, uint32_t i);
enum gguf_type gguf_key_type(const struct gguf *file, uint32_t i);

#endif
