/* SPDX-License-Identifier: Apache-2.0 */
/* Does a call stop the process, as a programmer's error should? Tried in a child. */
#ifndef BATON_TESTS_KV_MISUSE_H
#define BATON_TESTS_KV_MISUSE_H

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool misuse_aborts(void (*misuse)(void *), void *argument)
{
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDERR_FILENO);
        misuse(argument);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGABRT;
}

#endif
