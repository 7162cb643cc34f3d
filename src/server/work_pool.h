/* SPDX-License-Identifier: Apache-2.0 */
/* A few threads for work that is too long for an event loop: parsing and tokenising long prompts. */
#ifndef BATON_SERVER_WORK_POOL_H
#define BATON_SERVER_WORK_POOL_H

#include "base/error.h"

struct work_pool;

struct work {
    struct work *next;
    void (*run)(struct work *work); /* on a thread of the pool */
};

int work_pool_open(uint32_t threads, struct work_pool **out, struct error err);
void work_pool_add(struct work_pool *pool, struct work *work); /* any thread */
/* Runs what is queued, then ends. NULL is fine. */
void work_pool_close(struct work_pool *pool);

#endif
