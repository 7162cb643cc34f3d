/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a model as bytes in memory: mapped, read-only, closed again at once. */
#ifndef BATON_MODEL_MODEL_FILE_MAP_H
#define BATON_MODEL_MODEL_FILE_MAP_H

#include "base/error.h"

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

struct file_map {
    const uint8_t *bytes;
    size_t size; /* at least 1 */
};

/* ENOTFOUND: there is no such file. EINVAL: it is empty, or no regular file. ESYSTEM: it cannot
 * be opened or mapped. */
int file_map_open(const char *path, struct file_map *out, struct error err);
void file_map_close(struct file_map *map); /* one that is all zero is fine */

/* "folder/name"; ELIMIT when that is too long. */
int file_path_join(const char *folder, const char *name, char path[PATH_MAX], struct error err);

#endif
