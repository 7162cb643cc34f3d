/* SPDX-License-Identifier: Apache-2.0 */
#include "request_reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void request_refuse(struct request_error *error, int status, const char *parameter,
                    const char *format, ...)
{
    va_list arguments;
    if (error->status)
        return;
    error->status = status;
    snprintf(error->parameter, sizeof(error->parameter), "%s", parameter ? parameter : "");
    va_start(arguments, format);
    vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
}

int request_status(int code)
{
    switch (code) {
    case BATON_EINVAL:
    case BATON_EUNSUPPORTED: return 400;
    case BATON_EEXIST: return 409;
    case BATON_ELIMIT:
    case BATON_ESTATE:
    case BATON_EBUSY: return 503;
    case BATON_ETIMEOUT: return 504;
    default: return 500;
    }
}

json_t *request_parse(const char *body, size_t length, struct request_error *error)
{
    json_error_t where;
    if (length == 0) {
        request_refuse(error, 400, NULL, "the request has no body; a JSON object is expected");
        return NULL;
    }
    json_t *object = json_loadb(body, length, JSON_ALLOW_NUL, &where);
    if (!object) {
        request_refuse(error, 400, NULL, "the body is not JSON: %s (line %d, column %d)",
                       where.text, where.line, where.column);
        return NULL;
    }
    if (!json_is_object(object)) {
        request_refuse(error, 400, NULL, "the body is %s; a JSON object is expected",
                       request_type_name(object));
        json_decref(object);
        return NULL;
    }
    return object;
}

const char *request_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

const json_t *request_any(const struct request_reader *reader, const char *name)
{
    const json_t *value = json_object_get(reader->object, name);
    return value && !json_is_null(value) && !reader->error->status ? value : NULL;
}

bool request_has(const struct request_reader *reader, const char *name)
{
    return request_any(reader, name) != NULL;
}

static void type_refuse(const struct request_reader *reader, const char *name,
                        const char *expected, const json_t *value)
{
    request_refuse(reader->error, 400, name, "\"%s\" must be %s, not %s", name, expected,
                   request_type_name(value));
}

void request_bool(const struct request_reader *reader, const char *name, bool *value)
{
    const json_t *field = request_any(reader, name);
    if (field && !json_is_boolean(field))
        type_refuse(reader, name, "true or false", field);
    else if (field)
        *value = json_is_true(field);
}

void request_i64(const struct request_reader *reader, const char *name, int64_t min,
                 int64_t max, int64_t *value)
{
    const json_t *field = request_any(reader, name);
    if (!field)
        return;
    int64_t number = json_integer_value(field);
    /* 3.0 is an integer to many who write JSON. */
    if (json_is_real(field) && json_real_value(field) >= -9e15 &&
        json_real_value(field) <= 9e15 &&
        (double)(int64_t)json_real_value(field) == json_real_value(field))
        number = (int64_t)json_real_value(field);
    else if (!json_is_integer(field)) {
        type_refuse(reader, name, "an integer", field);
        return;
    }
    if (number < min || number > max)
        request_refuse(reader->error, 400, name,
                       "\"%s\" is %" PRId64 "; it must be from %" PRId64 " to %" PRId64, name,
                       number, min, max);
    else
        *value = number;
}

void request_u32(const struct request_reader *reader, const char *name, uint32_t min,
                 uint32_t max, uint32_t *value)
{
    int64_t number = *value;
    request_i64(reader, name, min, max, &number);
    *value = (uint32_t)number;
}

void request_float(const struct request_reader *reader, const char *name, double min,
                   double max, float *value)
{
    const json_t *field = request_any(reader, name);
    if (!field)
        return;
    double number = json_number_value(field);
    if (!json_is_number(field))
        type_refuse(reader, name, "a number", field);
    else if (!(number >= min && number <= max))
        request_refuse(reader->error, 400, name, "\"%s\" is %g; it must be from %g to %g", name,
                       number, min, max);
    else
        *value = (float)number;
}

const char *request_string(const struct request_reader *reader, const char *name)
{
    const json_t *field = request_any(reader, name);
    if (!field)
        return NULL;
    if (!json_is_string(field))
        type_refuse(reader, name, "a string", field);
    else if (strlen(json_string_value(field)) != json_string_length(field))
        request_refuse(reader->error, 400, name, "\"%s\" has a NUL character in it", name);
    else
        return json_string_value(field);
    return NULL;
}

const json_t *request_object(const struct request_reader *reader, const char *name)
{
    const json_t *field = request_any(reader, name);
    if (field && !json_is_object(field)) {
        type_refuse(reader, name, "an object", field);
        return NULL;
    }
    return field;
}

const json_t *request_array(const struct request_reader *reader, const char *name)
{
    const json_t *field = request_any(reader, name);
    if (field && !json_is_array(field)) {
        type_refuse(reader, name, "an array", field);
        return NULL;
    }
    return field;
}
