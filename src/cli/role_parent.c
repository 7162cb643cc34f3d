/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's end of role.h: starts the two processes, asks, and notices when one is gone. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "role.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROLE_OPEN_TIMEOUT_MS 60000
#define ROLE_ROOM_TIMEOUT_MS 120000
#define ROLE_STOP_TIMEOUT_MS 30000

static void child_exec(const char *name, int fd)
{
    char number[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fcntl(fd, F_SETFD, 0);
    snprintf(number, sizeof(number), "%d", fd);
    execl("/proc/self/exe", "baton", "role", name, number, (char *)NULL);
    _exit(127);
}

int role_start(const char *name, struct role *out, struct error err)
{
    int pair[2];
    *out = (struct role){.name = name, .fd = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return error_set(err, BATON_ESYSTEM, "socketpair: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0)
        child_exec(name, pair[1]);
    int problem = errno;
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return error_set(err, BATON_ESYSTEM, "cannot start the %s process: %s", name,
                         strerror(problem));
    }
    out->pid = pid;
    out->fd = pair[0];
    return BATON_OK;
}

int role_ask(struct role *role, const struct role_request *request, struct error err)
{
    ssize_t sent = send(role->fd, request, sizeof(*request), MSG_NOSIGNAL);
    if (sent == (ssize_t)sizeof(*request))
        return BATON_OK;
    return error_set(err, BATON_EPEER, "the %s process does not listen any more: %s",
                     role->name, strerror(errno));
}

static int role_ended(const char *name, int status, struct error err)
{
    if (WIFSIGNALED(status))
        return error_set(err, BATON_EPEER, "the %s process was killed by signal %d (%s)", name,
                         WTERMSIG(status), strsignal(WTERMSIG(status)));
    return error_set(err, BATON_EPEER, "the %s process ended with status %d", name,
                     WEXITSTATUS(status));
}

/* The process closed its end in the middle of a conversation: say how it went. */
static int role_gone(struct role *role, struct error err)
{
    int status = 0;
    pid_t pid = role->pid;
    role->pid = 0;
    if (pid <= 0 || waitpid(pid, &status, 0) != pid)
        return error_set(err, BATON_EPEER, "the %s process is gone", role->name);
    return role_ended(role->name, status, err);
}

int role_answer(struct role *role, struct role_answer *answer, uint32_t timeout_ms,
                struct error err)
{
    uint64_t until = clock_now_ns() + timeout_ms * NS_PER_MS;
    for (;;) {
        uint64_t now = clock_now_ns();
        struct pollfd ready = {.fd = role->fd, .events = POLLIN};
        int wait_ms = now < until ? (int)((until - now) / NS_PER_MS) + 1 : 0;
        int count = poll(&ready, 1, wait_ms);
        if (count < 0 && errno == EINTR)
            continue;
        if (count == 0)
            return error_set(err, BATON_ETIMEOUT, "the %s process gave no answer within %u s",
                             role->name, timeout_ms / 1000);
        break;
    }
    ssize_t got = recv(role->fd, answer, sizeof(*answer), 0);
    if (got != (ssize_t)sizeof(*answer))
        return role_gone(role, err);
    answer->text[sizeof(answer->text) - 1] = '\0';
    if (answer->code)
        return error_set(err, answer->code, "%s: %s", role->name, answer->text);
    return BATON_OK;
}

void role_kill(struct role *role)
{
    role->killed = true;
    if (role->pid > 0)
        kill(role->pid, SIGKILL);
}

void role_stop(struct role *role, int *rc, struct error err)
{
    struct timespec pause = {.tv_nsec = 2000000};
    uint64_t until = clock_now_ns() + ROLE_STOP_TIMEOUT_MS * NS_PER_MS;
    int status = 0;
    if (role->fd >= 0)
        close(role->fd); /* end of file tells it to close and leave */
    role->fd = -1;
    while (role->pid > 0 && waitpid(role->pid, &status, WNOHANG) == 0) {
        if (clock_now_ns() > until)
            kill(role->pid, SIGKILL);
        nanosleep(&pause, NULL);
    }
    if (status && !role->killed && !*rc)
        *rc = role_ended(role->name, status, err);
    role->pid = 0;
}

int role_pair_open(const struct bench_case *work, struct role *prefill, struct role *decode,
                   struct error err)
{
    struct role_request request = {.kind = ROLE_OPEN, .work = *work};
    struct role_answer answer;
    *prefill = *decode = (struct role){.fd = -1};
    int rc = role_start("prefill", prefill, err);
    if (!rc)
        rc = role_start("decode", decode, err);
    if (!rc)
        rc = role_ask(prefill, &request, err);
    if (!rc)
        rc = role_answer(prefill, &answer, ROLE_OPEN_TIMEOUT_MS, err);
    if (rc)
        return rc;
    request.bootstrap_port = answer.bootstrap_port;
    rc = role_ask(decode, &request, err);
    if (!rc)
        rc = role_answer(decode, &answer, ROLE_OPEN_TIMEOUT_MS, err);
    return rc;
}

int role_pair_room(struct role *prefill, struct role *decode,
                   const struct role_request *request, struct role_answer *sent,
                   struct role_answer *received, struct error err)
{
    int rc = role_ask(decode, request, err);
    if (!rc)
        rc = role_ask(prefill, request, err);
    if (!rc)
        rc = role_answer(prefill, sent, ROLE_ROOM_TIMEOUT_MS, err);
    if (!rc)
        rc = role_answer(decode, received, ROLE_ROOM_TIMEOUT_MS, err);
    return rc;
}
