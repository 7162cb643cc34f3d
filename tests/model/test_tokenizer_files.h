/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the tokenizers share: files, golden JSON, and lists of ids in errors. */
#ifndef BATON_TESTS_TEST_TOKENIZER_FILES_H
#define BATON_TESTS_TEST_TOKENIZER_FILES_H

#include "model/tokenizer_json.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

/* A whole file, with a zero behind it; the caller frees it. Fails the test if it cannot be read. */
char *test_file_read(const char *folder, const char *name, size_t *size);
/* The same, as JSON; the caller drops it. */
json_t *test_json_read(const char *folder, const char *name);

/* The tokenizer of a golden tokenizer.json. */
struct tokenizer *test_tokenizer_open(const char *folder, const char *name);

/* Encodes and compares; `what` goes into the failure. */
void test_encode_expect(struct tokenizer *tokenizer, const char *text, size_t length,
                        uint32_t flags, const uint32_t *ids, size_t count, const char *what);

#endif
