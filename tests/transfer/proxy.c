/* SPDX-License-Identifier: Apache-2.0 */
/* See proxy.h. One poll loop; a frozen direction is still read, into memory, because a peer that
 * finds its socket full is another fault than a network that loses what it took. */
#include "proxy.h"

#include "puppet.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define PROXY_PAIRS_MAX 64
#define PROXY_HELD_MAX (1u << 20)

struct half { /* bytes from one side to the other */
    uint8_t *held;
    size_t size;
    bool ended;
};

struct pair {
    int fds[2];          /* [0] the caller, [1] the target */
    struct half half[2]; /* [0] up, [1] down */
};

struct proxy {
    pthread_t thread;
    int listen_fd;
    uint16_t port, target;
    struct pair pairs[PROXY_PAIRS_MAX];
    uint32_t pair_count;
    atomic_bool frozen[2], refuse, cut, stop;
    _Atomic uint32_t connections;
    _Atomic uint64_t held;
};

static void pair_drop(struct proxy *proxy, uint32_t index)
{
    struct pair *pair = &proxy->pairs[index];
    for (int side = 0; side < 2; side++) {
        close(pair->fds[side]);
        atomic_fetch_sub(&proxy->held, pair->half[side].size);
        free(pair->half[side].held);
    }
    *pair = proxy->pairs[--proxy->pair_count];
}

static void pair_take(struct proxy *proxy)
{
    int fd = accept4(proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    if (atomic_load(&proxy->refuse) || proxy->pair_count == PROXY_PAIRS_MAX) {
        close(fd);
        return;
    }
    int target = puppet_try_dial(proxy->target);
    if (target < 0) {
        close(fd);
        return;
    }
    proxy->pairs[proxy->pair_count++] = (struct pair){.fds = {fd, target}};
    atomic_fetch_add(&proxy->connections, 1);
}

/* Reads what side has for the other; false when the connection is over. */
static bool half_read(struct proxy *proxy, struct pair *pair, int side)
{
    struct half *half = &pair->half[side];
    if (!half->held)
        half->held = malloc(PROXY_HELD_MAX);
    ssize_t got = recv(pair->fds[side], half->held + half->size, PROXY_HELD_MAX - half->size,
                       MSG_DONTWAIT);
    if (got > 0) {
        half->size += (size_t)got;
        atomic_fetch_add(&proxy->held, (uint64_t)got);
    }
    half->ended |= got == 0;
    return got > 0 || (got < 0 && errno == EAGAIN);
}

static bool half_write(struct proxy *proxy, struct pair *pair, int side)
{
    struct half *half = &pair->half[side];
    while (half->size && !atomic_load(&proxy->frozen[side])) {
        ssize_t wrote =
            send(pair->fds[!side], half->held, half->size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (wrote < 0)
            return errno == EAGAIN;
        half->size -= (size_t)wrote;
        atomic_fetch_sub(&proxy->held, (uint64_t)wrote);
        memmove(half->held, half->held + wrote, half->size);
    }
    return true;
}

/* False when the pair is over: a side has hung up and all that it said was passed on. */
static bool pair_turn(struct proxy *proxy, struct pair *pair, const struct pollfd *ready)
{
    for (int side = 0; side < 2; side++) {
        struct half *half = &pair->half[side];
        if (ready[side].revents && !half->ended && half->size < PROXY_HELD_MAX &&
            !half_read(proxy, pair, side))
            half->ended = true;
        if (!half_write(proxy, pair, side))
            return false;
        if (half->ended && !half->size)
            return false;
    }
    return true;
}

static void *proxy_thread(void *arg)
{
    struct proxy *proxy = arg;
    while (!atomic_load(&proxy->stop)) {
        struct pollfd ready[1 + 2 * PROXY_PAIRS_MAX] = {{proxy->listen_fd, POLLIN, 0}};
        uint32_t count = proxy->pair_count;
        bool cut = atomic_load(&proxy->cut);
        for (uint32_t i = 0; i < count; i++)
            for (int side = 0; side < 2; side++) {
                bool wants = !proxy->pairs[i].half[side].ended &&
                             proxy->pairs[i].half[side].size < PROXY_HELD_MAX;
                ready[1 + 2 * i + (uint32_t)side] =
                    (struct pollfd){proxy->pairs[i].fds[side], wants ? POLLIN : 0, 0};
            }
        poll(ready, 1 + 2 * count, cut ? 0 : 5);
        for (uint32_t i = count; i-- > 0;)
            if (cut || !pair_turn(proxy, &proxy->pairs[i], &ready[1 + 2 * i]))
                pair_drop(proxy, i);
        if (cut)
            atomic_store(&proxy->cut, false);
        if (ready[0].revents)
            pair_take(proxy);
    }
    while (proxy->pair_count)
        pair_drop(proxy, 0);
    return NULL;
}

struct proxy *proxy_open(uint16_t target_port)
{
    struct proxy *proxy = calloc(1, sizeof(*proxy));
    assert_non_null(proxy);
    proxy->target = target_port;
    proxy->listen_fd = puppet_listen(&proxy->port);
    assert_int_equal(pthread_create(&proxy->thread, NULL, proxy_thread, proxy), 0);
    return proxy;
}

uint16_t proxy_port(const struct proxy *proxy)
{
    return proxy->port;
}

void proxy_freeze(struct proxy *proxy, bool up, bool down)
{
    atomic_store(&proxy->frozen[0], up);
    atomic_store(&proxy->frozen[1], down);
}

void proxy_cut(struct proxy *proxy)
{
    atomic_store(&proxy->cut, true);
    EVENTUALLY(!atomic_load(&proxy->cut));
}

void proxy_refuse(struct proxy *proxy, bool refuse)
{
    atomic_store(&proxy->refuse, refuse);
}

uint32_t proxy_connections(const struct proxy *proxy)
{
    return atomic_load(&proxy->connections);
}

uint64_t proxy_held_bytes(const struct proxy *proxy)
{
    return atomic_load(&proxy->held);
}

void proxy_close(struct proxy *proxy)
{
    atomic_store(&proxy->stop, true);
    pthread_join(proxy->thread, NULL);
    close(proxy->listen_fd);
    free(proxy);
}
