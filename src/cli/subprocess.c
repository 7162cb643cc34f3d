/* SPDX-License-Identifier: Apache-2.0 */
/* fork, exec, wait, with bounds. A failing exec is told through a close-on-exec pipe, so that
 * "not installed" is an answer and not an exit status to be guessed at. */
#define _GNU_SOURCE /* pipe2 */
#include "subprocess.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CAPTURE_BYTES_MAX (4u << 20)

static void child_exec(char *const argv[], uint32_t flags, int output, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (flags & SUBPROCESS_GROUP)
        setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL); /* ours is ignored, and that would be inherited */
    int quiet = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(quiet, STDIN_FILENO);
    if (flags & SUBPROCESS_QUIET) {
        dup2(quiet, STDOUT_FILENO);
        dup2(quiet, STDERR_FILENO);
    }
    if (flags & SUBPROCESS_CAPTURE)
        dup2(output, STDOUT_FILENO);
    if (flags & SUBPROCESS_ERRORS)
        dup2(output, STDERR_FILENO);
    execvp(argv[0], argv);
    int problem = errno;
    if (write(report, &problem, sizeof(problem)) < 0)
        _exit(126);
    _exit(127);
}

int subprocess_start(char *const argv[], uint32_t flags, pid_t *pid, int *output,
                     struct error err)
{
    int report[2], pipe_out[2] = {-1, -1}, problem = 0;
    if (pipe2(report, O_CLOEXEC))
        return error_set(err, BATON_ESYSTEM, "pipe: %s", strerror(errno));
    if ((flags & SUBPROCESS_CAPTURE) && pipe2(pipe_out, O_CLOEXEC)) {
        close(report[0]);
        close(report[1]);
        return error_set(err, BATON_ESYSTEM, "pipe: %s", strerror(errno));
    }
    pid_t child = fork();
    if (child == 0)
        child_exec(argv, flags, pipe_out[1], report[1]);
    if (child < 0)
        problem = errno;
    close(report[1]);
    if (pipe_out[1] >= 0)
        close(pipe_out[1]);
    if (child > 0 && read(report[0], &problem, sizeof(problem)) == (ssize_t)sizeof(problem))
        waitpid(child, NULL, 0);
    close(report[0]);
    if (problem) {
        if (pipe_out[0] >= 0)
            close(pipe_out[0]);
        return error_set(err, problem == ENOENT ? BATON_ENOTFOUND : BATON_ESYSTEM,
                         "cannot start %s: %s", argv[0], strerror(problem));
    }
    *pid = child;
    if (output)
        *output = pipe_out[0];
    return BATON_OK;
}

void subprocess_stop(pid_t pid)
{
    struct timespec pause = {.tv_nsec = 10000000};
    if (waitpid(pid, NULL, WNOHANG) == pid)
        return;
    kill(pid, SIGTERM);
    for (int i = 0; i < 100; i++) {
        if (waitpid(pid, NULL, WNOHANG) == pid)
            return;
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* Reads to the end of file. Returns ETIMEOUT when time ran out before it. */
static int output_read(int fd, uint64_t until_ns, char **text, struct error err)
{
    size_t used = 0, capacity = 4096;
    char *buffer = malloc(capacity);
    int rc = BATON_OK;
    while (buffer) {
        uint64_t now = clock_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (used + 1 == capacity) {
            char *larger = capacity < CAPTURE_BYTES_MAX ? realloc(buffer, capacity * 2) : NULL;
            if (!larger) {
                rc = error_set(err, BATON_ELIMIT, "it printed more than %zu bytes", used);
                break;
            }
            buffer = larger;
            capacity *= 2;
        }
        int wait_ms = now < until_ns ? (int)((until_ns - now) / NS_PER_MS) + 1 : 0;
        if (poll(&ready, 1, wait_ms) == 0) {
            rc = error_set(err, BATON_ETIMEOUT, "it did not end in time");
            break;
        }
        ssize_t got = read(fd, buffer + used, capacity - used - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (!buffer)
        return error_set(err, BATON_ENOMEM, "no memory for what it prints");
    buffer[used] = '\0';
    *text = buffer;
    return rc;
}

int subprocess_capture(char *const argv[], uint32_t timeout_ms, char **text, int *status,
                       struct error err)
{
    pid_t pid = 0;
    int output = -1, ended = 0;
    *text = NULL;
    int rc = subprocess_start(argv, SUBPROCESS_CAPTURE, &pid, &output, err);
    if (rc)
        return rc;
    rc = output_read(output, clock_now_ns() + timeout_ms * NS_PER_MS, text, err);
    close(output);
    if (rc) {
        subprocess_stop(pid);
        return rc;
    }
    while (waitpid(pid, &ended, 0) < 0 && errno == EINTR)
        continue;
    *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
    return BATON_OK;
}
