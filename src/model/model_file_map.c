/* SPDX-License-Identifier: Apache-2.0 */
/* Maps whole files. Weights are used where they lie, so that loading is mapping, several
 * processes share one copy, and the kernel may drop pages that it can read again. The price: a
 * file that is truncated while it is mapped ends the process with SIGBUS. Models are replaced by
 * rename, never by writing into them. */
#include "model_file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int file_map_open(const char *path, struct file_map *out, struct error err)
{
    struct stat about;
    int rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would block */
    if (fd < 0)
        return error_set(err, errno == ENOENT ? BATON_ENOTFOUND : BATON_ESYSTEM,
                         "%s cannot be opened: %s", path, strerror(errno));
    if (fstat(fd, &about)) {
        rc = error_set(err, BATON_ESYSTEM, "%s: fstat: %s", path, strerror(errno));
        goto close_file;
    }
    if (!S_ISREG(about.st_mode) || about.st_size == 0) {
        rc = error_set(err, BATON_EINVAL, "%s is %s", path,
                       S_ISREG(about.st_mode) ? "empty" : "not a regular file");
        goto close_file;
    }
    void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        rc = error_set(err, BATON_ESYSTEM, "%s: %lld bytes cannot be mapped: %s", path,
                       (long long)about.st_size, strerror(errno));
        goto close_file;
    }
    *out = (struct file_map){bytes, (size_t)about.st_size};
    rc = BATON_OK;
close_file:
    close(fd);
    return rc;
}

void file_map_close(struct file_map *map)
{
    if (map->bytes)
        munmap((void *)map->bytes, map->size);
    *map = (struct file_map){0};
}

int file_path_join(const char *folder, const char *name, char path[PATH_MAX], struct error err)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_MAX)
        return error_set(err, BATON_ELIMIT, "%s/%s: the path is too long", folder, name);
    return BATON_OK;
}
