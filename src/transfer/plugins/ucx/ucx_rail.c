/* SPDX-License-Identifier: Apache-2.0 */
/* A rail: a UCP worker at each end and the sender's endpoint between them, from its making to its
 * end.
 *
 *            receiver                           sender
 *   MAKE     UCP worker
 *            -- OFFER (its address) ---------->  MAKE: UCP worker, endpoint, keys, and a first
 *                                                put into the receiver's cell, flushed
 *            <-- JOINED ----------------------
 *            -- READY ------------------------>  USE: only now lanes may come
 *
 * Whoever sees it break says BROKEN. The receiver then destroys its worker at once, on the link thread:
 * nothing is stored after that, and FENCED, which comes behind BROKEN on the link, means what it says.
 * One that was not joined has nothing to fence, for nobody was told READY; it settles first, see
 * ucx.h. The sender's copy worker closes the endpoint by force, waits a moment for what UCX
 * still has in its hands, destroys its worker and fails the lanes. The receiver offers a new one, at
 * once the first time, then less and less often.
 *
 * Copy worker's half of it here; the link thread's is in ucx.c. */
#include "ucx.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define DROP_PATIENCE_NS 1000000000ull /* then it is done with what is left */
#define DROP_ROUNDS 64

void ucx_rail_tell(struct ucx_rail *rail, uint32_t news)
{
    atomic_fetch_or_explicit(&rail->news, news, memory_order_acq_rel);
    ucx_host->runtime_post(rail->owner->manager->runtime, &rail->told);
}

void ucx_rail_order(struct ucx_rail *rail, uint32_t orders)
{
    atomic_fetch_or_explicit(&rail->orders, orders, memory_order_acq_rel);
    ucx_host->worker_post(rail->worker, &rail->work);
}

void ucx_rail_broken(struct ucx_rail *rail, const char *format, ...)
{
    va_list args;
    if (rail->failed)
        return;
    rail->failed = true;
    rail->up = false;
    pthread_mutex_lock(&rail->lock);
    va_start(args, format);
    vsnprintf(rail->text, sizeof(rail->text), format, args);
    va_end(args);
    pthread_mutex_unlock(&rail->lock);
    ucx_rail_tell(rail, UCX_NEWS_BROKEN);
}

static void rail_destroy(struct ucx_rail *rail)
{
    pthread_mutex_lock(&rail->gate);
    ucx_call_begin();
    if (rail->ucp)
        ucp_worker_destroy(rail->ucp);
    ucx_call_end();
    rail->ucp = NULL;
    pthread_mutex_unlock(&rail->gate);
}

/* The fence, see ucx.h. Nobody stores into the sender. UCX waits for nobody in it, but it destroys queue
 * pairs and buffers: that is milliseconds of the link thread, once per lost rail. */
void ucx_rail_cut(struct ucx_rail *rail)
{
    atomic_store_explicit(&rail->usable, false, memory_order_relaxed);
    if (atomic_load_explicit(&rail->joined, memory_order_relaxed))
        rail_destroy(rail);
}

/* ---- taking down ---- */

static void rail_unwatch(struct ucx_rail *rail)
{
    if (!rail->watched)
        return;
    ucx_host->worker_watch_remove(rail->worker, &rail->watch);
    close(rail->watch.fd);
    rail->watched = false;
}

static bool request_pending(void *request)
{
    return UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS;
}

static void request_forget(void **request)
{
    if (UCS_PTR_IS_PTR(*request))
        ucp_request_free(*request);
    *request = NULL;
}

/* A UCP worker that must not be destroyed stays as it is, with what was made on it. */
static void rail_keep(struct ucx_rail *rail)
{
    ucx_keep(rail->owner->mine, rail->ucp);
    rail->ucp = NULL;
    rail->ep = NULL;
    rail->closing = NULL;
    free(rail->keys);
    rail->keys = NULL;
    rail->requests_in_flight = 0;
}

/* Receiver: true when no connection is just being made: there is nothing that a flush would have to
 * wait for. */
static bool rail_settle(struct ucx_rail *rail, bool patient)
{
    ucp_request_param_t plainly = {0};
    if (!rail->owner->receives || !ucx_must_settle() ||
        atomic_load_explicit(&rail->joined, memory_order_acquire) || !rail->ucp)
        return true;
    if (!rail->closing)
        rail->closing = ucp_worker_flush_nbx(rail->ucp, &plainly);
    if (!UCS_PTR_IS_PTR(rail->closing)) {
        rail->closing = NULL;
        return true;
    }
    ucx_progress(rail, DROP_ROUNDS);
    if (!request_pending(rail->closing)) {
        request_forget(&rail->closing); /* something may have come meanwhile: look again */
        return false;
    }
    if (patient)
        return false;
    rail_keep(rail);
    return true;
}

/* Sender: true when UCX has let go of everything, or is not going to. */
static bool rail_close_endpoint(struct ucx_rail *rail, bool patient)
{
    if (!rail->ep)
        return true;
    ucx_progress(rail, DROP_ROUNDS);
    if (!rail->closed && !rail->probed && rail->requests_in_flight && ucx_must_settle()) {
        if (!patient)
            rail_keep(rail);
        return !patient;
    }
    if (!rail->closed) {
        ucp_request_param_t by_force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                        .flags = UCP_EP_CLOSE_FLAG_FORCE};
        rail->closing = ucp_ep_close_nbx(rail->ep, &by_force);
        rail->closed = true;
        ucx_progress(rail, DROP_ROUNDS);
    }
    if ((request_pending(rail->closing) || rail->requests_in_flight) && patient)
        return false;
    request_forget(&rail->closing);
    rail->ep = NULL;
    return true;
}

static void rail_forget_keys(struct ucx_rail *rail)
{
    for (uint32_t i = 0; rail->keys && i < rail->owner->theirs.range_count; i++)
        if (rail->keys[i])
            ucp_rkey_destroy(rail->keys[i]);
    free(rail->keys);
    rail->keys = NULL;
}

/* False: there is more to wait for. */
static bool rail_drop(struct ucx_rail *rail)
{
    uint64_t now = ucx_host->clock_now_ns();
    rail->failed = true;
    rail->up = false;
    if (!rail->drop_ns)
        rail->drop_ns = now;
    bool patient = now < rail->drop_ns + DROP_PATIENCE_NS;
    if (!rail_settle(rail, patient) || !rail_close_endpoint(rail, patient))
        return false;
    rail->drop_ns = 0;
    rail_unwatch(rail);
    rail_forget_keys(rail);
    rail_destroy(rail);
    rail->own_life = 0;
    ucx_queue_fail(rail);
    ucx_rail_tell(rail, UCX_NEWS_DROPPED);
    return true;
}

/* ---- making ---- */

static void rail_on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    ucx_rail_broken(arg, "UCX lost the peer: %s", ucs_status_string(status));
}

static ucp_worker_h rail_make_worker(struct ucx_rail *rail)
{
    ucp_worker_params_t wanted = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_worker_h ucp;
    int events;
    ucx_call_begin();
    ucs_status_t status = ucp_worker_create(rail->owner->mine->context, &wanted, &ucp);
    ucx_call_end();
    if (status != UCS_OK) {
        ucx_rail_broken(rail, "UCX makes no worker: %s", ucx_reason(status));
        return NULL;
    }
    /* Our own descriptor: UCX closes its one when the link thread cuts, and its number may be given to
     * somebody else before this thread takes it out of the watch. */
    status = ucp_worker_get_efd(ucp, &events);
    rail->watch.fd = status == UCS_OK ? fcntl(events, F_DUPFD_CLOEXEC, 0) : -1;
    if (rail->watch.fd < 0) {
        ucx_rail_broken(rail, "UCX has no events to wait for: %s",
                        status == UCS_OK ? strerror(errno) : ucx_reason(status));
        goto destroy_worker;
    }
    if (ucx_host->worker_watch_add(rail->worker, &rail->watch, EPOLLIN) != 0) {
        ucx_rail_broken(rail, "UCX's events cannot be watched: %s", strerror(errno));
        goto close_events;
    }
    rail->watched = true;
    return ucp;

close_events:
    close(rail->watch.fd);
destroy_worker:
    ucp_worker_destroy(ucp);
    return NULL;
}

/* Receiver: the address is for the link thread to tell. */
static bool rail_take_address(struct ucx_rail *rail, ucp_worker_h ucp)
{
    ucp_address_t *address;
    size_t length;
    ucs_status_t status = ucp_worker_get_address(ucp, &address, &length);
    if (status != UCS_OK) {
        ucx_rail_broken(rail, "UCX has no address: %s", ucx_reason(status));
        return false;
    }
    uint8_t *copy = malloc(length);
    bool fits = copy && length <= WIRE_KEY_MAX / 2;
    if (fits)
        memcpy(copy, address, length);
    ucp_worker_release_address(ucp, address);
    if (!fits) {
        free(copy);
        ucx_rail_broken(rail, "UCX's address of %zu bytes cannot be told", length);
        return false;
    }
    pthread_mutex_lock(&rail->lock);
    free(rail->address);
    rail->address = copy;
    rail->address_bytes = (uint32_t)length;
    pthread_mutex_unlock(&rail->lock);
    return true;
}

static bool rail_unpack_keys(struct ucx_rail *rail)
{
    const struct ucx_peer *theirs = &rail->owner->theirs;
    rail->keys = calloc((size_t)theirs->range_count + 1, sizeof(*rail->keys));
    for (uint32_t i = 0; rail->keys && i < theirs->range_count; i++) {
        ucs_status_t status =
            ucp_ep_rkey_unpack(rail->ep, theirs->keys + theirs->key_offsets[i], &rail->keys[i]);
        if (status != UCS_OK) {
            rail->keys[i] = NULL;
            ucx_rail_broken(rail, "UCX cannot use the peer's keys: %s", ucx_reason(status));
            return false;
        }
    }
    if (!rail->keys)
        ucx_rail_broken(rail, "out of memory for keys");
    return rail->keys;
}

/* Sender: to the address that was offered. */
static void rail_join(struct ucx_rail *rail)
{
    pthread_mutex_lock(&rail->lock);
    uint8_t *address = rail->address;
    rail->address = NULL;
    pthread_mutex_unlock(&rail->lock);
    ucp_ep_params_t wanted = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .address = (const ucp_address_t *)address,
                              .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                              .err_handler = {rail_on_error, rail}};
    ucx_call_begin();
    ucs_status_t status =
        address ? ucp_ep_create(rail->ucp, &wanted, &rail->ep) : UCS_ERR_INVALID_ADDR;
    ucx_call_end();
    free(address);
    if (status != UCS_OK) {
        rail->ep = NULL;
        ucx_rail_broken(rail, "UCX does not reach the peer by %s: %s",
                        rail->owner->mine->transports, ucx_reason(status));
        return;
    }
    if (rail_unpack_keys(rail))
        ucx_probe(rail);
}

static void rail_make(struct ucx_rail *rail)
{
    rail->failed = rail->closed = rail->probed = false;
    rail->own_life = atomic_load_explicit(&rail->made, memory_order_acquire);
    atomic_fetch_and_explicit(&rail->news, ~(uint32_t)(UCX_NEWS_MADE | UCX_NEWS_BROKEN),
                              memory_order_acq_rel);
    atomic_store_explicit(&rail->told_made, rail->own_life, memory_order_release);
    ucp_worker_h ucp = rail_make_worker(rail);
    if (!ucp)
        return;
    bool told = rail->owner->receives && rail_take_address(rail, ucp);
    pthread_mutex_lock(&rail->gate);
    rail->ucp = ucp;
    pthread_mutex_unlock(&rail->gate);
    if (told)
        ucx_rail_tell(rail, UCX_NEWS_MADE);
    else if (!rail->owner->receives)
        rail_join(rail);
    ucx_poll(rail);
}

/* ---- orders ---- */

/* What the link thread wants, in the order in which it makes sense. */
static void rail_work(struct worker_job *job)
{
    struct ucx_rail *rail = (struct ucx_rail *)((char *)job - offsetof(struct ucx_rail, work));
    rail->todo |= atomic_exchange_explicit(&rail->orders, 0, memory_order_acq_rel);
    if (rail->todo & UCX_ORDER_DROP) {
        if (!rail_drop(rail)) {
            ucx_host->worker_post(rail->worker, &rail->work); /* others' turn */
            return;
        }
    }
    uint32_t todo = rail->todo;
    rail->todo = 0;
    if (todo & UCX_ORDER_DENY)
        ucx_waiting_fail(rail);
    if (todo & UCX_ORDER_MAKE)
        rail_make(rail);
    if (todo & UCX_ORDER_USE)
        rail->up = !rail->failed;
    if (todo & (UCX_ORDER_USE | UCX_ORDER_POLL))
        ucx_poll(rail);
}

/* Nothing uses the rail any more, and the link thread will not order again. */
static void rail_finish(struct worker_job *job)
{
    struct ucx_rail *rail =
        (struct ucx_rail *)((char *)job - offsetof(struct ucx_rail, finish));
    bool queued = atomic_load_explicit(&rail->work.queued, memory_order_acquire);
    if (queued || !rail_drop(rail)) {
        ucx_host->worker_post(rail->worker, &rail->finish);
        return;
    }
    ucx_waiting_fail(rail);
    ucx_host->runtime_post(rail->owner->manager->runtime, &rail->gone); /* the last touch */
}

int ucx_rail_start(struct ucx_rail *rail, struct error err)
{
    uint32_t wanted = rail->owner->manager->config.max_inflight;
    rail->requests_max = wanted ? wanted : UCX_INFLIGHT_DEFAULT;
    pthread_mutex_init(&rail->lock, NULL);
    pthread_mutex_init(&rail->gate, NULL);
    rail->watch.ready = ucx_ready;
    rail->work.run = rail_work;
    rail->finish.run = rail_finish;
    rail->requests = calloc(rail->requests_max, sizeof(*rail->requests));
    if (!rail->requests)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for a rail");
    for (uint32_t i = rail->requests_max; i-- > 0;) {
        rail->requests[i].rail = rail;
        rail->requests[i].next = rail->free_request;
        rail->free_request = &rail->requests[i];
    }
    return BATON_OK;
}

void ucx_rail_free(struct ucx_rail *rail)
{
    pthread_mutex_destroy(&rail->lock);
    pthread_mutex_destroy(&rail->gate);
    free(rail->address);
    free(rail->requests);
}
