/* SPDX-License-Identifier: Apache-2.0 */
/* The log: a line is formatted on the stack and leaves in one write, so that lines of several
 * threads and processes never mix. A full disk or a closed stderr is ignored: serving goes
 * on. */
#include "log.h"

#include "clock.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_threshold = -1;

static int log_threshold_from_environment(void)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const char *value = getenv("BATON_LOG");
    for (int i = 0; value && i < 4; i++)
        if (strcmp(value, names[i]) == 0 || (value[0] == '0' + i && !value[1]))
            return i;
    return LOG_LEVEL_WARNING;
}

int log_enabled(int level)
{
    int threshold = atomic_load_explicit(&log_threshold, memory_order_relaxed);
    if (threshold < 0) {
        threshold = log_threshold_from_environment();
        atomic_store_explicit(&log_threshold, threshold, memory_order_relaxed);
    }
    return level <= threshold;
}

void baton_log_level(int level)
{
    atomic_store_explicit(&log_threshold, level < 0 ? 0 : level, memory_order_relaxed);
}

void log_write(int level, const char *module, const char *format, ...)
{
    static const char letters[] = "EWID";
    char line[1024];
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &parts);
    int used =
        snprintf(line, sizeof(line), "%02d:%02d:%02d.%03ld %c baton[%d] %s: ", parts.tm_hour,
                 parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000, letters[level & 3],
                 (int)getpid(), module);
    va_list args;
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = (size_t)used + (more < 0 ? 0 : (size_t)more);
    if (length > sizeof(line) - 2)
        length = sizeof(line) - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        return;
}
