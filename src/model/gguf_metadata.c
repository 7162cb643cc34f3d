/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of a GGUF file: parsed once into a table of where each value lies, then read
 * through getters that say what is wrong instead of guessing. Numbers are not aligned in the
 * file, so they are copied out byte by byte. */
#include "gguf_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 65536
#define KEY_BYTES_MAX 256
#define KEY_BYTES_MIN (8 + 1 + 4 + 1) /* the shortest key with the shortest value */

static const struct {
    const char *name;
    uint32_t bytes; /* 0: it varies */
} types[GGUF_TYPE_COUNT] = {
    [GGUF_UINT8] = {"uint8", 1},     [GGUF_INT8] = {"int8", 1},
    [GGUF_UINT16] = {"uint16", 2},   [GGUF_INT16] = {"int16", 2},
    [GGUF_UINT32] = {"uint32", 4},   [GGUF_INT32] = {"int32", 4},
    [GGUF_FLOAT32] = {"float32", 4}, [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0},   [GGUF_ARRAY] = {"array", 0},
    [GGUF_UINT64] = {"uint64", 8},   [GGUF_INT64] = {"int64", 8},
    [GGUF_FLOAT64] = {"float64", 8},
};

const char *gguf_type_name(enum gguf_type type)
{
    return type < GGUF_TYPE_COUNT ? types[type].name : "an unknown type";
}

/* ---- parsing ----------------------------------------------------------------------------- */

/* "key tokenizer.ggml.tokens", for error texts. */
struct key_text {
    char text[KEY_BYTES_MAX + 8];
};

static int key_take(struct gguf_cursor *cursor, struct gguf_value *value, struct key_text *name,
                    struct error err)
{
    int rc = gguf_take_string(cursor, "a key", &value->key, err);
    if (rc)
        return rc;
    if (value->key.length == 0 || value->key.length > KEY_BYTES_MAX)
        return error_set(err, BATON_EINVAL, "%s: a key has %zu bytes, must be 1 to %d",
                         cursor->path, value->key.length, KEY_BYTES_MAX);
    if (!text_is_printable(value->key.bytes, value->key.length))
        return error_set(err, BATON_EINVAL, "%s: a key of %zu bytes is not printable ASCII",
                         cursor->path, value->key.length);
    memcpy(name->text, "key ", 4);
    memcpy(name->text + 4, value->key.bytes, value->key.length);
    name->text[4 + value->key.length] = '\0';
    return BATON_OK;
}

static int type_take(struct gguf_cursor *cursor, const char *what, enum gguf_type *out,
                     struct error err)
{
    uint32_t number;
    int rc = gguf_take_u32(cursor, what, &number, err);
    if (rc)
        return rc;
    if (number >= GGUF_TYPE_COUNT)
        return error_set(err, BATON_EINVAL, "%s: %s has the unknown value type %u",
                         cursor->path, what, number);
    *out = number;
    return BATON_OK;
}

static int booleans_check(const struct gguf_cursor *cursor, const char *what,
                          const uint8_t *bytes, uint64_t count, struct error err)
{
    for (uint64_t i = 0; i < count; i++)
        if (bytes[i] > 1)
            return error_set(err, BATON_EINVAL, "%s: %s is a bool of value %u, must be 0 or 1",
                             cursor->path, what, bytes[i]);
    return BATON_OK;
}

static int strings_skip(struct gguf_cursor *cursor, const char *what, uint64_t count,
                        struct error err)
{
    int rc = BATON_OK;
    for (uint64_t i = 0; i < count && !rc; i++) {
        struct gguf_string string;
        rc = gguf_take_string(cursor, what, &string, err);
    }
    return rc;
}

static int array_take(struct gguf_cursor *cursor, const char *what, struct gguf_array *array,
                      struct error err)
{
    uint64_t bytes;
    int rc;
    if ((rc = type_take(cursor, what, &array->type, err)) ||
        (rc = gguf_take_u64(cursor, what, &array->count, err)))
        return rc;
    if (array->type == GGUF_ARRAY)
        return error_set(err, BATON_EUNSUPPORTED, "%s: %s is an array of arrays", cursor->path,
                         what);
    array->bytes = cursor->bytes + cursor->position;
    if (array->type == GGUF_STRING)
        return strings_skip(cursor, what, array->count, err);
    if (__builtin_mul_overflow(array->count, types[array->type].bytes, &bytes))
        bytes = UINT64_MAX; /* more than any file has */
    if (!gguf_take(cursor, bytes, what, err))
        return BATON_EINVAL;
    if (array->type == GGUF_BOOL)
        return booleans_check(cursor, what, array->bytes, array->count, err);
    return BATON_OK;
}

static int value_take(struct gguf_cursor *cursor, struct gguf_value *value, struct error err)
{
    struct key_text name;
    int rc;
    if ((rc = key_take(cursor, value, &name, err)) ||
        (rc = type_take(cursor, name.text, &value->type, err)))
        return rc;
    if (value->type == GGUF_STRING)
        return gguf_take_string(cursor, name.text, &value->string, err);
    if (value->type == GGUF_ARRAY)
        return array_take(cursor, name.text, &value->array, err);
    value->number = gguf_take(cursor, types[value->type].bytes, name.text, err);
    if (!value->number)
        return BATON_EINVAL;
    if (value->type == GGUF_BOOL)
        return booleans_check(cursor, name.text, value->number, 1, err);
    return BATON_OK;
}

static int compare_keys(struct gguf_string a, struct gguf_string b)
{
    size_t common = a.length < b.length ? a.length : b.length;
    int order = memcmp(a.bytes, b.bytes, common);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int compare_values(const void *a, const void *b)
{
    const struct gguf_value *left = *(const struct gguf_value *const *)a;
    const struct gguf_value *right = *(const struct gguf_value *const *)b;
    return compare_keys(left->key, right->key);
}

static int duplicates_refuse(const struct gguf *file, struct error err)
{
    for (uint32_t i = 1; i < file->value_count; i++) {
        struct gguf_string key = file->by_key[i]->key;
        if (!compare_keys(file->by_key[i - 1]->key, key))
            return error_set(err, BATON_EINVAL, "%s: key %.*s is there twice", file->path,
                             (int)key.length, key.bytes);
    }
    return BATON_OK;
}

int gguf_metadata_parse(struct gguf *file, struct gguf_cursor *cursor, uint64_t count,
                        struct error err)
{
    int rc;
    if (count > KEYS_MAX || count > (cursor->size - cursor->position) / KEY_BYTES_MIN)
        return error_set(err, BATON_EINVAL, "%s: %" PRIu64 " keys are announced, more than %s",
                         file->path, count,
                         count > KEYS_MAX ? "any model has" : "the file can hold");
    file->values = calloc(count + 1, sizeof(*file->values));
    file->by_key = calloc(count + 1, sizeof(*file->by_key));
    if (!file->values || !file->by_key)
        return error_set(err, BATON_ENOMEM, "%s: no memory for %" PRIu64 " keys", file->path,
                         count);
    for (uint64_t i = 0; i < count; i++) {
        if ((rc = value_take(cursor, &file->values[i], err)))
            return rc;
        file->by_key[i] = &file->values[i];
    }
    file->value_count = (uint32_t)count;
    qsort(file->by_key, count, sizeof(*file->by_key), compare_values);
    return duplicates_refuse(file, err);
}

/* ---- getters ----------------------------------------------------------------------------- */

static int compare_to_key(const void *key, const void *element)
{
    const struct gguf_value *value = *(const struct gguf_value *const *)element;
    return compare_keys(*(const struct gguf_string *)key, value->key);
}

static const struct gguf_value *value_find(const struct gguf *file, const char *key)
{
    struct gguf_string wanted = {key, strlen(key)};
    const struct gguf_value *const *found = bsearch(&wanted, file->by_key, file->value_count,
                                                    sizeof(*file->by_key), compare_to_key);
    return found ? *found : NULL;
}

static int value_get(const struct gguf *file, const char *key, const struct gguf_value **out,
                     struct error err)
{
    *out = value_find(file, key);
    if (!*out)
        return error_set(err, BATON_ENOTFOUND, "%s has no key %s", file->path, key);
    return BATON_OK;
}

static int type_refuse(const struct gguf *file, const struct gguf_value *value,
                       const char *wanted, struct error err)
{
    bool array = value->type == GGUF_ARRAY;
    return error_set(err, BATON_EINVAL, "%s: key %.*s is %s%s, must be %s", file->path,
                     (int)value->key.length, value->key.bytes, array ? "an array of " : "",
                     gguf_type_name(array ? value->array.type : value->type), wanted);
}

static bool type_is_integer(enum gguf_type type)
{
    return type <= GGUF_INT32 || type == GGUF_UINT64 || type == GGUF_INT64;
}

/* Any integer as its sign and its 64 bits. */
static uint64_t integer_read(enum gguf_type type, const uint8_t *bytes, bool *negative)
{
    int64_t value = 0;
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    switch (type) {
    case GGUF_BOOL:
    case GGUF_UINT8: value = (memcpy(&u8, bytes, sizeof(u8)), u8); break;
    case GGUF_INT8: value = (memcpy(&i8, bytes, sizeof(i8)), i8); break;
    case GGUF_UINT16: value = (memcpy(&u16, bytes, sizeof(u16)), u16); break;
    case GGUF_INT16: value = (memcpy(&i16, bytes, sizeof(i16)), i16); break;
    case GGUF_UINT32: value = (memcpy(&u32, bytes, sizeof(u32)), u32); break;
    case GGUF_INT32: value = (memcpy(&i32, bytes, sizeof(i32)), i32); break;
    case GGUF_UINT64:
    case GGUF_INT64: memcpy(&value, bytes, sizeof(value)); break;
    default: BATON_ASSERT(!"an integer type");
    }
    *negative = type != GGUF_UINT64 && value < 0;
    return (uint64_t)value;
}

static double float_read(enum gguf_type type, const uint8_t *bytes)
{
    float single;
    double value;
    if (type == GGUF_FLOAT32) {
        memcpy(&single, bytes, sizeof(single));
        return single;
    }
    BATON_ASSERT(type == GGUF_FLOAT64);
    memcpy(&value, bytes, sizeof(value));
    return value;
}

bool gguf_has(const struct gguf *file, const char *key)
{
    return value_find(file, key) != NULL;
}

static int unsigned_get(const struct gguf *file, const char *key, uint64_t max, uint64_t *out,
                        struct error err)
{
    const struct gguf_value *value;
    bool negative;
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (!type_is_integer(value->type))
        return type_refuse(file, value, "an integer", err);
    uint64_t number = integer_read(value->type, value->number, &negative);
    if (negative)
        return error_set(err, BATON_EINVAL, "%s: key %s is %" PRId64 ", must be at least 0",
                         file->path, key, (int64_t)number);
    if (number > max)
        return error_set(err, BATON_EINVAL,
                         "%s: key %s is %" PRIu64 ", must be at most %" PRIu64, file->path, key,
                         number, max);
    *out = number;
    return BATON_OK;
}

int gguf_get_u32(const struct gguf *file, const char *key, uint32_t *out, struct error err)
{
    uint64_t number = 0;
    int rc = unsigned_get(file, key, UINT32_MAX, &number, err);
    if (!rc)
        *out = (uint32_t)number;
    return rc;
}

int gguf_get_u64(const struct gguf *file, const char *key, uint64_t *out, struct error err)
{
    return unsigned_get(file, key, UINT64_MAX, out, err);
}

int gguf_get_i64(const struct gguf *file, const char *key, int64_t *out, struct error err)
{
    const struct gguf_value *value;
    bool negative;
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (!type_is_integer(value->type))
        return type_refuse(file, value, "an integer", err);
    uint64_t number = integer_read(value->type, value->number, &negative);
    if (!negative && number > INT64_MAX)
        return error_set(err, BATON_EINVAL,
                         "%s: key %s is %" PRIu64 ", must be at most %" PRId64, file->path, key,
                         number, INT64_MAX);
    *out = (int64_t)number;
    return BATON_OK;
}

int gguf_get_float(const struct gguf *file, const char *key, float *out, struct error err)
{
    const struct gguf_value *value;
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (value->type != GGUF_FLOAT32 && value->type != GGUF_FLOAT64)
        return type_refuse(file, value, "a float", err);
    *out = (float)float_read(value->type, value->number);
    return BATON_OK;
}

int gguf_get_bool(const struct gguf *file, const char *key, bool *out, struct error err)
{
    const struct gguf_value *value;
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (value->type != GGUF_BOOL)
        return type_refuse(file, value, "a bool", err);
    *out = value->number[0] != 0;
    return BATON_OK;
}

int gguf_get_string(const struct gguf *file, const char *key, struct gguf_string *out,
                    struct error err)
{
    const struct gguf_value *value;
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (value->type != GGUF_STRING)
        return type_refuse(file, value, "a string", err);
    *out = value->string;
    return BATON_OK;
}

int gguf_get_array(const struct gguf *file, const char *key, enum gguf_type type,
                   struct gguf_array *out, struct error err)
{
    const struct gguf_value *value;
    char wanted[40] = "an array of ";
    int rc = value_get(file, key, &value, err);
    if (rc)
        return rc;
    if (value->type != GGUF_ARRAY || value->array.type != type)
        return type_refuse(file, value, strcat(wanted, gguf_type_name(type)), err);
    *out = value->array;
    return BATON_OK;
}

/* ---- arrays ------------------------------------------------------------------------------ */

int64_t gguf_array_integer(const struct gguf_array *array, uint64_t i)
{
    bool negative;
    BATON_ASSERT(i < array->count &&
                 (type_is_integer(array->type) || array->type == GGUF_BOOL));
    uint64_t value =
        integer_read(array->type, array->bytes + i * types[array->type].bytes, &negative);
    return !negative && value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

double gguf_array_float(const struct gguf_array *array, uint64_t i)
{
    BATON_ASSERT(i < array->count);
    return float_read(array->type, array->bytes + i * types[array->type].bytes);
}

int gguf_array_strings(const struct gguf_array *array, struct gguf_string **out,
                       struct error err)
{
    BATON_ASSERT(array->type == GGUF_STRING);
    const uint8_t *next = array->bytes;
    struct gguf_string *strings = calloc(array->count + 1, sizeof(*strings));
    if (!strings)
        return error_set(err, BATON_ENOMEM, "no memory for %" PRIu64 " strings", array->count);
    for (uint64_t i = 0; i < array->count; i++) {
        uint64_t length; /* checked by strings_skip when the file was opened */
        memcpy(&length, next, sizeof(length));
        strings[i] = (struct gguf_string){(const char *)next + sizeof(length), (size_t)length};
        next += sizeof(length) + length;
    }
    *out = strings;
    return BATON_OK;
}

bool gguf_string_equal(struct gguf_string string, const char *text)
{
    return string.length == strlen(text) && !memcmp(string.bytes, text, string.length);
}

/* ---- listing ----------------------------------------------------------------------------- */

uint32_t gguf_key_count(const struct gguf *file)
{
    return file->value_count;
}

struct gguf_string gguf_key_name(const struct gguf *file, uint32_t i)
{
    BATON_ASSERT(i < file->value_count);
    return file->values[i].key;
}

enum gguf_type gguf_key_type(const struct gguf *file, uint32_t i)
{
    BATON_ASSERT(i < file->value_count);
    return file->values[i].type;
}
