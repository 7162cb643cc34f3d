/* SPDX-License-Identifier: Apache-2.0 */
/* Reads one safetensors file:
 *
 *   u64 N   N bytes of JSON   the data
 *
 *   {"__metadata__": {...},
 *    "model.norm.weight": {"dtype": "BF16", "shape": [576], "data_offsets": [0, 1152]}, ...}
 *
 * Offsets count from the start of the data. As the format demands, the tensors cover the data
 * without a gap and without an overlap, which also makes a truncated file plain. Data need not be
 * aligned (N is any number); weights.c copies what is not. */
#include "safetensors.h"
#include "model_file_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 65536

static const struct {
    const char *name;
    enum tensor_type type;
    uint32_t bytes;
} types[] = {
    {"F32", TENSOR_F32, 4},        {"F16", TENSOR_F16, 2},        {"BF16", TENSOR_BF16, 2},
    {"F64", TENSOR_OPAQUE, 8},     {"F8_E4M3", TENSOR_OPAQUE, 1}, {"F8_E5M2", TENSOR_OPAQUE, 1},
    {"F8_E8M0", TENSOR_OPAQUE, 1}, {"I64", TENSOR_OPAQUE, 8},     {"U64", TENSOR_OPAQUE, 8},
    {"I32", TENSOR_OPAQUE, 4},     {"U32", TENSOR_OPAQUE, 4},     {"I16", TENSOR_OPAQUE, 2},
    {"U16", TENSOR_OPAQUE, 2},     {"I8", TENSOR_OPAQUE, 1},      {"U8", TENSOR_OPAQUE, 1},
    {"BOOL", TENSOR_OPAQUE, 1},
};

/* The data behind the header. */
struct section {
    const char *path;
    const uint8_t *bytes;
    uint64_t size;
};

/* ---- one entry of the header ------------------------------------------------------------- */

static int type_read(const char *path, const json_t *entry, struct tensor *tensor,
                     uint32_t *value_bytes, struct error err)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name)
        return error_set(err, BATON_EINVAL, "%s: tensor %s has no dtype", path, tensor->name);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].name, name))
            continue;
        tensor->type = types[i].type;
        tensor->type_name = types[i].name;
        *value_bytes = types[i].bytes;
        return BATON_OK;
    }
    return error_set(err, BATON_EUNSUPPORTED,
                     "%s: tensor %s has the dtype %.20s, which is not known here", path,
                     tensor->name, text_is_printable(name, strlen(name)) ? name : "(garbage)");
}

static int shape_read(const char *path, const json_t *entry, struct tensor *tensor,
                      struct error err)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t count = json_array_size(shape);
    if (!json_is_array(shape) || count > TENSOR_DIMENSIONS_MAX)
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s: shape must be an array of at most %d sizes", path,
                         tensor->name, TENSOR_DIMENSIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *size = json_array_get(shape, i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return error_set(err, BATON_EINVAL,
                             "%s: tensor %s: size %zu of its shape is not a count", path,
                             tensor->name, i);
        tensor->shape[i] = (uint64_t)json_integer_value(size);
    }
    tensor->dimension_count = (uint32_t)count;
    return BATON_OK;
}

static int place_read(const struct section *data, const json_t *entry, struct tensor *tensor,
                      struct error err)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second) ||
        json_integer_value(first) < 0 || json_integer_value(second) < json_integer_value(first))
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s: data_offsets must be two numbers, begin and end",
                         data->path, tensor->name);
    uint64_t begin = (uint64_t)json_integer_value(first);
    uint64_t end = (uint64_t)json_integer_value(second);
    if (end > data->size)
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s ends at byte %" PRIu64
                         " of the data, of which the file "
                         "has %" PRIu64 "; it is truncated or damaged",
                         data->path, tensor->name, end, data->size);
    tensor->data = data->bytes + begin;
    tensor->bytes = end - begin;
    return BATON_OK;
}

static int size_check(const char *path, const struct tensor *tensor, uint32_t value_bytes,
                      struct error err)
{
    char text[TENSOR_SHAPE_TEXT_BYTES];
    uint64_t bytes = value_bytes;
    bool overflow = false;
    for (uint32_t i = 0; i < tensor->dimension_count; i++)
        overflow |= __builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
    if (overflow || bytes != tensor->bytes)
        return error_set(err, BATON_EINVAL,
                         "%s: tensor %s is %s of %s, but has %" PRIu64 " bytes of data", path,
                         tensor->name, tensor_shape_text(tensor, text), tensor->type_name,
                         tensor->bytes);
    return BATON_OK;
}

static int tensor_read(const struct section *data, const char *name, const json_t *entry,
                       struct tensor *tensor, struct error err)
{
    uint32_t value_bytes = 0;
    char text[96];
    int rc = tensor_name_set(tensor, name, strlen(name), ERROR_BUFFER(text));
    if (rc)
        return error_set(err, rc, "%s: %s", data->path, text);
    if ((rc = type_read(data->path, entry, tensor, &value_bytes, err)) ||
        (rc = shape_read(data->path, entry, tensor, err)) ||
        (rc = place_read(data, entry, tensor, err)) ||
        (rc = size_check(data->path, tensor, value_bytes, err)))
        return rc;
    return BATON_OK;
}

/* ---- the file ---------------------------------------------------------------------------- */

static int header_read(const uint8_t *bytes, size_t size, struct section *data, json_t **header,
                       struct error err)
{
    uint64_t length;
    if (size < sizeof(length))
        return error_set(err, BATON_EINVAL, "%s has %zu bytes, too few for a safetensors file",
                         data->path, size);
    memcpy(&length, bytes, sizeof(length));
    if (length > size - sizeof(length))
        return error_set(err, BATON_EINVAL,
                         "%s: its header should have %" PRIu64 " bytes, but the file has %zu; "
                         "it is truncated, or no safetensors file",
                         data->path, length, size);
    data->bytes = bytes + sizeof(length) + length;
    data->size = size - sizeof(length) - length;
    return model_json_parse((const char *)bytes + sizeof(length), (size_t)length, data->path,
                            header, err);
}

static int entries_read(const struct section *data, json_t *header, struct tensor_table *table,
                        struct error err)
{
    const char *name;
    json_t *entry;
    size_t count = json_object_size(header);
    if (count > TENSORS_MAX)
        return error_set(err, BATON_ELIMIT, "%s has %zu tensors; at most %d are read",
                         data->path, count, TENSORS_MAX);
    table->items = calloc(count + 1, sizeof(*table->items));
    if (!table->items)
        return error_set(err, BATON_ENOMEM, "%s: no memory for %zu tensors", data->path, count);
    json_object_foreach(header, name, entry)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        int rc = tensor_read(data, name, entry, &table->items[table->count], err);
        if (rc)
            return rc;
        table->count++;
    }
    return BATON_OK;
}

static int compare_places(const void *a, const void *b)
{
    const struct tensor *left = a, *right = b;
    if (left->data != right->data)
        return left->data < right->data ? -1 : 1;
    return (left->bytes > right->bytes) - (left->bytes < right->bytes);
}

static int coverage_check(const struct section *data, struct tensor_table *table,
                          struct error err)
{
    const uint8_t *next = data->bytes;
    qsort(table->items, table->count, sizeof(*table->items), compare_places);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct tensor *tensor = &table->items[i];
        if (tensor->data != next)
            return error_set(err, BATON_EINVAL, "%s: tensor %s %s", data->path, tensor->name,
                             tensor->data < next ? "overlaps the one before it"
                                                 : "leaves a gap in the data before it");
        next += tensor->bytes;
    }
    uint64_t used = (uint64_t)(next - data->bytes);
    if (used != data->size)
        return error_set(err, BATON_EINVAL,
                         "%s: its tensors have %" PRIu64 " bytes of data, the file %" PRIu64,
                         data->path, used, data->size);
    return BATON_OK;
}

int safetensors_parse(const uint8_t *bytes, size_t size, const char *path,
                      struct tensor_table *out, struct error err)
{
    struct section data = {.path = path};
    struct tensor_table table = {0};
    json_t *header = NULL;
    char text[200];
    int rc;
    if ((rc = header_read(bytes, size, &data, &header, err)) ||
        (rc = entries_read(&data, header, &table, err)) ||
        (rc = coverage_check(&data, &table, err)))
        goto drop_header;
    if ((rc = tensor_table_sort(&table, ERROR_BUFFER(text)))) {
        error_set(err, rc, "%s: %s", path, text);
        goto drop_header;
    }
    *out = table;
    table.items = NULL;
drop_header:
    free(table.items);
    json_decref(header);
    return rc;
}
