/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors, read back and broken: single files, shards and their index; a sentence per
 * defect; a small file cut at every byte and with every bit flipped. */
#include "model_fixture.h"

#include "model/safetensors.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one file ---------------------------------------------------------------------------- */

static const struct fixture_tensor three[] = {
    {"norm", TENSOR_F32, 0, 3},
    {"matrix", TENSOR_BF16, 2, 5},
    {"halves", TENSOR_F16, 0, 4},
};

static void test_tensors(void **state)
{
    (void)state;
    struct bytes file = fixture_safetensors(three, 3, 0, 7);
    struct tensor_table table;
    assert_int_equal(safetensors_parse(file.data, file.size, "t", &table, ERROR_NONE), 0);
    assert_int_equal(table.count, 3); /* without __metadata__ */
    const struct tensor *matrix = tensor_table_find(&table, "matrix");
    const struct tensor *norm = tensor_table_find(&table, "norm");
    const struct tensor *halves = tensor_table_find(&table, "halves");
    assert_true(matrix && norm && halves);
    assert_int_equal(matrix->type, TENSOR_BF16);
    assert_int_equal(matrix->dimension_count, 2);
    assert_int_equal(matrix->shape[0], 2);
    assert_int_equal(matrix->shape[1], 5);
    assert_int_equal(matrix->bytes, 20);
    assert_ptr_equal(matrix->data, norm->data + 12);
    assert_int_equal(norm->type, TENSOR_F32);
    assert_int_equal(halves->type, TENSOR_F16);
    assert_ptr_equal(halves->data + 8, file.data + file.size);
    free(table.items);
    bytes_free(&file);
}

/* A header as text, and `data_size` bytes of data. */
static struct bytes file_make(const char *header, size_t data_size)
{
    struct bytes file = {0};
    uint64_t length = strlen(header);
    bytes_add(&file, &length, sizeof(length));
    bytes_add(&file, header, length);
    while (data_size--)
        bytes_add(&file, "x", 1);
    return file;
}

static void check_refused(const char *header, size_t data_size, int code, const char *word)
{
    struct bytes file = file_make(header, data_size);
    struct tensor_table table = {.count = 77};
    char text[400] = "";
    int rc =
        safetensors_parse(file.data, file.size, "t.safetensors", &table, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, word) || !strstr(text, "t.safetensors"))
        fail_msg("%s \"%s\", expected %s \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), word);
    assert_int_equal(table.count, 77);
    bytes_free(&file);
}

#define F32(shape, begin, end) \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void test_defects(void **state)
{
    (void)state;
    const struct {
        const char *header;
        size_t data_size;
        int code;
        const char *word;
    } cases[] = {
        {"", 0, BATON_EINVAL, "bad JSON"},
        {"{", 0, BATON_EINVAL, "bad JSON"},
        {"[]", 0, BATON_EINVAL, "not an object"},
        {"{\"a\":" F32("[1]", "0", "4") ",\"a\":" F32("[1]", "0", "4") "}", 4, BATON_EINVAL,
         "duplicate"},
        {"{\"a\":1}", 4, BATON_EINVAL, "tensor a has no dtype"},
        {"{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         BATON_EUNSUPPORTED, "dtype Q9"},
        {"{\"a\":{\"dtype\":\"\\u001b[31m\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         BATON_EUNSUPPORTED, "(garbage)"},
        {"{\"a\":" F32("1", "0", "4") "}", 4, BATON_EINVAL, "shape must be an array"},
        {"{\"a\":" F32("[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, BATON_EINVAL, "at most 8"},
        {"{\"a\":" F32("[-1]", "0", "4") "}", 4, BATON_EINVAL, "size 0 of its shape"},
        {"{\"a\":" F32("[1.5]", "0", "4") "}", 4, BATON_EINVAL, "is not a count"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, BATON_EINVAL, "data_offsets must be"},
        {"{\"a\":" F32("[1]", "4", "0") "}", 4, BATON_EINVAL, "data_offsets must be"},
        {"{\"a\":" F32("[1]", "-4", "0") "}", 4, BATON_EINVAL, "data_offsets must be"},
        {"{\"a\":" F32("[1]", "0", "4,9") "}", 4, BATON_EINVAL, "data_offsets must be"},
        {"{\"a\":" F32("[1]", "0", "8") "}", 4, BATON_EINVAL, "a ends at byte 8"},
        {"{\"a\":" F32("[1]", "0", "9223372036854775807") "}", 4, BATON_EINVAL, "ends at byte"},
        {"{\"a\":" F32("[2]", "0", "4") "}", 4, BATON_EINVAL, "a is 2 of F32, but has 4 bytes"},
        {"{\"a\":" F32("[4611686018427387905]", "0", "4") "}", 4, BATON_EINVAL, "but has 4"},
        {"{\"a\":" F32("[4294967296,4294967296,2]", "0", "0") "}", 0, BATON_EINVAL, "has 0"},
        {"{\"a\":" F32("[1]", "0", "4") ",\"b\":" F32("[2]", "0", "8") "}", 8, BATON_EINVAL,
         "tensor b overlaps"},
        {"{\"a\":" F32("[1]", "0", "4") ",\"b\":" F32("[1]", "8", "12") "}", 12, BATON_EINVAL,
         "tensor b leaves a gap"},
        {"{\"a\":" F32("[1]", "4", "8") "}", 8, BATON_EINVAL, "a leaves a gap"},
        {"{\"a\":" F32("[1]", "0", "4") "}", 9, BATON_EINVAL,
         "have 4 bytes of data, the file 9"},
        {"{\"\":" F32("[1]", "0", "4") "}", 4, BATON_ELIMIT, "name has 0 bytes"},
        {"{\"a\\n\":" F32("[1]", "0", "4") "}", 4, BATON_EINVAL, "not printable"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refused(cases[i].header, cases[i].data_size, cases[i].code, cases[i].word);
}

static void check_header_length(uint64_t length)
{
    struct bytes file = file_make("{}", 3);
    struct tensor_table table;
    char text[300];
    memcpy(file.data, &length, sizeof(length));
    assert_int_equal(safetensors_parse(file.data, file.size, "t", &table, ERROR_BUFFER(text)),
                     BATON_EINVAL);
    assert_non_null(strstr(text, "its header should have"));
    bytes_free(&file);
}

static void test_header_length(void **state)
{
    (void)state;
    check_header_length(6);
    check_header_length(UINT64_MAX);
    check_header_length(UINT64_MAX - 7);
}

/* Sound, if unusual: a scalar, no elements, types that only other tensors may have. */
static void test_unusual(void **state)
{
    (void)state;
    struct bytes file = file_make(
        "{\"scalar\":" F32("[]", "0", "4") ",\"none\":" F32(
            "[0,7]", "4",
            "4") ","
                 "\"ids\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[4,12]}}   ",
        12);
    struct tensor_table table;
    assert_int_equal(safetensors_parse(file.data, file.size, "t", &table, ERROR_NONE), 0);
    assert_int_equal(table.count, 3);
    assert_int_equal(tensor_table_find(&table, "scalar")->dimension_count, 0);
    assert_int_equal(tensor_table_find(&table, "none")->bytes, 0);
    assert_int_equal(tensor_table_find(&table, "ids")->type, TENSOR_OPAQUE);
    assert_string_equal(tensor_table_find(&table, "ids")->type_name, "I64");
    free(table.items);
    bytes_free(&file);
}

/* ---- damage ------------------------------------------------------------------------------ */

static volatile uint64_t sink; /* keeps what is read from being optimised away */

static int copy_parse(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    struct tensor_table table;
    char text[400] = "";
    assert_non_null(copy);
    memcpy(copy, data, size);
    int rc = safetensors_parse(copy, size, "t", &table, ERROR_BUFFER(text));
    if (!rc) {
        for (uint32_t i = 0; i < table.count; i++)
            for (uint64_t j = 0; j < table.items[i].bytes; j++)
                sink += table.items[i].data[j];
        free(table.items);
    } else {
        assert_true(text[0] != '\0');
    }
    free(copy);
    return rc;
}

static void test_cut_everywhere(void **state)
{
    (void)state;
    struct bytes file = fixture_safetensors(three, 3, 0, 7);
    for (size_t size = 0; size < file.size; size++)
        if (copy_parse(file.data, size) != BATON_EINVAL)
            fail_msg("the first %zu of %zu bytes were not refused", size, file.size);
    assert_int_equal(copy_parse(file.data, file.size), BATON_OK);
    bytes_free(&file);
}

static void test_every_bit_flipped(void **state)
{
    (void)state;
    struct bytes file = fixture_safetensors(three, 3, 0, 7);
    uint32_t refused = 0;
    for (size_t i = 0; i < 8 * file.size; i++) {
        file.data[i / 8] ^= (uint8_t)(1u << i % 8);
        refused += copy_parse(file.data, file.size) != BATON_OK;
        file.data[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    print_message("%u of %zu flips were noticed\n", refused, 8 * file.size);
    assert_true(refused > 1000);
    bytes_free(&file);
}

/* ---- folders ----------------------------------------------------------------------------- */

static void check_open_refused(const char *folder, int code, const char *word)
{
    struct safetensors *files;
    char text[600] = "";
    int rc = safetensors_open_folder(folder, &files, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, word))
        fail_msg("%s \"%s\", expected %s \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), word);
}

static void check_opens(const char *folder, uint32_t count)
{
    struct safetensors *files;
    char text[600] = "";
    if (safetensors_open_folder(folder, &files, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    assert_int_equal(safetensors_tensors(files)->count, count);
    assert_non_null(tensor_table_find(safetensors_tensors(files), "matrix"));
    safetensors_close(files);
}

static void three_write(const char *folder, const char *name, uint32_t first, uint32_t count)
{
    struct bytes file = fixture_safetensors(three + first, count, 0, first);
    fixture_file_write(folder, name, file.data, file.size);
    bytes_free(&file);
}

static void index_write(const char *folder, const char *norm, const char *matrix,
                        const char *halves)
{
    fixture_json_write(folder, "model.safetensors.index.json",
                       json_pack("{s:{s:i}, s:{s:s, s:s, s:s}}", "metadata", "total_size", 40,
                                 "weight_map", "norm", norm, "matrix", matrix, "halves",
                                 halves));
}

static void test_single(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES], missing[FIXTURE_PATH_BYTES + 8];
    fixture_folder_make(folder);
    check_open_refused(folder, BATON_ENOTFOUND, "no .safetensors files");
    snprintf(missing, sizeof(missing), "%s/none", folder);
    check_open_refused(missing, BATON_ENOTFOUND, "No such file");
    three_write(folder, "weights.safetensors", 0, 3);
    check_opens(folder, 3);
    three_write(folder, "other.safetensors", 0, 2);
    check_open_refused(folder, BATON_ENOTFOUND, "2 .safetensors files, but no model.safet");
    three_write(folder, "model.safetensors", 0, 2);
    check_opens(folder, 2);
    fixture_folder_remove(folder);
}

static void test_shards(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES];
    fixture_folder_make(folder);
    index_write(folder, "one.safetensors", "two.safetensors", "two.safetensors");
    check_open_refused(folder, BATON_ENOTFOUND, ".safetensors cannot be opened");
    three_write(folder, "one.safetensors", 0, 3); /* more than it should hold */
    three_write(folder, "two.safetensors", 1, 2);
    check_opens(folder, 3);
    three_write(folder, "two.safetensors", 1, 1);
    check_open_refused(folder, BATON_ENOTFOUND,
                       "tensor halves should be in two.safetensors, but is not there");
    fixture_file_write(folder, "two.safetensors", "damaged!", 8);
    check_open_refused(folder, BATON_EINVAL, "two.safetensors");
    fixture_folder_remove(folder);
}

static void test_bad_index(void **state)
{
    (void)state;
    char folder[FIXTURE_PATH_BYTES];
    const char *index = "model.safetensors.index.json";
    fixture_folder_make(folder);
    three_write(folder, "one.safetensors", 0, 3);
    fixture_file_write(folder, index, "{", 1);
    check_open_refused(folder, BATON_EINVAL, "bad JSON");
    fixture_json_write(folder, index, json_pack("{s:i}", "weight_map", 1));
    check_open_refused(folder, BATON_EINVAL, "no weight_map");
    fixture_json_write(folder, index, json_pack("{s:{}}", "weight_map"));
    check_open_refused(folder, BATON_EINVAL, "names 0 files");
    fixture_json_write(folder, index, json_pack("{s:{s:i}}", "weight_map", "norm", 3));
    check_open_refused(folder, BATON_EINVAL, "places norm in no .safetensors file");
    static const char *const outside[] = {
        "../one.safetensors", "/etc/passwd",         "one.bin", "",
        ".safetensors",       "a/../one.safetensors"};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        index_write(folder, "one.safetensors", outside[i], "one.safetensors");
        check_open_refused(folder, BATON_EINVAL, "places matrix in no .safetensors file");
    }
    fixture_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_defects),
        cmocka_unit_test(test_header_length),  cmocka_unit_test(test_unusual),
        cmocka_unit_test(test_cut_everywhere), cmocka_unit_test(test_every_bit_flipped),
        cmocka_unit_test(test_single),         cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bad_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
