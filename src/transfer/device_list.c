/* SPDX-License-Identifier: Apache-2.0 */
/* See device_list.h. */
#include "device_list.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_LIST_TEXT_MAX 1024

static bool number_parse(const char *text, int max, int *out)
{
    char *end = NULL;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 0 || value > max)
        return false;
    *out = (int)value;
    return true;
}

static int device_parse(char *word, struct device_choice *out, struct error err)
{
    char *rest = NULL;
    struct device_choice choice = {.gid_index = -1};
    const char *name = strtok_r(word, ":", &rest);
    const char *port = strtok_r(NULL, ":", &rest);
    const char *gid = strtok_r(NULL, ":", &rest);
    if (!name || strlen(name) >= sizeof(choice.name) || strchr(name, '/'))
        return error_set(err, BATON_EINVAL, "ib_device: '%s' is no device name",
                         name ? name : "");
    snprintf(choice.name, sizeof(choice.name), "%s", name);
    if (port && (!number_parse(port, 255, &choice.port) || choice.port == 0))
        return error_set(err, BATON_EINVAL, "ib_device: '%s' of %s is no port (1 to 255)", port,
                         name);
    if (gid && !number_parse(gid, 65535, &choice.gid_index))
        return error_set(err, BATON_EINVAL, "ib_device: '%s' of %s is no GID index", gid, name);
    if (strtok_r(NULL, ":", &rest))
        return error_set(err, BATON_EINVAL,
                         "ib_device: %s has more than a port and a GID index (name:port:gid)",
                         name);
    *out = choice;
    return BATON_OK;
}

static int devices_parse(char *text, struct device_choice *out, uint32_t max, uint32_t *count,
                         struct error err)
{
    char *rest = NULL;
    uint32_t found = 0;
    for (char *word = strtok_r(text, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        if (found == max)
            return error_set(err, BATON_EINVAL, "ib_device: more than %u devices for one rank",
                             max);
        int code = device_parse(word, &out[found], err);
        if (code != BATON_OK)
            return code;
        found++;
    }
    if (!found)
        return error_set(err, BATON_EINVAL, "ib_device names no device for this rank");
    *count = found;
    return BATON_OK;
}

/* {"0": "mlx5_0", ...} */
static int object_find(const char *text, uint32_t rank, char *out, size_t size,
                       struct error err)
{
    char name[16];
    json_error_t problem;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &problem);
    snprintf(name, sizeof(name), "%u", rank);
    const char *devices = json_string_value(json_object_get(object, name));
    int code = BATON_OK;
    if (!json_is_object(object))
        code = error_set(err, BATON_EINVAL, "ib_device is no JSON object: %s", problem.text);
    else if (!devices)
        code = error_set(err, BATON_EINVAL, "ib_device has no string for rank %u", rank);
    else
        snprintf(out, size, "%s", devices);
    json_decref(object);
    return code;
}

static int part_find(char *text, uint32_t rank, char **out, struct error err)
{
    char *rest = text;
    for (uint32_t i = 0; rest; i++) {
        char *part = strsep(&rest, ";");
        if (i == rank) {
            *out = part;
            return BATON_OK;
        }
    }
    return error_set(err, BATON_EINVAL, "ib_device has no part for rank %u", rank);
}

int device_list_parse(const char *text, uint32_t rank, struct device_choice *out, uint32_t max,
                      uint32_t *count, struct error err)
{
    char copy[DEVICE_LIST_TEXT_MAX], chosen[DEVICE_LIST_TEXT_MAX];
    char *devices = copy;
    *count = 0;
    if (!text || !*text)
        return BATON_OK;
    if (strlen(text) >= sizeof(copy))
        return error_set(err, BATON_EINVAL, "ib_device is longer than %zu characters",
                         sizeof(copy) - 1);
    snprintf(copy, sizeof(copy), "%s", text);
    int code = BATON_OK;
    if (text[strspn(text, " ")] == '{') {
        code = object_find(text, rank, chosen, sizeof(chosen), err);
        devices = chosen;
    } else if (strchr(text, ';')) {
        code = part_find(copy, rank, &devices, err);
    }
    return code == BATON_OK ? devices_parse(devices, out, max, count, err) : code;
}
