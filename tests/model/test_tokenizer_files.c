/* SPDX-License-Identifier: Apache-2.0 */
/* See the header. */
#include "test_tokenizer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *test_file_read(const char *folder, const char *name, size_t *size)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s cannot be opened", path);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = malloc((size_t)length + 1);
    assert_non_null(data);
    *size = fread(data, 1, (size_t)length, file);
    data[*size] = '\0';
    fclose(file);
    return data;
}

json_t *test_json_read(const char *folder, const char *name)
{
    size_t size;
    json_error_t problem;
    char *text = test_file_read(folder, name, &size);
    json_t *json = json_loadb(text, size, JSON_ALLOW_NUL, &problem);
    if (!json)
        fail_msg("%s: %s in line %d", name, problem.text, problem.line);
    free(text);
    return json;
}

struct tokenizer *test_tokenizer_open(const char *folder, const char *name)
{
    size_t size;
    char reason[512];
    struct tokenizer *tokenizer;
    char *text = test_file_read(folder, name, &size);
    if (tokenizer_open_json(text, size, name, &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    free(text);
    return tokenizer;
}

static void ids_print(const char *what, const uint32_t *ids, size_t count)
{
    print_message("%s", what);
    for (size_t i = 0; i < count && i < 100; i++)
        print_message(" %u", ids[i]);
    print_message("\n");
}

void test_encode_expect(struct tokenizer *tokenizer, const char *text, size_t length,
                        uint32_t flags, const uint32_t *ids, size_t count, const char *what)
{
    struct token_list list = {0};
    char reason[512];
    if (tokenizer_encode(tokenizer, text, length, flags, &list, ERROR_BUFFER(reason)))
        fail_msg("%s: %s", what, reason);
    bool same = list.count == count;
    for (size_t i = 0; i < count && same; i++)
        same = list.ids[i] == ids[i];
    if (!same) {
        ids_print("expected", ids, count);
        ids_print("found   ", list.ids, list.count);
        fail_msg("%s: other ids for \"%.*s\"", what, (int)length, text);
    }
    token_list_free(&list);
}
