/* SPDX-License-Identifier: Apache-2.0 */
/* Error names, texts and the one place where an error sentence is formatted. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int error_set(struct error err, int code, const char *format, ...)
{
    if (err.text && err.size) {
        va_list args;
        va_start(args, format);
        vsnprintf(err.text, err.size, format, args);
        va_end(args);
    }
    return code;
}

void assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "baton: assertion failed: %s at %s:%d\n", condition, file, line);
    abort();
}

const char *baton_error_name(int error)
{
    switch (error) {
    case BATON_OK: return "BATON_OK";
    case BATON_AGAIN: return "BATON_AGAIN";
#define NAME(name, value, text) \
    case name: return #name;
        BATON_ERROR_LIST(NAME)
#undef NAME
    default: return "BATON_E?";
    }
}

const char *baton_error_text(int error)
{
    switch (error) {
    case BATON_OK: return "success";
    case BATON_AGAIN: return "try again";
#define TEXT(name, value, text) \
    case name: return text;
        BATON_ERROR_LIST(TEXT)
#undef TEXT
    default: return "unknown error";
    }
}

const char *baton_version(void)
{
#define STRING2(x) #x
#define STRING(x) STRING2(x)
    return STRING(BATON_VERSION_MAJOR) "." STRING(BATON_VERSION_MINOR) "." STRING(
        BATON_VERSION_PATCH);
}

const char *baton_state_name(int state)
{
    switch (state) {
    case BATON_FAILED: return "Failed";
    case BATON_BOOTSTRAPPING: return "Bootstrapping";
    case BATON_WAITING_FOR_INPUT: return "WaitingForInput";
    case BATON_TRANSFERRING: return "Transferring";
    case BATON_SUCCESS: return "Success";
    default: return "?";
    }
}
