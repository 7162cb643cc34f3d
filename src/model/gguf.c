/* SPDX-License-Identifier: Apache-2.0 */
/* Reads GGUF files:
 *
 *   "GGUF"  u32 version  u64 tensor count  u64 key count
 *   key count times:     string key, u32 type, value            gguf_metadata.c
 *   tensor count times:  string name, u32 dimensions, u64 size of each (innermost first),
 *                        u32 type, u64 offset of its data
 *   padding to general.alignment (32 unless said otherwise); offsets count from here
 *   the tensors' data, each aligned
 *
 * A string is a u64 length and its bytes. Everything is little-endian (a big-endian variant
 * exists, and is refused).
 *
 * A file is somebody else's: each length is compared with what is left of the file before it is
 * used, and no allocation is larger than a small multiple of the bytes that asked for it. */
#include "gguf_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_MIN 2
#define VERSION_MAX 3
#define TENSORS_MAX 65536
#define TENSOR_BYTES_MIN (8 + 1 + 4 + 8 + 4 + 8) /* the shortest description of a tensor */
#define DIMENSIONS_MAX 4
#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MIN 8
#define ALIGNMENT_MAX (1u << 20)

/* The format's numbers of types. Those without a tensor_type are known by name only. */
static const struct {
    const char *name;
    enum tensor_type type;
} types[] = {
    [0] = {"F32", TENSOR_F32},         [1] = {"F16", TENSOR_F16},
    [2] = {"Q4_0", TENSOR_Q4_0},       [3] = {"Q4_1", TENSOR_Q4_1},
    [6] = {"Q5_0", TENSOR_Q5_0},       [7] = {"Q5_1", TENSOR_Q5_1},
    [8] = {"Q8_0", TENSOR_Q8_0},       [9] = {"Q8_1", TENSOR_OPAQUE},
    [10] = {"Q2_K", TENSOR_OPAQUE},    [11] = {"Q3_K", TENSOR_OPAQUE},
    [12] = {"Q4_K", TENSOR_Q4_K},      [13] = {"Q5_K", TENSOR_Q5_K},
    [14] = {"Q6_K", TENSOR_Q6_K},      [15] = {"Q8_K", TENSOR_OPAQUE},
    [16] = {"IQ2_XXS", TENSOR_OPAQUE}, [17] = {"IQ2_XS", TENSOR_OPAQUE},
    [18] = {"IQ3_XXS", TENSOR_OPAQUE}, [19] = {"IQ1_S", TENSOR_OPAQUE},
    [20] = {"IQ4_NL", TENSOR_OPAQUE},  [21] = {"IQ3_S", TENSOR_OPAQUE},
    [22] = {"IQ2_S", TENSOR_OPAQUE},   [23] = {"IQ4_XS", TENSOR_OPAQUE},
    [24] = {"I8", TENSOR_OPAQUE},      [25] = {"I16", TENSOR_OPAQUE},
    [26] = {"I32", TENSOR_OPAQUE},     [27] = {"I64", TENSOR_OPAQUE},
    [28] = {"F64", TENSOR_OPAQUE},     [29] = {"IQ1_M", TENSOR_OPAQUE},
    [30] = {"BF16", TENSOR_BF16},      [34] = {"TQ1_0", TENSOR_OPAQUE},
    [35] = {"TQ2_0", TENSOR_OPAQUE},   [39] = {"MXFP4", TENSOR_OPAQUE},
};

/* ---- the cursor -------------------------------------------------------------------------- */

const uint8_t *gguf_take(struct gguf_cursor *cursor, uint64_t size, const char *what,
                         struct error err)
{
    uint64_t left = cursor->size - cursor->position;
    if (size > left) {
        error_set(err, BATON_EINVAL,
                  "%s: %s needs %" PRIu64 " bytes at byte %" PRIu64
                  ", and the file has %" PRIu64 " more; it is truncated or damaged",
                  cursor->path, what, size, cursor->position, left);
        return NULL;
    }
    const uint8_t *bytes = cursor->bytes + cursor->position;
    cursor->position += size;
    return bytes;
}

int gguf_take_u32(struct gguf_cursor *cursor, const char *what, uint32_t *out, struct error err)
{
    const uint8_t *bytes = gguf_take(cursor, sizeof(*out), what, err);
    if (!bytes)
        return BATON_EINVAL;
    memcpy(out, bytes, sizeof(*out));
    return BATON_OK;
}

int gguf_take_u64(struct gguf_cursor *cursor, const char *what, uint64_t *out, struct error err)
{
    const uint8_t *bytes = gguf_take(cursor, sizeof(*out), what, err);
    if (!bytes)
        return BATON_EINVAL;
    memcpy(out, bytes, sizeof(*out));
    return BATON_OK;
}

int gguf_take_string(struct gguf_cursor *cursor, const char *what, struct gguf_string *out,
                     struct error err)
{
    uint64_t length;
    if (gguf_take_u64(cursor, what, &length, err))
        return BATON_EINVAL;
    const uint8_t *bytes = gguf_take(cursor, length, what, err);
    if (!bytes)
        return BATON_EINVAL;
    *out = (struct gguf_string){(const char *)bytes, (size_t)length};
    return BATON_OK;
}

/* ---- tensors ----------------------------------------------------------------------------- */

static int tensor_shape_take(struct gguf_cursor *cursor, struct tensor *tensor,
                             struct error err)
{
    uint32_t count;
    int rc = gguf_take_u32(cursor, tensor->name, &count, err);
    if (rc)
        return rc;
    if (count < 1 || count > DIMENSIONS_MAX)
        return error_set(err, BATON_EINVAL, "%s: tensor %s has %u dimensions, must be 1 to %d",
                         cursor->path, tensor->name, count, DIMENSIONS_MAX);
    tensor->dimension_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *size = &tensor->shape[count - 1 - i];
        if ((rc = gguf_take_u64(cursor, tensor->name, size, err)))
            return rc;
        if (*size == 0)
            return error_set(err, BATON_EINVAL, "%s: tensor %s has a dimension of size 0",
                             cursor->path, tensor->name);
    }
    return BATON_OK;
}

static int tensor_type_take(struct gguf_cursor *cursor, struct tensor *tensor, struct error err)
{
    uint32_t number;
    int rc = gguf_take_u32(cursor, tensor->name, &number, err);
    if (rc)
        return rc;
    if (number >= sizeof(types) / sizeof(types[0]) || !types[number].name)
        return error_set(err, BATON_EUNSUPPORTED,
                         "%s: tensor %s has the type number %u, which is not known here",
                         cursor->path, tensor->name, number);
    tensor->type = types[number].type;
    tensor->type_name = types[number].name;
    if (tensor->type == TENSOR_OPAQUE)
        return error_set(err, BATON_EUNSUPPORTED,
                         "%s: tensor %s is %s, which is not supported; supported are %s",
                         cursor->path, tensor->name, tensor->type_name, tensor_type_list());
    return BATON_OK;
}

static int tensor_size(const char *path, struct tensor *tensor, struct error err)
{
    char text[TENSOR_SHAPE_TEXT_BYTES];
    uint64_t columns = tensor->shape[tensor->dimension_count - 1];
    if (columns % tensor_type_block_values(tensor->type))
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s is %s of %s, but its rows must be multiples of %u",
                         path, tensor->name, tensor_shape_text(tensor, text), tensor->type_name,
                         tensor_type_block_values(tensor->type));
    int overflow = tensor_row_bytes(tensor->type, columns, &tensor->bytes) != BATON_OK;
    for (uint32_t i = 0; i + 1 < tensor->dimension_count; i++)
        overflow |= __builtin_mul_overflow(tensor->bytes, tensor->shape[i], &tensor->bytes);
    if (overflow)
        return error_set(err, BATON_EINVAL, "%s: tensor %s has the impossible shape %s", path,
                         tensor->name, tensor_shape_text(tensor, text));
    return BATON_OK;
}

/* Fills in all but `data`, which becomes known when all descriptions are read. */
static int tensor_take(struct gguf_cursor *cursor, struct tensor *tensor, uint64_t *offset,
                       struct error err)
{
    struct gguf_string name;
    char text[96];
    int rc;
    if ((rc = gguf_take_string(cursor, "the name of a tensor", &name, err)))
        return rc;
    if ((rc = tensor_name_set(tensor, name.bytes, name.length, ERROR_BUFFER(text))))
        return error_set(err, rc, "%s: %s", cursor->path, text);
    if ((rc = tensor_shape_take(cursor, tensor, err)) ||
        (rc = tensor_type_take(cursor, tensor, err)) ||
        (rc = tensor_size(cursor->path, tensor, err)) ||
        (rc = gguf_take_u64(cursor, tensor->name, offset, err)))
        return rc;
    return BATON_OK;
}

static int tensor_place(const struct gguf_cursor *data, uint64_t alignment, uint64_t offset,
                        struct tensor *tensor, struct error err)
{
    uint64_t size = data->size - data->position;
    if (offset % alignment)
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s is at offset %" PRIu64 ", no multiple of the alignment "
                         "%" PRIu64,
                         data->path, tensor->name, offset, alignment);
    if (offset > size || tensor->bytes > size - offset)
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s has %" PRIu64 " bytes at offset %" PRIu64
                         ", and the file has %" PRIu64 " bytes of data; it is truncated or "
                         "damaged",
                         data->path, tensor->name, tensor->bytes, offset, size);
    tensor->data = data->bytes + data->position + offset;
    return BATON_OK;
}

static int alignment_read(const struct gguf *file, uint64_t *out, struct error err)
{
    uint32_t alignment = ALIGNMENT_DEFAULT;
    int rc = gguf_get_u32(file, "general.alignment", &alignment, err);
    if (rc && rc != BATON_ENOTFOUND)
        return rc;
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return error_set(err, BATON_EINVAL,
                         "%s: general.alignment is %u, must be a power of two from %u to %u",
                         file->path, alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    *out = alignment;
    return BATON_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct tensor *left = *(const struct tensor *const *)a;
    const struct tensor *right = *(const struct tensor *const *)b;
    return (left->data > right->data) - (left->data < right->data);
}

static int overlaps_refuse(const struct gguf *file, struct error err)
{
    uint32_t count = file->tensors.count;
    const struct tensor **order = malloc(count * sizeof(*order));
    int rc = BATON_OK;
    if (!order)
        return error_set(err, BATON_ENOMEM, "%s: no memory for %u tensors", file->path, count);
    for (uint32_t i = 0; i < count; i++)
        order[i] = &file->tensors.items[i];
    qsort(order, count, sizeof(*order), compare_places);
    for (uint32_t i = 1; i < count && !rc; i++)
        if (order[i]->data < order[i - 1]->data + order[i - 1]->bytes)
            rc = error_set(err, BATON_EINVAL, "%s: the tensors %s and %s overlap", file->path,
                           order[i - 1]->name, order[i]->name);
    free(order);
    return rc;
}

static int tensors_allocate(struct gguf *file, const struct gguf_cursor *cursor, uint64_t count,
                            uint64_t **offsets, struct error err)
{
    if (count > TENSORS_MAX || count > (cursor->size - cursor->position) / TENSOR_BYTES_MIN)
        return error_set(err, BATON_EINVAL,
                         "%s: %" PRIu64 " tensors are announced, more than %s", file->path,
                         count, count > TENSORS_MAX ? "any model has" : "the file can hold");
    file->tensors.items = calloc(count, sizeof(*file->tensors.items));
    *offsets = malloc(count * sizeof(**offsets));
    if (!file->tensors.items || !*offsets)
        return error_set(err, BATON_ENOMEM, "%s: no memory for %" PRIu64 " tensors", file->path,
                         count);
    file->tensors.count = (uint32_t)count;
    return BATON_OK;
}

static int tensors_parse(struct gguf *file, struct gguf_cursor *cursor, uint64_t count,
                         struct error err)
{
    uint64_t alignment = ALIGNMENT_DEFAULT, *offsets = NULL;
    char text[200];
    int rc;
    if (count == 0) /* a vocabulary alone */
        return BATON_OK;
    if ((rc = alignment_read(file, &alignment, err)) ||
        (rc = tensors_allocate(file, cursor, count, &offsets, err)))
        goto free_offsets;
    struct tensor_table *tensors = &file->tensors;
    for (uint32_t i = 0; i < tensors->count; i++)
        if ((rc = tensor_take(cursor, &tensors->items[i], &offsets[i], err)))
            goto free_offsets;

    if (!gguf_take(cursor, -cursor->position & (alignment - 1), "padding before the data",
                   err)) {
        rc = BATON_EINVAL;
        goto free_offsets;
    }
    for (uint32_t i = 0; i < tensors->count; i++)
        if ((rc = tensor_place(cursor, alignment, offsets[i], &tensors->items[i], err)))
            goto free_offsets;
    if ((rc = tensor_table_sort(tensors, ERROR_BUFFER(text))))
        error_set(err, rc, "%s: %s", file->path, text);
    else
        rc = overlaps_refuse(file, err);
free_offsets:
    free(offsets);
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------- */

static int header_take(struct gguf *file, struct gguf_cursor *cursor, uint64_t *tensor_count,
                       uint64_t *key_count, struct error err)
{
    int rc;
    if (cursor->size < 4 || memcmp(cursor->bytes, "GGUF", 4))
        return error_set(err, BATON_EINVAL, "%s is not a GGUF file", file->path);
    cursor->position = 4;
    if ((rc = gguf_take_u32(cursor, "the version", &file->version, err)))
        return rc;
    if (file->version > 0xffff)
        return error_set(
            err, BATON_EUNSUPPORTED,
            "%s is a big-endian GGUF file, or damaged; only little-endian ones are "
            "supported",
            file->path);
    if (file->version < VERSION_MIN || file->version > VERSION_MAX)
        return error_set(err, BATON_EUNSUPPORTED,
                         "%s is GGUF version %u; supported are %d and %d", file->path,
                         file->version, VERSION_MIN, VERSION_MAX);
    if ((rc = gguf_take_u64(cursor, "the tensor count", tensor_count, err)) ||
        (rc = gguf_take_u64(cursor, "the key count", key_count, err)))
        return rc;
    return BATON_OK;
}

int gguf_parse(const uint8_t *bytes, size_t size, const char *path, struct gguf **out,
               struct error err)
{
    uint64_t tensor_count = 0, key_count = 0;
    int rc;
    struct gguf *file = calloc(1, sizeof(*file));
    if (!file || !(file->path = strdup(path))) {
        rc = error_set(err, BATON_ENOMEM, "%s: out of memory", path);
        goto close_file;
    }
    struct gguf_cursor cursor = {.bytes = bytes, .size = size, .path = file->path};
    if ((rc = header_take(file, &cursor, &tensor_count, &key_count, err)) ||
        (rc = gguf_metadata_parse(file, &cursor, key_count, err)) ||
        (rc = tensors_parse(file, &cursor, tensor_count, err)))
        goto close_file;
    *out = file;
    return BATON_OK;
close_file:
    gguf_close(file);
    return rc;
}

int gguf_open(const char *path, struct gguf **out, struct error err)
{
    struct file_map map;
    int rc = file_map_open(path, &map, err);
    if (rc)
        return rc;
    rc = gguf_parse(map.bytes, map.size, path, out, err);
    if (rc)
        file_map_close(&map);
    else
        (*out)->map = map;
    return rc;
}

void gguf_close(struct gguf *file)
{
    if (!file)
        return;
    file_map_close(&file->map);
    free(file->tensors.items);
    free(file->by_key);
    free(file->values);
    free(file->path);
    free(file);
}

const char *gguf_path(const struct gguf *file)
{
    return file->path;
}

uint32_t gguf_version(const struct gguf *file)
{
    return file->version;
}

const struct tensor_table *gguf_tensors(const struct gguf *file)
{
    return &file->tensors;
}
