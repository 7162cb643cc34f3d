/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the JSON files of a model folder. jansson needs up to some twenty times a text's size
 * for its tree, so the size is bounded before it is asked. */
#include "model_file_json.h"
#include "model_file_map.h"

#define JSON_BYTES_MAX (32u << 20) /* the index of the largest models has 10 MB */

static int json_parse(const char *bytes, size_t size, const char *path, size_t flags,
                      json_t **out, struct error err)
{
    json_error_t problem;
    if (size > JSON_BYTES_MAX)
        return error_set(err, BATON_ELIMIT, "%s has %zu bytes of JSON; at most %u are read",
                         path, size, JSON_BYTES_MAX);
    json_t *json = json_loadb(bytes, size, flags | JSON_REJECT_DUPLICATES, &problem);
    if (!json) {
        for (char *c = problem.text; *c; c++) /* it quotes the file */
            if (*c < 0x20 || *c > 0x7e)
                *c = '?';
        return error_set(err, BATON_EINVAL, "%s: bad JSON in line %d, byte %d: %s", path,
                         problem.line, problem.position, problem.text);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return error_set(err, BATON_EINVAL, "%s is JSON, but not an object", path);
    }
    *out = json;
    return BATON_OK;
}

static int json_load_file_mapped(const char *path, size_t flags, json_t **out, struct error err)
{
    struct file_map map;
    int rc = file_map_open(path, &map, err);
    if (rc)
        return rc;
    rc = json_parse((const char *)map.bytes, map.size, path, flags, out, err);
    file_map_close(&map);
    return rc;
}

int model_json_parse(const char *bytes, size_t size, const char *path, json_t **out,
                     struct error err)
{
    return json_parse(bytes, size, path, 0, out, err);
}

int model_json_load(const char *path, json_t **out, struct error err)
{
    return json_load_file_mapped(path, 0, out, err);
}

int model_json_load_strings(const char *path, json_t **out, struct error err)
{
    return json_load_file_mapped(path, JSON_DECODE_INT_AS_REAL, out, err);
}
