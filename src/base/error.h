/* SPDX-License-Identifier: Apache-2.0 */
/* How functions say what went wrong: a code from baton.h, and a sentence for a person in a
 * buffer that the caller brought. */
#ifndef BATON_BASE_ERROR_H
#define BATON_BASE_ERROR_H

#include "baton.h"

/* Writes the sentence and returns the code:
 * `return error_set(err, BATON_EINVAL, "...", ...)`. */
struct error {
    char *text;
    size_t size;
};

int error_set(struct error err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A buffer on the stack as an error sink. */
#define ERROR_BUFFER(array) ((struct error){(array), sizeof(array)})
#define ERROR_NONE ((struct error){NULL, 0})

/* Programmer errors stop the process, in release builds too. Never for input from outside. */
#define BATON_ASSERT(condition) \
    ((condition) ? (void)0 : assert_failed(#condition, __FILE__, __LINE__))
void assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn, cold));

#endif
