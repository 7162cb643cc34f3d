/* SPDX-License-Identifier: Apache-2.0 */
/* The library's sockets against the real kernel: what they promise to peers (our death is seen,
 * whatever our children do), to the process (no descriptor leaks, none survives an exec) and to
 * people (errors that say what to do). */
#include "net/socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 10000 /* for what must happen */
#define QUIET_MS 100      /* for what must not */

/* ---- helpers --------------------------------------------------------------------------- */

static bool readable(int fd, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, timeout_ms) == 1;
}

/* Waits for the end of the stream; false: none came, or bytes did. */
static bool ends(int fd, int timeout_ms)
{
    char byte;
    return readable(fd, timeout_ms) && read(fd, &byte, 1) == 0;
}

static bool carries(int from, int to)
{
    char sent = 'b', got = 0;
    return write(from, &sent, 1) == 1 && readable(to, PATIENCE_MS) && read(to, &got, 1) == 1 &&
           got == sent;
}

static void assert_library_socket(int fd)
{
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static unsigned descriptors_open(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static int tcp_connect(int family, uint16_t port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = family == AF_INET ? connect(fd, (struct sockaddr *)&v4, sizeof(v4))
                               : connect(fd, (struct sockaddr *)&v6, sizeof(v6));
    assert_int_equal(rc, 0);
    return fd;
}

static int tcp_accept(int listener)
{
    assert_true(readable(listener, PATIENCE_MS));
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static int listen_or_fail(const char *host, uint16_t *port)
{
    char text[256] = "";
    int fd = -1;
    if (socket_listen(host, port, &fd, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    return fd;
}

/* Two tests may run at once on one machine: names carry the process. */
static const char *unix_name(void)
{
    static char name[64];
    snprintf(name, sizeof(name), "baton-test-socket-%d", (int)getpid());
    return name;
}

static void pair_make(int ends_out[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_out), 0);
}

/* A child that works, says so, and then lives until it is released. */
struct child {
    pid_t pid;
    int hold;
};

static struct child child_start(void (*work)(void *), void *arg)
{
    int hold[2], ready[2];
    char byte = 1;
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60); /* never outlives a test that broke */
        close(hold[1]);
        close(ready[0]);
        if (work)
            work(arg);
        bool told = write(ready[1], &byte, 1) == 1;
        close(ready[1]);
        _exit(told && read(hold[0], &byte, 1) == 0 ? 0 : 99);
    }
    close(hold[0]);
    close(ready[1]);
    assert_true(readable(ready[0], PATIENCE_MS));
    /* End of stream: the child exited in its work, and its status says why. */
    assert_true(read(ready[0], &byte, 1) >= 0);
    close(ready[0]);
    return (struct child){pid, hold[1]};
}

static int child_wait(struct child child)
{
    int status = -1;
    assert_int_equal(waitpid(child.pid, &status, 0), child.pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int child_release(struct child child)
{
    close(child.hold);
    return child_wait(child);
}

/* ---- listening ------------------------------------------------------------------------- */

static void test_listen_on_any_port_takes_connections(void **state)
{
    static const char *hosts[] = {"127.0.0.1", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        uint16_t port = 0;
        int listener = listen_or_fail(hosts[i], &port);
        assert_int_not_equal(port, 0);
        assert_library_socket(listener);
        int client = tcp_connect(AF_INET, port), server = tcp_accept(listener);
        assert_true(carries(client, server));
        assert_true(carries(server, client));
        close(client);
        assert_true(ends(server, PATIENCE_MS));
        close(server);
        socket_close(listener);
    }
}

static void test_listen_on_ipv6_names_its_peer_in_brackets(void **state)
{
    uint16_t port = 0;
    char text[256], name[80];
    int listener;
    (void)state;
    if (access("/proc/net/if_inet6", F_OK) != 0) {
        print_message("skipped: no IPv6 here\n");
        skip();
    }
    if (socket_listen("::1", &port, &listener, ERROR_BUFFER(text)) != BATON_OK) {
        print_message("skipped: %s\n", text);
        skip();
    }
    assert_int_not_equal(port, 0);
    int client = tcp_connect(AF_INET6, port), server = tcp_accept(listener);
    char expected[80];
    snprintf(expected, sizeof(expected), "[::1]:%u", port);
    socket_peer_name(client, name, sizeof(name));
    assert_string_equal(name, expected);
    assert_int_equal(socket_local_address("::1", port, name, sizeof(name)), 0);
    assert_string_equal(name, "::1");
    close(server);
    close(client);
    socket_close(listener);
}

static void test_listen_on_a_taken_port_says_what_to_do(void **state)
{
    uint16_t port = 0;
    char text[256] = "", number[16];
    (void)state;
    int first = listen_or_fail("127.0.0.1", &port), second = -1;
    uint16_t same = port;
    unsigned before = descriptors_open();
    assert_int_equal(socket_listen("127.0.0.1", &same, &second, ERROR_BUFFER(text)),
                     BATON_EBUSY);
    snprintf(number, sizeof(number), "port %u ", port);
    assert_non_null(strstr(text, number));
    assert_non_null(strstr(text, "127.0.0.1"));
    assert_non_null(strstr(text, "is taken by another process; choose another port"));
    assert_int_equal(same, port);
    assert_int_equal(second, -1);
    assert_int_equal(descriptors_open(), before);
    socket_close(first);

    assert_int_equal(socket_listen("127.0.0.1", &same, &second, ERROR_BUFFER(text)), BATON_OK);
    socket_close(second);
}

static void test_listen_on_an_address_of_others_is_refused(void **state)
{
    uint16_t port = 0;
    char text[256] = "";
    int fd = -1;
    (void)state;
    unsigned before = descriptors_open();
    assert_int_equal(socket_listen("192.0.2.1", &port, &fd, ERROR_BUFFER(text)), BATON_ESYSTEM);
    assert_non_null(strstr(text, "cannot listen on 192.0.2.1 port 0: "));
    assert_non_null(strstr(text, strerror(EADDRNOTAVAIL)));
    assert_int_equal(socket_listen("not a host", &port, &fd, ERROR_BUFFER(text)), BATON_EINVAL);
    assert_non_null(strstr(text, "cannot listen on 'not a host': "));
    assert_int_equal(fd, -1);
    assert_int_equal(descriptors_open(), before);
}

/* ---- addresses and options ------------------------------------------------------------- */

static void test_local_address_is_the_one_that_would_talk(void **state)
{
    char address[64] = "untouched", small[4];
    (void)state;
    unsigned before = descriptors_open();
    assert_int_equal(socket_local_address("127.0.0.1", 9, address, sizeof(address)), 0);
    assert_string_equal(address, "127.0.0.1");
    assert_int_equal(socket_local_address("127.0.0.1", 9, small, sizeof(small)), -1);
    assert_int_equal(socket_local_address("not a host", 9, address, sizeof(address)), -1);
    assert_int_equal(descriptors_open(), before);
}

static void test_peer_name_is_where_the_other_end_is(void **state)
{
    uint16_t port = 0;
    char name[64], expected[64];
    struct sockaddr_in own;
    socklen_t length = sizeof(own);
    (void)state;
    int listener = listen_or_fail("127.0.0.1", &port);
    int client = tcp_connect(AF_INET, port), server = tcp_accept(listener);
    snprintf(expected, sizeof(expected), "127.0.0.1:%u", port);
    socket_peer_name(client, name, sizeof(name));
    assert_string_equal(name, expected);
    assert_int_equal(getsockname(client, (struct sockaddr *)&own, &length), 0);
    snprintf(expected, sizeof(expected), "127.0.0.1:%u", ntohs(own.sin_port));
    socket_peer_name(server, name, sizeof(name));
    assert_string_equal(name, expected);
    socket_peer_name(listener, name, sizeof(name));
    assert_string_equal(name, "unknown");
    close(client);
    close(server);
    socket_close(listener);
}

static void test_tune_sends_small_frames_at_once(void **state)
{
    int pair[2], fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), value = 0;
    socklen_t length = sizeof(value);
    (void)state;
    socket_tune(fd);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
    assert_int_not_equal(value, 0);
    close(fd);
    pair_make(pair);
    socket_tune(pair[0]);
    assert_true(carries(pair[0], pair[1]));
    close(pair[0]);
    close(pair[1]);
}

/* ---- local sockets --------------------------------------------------------------------- */

static void test_unix_abstract_name_connects_and_leaves_no_file(void **state)
{
    char text[256] = "";
    struct sockaddr_un bound;
    socklen_t length = sizeof(bound);
    int listener = -1, client = -1;
    (void)state;
    assert_int_equal(socket_listen_unix(unix_name(), &listener, ERROR_BUFFER(text)), BATON_OK);
    assert_library_socket(listener);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&bound, &length), 0);
    assert_int_equal(bound.sun_path[0], 0);
    size_t name_length = length - offsetof(struct sockaddr_un, sun_path) - 1;
    assert_int_equal(name_length, strlen(unix_name()));
    assert_memory_equal(bound.sun_path + 1, unix_name(), name_length);

    assert_int_equal(socket_connect_unix(unix_name(), &client, ERROR_BUFFER(text)), BATON_OK);
    assert_library_socket(client);
    int server = tcp_accept(listener);
    assert_true(carries(client, server));
    socket_close(client);
    assert_true(ends(server, PATIENCE_MS));
    close(server);
    socket_close(listener);
}

static void test_unix_name_taken_or_missing_is_named(void **state)
{
    char text[256] = "";
    int first = -1, second = -1;
    (void)state;
    assert_int_equal(socket_listen_unix(unix_name(), &first, ERROR_BUFFER(text)), BATON_OK);
    unsigned before = descriptors_open();
    assert_int_equal(socket_listen_unix(unix_name(), &second, ERROR_BUFFER(text)),
                     BATON_ESYSTEM);
    assert_non_null(strstr(text, unix_name()));
    assert_non_null(strstr(text, strerror(EADDRINUSE)));
    assert_int_equal(descriptors_open(), before);
    socket_close(first);

    before = descriptors_open();
    assert_int_equal(socket_connect_unix(unix_name(), &second, ERROR_BUFFER(text)),
                     BATON_ESYSTEM);
    assert_non_null(strstr(text, unix_name()));
    assert_non_null(strstr(text, strerror(ECONNREFUSED)));
    assert_int_equal(second, -1);
    assert_int_equal(descriptors_open(), before);

    assert_int_equal(socket_listen_unix(unix_name(), &first, ERROR_BUFFER(text)), BATON_OK);
    socket_close(first);
}

/* ---- passing descriptors --------------------------------------------------------------- */

/* Sends the write end of a fresh pipe count times and keeps no copy; returns the read end, which
 * ends only when every copy is closed. */
static int pipe_send(int through, unsigned count)
{
    int ends_made[2], fds[256];
    assert_int_equal(pipe2(ends_made, O_CLOEXEC), 0);
    for (unsigned i = 0; i < count; i++)
        fds[i] = ends_made[1];
    assert_int_equal(socket_send_fds(through, "attach", 6, fds, count), 0);
    close(ends_made[1]);
    return ends_made[0];
}

static void test_descriptors_arrive_with_their_message(void **state)
{
    int pair[2], fds[8], sent[3];
    char message[16];
    struct stat a, b;
    unsigned count = 8;
    (void)state;
    pair_make(pair);
    for (int i = 0; i < 3; i++) {
        FILE *file = tmpfile();
        assert_non_null(file);
        sent[i] = dup(fileno(file));
        fclose(file);
    }
    assert_int_equal(socket_send_fds(pair[0], "three", 5, sent, 3), 0);
    assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count), 5);
    assert_memory_equal(message, "three", 5);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(fds[i], sent[i]);
        assert_int_equal(fstat(sent[i], &a), 0);
        assert_int_equal(fstat(fds[i], &b), 0);
        assert_true(a.st_ino == b.st_ino && a.st_dev == b.st_dev);
        assert_true(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
        close(fds[i]);
        close(sent[i]);
    }
    close(pair[0]);
    close(pair[1]);
}

static void test_descriptors_more_than_fit_are_closed(void **state)
{
    static const struct {
        unsigned sent, room;
    } cases[] = {{10, 3}, {10, 9}, {10, 10}, {64, 1}, {64, 64}, {1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int pair[2], fds[64];
        char message[16];
        unsigned count = cases[i].room;
        pair_make(pair);
        int end = pipe_send(pair[0], cases[i].sent);
        unsigned before = descriptors_open();
        assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count), 6);
        assert_int_equal(count, cases[i].room);
        assert_int_equal(descriptors_open(), before + count);
        for (unsigned k = 0; k < count; k++) {
            assert_false(ends(end, 0)); /* those that we took are still open */
            close(fds[k]);
        }
        assert_true(ends(end, PATIENCE_MS)); /* and no other is */
        close(end);
        close(pair[0]);
        close(pair[1]);
    }
}

/* A peer that is not ours may send up to the kernel's limit. */
static void test_descriptors_more_than_we_would_send_do_not_leak(void **state)
{
    enum { SENT = 200 };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * SENT)];
    } control = {0};
    int pair[2], made[2], copies[SENT], fds[256];
    char message[16];
    struct iovec iov = {"attach", 6};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    unsigned count = 256;
    (void)state;
    pair_make(pair);
    assert_int_equal(pipe2(made, O_CLOEXEC), 0);
    for (int i = 0; i < SENT; i++)
        copies[i] = made[1];
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(copies));
    memcpy(CMSG_DATA(part), copies, sizeof(copies));
    assert_int_equal(sendmsg(pair[0], &header, 0), 6);
    close(made[1]);

    unsigned before = descriptors_open();
    assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count), 6);
    assert_in_range(count, 1, SENT);
    assert_int_equal(descriptors_open(), before + count);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    assert_true(ends(made[0], PATIENCE_MS));
    close(made[0]);
    close(pair[0]);
    close(pair[1]);
}

static void test_descriptors_too_many_or_to_nobody_are_refused(void **state)
{
    int pair[2], fds[65];
    (void)state;
    pair_make(pair);
    for (int i = 0; i < 65; i++)
        fds[i] = pair[0];
    errno = 0;
    assert_int_equal(socket_send_fds(pair[0], "x", 1, fds, 65), -1);
    assert_int_equal(errno, EINVAL);
    assert_false(readable(pair[1], 0));
    close(pair[1]);
    assert_int_equal(socket_send_fds(pair[0], "x", 1, fds, 1), -1); /* and no SIGPIPE */
    assert_int_equal(errno, EPIPE);
    close(pair[0]);
}

static void test_receive_tells_nothing_yet_from_the_end(void **state)
{
    int pair[2], fds[4];
    char message[16];
    unsigned count = 4;
    (void)state;
    pair_make(pair);
    assert_int_equal(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count),
                     -EAGAIN);
    assert_int_equal(count, 0);
    count = 4;
    assert_int_equal(socket_send_fds(pair[0], "no descriptors", 14, NULL, 0), 0);
    assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count), 14);
    assert_int_equal(count, 0);
    close(pair[0]);
    count = 4;
    assert_int_equal(socket_receive_fds(pair[1], message, sizeof(message), fds, &count), 0);
    assert_int_equal(count, 0);
    close(pair[1]);
}

/* ---- processes ------------------------------------------------------------------------- */

static void work_connect(void *arg)
{
    int fd;
    (void)arg;
    char name[64];
    snprintf(name, sizeof(name), "baton-test-socket-%d", (int)getppid());
    if (socket_connect_unix(name, &fd, ERROR_NONE) != BATON_OK)
        _exit(1);
}

static void test_peer_pid_is_the_process_that_connected(void **state)
{
    int listener = -1, pair[2];
    uint16_t port = 0;
    (void)state;
    assert_int_equal(socket_listen_unix(unix_name(), &listener, ERROR_NONE), BATON_OK);
    struct child child = child_start(work_connect, NULL);
    int server = tcp_accept(listener);
    assert_int_equal(socket_peer_pid(server), child.pid);
    assert_int_equal(child_release(child), 0);
    assert_int_equal(socket_peer_pid(server), child.pid); /* it does not move on */
    close(server);
    socket_close(listener);

    pair_make(pair);
    assert_int_equal(socket_peer_pid(pair[0]), getpid());
    close(pair[0]);
    close(pair[1]);
    listener = listen_or_fail("127.0.0.1", &port);
    int client = tcp_connect(AF_INET, port);
    assert_int_equal(socket_peer_pid(client), 0); /* TCP does not know */
    close(client);
    socket_close(listener);
}

static void test_process_watch_fires_when_the_process_ends(void **state)
{
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        struct child child = child_start(NULL, NULL);
        int watch = process_watch(child.pid);
        if (watch < 0 && errno == ENOSYS) {
            child_release(child);
            print_message("skipped: this kernel has no pidfd_open\n");
            skip();
        }
        assert_true(watch >= 0);
        assert_true(fcntl(watch, F_GETFD) & FD_CLOEXEC);
        assert_false(readable(watch, QUIET_MS));
        if (killed)
            kill(child.pid, SIGKILL);
        else
            close(child.hold);
        assert_true(readable(watch, PATIENCE_MS)); /* before anybody has waited for it */
        assert_int_equal(child_wait(child), killed ? 128 + SIGKILL : 0);
        assert_true(readable(watch, 0));
        close(watch);
        if (killed)
            close(child.hold);
        errno = 0;
        assert_int_equal(process_watch(child.pid), -1);
        assert_int_equal(errno, ESRCH);
    }
}

/* ---- fork ------------------------------------------------------------------------------ */

static void test_fork_child_does_not_hold_our_sockets(void **state)
{
    int adopted[2], plain[2];
    (void)state;
    pair_make(adopted);
    pair_make(plain);
    assert_int_equal(socket_adopt(adopted[0]), adopted[0]);
    struct child child = child_start(NULL, NULL);
    assert_true(carries(adopted[0], adopted[1])); /* we still have it */
    assert_false(ends(adopted[1], QUIET_MS));
    socket_close(adopted[0]);
    close(plain[0]);
    assert_true(ends(adopted[1], PATIENCE_MS)); /* though the child lives */
    assert_false(ends(plain[1], QUIET_MS));     /* which does hold all others */
    assert_int_equal(child_release(child), 0);
    assert_true(ends(plain[1], PATIENCE_MS));
    close(adopted[1]);
    close(plain[1]);
}

static void test_fork_child_that_exits_leaves_our_sockets_open(void **state)
{
    uint16_t port = 0;
    (void)state;
    int listener = listen_or_fail("127.0.0.1", &port);
    int client = socket_adopt(tcp_connect(AF_INET, port));
    int server = socket_adopt(tcp_accept(listener));
    assert_int_equal(child_release(child_start(NULL, NULL)), 0);
    assert_true(carries(client, server));
    assert_true(carries(server, client));
    socket_close(client);
    assert_true(ends(server, PATIENCE_MS));
    socket_close(server);
    int late = tcp_connect(AF_INET, port); /* the listener is ours too */
    close(tcp_accept(listener));
    close(late);
    socket_close(listener);
}

/* The child connects, and has a child of its own that outlives it. */
static void work_connect_and_fork(void *arg)
{
    int *orphan_hold = arg;
    char byte;
    work_connect(NULL);
    pid_t pid = fork();
    if (pid < 0)
        _exit(2);
    if (pid > 0)
        return;
    alarm(60);
    close(orphan_hold[1]);
    _exit(read(orphan_hold[0], &byte, 1) == 0 ? 0 : 3);
}

static void test_fork_parent_killed_is_seen_though_its_child_lives(void **state)
{
    int listener = -1, orphan_hold[2], orphan_lives[2];
    (void)state;
    assert_int_equal(socket_listen_unix(unix_name(), &listener, ERROR_NONE), BATON_OK);
    assert_int_equal(pipe2(orphan_hold, O_CLOEXEC), 0);
    assert_int_equal(pipe2(orphan_lives, O_CLOEXEC), 0);
    struct child child = child_start(work_connect_and_fork, orphan_hold);
    close(orphan_lives[1]);
    int server = tcp_accept(listener);
    assert_false(ends(server, QUIET_MS));
    kill(child.pid, SIGKILL);
    assert_true(ends(server, PATIENCE_MS));
    assert_false(ends(orphan_lives[0], 0)); /* the grandchild holds its end of this */
    assert_int_equal(child_wait(child), 128 + SIGKILL);
    close(child.hold);
    close(orphan_hold[0]);
    close(orphan_hold[1]);
    assert_true(ends(orphan_lives[0], PATIENCE_MS));
    close(orphan_lives[0]);
    close(server);
    socket_close(listener);
}

static void work_write_to(void *arg)
{
    if (write(*(int *)arg, "x", 1) != 1)
        _exit(4);
}

static void test_fork_child_keeps_a_number_that_we_gave_back(void **state)
{
    int pair[2], made[2];
    char byte = 0;
    (void)state;
    assert_int_equal(pipe2(made, O_CLOEXEC), 0);
    pair_make(pair);
    int number = socket_adopt(pair[0]);
    socket_close(number);
    assert_int_equal(dup2(made[1], number), number);
    assert_int_equal(child_release(child_start(work_write_to, &number)), 0);
    assert_true(readable(made[0], 0));
    assert_int_equal(read(made[0], &byte, 1), 1);
    close(number);
    close(made[0]);
    close(made[1]);
    close(pair[1]);
}

enum { CHURN_THREADS = 4, CHURN_KEPT = 8, CHURN_TURNS = 500 };
struct churn {
    pthread_t thread;
    int kept[CHURN_KEPT];
};

static void *churn_run(void *arg)
{
    struct churn *churn = arg;
    for (int i = 0; i < CHURN_KEPT; i++)
        churn->kept[i] = socket_adopt(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (int i = 0; i < CHURN_TURNS; i++)
        socket_close(socket_adopt(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    return NULL;
}

static void work_find_closed(void *arg)
{
    const struct churn *churns = arg;
    for (int t = 0; t < CHURN_THREADS; t++) {
        for (int i = 0; i < CHURN_KEPT; i++) {
            if (fcntl(churns[t].kept[i], F_GETFD) != -1 || errno != EBADF)
                _exit(5);
        }
    }
}

static void test_fork_finds_the_sockets_of_all_threads(void **state)
{
    struct churn churns[CHURN_THREADS];
    (void)state;
    for (int i = 0; i < CHURN_THREADS; i++)
        assert_int_equal(pthread_create(&churns[i].thread, NULL, churn_run, &churns[i]), 0);
    for (int i = 0; i < CHURN_THREADS; i++)
        pthread_join(churns[i].thread, NULL);
    for (int t = 0; t < CHURN_THREADS; t++) {
        for (int i = 0; i < CHURN_KEPT; i++)
            assert_true(fcntl(churns[t].kept[i], F_GETFD) >= 0);
    }
    /* The child's own pipes were made before the fork, so they fill no gap. */
    assert_int_equal(child_release(child_start(work_find_closed, churns)), 0);
    for (int t = 0; t < CHURN_THREADS; t++) {
        for (int i = 0; i < CHURN_KEPT; i++)
            socket_close(churns[t].kept[i]);
    }
}

static void test_adopt_and_close_pass_failures_through(void **state)
{
    (void)state;
    assert_int_equal(socket_adopt(-1), -1);
    socket_close(-1);
}

/* ---- the machine ----------------------------------------------------------------------- */

struct identity_probe {
    int fd;
    bool elsewhere; /* in another network namespace; exits with 77 where that is not allowed */
};

static void work_tell_identity(void *arg)
{
    const struct identity_probe *probe = arg;
    char text[128] = "";
    if (probe->elsewhere && unshare(CLONE_NEWNET) != 0 &&
        unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        _exit(77);
    host_identity(text, sizeof(text));
    if (write(probe->fd, text, sizeof(text)) != (ssize_t)sizeof(text))
        _exit(6);
}

static int identity_of_child(bool elsewhere, char text[128])
{
    int made[2];
    assert_int_equal(pipe2(made, O_CLOEXEC), 0);
    struct identity_probe probe = {made[1], elsewhere};
    int rc = child_release(child_start(work_tell_identity, &probe));
    if (rc == 0)
        assert_int_equal(read(made[0], text, 128), 128);
    close(made[0]);
    close(made[1]);
    return rc;
}

static void test_host_identity_is_the_same_in_every_process(void **state)
{
    char first[128] = "", second[128] = "", child[128] = "", small[8];
    (void)state;
    host_identity(first, sizeof(first));
    host_identity(second, sizeof(second));
    assert_string_equal(first, second);
    assert_true(strlen(first) > 36); /* a boot id, a slash, a namespace */
    assert_int_equal(identity_of_child(false, child), 0);
    assert_string_equal(child, first);
    host_identity(small, sizeof(small));
    assert_int_equal(strlen(small), sizeof(small) - 1);
    assert_memory_equal(small, first, sizeof(small) - 1);
}

static void test_host_identity_tells_network_namespaces_apart(void **state)
{
    char here[128] = "", there[128] = "";
    (void)state;
    host_identity(here, sizeof(here));
    int rc = identity_of_child(true, there);
    if (rc == 77) {
        print_message("skipped: no network namespace may be made here\n");
        skip();
    }
    assert_int_equal(rc, 0);
    assert_string_not_equal(here, there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listen_on_any_port_takes_connections),
        cmocka_unit_test(test_listen_on_ipv6_names_its_peer_in_brackets),
        cmocka_unit_test(test_listen_on_a_taken_port_says_what_to_do),
        cmocka_unit_test(test_listen_on_an_address_of_others_is_refused),
        cmocka_unit_test(test_local_address_is_the_one_that_would_talk),
        cmocka_unit_test(test_peer_name_is_where_the_other_end_is),
        cmocka_unit_test(test_tune_sends_small_frames_at_once),
        cmocka_unit_test(test_unix_abstract_name_connects_and_leaves_no_file),
        cmocka_unit_test(test_unix_name_taken_or_missing_is_named),
        cmocka_unit_test(test_descriptors_arrive_with_their_message),
        cmocka_unit_test(test_descriptors_more_than_fit_are_closed),
        cmocka_unit_test(test_descriptors_more_than_we_would_send_do_not_leak),
        cmocka_unit_test(test_descriptors_too_many_or_to_nobody_are_refused),
        cmocka_unit_test(test_receive_tells_nothing_yet_from_the_end),
        cmocka_unit_test(test_peer_pid_is_the_process_that_connected),
        cmocka_unit_test(test_process_watch_fires_when_the_process_ends),
        cmocka_unit_test(test_fork_child_does_not_hold_our_sockets),
        cmocka_unit_test(test_fork_child_that_exits_leaves_our_sockets_open),
        cmocka_unit_test(test_fork_parent_killed_is_seen_though_its_child_lives),
        cmocka_unit_test(test_fork_child_keeps_a_number_that_we_gave_back),
        cmocka_unit_test(test_fork_finds_the_sockets_of_all_threads),
        cmocka_unit_test(test_adopt_and_close_pass_failures_through),
        cmocka_unit_test(test_host_identity_is_the_same_in_every_process),
        cmocka_unit_test(test_host_identity_tells_network_namespaces_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
