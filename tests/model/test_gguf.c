/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files, read back and broken. Every value type and every getter; a sentence per defect
 * that names what is wrong; a small file cut at every byte and with every bit flipped, which must
 * be refused, or be read without a step outside it (ASan sees the steps: each copy is exactly as
 * long as the file). */
#include "gguf_writer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- helpers ----------------------------------------------------------------------------- */

static struct gguf *parsed(const struct bytes *bytes)
{
    struct gguf *file = NULL;
    char text[400] = "";
    if (gguf_parse(bytes->data, bytes->size, "test.gguf", &file, ERROR_BUFFER(text)))
        fail_msg("refused: %s", text);
    return file;
}

static void check_refused(const struct bytes *bytes, int code, const char *word)
{
    struct gguf *file = (struct gguf *)&file;
    char text[400] = "";
    int rc = gguf_parse(bytes->data, bytes->size, "test.gguf", &file, ERROR_BUFFER(text));
    if (rc != code)
        fail_msg("returned %s (%s), expected %s with \"%s\"", baton_error_name(rc), text,
                 baton_error_name(code), word);
    if (!strstr(text, word) || !strstr(text, "test.gguf"))
        fail_msg("\"%s\" does not say \"%s\" and the file", text, word);
    assert_ptr_equal(file, &file);
}

/* Finishes, checks and frees. */
static void check_writer_refused(struct gguf_writer *writer, int code, const char *word)
{
    struct bytes file = gguf_writer_finish(writer);
    check_refused(&file, code, word);
    bytes_free(&file);
    gguf_writer_free(writer);
}

static uint8_t zeros[4096];

/* One of everything, 700 bytes or so. */
static struct bytes small_file(void)
{
    static const char *const words[] = {"a", "", "longer word"};
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_writer_string(&writer, "general.architecture", "llama");
    gguf_writer_u32(&writer, "general.alignment", 64);
    writer.alignment = 64;
    gguf_writer_float(&writer, "llama.eps", 0.5f);
    gguf_writer_strings(&writer, "tokens", words, 3);
    gguf_writer_key(&writer, "flag", GGUF_BOOL, "\1", 1);
    gguf_writer_tensor(&writer, "b.weight", TENSOR_Q8_0, 2, 64, zeros);
    gguf_writer_tensor(&writer, "a.weight", TENSOR_F32, 0, 5, zeros);
    struct bytes file = gguf_writer_finish(&writer);
    gguf_writer_free(&writer);
    return file;
}

/* ---- sound files ------------------------------------------------------------------------- */

static void numbers_write(struct gguf_writer *writer)
{
    const uint8_t u8 = 200;
    const int8_t i8 = -5;
    const uint16_t u16 = 60000;
    const int16_t i16 = -300;
    const int32_t i32 = -70000;
    const uint64_t u64 = 1ull << 63;
    const int64_t i64 = -(1ll << 40);
    const double f64 = 0.25;
    gguf_writer_key(writer, "u8", GGUF_UINT8, &u8, sizeof(u8));
    gguf_writer_key(writer, "i8", GGUF_INT8, &i8, sizeof(i8));
    gguf_writer_key(writer, "u16", GGUF_UINT16, &u16, sizeof(u16));
    gguf_writer_key(writer, "i16", GGUF_INT16, &i16, sizeof(i16));
    gguf_writer_u32(writer, "u32", 4000000000u);
    gguf_writer_key(writer, "i32", GGUF_INT32, &i32, sizeof(i32));
    gguf_writer_key(writer, "u64", GGUF_UINT64, &u64, sizeof(u64));
    gguf_writer_key(writer, "i64", GGUF_INT64, &i64, sizeof(i64));
    gguf_writer_float(writer, "f32", 1.5f);
    gguf_writer_key(writer, "f64", GGUF_FLOAT64, &f64, sizeof(f64));
    gguf_writer_key(writer, "no", GGUF_BOOL, "\0", 1);
    gguf_writer_string(writer, "text", "hello");
}

static void test_numbers(void **state)
{
    (void)state;
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    writer.version = 2;
    numbers_write(&writer);
    struct bytes bytes = gguf_writer_finish(&writer);
    struct gguf *file = parsed(&bytes);
    const struct {
        const char *key;
        int64_t value;
    } expected[] = {{"u8", 200},     {"i8", -5},          {"u16", 60000},       {"i16", -300},
                    {"i32", -70000}, {"u32", 4000000000}, {"i64", -(1ll << 40)}};
    int64_t number;
    uint64_t wide;
    float real;
    bool flag = true;
    struct gguf_string string;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(gguf_get_i64(file, expected[i].key, &number, ERROR_NONE), 0);
        assert_int_equal(number, expected[i].value);
    }
    assert_int_equal(gguf_get_u64(file, "u64", &wide, ERROR_NONE), 0);
    assert_true(wide == 1ull << 63);
    assert_int_equal(gguf_get_float(file, "f32", &real, ERROR_NONE), 0);
    assert_true(real == 1.5f);
    assert_int_equal(gguf_get_float(file, "f64", &real, ERROR_NONE), 0);
    assert_true(real == 0.25f);
    assert_int_equal(gguf_get_bool(file, "no", &flag, ERROR_NONE), 0);
    assert_false(flag);
    assert_int_equal(gguf_get_string(file, "text", &string, ERROR_NONE), 0);
    assert_true(gguf_string_equal(string, "hello"));
    assert_false(gguf_string_equal(string, "hell"));
    assert_int_equal(gguf_version(file), 2);
    assert_int_equal(gguf_key_count(file), 12);
    assert_true(gguf_string_equal(gguf_key_name(file, 1), "i8"));
    assert_int_equal(gguf_key_type(file, 1), GGUF_INT8);
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(&writer);
}

static void check_getter(int rc, const char *text, int code, const char *word)
{
    assert_int_equal(rc, code);
    if (!strstr(text, word))
        fail_msg("\"%s\" does not say \"%s\"", text, word);
}

static void test_getters_refuse(void **state)
{
    (void)state;
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    numbers_write(&writer);
    struct bytes bytes = gguf_writer_finish(&writer);
    struct gguf *file = parsed(&bytes);
    char text[300];
    struct error err = ERROR_BUFFER(text);
    uint32_t narrow = 77;
    int64_t number = 77;
    float real = 77;
    bool flag = true;
    struct gguf_string string = {NULL, 77};
    struct gguf_array array = {.count = 77};
    check_getter(gguf_get_u32(file, "nothing", &narrow, err), text, BATON_ENOTFOUND,
                 "test.gguf has no key nothing");
    check_getter(gguf_get_u32(file, "i8", &narrow, err), text, BATON_EINVAL, "-5");
    check_getter(gguf_get_u32(file, "u64", &narrow, err), text, BATON_EINVAL, "at most");
    check_getter(gguf_get_u32(file, "f32", &narrow, err), text, BATON_EINVAL,
                 "key f32 is float32, must be an integer");
    check_getter(gguf_get_u32(file, "no", &narrow, err), text, BATON_EINVAL, "bool");
    check_getter(gguf_get_i64(file, "u64", &number, err), text, BATON_EINVAL, "at most");
    check_getter(gguf_get_float(file, "u8", &real, err), text, BATON_EINVAL, "a float");
    check_getter(gguf_get_bool(file, "u8", &flag, err), text, BATON_EINVAL, "a bool");
    check_getter(gguf_get_string(file, "u8", &string, err), text, BATON_EINVAL, "a string");
    check_getter(gguf_get_array(file, "text", GGUF_INT32, &array, err), text, BATON_EINVAL,
                 "key text is string, must be an array of int32");
    assert_true(narrow == 77 && number == 77 && real == 77 && flag);
    assert_true(string.length == 77 && array.count == 77);
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(&writer);
}

static void array_write(struct gguf_writer *writer, const char *key, uint32_t type,
                        uint64_t count, const void *values, size_t size)
{
    uint8_t value[256];
    assert_true(size <= sizeof(value) - 12);
    memcpy(value, &type, 4);
    memcpy(value + 4, &count, 8);
    memcpy(value + 12, values, size);
    gguf_writer_key(writer, key, GGUF_ARRAY, value, 12 + size);
}

static void test_arrays(void **state)
{
    (void)state;
    static const char *const words[] = {"one", "", "three"};
    const int32_t types[] = {1, -2, 3};
    const float scores[] = {0.5f, -1};
    const uint64_t wide[] = {5, UINT64_MAX};
    struct gguf_writer writer;
    struct gguf_array array;
    struct gguf_string *strings;
    gguf_writer_init(&writer);
    gguf_writer_key(&writer, "odd", GGUF_UINT8, "\1", 1); /* nothing after it is aligned */
    gguf_writer_strings(&writer, "words", words, 3);
    array_write(&writer, "types", GGUF_INT32, 3, types, sizeof(types));
    array_write(&writer, "scores", GGUF_FLOAT32, 2, scores, sizeof(scores));
    array_write(&writer, "wide", GGUF_UINT64, 2, wide, sizeof(wide));
    array_write(&writer, "flags", GGUF_BOOL, 2, "\0\1", 2);
    array_write(&writer, "empty", GGUF_STRING, 0, "", 0);
    struct bytes bytes = gguf_writer_finish(&writer);
    struct gguf *file = parsed(&bytes);

    assert_int_equal(gguf_get_array(file, "words", GGUF_STRING, &array, ERROR_NONE), 0);
    assert_int_equal(gguf_array_strings(&array, &strings, ERROR_NONE), 0);
    assert_int_equal(array.count, 3);
    for (size_t i = 0; i < 3; i++)
        assert_true(gguf_string_equal(strings[i], words[i]));
    free(strings);
    assert_int_equal(gguf_get_array(file, "types", GGUF_INT32, &array, ERROR_NONE), 0);
    assert_int_equal(gguf_array_integer(&array, 1), -2);
    assert_int_equal(gguf_get_array(file, "scores", GGUF_FLOAT32, &array, ERROR_NONE), 0);
    assert_true(gguf_array_float(&array, 0) == 0.5 && gguf_array_float(&array, 1) == -1);
    assert_int_equal(gguf_get_array(file, "wide", GGUF_UINT64, &array, ERROR_NONE), 0);
    assert_true(gguf_array_integer(&array, 0) == 5 &&
                gguf_array_integer(&array, 1) == INT64_MAX);
    assert_int_equal(gguf_get_array(file, "flags", GGUF_BOOL, &array, ERROR_NONE), 0);
    assert_true(gguf_array_integer(&array, 0) == 0 && gguf_array_integer(&array, 1) == 1);
    assert_int_equal(gguf_get_array(file, "empty", GGUF_STRING, &array, ERROR_NONE), 0);
    assert_int_equal(array.count, 0);
    assert_int_equal(gguf_array_strings(&array, &strings, ERROR_NONE), 0);
    free(strings);
    assert_int_equal(gguf_get_array(file, "words", GGUF_INT32, &array, ERROR_NONE),
                     BATON_EINVAL);
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(&writer);
}

static void test_tensors(void **state)
{
    (void)state;
    struct bytes bytes = small_file();
    struct gguf *file = parsed(&bytes);
    const struct tensor_table *tensors = gguf_tensors(file);
    assert_int_equal(tensors->count, 2);
    const struct tensor *matrix = tensor_table_find(tensors, "b.weight");
    const struct tensor *vector = tensor_table_find(tensors, "a.weight");
    assert_non_null(matrix);
    assert_non_null(vector);
    assert_null(tensor_table_find(tensors, "c.weight"));
    assert_int_equal(matrix->type, TENSOR_Q8_0);
    assert_string_equal(matrix->type_name, "Q8_0");
    assert_int_equal(matrix->dimension_count, 2);
    assert_int_equal(matrix->shape[0], 2); /* rows first */
    assert_int_equal(matrix->shape[1], 64);
    assert_int_equal(matrix->bytes, 2 * 2 * 34);
    assert_int_equal((size_t)(matrix->data - bytes.data) % 64, 0);
    assert_int_equal(vector->dimension_count, 1);
    assert_int_equal(vector->bytes, 20);
    assert_ptr_equal(vector->data, matrix->data + 192);
    assert_ptr_equal(vector->data + vector->bytes, bytes.data + bytes.size);
    gguf_close(file);
    bytes_free(&bytes);
}

/* Every type, at its size. */
static void test_tensor_types(void **state)
{
    (void)state;
    struct gguf_writer writer;
    char name[32];
    gguf_writer_init(&writer);
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        snprintf(name, sizeof(name), "%s.weight", tensor_type_name(type));
        gguf_writer_tensor(&writer, name, type, 2, 256, zeros);
    }
    struct bytes bytes = gguf_writer_finish(&writer);
    struct gguf *file = parsed(&bytes);
    for (int type = 0; type < TENSOR_TYPE_COUNT; type++) {
        snprintf(name, sizeof(name), "%s.weight", tensor_type_name(type));
        const struct tensor *tensor = tensor_table_find(gguf_tensors(file), name);
        assert_non_null(tensor);
        assert_int_equal(tensor->type, type);
        assert_string_equal(tensor->type_name, tensor_type_name(type));
        assert_non_null(strstr(tensor_type_list(), tensor_type_name(type)));
    }
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(&writer);
}

static void test_vocabulary_alone(void **state)
{
    (void)state;
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_writer_key(&writer, "odd", GGUF_UINT8, "\1", 1); /* ends where no data could begin */
    struct bytes bytes = gguf_writer_finish(&writer);
    struct gguf *file = parsed(&bytes);
    assert_int_equal(gguf_tensors(file)->count, 0);
    assert_null(tensor_table_find(gguf_tensors(file), "x"));
    assert_true(gguf_has(file, "odd"));
    gguf_close(file);
    bytes_free(&bytes);
    gguf_writer_free(&writer);
}

/* ---- defects ----------------------------------------------------------------------------- */

static void test_bad_header(void **state)
{
    (void)state;
    struct bytes file = small_file();
    file.data[0] = 'X';
    check_refused(&file, BATON_EINVAL, "not a GGUF file");
    file.data[0] = 'G';
    file.data[4] = 1;
    check_refused(&file, BATON_EUNSUPPORTED, "version 1; supported are 2 and 3");
    file.data[4] = 4;
    check_refused(&file, BATON_EUNSUPPORTED, "version 4");
    file.data[4] = 0, file.data[7] = 3;
    check_refused(&file, BATON_EUNSUPPORTED, "big-endian");
    file.data[4] = 3, file.data[7] = 0;
    memset(file.data + 8, 0xff, 8);
    check_refused(&file, BATON_EINVAL, "tensors are announced, more than any model has");
    memset(file.data + 8, 0, 8), file.data[9] = 1;
    check_refused(&file, BATON_EINVAL,
                  "256 tensors are announced, more than the file can hold");
    memset(file.data + 16, 0xff, 8);
    check_refused(&file, BATON_EINVAL, "keys are announced, more than any model has");
    memset(file.data + 16, 0, 8), file.data[17] = 1;
    check_refused(&file, BATON_EINVAL, "256 keys are announced, more than the file can hold");
    bytes_free(&file);
}

static void check_key(const char *key, uint32_t type, const void *value, size_t size, int code,
                      const char *word)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_writer_key(&writer, key, type, value, size);
    bytes_add(&writer.keys, zeros, 64); /* not the end of the file is what is to be found */
    check_writer_refused(&writer, code, word);
}

static void check_array(uint32_t type, uint64_t count, const char *values, size_t size,
                        int code, const char *word)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    array_write(&writer, "list", type, count, values, size);
    check_writer_refused(&writer, code, word);
}

static void test_bad_keys(void **state)
{
    (void)state;
    struct gguf_writer writer;
    char long_key[300];
    memset(long_key, 'k', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = '\0';
    check_key("", GGUF_UINT8, "\1", 1, BATON_EINVAL, "a key has 0 bytes");
    check_key(long_key, GGUF_UINT8, "\1", 1, BATON_EINVAL, "a key has 299 bytes");
    check_key("a\033[31m", GGUF_UINT8, "\1", 1, BATON_EINVAL, "not printable");
    check_key("strange", 13, "\1", 1, BATON_EINVAL,
              "key strange has the unknown value type 13");
    check_key("flag", GGUF_BOOL, "\2", 1, BATON_EINVAL, "key flag is a bool of value 2");
    check_key("text", GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, BATON_EINVAL,
              "key text needs 18446744073709551615 bytes");
    check_array(GGUF_ARRAY, 1, "", 0, BATON_EUNSUPPORTED, "key list is an array of arrays");
    check_array(99, 1, "", 0, BATON_EINVAL, "key list has the unknown value type 99");
    check_array(GGUF_UINT32, UINT64_MAX / 2, "", 0, BATON_EINVAL, "key list needs");
    check_array(GGUF_UINT32, (1ull << 62) + 1, "12345678", 8, BATON_EINVAL, "key list needs");
    check_array(GGUF_UINT32, 3, "12345678", 8, BATON_EINVAL, "key list needs 12 bytes");
    check_array(GGUF_STRING, UINT64_MAX, "\0\0\0\0\0\0\0\0", 8, BATON_EINVAL, "key list needs");
    check_array(GGUF_BOOL, 2, "\1\3", 2, BATON_EINVAL, "key list is a bool of value 3");

    gguf_writer_init(&writer);
    gguf_writer_u32(&writer, "same", 1);
    gguf_writer_u32(&writer, "other", 1);
    gguf_writer_u32(&writer, "same", 2);
    check_writer_refused(&writer, BATON_EINVAL, "key same is there twice");
}

static void check_alignment(uint32_t alignment)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_writer_u32(&writer, "general.alignment", alignment);
    gguf_writer_tensor(&writer, "x", TENSOR_F32, 0, 8, zeros);
    check_writer_refused(&writer, BATON_EINVAL, "general.alignment");
}

/* A file with one tensor as described and 256 bytes of data. */
static void check_tensor(const char *name, uint32_t dimensions, const uint64_t *sizes,
                         uint32_t type, uint64_t offset, int code, const char *word)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_writer_describe(&writer, name, dimensions, sizes, type, offset);
    bytes_add(&writer.data, zeros, 256);
    check_writer_refused(&writer, code, word);
}

static void test_bad_tensors(void **state)
{
    (void)state;
    const uint64_t eight[5] = {8, 8, 1, 1, 1}, none[1] = {0};
    const uint64_t huge[4] = {1ull << 32, 1ull << 31, 2, 1}, most[1] = {UINT64_MAX / 2};
    char long_name[TENSOR_NAME_BYTES + 1];
    memset(long_name, 'n', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    struct gguf_writer writer;
    for (uint32_t alignment = 0; alignment < 8; alignment++)
        check_alignment(alignment);
    check_alignment(24);
    check_alignment(1u << 31);
    check_tensor("", 1, eight, 0, 0, BATON_ELIMIT, "a tensor's name has 0 bytes");
    check_tensor(long_name, 1, eight, 0, 0, BATON_ELIMIT, "a tensor's name has 128 bytes");
    check_tensor("\x80", 1, eight, 0, 0, BATON_EINVAL, "not printable");
    check_tensor("x", 0, eight, 0, 0, BATON_EINVAL, "tensor x has 0 dimensions");
    check_tensor("x", 5, eight, 0, 0, BATON_EINVAL, "tensor x has 5 dimensions");
    check_tensor("x", 1, none, 0, 0, BATON_EINVAL, "tensor x has a dimension of size 0");
    check_tensor("x", 1, eight, 23, 0, BATON_EUNSUPPORTED, "tensor x is IQ4_XS, which is not");
    check_tensor("x", 1, eight, 4, 0, BATON_EUNSUPPORTED, "type number 4,");
    check_tensor("x", 1, eight, 4000, 0, BATON_EUNSUPPORTED, "type number 4000,");
    check_tensor("x", 2, eight, 8, 0, BATON_EINVAL, "x is 8x8 of Q8_0, but its rows must be");
    check_tensor("x", 4, huge, 0, 0, BATON_EINVAL,
                 "impossible shape 1x2x2147483648x4294967296");
    check_tensor("x", 1, most, 0, 0, BATON_EINVAL, "impossible shape");
    check_tensor("x", 2, eight, 0, 8, BATON_EINVAL, "x is at offset 8, no multiple");
    check_tensor("x", 2, eight, 0, 32, BATON_EINVAL, "x has 256 bytes at offset 32");
    check_tensor("x", 1, eight, 0, 1ull << 62, BATON_EINVAL, "x has 32 bytes at offset 46116");
    check_tensor("x", 1, eight, 0, UINT64_MAX - 31, BATON_EINVAL, "truncated or damaged");

    gguf_writer_init(&writer);
    gguf_writer_tensor(&writer, "same", TENSOR_F32, 0, 8, zeros);
    gguf_writer_tensor(&writer, "other", TENSOR_F32, 0, 8, zeros);
    gguf_writer_tensor(&writer, "same", TENSOR_F32, 0, 8, zeros);
    check_writer_refused(&writer, BATON_EINVAL, "tensor same is there twice");

    gguf_writer_init(&writer);
    gguf_writer_describe(&writer, "second", 1, eight, 0, 32);
    gguf_writer_describe(&writer, "first", 2, eight, 0, 0);
    bytes_add(&writer.data, zeros, 256);
    check_writer_refused(&writer, BATON_EINVAL, "the tensors first and second overlap");
}

/* ---- damage ------------------------------------------------------------------------------ */

static volatile uint64_t sum; /* keeps what is read from being optimised away */

/* Reads whatever an accepted file offers. */
static void file_walk(const struct gguf *file)
{
    for (uint32_t i = 0; i < gguf_key_count(file); i++) {
        struct gguf_string key = gguf_key_name(file, i), string;
        struct gguf_array array;
        struct gguf_string *strings;
        char name[300];
        int64_t number;
        snprintf(name, sizeof(name), "%.*s", (int)key.length, key.bytes);
        assert_true(gguf_has(file, name));
        if (!gguf_get_i64(file, name, &number, ERROR_NONE))
            sum += (uint64_t)number;
        if (!gguf_get_string(file, name, &string, ERROR_NONE))
            for (size_t j = 0; j < string.length; j++)
                sum += (uint8_t)string.bytes[j];
        if (!gguf_get_array(file, name, GGUF_STRING, &array, ERROR_NONE)) {
            assert_int_equal(gguf_array_strings(&array, &strings, ERROR_NONE), 0);
            for (uint64_t j = 0; j < array.count; j++)
                for (size_t k = 0; k < strings[j].length; k++)
                    sum += (uint8_t)strings[j].bytes[k];
            free(strings);
        }
        if (!gguf_get_array(file, name, GGUF_UINT8, &array, ERROR_NONE))
            for (uint64_t j = 0; j < array.count; j++)
                sum += (uint64_t)gguf_array_integer(&array, j);
    }
    for (uint32_t i = 0; i < gguf_tensors(file)->count; i++) {
        const struct tensor *tensor = &gguf_tensors(file)->items[i];
        for (uint64_t j = 0; j < tensor->bytes; j++)
            sum += tensor->data[j];
    }
}

/* A copy that ends where its block of memory ends. 0, or the error. */
static int copy_parse(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    struct gguf *file;
    char text[400] = "";
    assert_non_null(copy);
    memcpy(copy, data, size);
    int rc = gguf_parse(copy, size, "test.gguf", &file, ERROR_BUFFER(text));
    if (!rc) {
        file_walk(file);
        gguf_close(file);
    } else {
        assert_true(text[0] != '\0');
    }
    free(copy);
    return rc;
}

static void test_cut_everywhere(void **state)
{
    (void)state;
    struct bytes file = small_file();
    for (size_t size = 0; size < file.size; size++)
        if (copy_parse(file.data, size) != BATON_EINVAL)
            fail_msg("the first %zu of %zu bytes were not refused as damaged", size, file.size);
    assert_int_equal(copy_parse(file.data, file.size), BATON_OK);
    bytes_free(&file);
}

static void test_every_bit_flipped(void **state)
{
    (void)state;
    struct bytes file = small_file();
    uint32_t refused = 0;
    for (size_t i = 0; i < 8 * file.size; i++) {
        file.data[i / 8] ^= (uint8_t)(1u << i % 8);
        refused += copy_parse(file.data, file.size) != BATON_OK;
        file.data[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    print_message("%u of %zu flips were noticed\n", refused, 8 * file.size);
    assert_true(refused > 500); /* the rest is in names, values, padding and data */
    bytes_free(&file);
}

/* ---- files ------------------------------------------------------------------------------- */

static void check_open_refused(const char *path, int code, const char *word)
{
    struct gguf *file;
    char text[400] = "";
    int rc = gguf_open(path, &file, ERROR_BUFFER(text));
    if (rc != code || !strstr(text, word) || !strstr(text, path))
        fail_msg("%s: %s \"%s\", expected %s \"%s\"", path, baton_error_name(rc), text,
                 baton_error_name(code), word);
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/baton-gguf-XXXXXX", path[64];
    struct bytes bytes = small_file();
    struct gguf *file;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/model.gguf", folder);
    check_open_refused(path, BATON_ENOTFOUND, "No such file");
    check_open_refused(folder, BATON_EINVAL, "not a regular file");

    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fflush(out);
    check_open_refused(path, BATON_EINVAL, "is empty");
    assert_int_equal(fwrite(bytes.data, 1, bytes.size, out), bytes.size);
    fclose(out);
    assert_int_equal(gguf_open(path, &file, ERROR_NONE), BATON_OK);
    assert_string_equal(gguf_path(file), path);
    assert_int_equal(gguf_tensors(file)->count, 2);
    file_walk(file);
    gguf_close(file);
    gguf_close(NULL);

    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_open_refused(path, BATON_EINVAL, "not a regular file"); /* and does not wait */
    unlink(path);
    rmdir(folder);
    bytes_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_getters_refuse),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_vocabulary_alone),
        cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_cut_everywhere),
        cmocka_unit_test(test_every_bit_flipped),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
