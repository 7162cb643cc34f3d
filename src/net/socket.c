/* SPDX-License-Identifier: Apache-2.0 */
/* See socket.h. Open sockets are kept in a bitmap of atomic words, because the handler that closes
 * them in a forked child may use nothing but async-signal-safe calls. */
#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_TRACKED_MAX 65536
#define SOCKET_BACKLOG 4096

static _Atomic uint64_t socket_open_map[SOCKET_TRACKED_MAX / 64];
static pthread_once_t socket_fork_once = PTHREAD_ONCE_INIT;

static void socket_close_in_child(void)
{
    for (int word = 0; word < SOCKET_TRACKED_MAX / 64; word++) {
        uint64_t bits =
            atomic_exchange_explicit(&socket_open_map[word], 0, memory_order_relaxed);
        for (; bits; bits &= bits - 1)
            close(word * 64 + __builtin_ctzll(bits));
    }
}

static void socket_fork_prepare(void)
{
    pthread_atfork(NULL, NULL, socket_close_in_child);
}

int socket_adopt(int fd)
{
    pthread_once(&socket_fork_once, socket_fork_prepare);
    if (fd >= 0 && fd < SOCKET_TRACKED_MAX)
        atomic_fetch_or_explicit(&socket_open_map[fd / 64], 1ull << (fd % 64),
                                 memory_order_relaxed);
    return fd;
}

void socket_close(int fd)
{
    if (fd < 0)
        return;
    if (fd < SOCKET_TRACKED_MAX)
        atomic_fetch_and_explicit(&socket_open_map[fd / 64], ~(1ull << (fd % 64)),
                                  memory_order_relaxed);
    close(fd);
}

void socket_tune(int fd)
{
    /* Buffer sizes are left to the kernel: it grows them with the path, a fixed one cannot (measured:
     * no gain from 4 MiB on loopback). */
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static int socket_bind_listen(const struct addrinfo *address, uint16_t *port, int *fd_out)
{
    int one = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    struct sockaddr_storage bound;
    socklen_t length = sizeof(bound);
    if (bind(fd, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(fd, SOCKET_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &length) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    *port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    *fd_out = socket_adopt(fd);
    return 0;
}

int socket_listen(const char *host, uint16_t *port, int *fd_out, struct error err)
{
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", *port);
    int gai = getaddrinfo(host ? host : "0.0.0.0", service, &hints, &found);
    if (gai != 0)
        return error_set(err, BATON_EINVAL, "cannot listen on '%s': %s", host,
                         gai_strerror(gai));
    int rc = socket_bind_listen(found, port, fd_out);
    freeaddrinfo(found);
    if (rc == 0)
        return BATON_OK;
    if (errno == EADDRINUSE)
        return error_set(
            err, BATON_EBUSY,
            "port %u on %s is taken by another process; choose another port, or 0 for any",
            *port, host ? host : "0.0.0.0");
    return error_set(err, BATON_ESYSTEM, "cannot listen on %s port %u: %s",
                     host ? host : "0.0.0.0", *port, strerror(errno));
}

static socklen_t socket_unix_address(const char *abstract_name, struct sockaddr_un *address)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    size_t length = strnlen(abstract_name, sizeof(address->sun_path) - 1);
    memcpy(address->sun_path + 1, abstract_name, length); /* sun_path[0] is NUL: abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int socket_listen_unix(const char *abstract_name, int *fd_out, struct error err)
{
    struct sockaddr_un address;
    socklen_t length = socket_unix_address(abstract_name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        listen(fd, SOCKET_BACKLOG) != 0) {
        int code = error_set(err, BATON_ESYSTEM, "cannot listen on the local socket '%s': %s",
                             abstract_name, strerror(errno));
        if (fd >= 0)
            close(fd);
        return code;
    }
    *fd_out = socket_adopt(fd);
    return BATON_OK;
}

int socket_connect_unix(const char *abstract_name, int *fd_out, struct error err)
{
    struct sockaddr_un address;
    socklen_t length = socket_unix_address(abstract_name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length) != 0) {
        int code = error_set(err, BATON_ESYSTEM, "cannot connect to the local socket '%s': %s",
                             abstract_name, strerror(errno));
        if (fd >= 0)
            close(fd);
        return code;
    }
    *fd_out = socket_adopt(fd);
    return BATON_OK;
}

int socket_local_address(const char *host, uint16_t port, char *out, size_t size)
{
    char service[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    int rc = -1;
    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return -1;
    /* Connecting a datagram socket sends nothing; it only asks the kernel for the route. */
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage own;
    socklen_t length = sizeof(own);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &length) == 0 &&
        getnameinfo((struct sockaddr *)&own, length, out, (socklen_t)size, NULL, 0,
                    NI_NUMERICHOST) == 0)
        rc = 0;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return rc;
}

bool socket_none_left(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE;
    close(fd);
    return false;
}

void socket_peer_name(int fd, char *out, size_t size)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    char host[64], service[8];
    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0 ||
        getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), service,
                    sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(out, size, "unknown");
    else
        snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
}

int socket_send_fds(int fd, const void *message, size_t length, const int *fds, unsigned count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control;
    struct iovec iov = {(void *)(uintptr_t)message, length};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count > 64) {
        errno = EINVAL;
        return -1;
    }
    if (count) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(part), fds, sizeof(int) * count);
    }
    return sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)length ? 0 : -1;
}

long socket_receive_fds(int fd, void *message, size_t size, int *fds, unsigned *count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control;
    struct iovec iov = {message, size};
    struct msghdr header = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    unsigned room = *count;
    *count = 0;
    ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return -errno;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part;
         part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        unsigned received = (unsigned)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (unsigned i = 0; i < received; i++) {
            int one;
            memcpy(&one, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
            if (*count < room)
                fds[(*count)++] = one;
            else
                close(one);
        }
    }
    return got;
}

int socket_peer_pid(int fd)
{
    struct ucred who;
    socklen_t length = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 ? who.pid : 0;
}

int process_watch(int pid)
{
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

void host_identity(char *out, size_t size)
{
    char boot[64] = "?";
    struct stat namespace = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof(boot), file))
            boot[0] = 0;
        boot[strcspn(boot, "\n")] = 0;
        fclose(file);
    }
    /* Abstract AF_UNIX names are per network namespace. */
    stat("/proc/self/ns/net", &namespace);
    snprintf(out, size, "%s/%lu", boot, (unsigned long)namespace.st_ino);
}
