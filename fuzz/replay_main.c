/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a corpus without libFuzzer, so that the inputs which once broke a parser are part of
 * every test run, with any compiler and sanitizer. An input that breaks it ends the process; the
 * name printed last is the input's. Every input is also cut short once at each length (long ones
 * at some), because a truncated frame is the commonest bad frame. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CUTS_MAX 256

/* On a heap block of exactly its size, so that a sanitizer sees the first byte read past it. */
static int input_run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        fprintf(stderr, "out of memory for an input of %zu bytes\n", size);
        return -1;
    }
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 0;
}

static int input_run_cut(const uint8_t *data, size_t size)
{
    size_t step = size / CUTS_MAX + 1;
    for (size_t length = 0; length < size; length += step)
        if (input_run(data, length))
            return -1;
    return input_run(data, size);
}

static int file_replay(const char *path)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &about)) {
        fprintf(stderr, "cannot read %s: %s\n", path, strerror(errno));
        if (file)
            fclose(file);
        return -1;
    }
    size_t size = (size_t)about.st_size;
    uint8_t *data = malloc(size + 1);
    int rc = -1;
    if (data && fread(data, 1, size, file) == size) {
        printf("%s\n", path);
        fflush(stdout);
        rc = input_run_cut(data, size);
    } else {
        fprintf(stderr, "cannot read %zu bytes of %s\n", size, path);
    }
    free(data);
    fclose(file);
    return rc;
}

static int corpus_replay(const char *folder, int *count)
{
    struct dirent **entries;
    int found = scandir(folder, &entries, NULL, alphasort);
    int rc = 0;
    if (found < 0) {
        fprintf(stderr, "cannot read the corpus %s: %s\n", folder, strerror(errno));
        return -1;
    }
    for (int i = 0; i < found; i++) {
        char path[PATH_MAX];
        int length = snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length < (int)sizeof(path)) {
            rc |= file_replay(path);
            ++*count;
        }
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int main(int argc, char **argv)
{
    int count = 0, rc = 0;
    for (int i = 1; i < argc; i++) {
        struct stat about;
        if (stat(argv[i], &about) == 0 && S_ISREG(about.st_mode)) {
            rc |= file_replay(argv[i]);
            count++;
        } else {
            rc |= corpus_replay(argv[i], &count);
        }
    }
    if (count == 0) {
        fprintf(stderr, "usage: %s CORPUS_FOLDER|INPUT...  (nothing was replayed)\n", argv[0]);
        return 1;
    }
    printf("%d inputs replayed\n", count);
    return rc ? 1 : 0;
}
