/* SPDX-License-Identifier: Apache-2.0 */
/* One table of tensors out of the one or several safetensors files of a folder. For several
 * there is an index, {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}},
 * and each tensor is taken from the shard that it names. */
#include "safetensors.h"
#include "model_file_json.h"
#include "model_file_map.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHARDS_MAX 4096
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

struct safetensors {
    struct file_map *maps;
    uint32_t map_count;
    struct tensor_table tensors;
};

static bool name_is_safetensors(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && dot != name && !strcmp(dot, ".safetensors");
}

/* ---- shards ------------------------------------------------------------------------------ */

/* Appends those tensors of `shard` that the index places there; all, without an index. */
static int tensors_append(struct safetensors *files, const struct tensor_table *shard,
                          const json_t *weight_map, const char *file, struct error err)
{
    struct tensor_table *all = &files->tensors;
    size_t count = (size_t)all->count + shard->count;
    struct tensor *items = realloc(all->items, (count + 1) * sizeof(*items));
    if (!items)
        return error_set(err, BATON_ENOMEM, "no memory for %zu tensors", count);
    all->items = items;
    for (uint32_t i = 0; i < shard->count; i++) {
        const char *where =
            json_string_value(json_object_get(weight_map, shard->items[i].name));
        if (!weight_map || (where && !strcmp(where, file)))
            items[all->count++] = shard->items[i];
    }
    return BATON_OK;
}

static int shard_add(struct safetensors *files, const char *folder, const char *file,
                     const json_t *weight_map, struct error err)
{
    char path[PATH_MAX];
    struct tensor_table shard = {0};
    struct file_map *map = &files->maps[files->map_count];
    int rc;
    if ((rc = file_path_join(folder, file, path, err)) || (rc = file_map_open(path, map, err)))
        return rc;
    files->map_count++;
    if ((rc = safetensors_parse(map->bytes, map->size, path, &shard, err)))
        return rc;
    rc = tensors_append(files, &shard, weight_map, file, err);
    free(shard.items);
    return rc;
}

static int maps_allocate(struct safetensors *files, size_t count, struct error err)
{
    files->maps = calloc(count, sizeof(*files->maps));
    if (!files->maps)
        return error_set(err, BATON_ENOMEM, "no memory for %zu shards", count);
    return BATON_OK;
}

/* ---- the index --------------------------------------------------------------------------- */

/* A file of this very folder: an index must not lead out of it. */
static bool file_is_shard(const char *file)
{
    return name_is_safetensors(file) && !strchr(file, '/') &&
           text_is_printable(file, strlen(file));
}

/* The names of the shards, each once, as the keys of an object. */
static int shards_collect(const char *index_path, json_t *weight_map, json_t *shards,
                          struct error err)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!text_is_printable(tensor, strlen(tensor)))
            return error_set(err, BATON_EINVAL,
                             "%s: a name in weight_map is not printable ASCII", index_path);
        if (!file || !file_is_shard(file))
            return error_set(err, BATON_EINVAL,
                             "%s: weight_map places %.100s in no .safetensors file beside it",
                             index_path, tensor);
        if (json_object_set_new(shards, file, json_true()))
            return error_set(err, BATON_ENOMEM, "%s: out of memory", index_path);
    }
    size_t count = json_object_size(shards);
    if (count == 0 || count > SHARDS_MAX)
        return error_set(err, BATON_EINVAL, "%s: weight_map names %zu files, must be 1 to %d",
                         index_path, count, SHARDS_MAX);
    return BATON_OK;
}

static int missing_refuse(const struct safetensors *files, const char *index_path,
                          json_t *weight_map, struct error err)
{
    const char *tensor;
    json_t *file;
    json_object_foreach(weight_map, tensor, file) if (
        !tensor_table_find(
            &files->tensors,
            tensor)) return error_set(err, BATON_ENOTFOUND,
                                      "%s: tensor %.100s should be in %s, but is not there",
                                      index_path, tensor, json_string_value(file));
    return BATON_OK;
}

static int shards_open(struct safetensors *files, const char *folder, const char *index_path,
                       json_t *weight_map, struct error err)
{
    const char *file;
    json_t *unused;
    char text[200];
    int rc;
    json_t *shards = json_object();
    if (!shards)
        return error_set(err, BATON_ENOMEM, "%s: out of memory", index_path);
    if ((rc = shards_collect(index_path, weight_map, shards, err)) ||
        (rc = maps_allocate(files, json_object_size(shards), err)))
        goto drop_shards;
    json_object_foreach(
        shards, file,
        unused) if ((rc = shard_add(files, folder, file, weight_map, err))) goto drop_shards;
    if ((rc = tensor_table_sort(&files->tensors, ERROR_BUFFER(text))))
        error_set(err, rc, "%s: %s", folder, text);
    else
        rc = missing_refuse(files, index_path, weight_map, err);
drop_shards:
    json_decref(shards);
    return rc;
}

static int sharded_open(struct safetensors *files, const char *folder, const char *index_path,
                        struct error err)
{
    json_t *index;
    int rc = model_json_load(index_path, &index, err);
    if (rc)
        return rc;
    json_t *weight_map = json_object_get(index, "weight_map");
    if (json_is_object(weight_map))
        rc = shards_open(files, folder, index_path, weight_map, err);
    else
        rc = error_set(err, BATON_EINVAL, "%s: there is no weight_map", index_path);
    json_decref(index);
    return rc;
}

static int single_open(struct safetensors *files, const char *folder, const char *file,
                       struct error err)
{
    int rc = maps_allocate(files, 1, err);
    return rc ? rc : shard_add(files, folder, file, NULL, err);
}

/* ---- which files ------------------------------------------------------------------------- */

static int name_is_wanted(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && name_is_safetensors(entry->d_name);
}

/* With neither of the usual names there may be one file with a name of its own. */
static int lone_open(struct safetensors *files, const char *folder, struct error err)
{
    struct dirent **entries = NULL;
    int rc;
    int count = scandir(folder, &entries, name_is_wanted, alphasort);
    if (count < 0)
        return error_set(err, errno == ENOENT ? BATON_ENOTFOUND : BATON_ESYSTEM,
                         "%s cannot be read: %s", folder, strerror(errno));
    if (count == 1)
        rc = single_open(files, folder, entries[0]->d_name, err);
    else if (count)
        rc = error_set(err, BATON_ENOTFOUND,
                       "%s has %d .safetensors files, but no " INDEX_NAME
                       " that says which tensor is where",
                       folder, count);
    else
        rc = error_set(err, BATON_ENOTFOUND,
                       "%s has no .safetensors files (weights in other formats, such as "
                       "pytorch_model.bin, must be converted first)",
                       folder);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return rc;
}

static int folder_open(struct safetensors *files, const char *folder, struct error err)
{
    char path[PATH_MAX], index_path[PATH_MAX];
    int rc;
    if ((rc = file_path_join(folder, SINGLE_NAME, path, err)) ||
        (rc = file_path_join(folder, INDEX_NAME, index_path, err)))
        return rc;
    if (access(path, F_OK) == 0)
        return single_open(files, folder, SINGLE_NAME, err);
    if (access(index_path, F_OK) == 0)
        return sharded_open(files, folder, index_path, err);
    return lone_open(files, folder, err);
}

int safetensors_open_folder(const char *folder, struct safetensors **out, struct error err)
{
    struct safetensors *files = calloc(1, sizeof(*files));
    if (!files)
        return error_set(err, BATON_ENOMEM, "%s: out of memory", folder);
    int rc = folder_open(files, folder, err);
    if (rc)
        safetensors_close(files);
    else
        *out = files;
    return rc;
}

void safetensors_close(struct safetensors *files)
{
    if (!files)
        return;
    for (uint32_t i = 0; i < files->map_count; i++)
        file_map_close(&files->maps[i]);
    free(files->maps);
    free(files->tensors.items);
    free(files);
}

const struct tensor_table *safetensors_tensors(const struct safetensors *files)
{
    return &files->tensors;
}
