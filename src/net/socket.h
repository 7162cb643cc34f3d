/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets as the library wants them: non-blocking, close-on-exec, no Nagle, and closed in a forked
 * child (a child that keeps a socket open keeps the peer from seeing our death). */
#ifndef BATON_NET_SOCKET_H
#define BATON_NET_SOCKET_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/socket.h>

/* Every library socket passes through these two, so that fork can find them. */
int socket_adopt(int fd); /* returns fd; negatives pass through */
void socket_close(int fd);

/* host: numeric address or NULL for all. port 0: any; *port gets the real one. */
int socket_listen(const char *host, uint16_t *port, int *fd_out, struct error err);
int socket_listen_unix(const char *abstract_name, int *fd_out, struct error err);
int socket_connect_unix(const char *abstract_name, int *fd_out, struct error err);
void socket_tune(int fd); /* TCP_NODELAY; harmless on others */

/* Which of our addresses would talk to host:port (for rank_ip). */
int socket_local_address(const char *host, uint16_t port, char *out, size_t size);

/* Has this process run out of descriptors? What fails then looks like a peer's fault. */
bool socket_none_left(void);

/* "1.2.3.4:56" of the other end. */
void socket_peer_name(int fd, char *out, size_t size);

/* Descriptors over AF_UNIX, with a message. */
int socket_send_fds(int fd, const void *message, size_t length, const int *fds, unsigned count);
/* Returns bytes read (0: end, negative: errno), fills fds (close-on-exec), *count in/out. */
long socket_receive_fds(int fd, void *message, size_t size, int *fds, unsigned *count);

/* The process at the other end of an AF_UNIX socket; 0 if it is in another pid namespace. */
int socket_peer_pid(int fd);
/* A descriptor that becomes readable when that process has exited, or -1 with errno. */
int process_watch(int pid);

/* The same text means the same machine and network namespace. */
void host_identity(char *out, size_t size);

#endif
