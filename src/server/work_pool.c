/* SPDX-License-Identifier: Apache-2.0 */
#include "work_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct work_pool {
    pthread_mutex_t mutex;
    pthread_cond_t some;
    struct work *first, **last;
    bool closing;
    uint32_t thread_count;
    pthread_t threads[];
};

static void *pool_main(void *argument)
{
    struct work_pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    while (pool->first || !pool->closing) {
        struct work *work = pool->first;
        if (!work) {
            pthread_cond_wait(&pool->some, &pool->mutex);
            continue;
        }
        pool->first = work->next;
        if (!pool->first)
            pool->last = &pool->first;
        pthread_mutex_unlock(&pool->mutex);
        work->run(work);
        pthread_mutex_lock(&pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

int work_pool_open(uint32_t threads, struct work_pool **out, struct error err)
{
    struct work_pool *pool = calloc(1, sizeof(*pool) + threads * sizeof(pool->threads[0]));
    if (!pool)
        return error_set(err, BATON_ENOMEM, "out of memory");
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->some, NULL);
    pool->last = &pool->first;
    for (; pool->thread_count < threads; pool->thread_count++) {
        int rc = pthread_create(&pool->threads[pool->thread_count], NULL, pool_main, pool);
        if (rc) {
            work_pool_close(pool);
            return error_set(err, BATON_ESYSTEM, "a thread cannot be made: %s", strerror(rc));
        }
    }
    *out = pool;
    return BATON_OK;
}

void work_pool_add(struct work_pool *pool, struct work *work)
{
    work->next = NULL;
    pthread_mutex_lock(&pool->mutex);
    *pool->last = work;
    pool->last = &work->next;
    pthread_cond_signal(&pool->some);
    pthread_mutex_unlock(&pool->mutex);
}

void work_pool_close(struct work_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = true;
    pthread_cond_broadcast(&pool->some);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->some);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}
