/* SPDX-License-Identifier: Apache-2.0 */
/* UCX as a guest in a process that is not its own. When it is loaded it takes over signals (those of
 * crashes, and SIGHUP), and it prints its warnings to stdout, where results belong. Both are undone
 * here, except where the environment asks for them: UCX_HANDLE_ERRORS, UCX_LOG_LEVEL. */
#include "ucx.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#define LEVEL_INFO 2
#define LEVEL_DEBUG 3

static _Thread_local char library_said[UCX_WHY_MAX];

/* What matters to a room comes back as a status and is told by whoever called. */
static ucs_log_func_rc_t library_log(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level,
                                     const ucs_log_component_config_t *component,
                                     const char *format, va_list args)
{
    char text[UCX_WHY_MAX];
    int ours = level <= UCS_LOG_LEVEL_WARN ? LEVEL_INFO : LEVEL_DEBUG;
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    if (level > UCS_LOG_LEVEL_WARN && !ucx_host->log_enabled(ours))
        return UCS_LOG_FUNC_RC_STOP;
    vsnprintf(text, sizeof(text), format, args);
    if (level <= UCS_LOG_LEVEL_ERROR)
        snprintf(library_said, sizeof(library_said), "%s", text);
    if (ucx_host->log_enabled(ours))
        ucx_host->log_write(ours, "ucx", "%s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

const char *ucx_reason(ucs_status_t status)
{
    static _Thread_local char reason[UCX_WHY_MAX];
    snprintf(reason, sizeof(reason), "%s",
             library_said[0] ? library_said : ucs_status_string(status));
    library_said[0] = 0;
    return reason;
}

bool ucx_must_settle(void)
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    return major == 1 && minor < 14;
}

/* Whoever had a signal before UCX came gets it back. */
static void signals_restore(void)
{
    Dl_info library, handler;
    if (!dladdr((void *)(uintptr_t)&ucs_debug_disable_signal, &library))
        return;
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0 || action.sa_handler == SIG_DFL ||
            action.sa_handler == SIG_IGN)
            continue;
        if (dladdr((void *)(uintptr_t)action.sa_sigaction, &handler) &&
            handler.dli_fbase == library.dli_fbase)
            ucs_debug_disable_signal(number);
    }
}

void ucx_library_enter(void)
{
    if (!getenv("UCX_LOG_LEVEL"))
        ucs_log_push_handler(library_log);
    if (!getenv("UCX_HANDLE_ERRORS"))
        signals_restore();
}
