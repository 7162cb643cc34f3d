/* SPDX-License-Identifier: Apache-2.0 */
/* Threads meet here: an intrusive queue of many producers and one consumer, and a bell that wakes
 * the consumer. The node lives in the object that is queued, so a push can neither fail nor
 * allocate, and a queue has no capacity to run out of.
 *
 * Every push is followed by a ring. The bell's `rung` flag keeps it to one eventfd write per sleep:
 * the consumer clears the flag before it drains, so whatever is pushed after that rings again. */
#ifndef BATON_BASE_MPSC_H
#define BATON_BASE_MPSC_H

#include <stdatomic.h>
#include <stdbool.h>

struct mpsc_node {
    _Atomic(struct mpsc_node *) next;
};

struct mpsc {
    _Atomic(struct mpsc_node *) newest; /* producers swap themselves in here */
    struct mpsc_node *oldest;           /* owner: consumer */
    struct mpsc_node stub;
};

void mpsc_init(struct mpsc *queue);
void mpsc_push(struct mpsc *queue, struct mpsc_node *node);
/* NULL when empty, or while a producer is between its two steps (it will ring afterwards). */
struct mpsc_node *mpsc_pop(struct mpsc *queue);

struct bell {
    int fd; /* eventfd, readable when rung */
    atomic_bool rung;
};

int bell_open(struct bell *bell); /* 0, or -1 with errno */
void bell_close(struct bell *bell);
void bell_ring(struct bell *bell);
void bell_answer(struct bell *bell); /* consumer, before it drains its queue */

#endif
