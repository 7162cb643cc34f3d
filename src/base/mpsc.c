/* SPDX-License-Identifier: Apache-2.0 */
/* See mpsc.h. The queue is Dmitry Vyukov's intrusive MPSC queue. */
#include "mpsc.h"

#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

void mpsc_init(struct mpsc *queue)
{
    atomic_store_explicit(&queue->stub.next, NULL, memory_order_relaxed);
    atomic_store_explicit(&queue->newest, &queue->stub, memory_order_relaxed);
    queue->oldest = &queue->stub;
}

void mpsc_push(struct mpsc *queue, struct mpsc_node *node)
{
    atomic_store_explicit(&node->next, NULL, memory_order_relaxed);
    /* acq_rel: the node's contents are visible to whoever follows the chain to it, and we see
     * the previous node before we write its next. */
    struct mpsc_node *previous =
        atomic_exchange_explicit(&queue->newest, node, memory_order_acq_rel);
    atomic_store_explicit(&previous->next, node, memory_order_release);
}

struct mpsc_node *mpsc_pop(struct mpsc *queue)
{
    struct mpsc_node *oldest = queue->oldest;
    struct mpsc_node *next = atomic_load_explicit(&oldest->next, memory_order_acquire);
    if (oldest == &queue->stub) {
        if (!next)
            return NULL;
        queue->oldest = oldest = next;
        next = atomic_load_explicit(&oldest->next, memory_order_acquire);
    }
    if (next) {
        queue->oldest = next;
        return oldest;
    }
    if (oldest != atomic_load_explicit(&queue->newest, memory_order_acquire))
        return NULL; /* a push is half done */
    mpsc_push(queue, &queue->stub);
    next = atomic_load_explicit(&oldest->next, memory_order_acquire);
    if (!next)
        return NULL;
    queue->oldest = next;
    return oldest;
}

int bell_open(struct bell *bell)
{
    atomic_init(&bell->rung, false);
    bell->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return bell->fd < 0 ? -1 : 0;
}

void bell_close(struct bell *bell)
{
    close(bell->fd);
    bell->fd = -1;
}

void bell_ring(struct bell *bell)
{
    if (atomic_exchange_explicit(&bell->rung, true, memory_order_acq_rel))
        return;
    uint64_t one = 1;
    if (write(bell->fd, &one, sizeof(one)) < 0)
        return; /* the counter is full: it is readable anyway */
}

void bell_answer(struct bell *bell)
{
    uint64_t count;
    if (read(bell->fd, &count, sizeof(count)) < 0)
        count = 0; /* somebody woke us for another reason */
    /* The exchange orders our clearing before the drain that follows: a producer that still saw
     * the flag set has pushed before we look. */
    atomic_exchange_explicit(&bell->rung, false, memory_order_acq_rel);
}
