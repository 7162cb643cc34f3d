/* SPDX-License-Identifier: Apache-2.0 */
/* One line per event to stderr: lower case, values after a space, room and peer on every
 * transfer line, nothing per page. The first function that decides it is an error logs it. */
#ifndef BATON_BASE_LOG_H
#define BATON_BASE_LOG_H

#include "baton.h"

enum log_level {
    LOG_LEVEL_ERROR = 0,
    LOG_LEVEL_WARNING = 1,
    LOG_LEVEL_INFO = 2,
    LOG_LEVEL_DEBUG = 3
};

int log_enabled(int level);
void log_write(int level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_AT(level, module, ...)                  \
    do {                                            \
        if (log_enabled(level))                     \
            log_write(level, #module, __VA_ARGS__); \
    } while (0)
#define LOG_ERROR(module, ...) LOG_AT(LOG_LEVEL_ERROR, module, __VA_ARGS__)
#define LOG_WARNING(module, ...) LOG_AT(LOG_LEVEL_WARNING, module, __VA_ARGS__)
#define LOG_INFO(module, ...) LOG_AT(LOG_LEVEL_INFO, module, __VA_ARGS__)
#define LOG_DEBUG(module, ...) LOG_AT(LOG_LEVEL_DEBUG, module, __VA_ARGS__)

#endif
