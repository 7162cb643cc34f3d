/* SPDX-License-Identifier: Apache-2.0 */
/* A rail: one queue pair between two ports, from its making to its end.
 *
 *            receiver                                   sender
 *   MAKE     queue pair, receives posted
 *            -- OFFER (number, sequence, GID, MTU) -->  MAKE, JOIN (to ready-to-send)
 *   JOIN     <-- ACCEPT --------------------------
 *            -- READY ---------------------------->     PROBE: an empty write over the wire
 *            <-- PROBED --------------------------     and only then lanes may use it
 *
 * Whoever sees it break says BROKEN. Each side then cuts its own queue pair at once, on the link
 * thread: nothing that is still on the wire is stored after that, and FENCED, which comes behind
 * BROKEN on the link, means what it says. The worker takes the remains down and fails the lanes; the
 * receiver makes a new one, at once the first time, then less and less often.
 *
 * Worker's half of it here; the link thread's is in verbs.c. */
#include "verbs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

/* The most there is: some two seconds without an answer, and for ever on Soft-RoCE, which counts losses
 * since the last acknowledgement and not attempts at one packet: at 2 % loss six of them are often used
 * up by a wire that works. verbs_tick ends what no device ends. */
#define RAIL_TIMEOUT 16 /* 4.096 us * 2^16 = 0.27 s for each of the retries */
#define RAIL_RETRIES 7
#define RAIL_RNR_FOR_EVER 7
#define RAIL_RNR_TIMER 12 /* 0.64 ms */
#define RAIL_READS 16

void verbs_rail_tell(struct verbs_rail *rail, uint32_t news)
{
    atomic_fetch_or_explicit(&rail->news, news, memory_order_acq_rel);
    verbs_host->runtime_post(rail->owner->manager->runtime, &rail->told);
}

void verbs_rail_order(struct verbs_rail *rail, uint32_t orders)
{
    atomic_fetch_or_explicit(&rail->orders, orders, memory_order_acq_rel);
    verbs_host->worker_post(rail->worker, &rail->work);
}

void verbs_rail_broken(struct verbs_rail *rail, const char *format, ...)
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
    verbs_rail_tell(rail, VERBS_NEWS_BROKEN);
}

/* A queue pair in reset accepts no packet, and what it was storing is finished. */
void verbs_rail_cut(struct verbs_rail *rail)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    atomic_store_explicit(&rail->usable, false, memory_order_relaxed);
    pthread_mutex_lock(&rail->lock);
    if (rail->pair && !rail->cut)
        ibv_modify_qp(rail->pair, &reset, IBV_QP_STATE);
    rail->cut = true;
    pthread_mutex_unlock(&rail->lock);
}

/* ---- taking down ---- */

static void rail_drop(struct verbs_rail *rail)
{
    if (rail->completions)
        verbs_poll(rail); /* immediates that came before the cut count */
    rail->failed = true;
    rail->up = false;
    verbs_queue_fail(rail);
    if (rail->watched)
        verbs_host->worker_watch_remove(rail->worker, &rail->watch);
    rail->watched = false;
    pthread_mutex_lock(&rail->lock);
    struct ibv_qp *pair = rail->pair;
    rail->pair = NULL;
    pthread_mutex_unlock(&rail->lock);
    if (pair)
        ibv_destroy_qp(pair);
    if (rail->completions)
        ibv_destroy_cq(rail->completions);
    if (rail->channel)
        ibv_destroy_comp_channel(rail->channel);
    rail->completions = NULL;
    rail->channel = NULL;
    verbs_rail_tell(rail, VERBS_NEWS_DROPPED);
}

/* ---- making ---- */

static uint32_t least(uint32_t left, uint32_t right)
{
    return left < right ? left : right;
}

static bool rail_make_queue(struct verbs_rail *rail)
{
    const struct verbs_port *port = rail->port;
    uint32_t entries = rail->requests_max + VERBS_RECEIVES + 16;
    rail->channel = ibv_create_comp_channel(port->context);
    if (!rail->channel)
        return false;
    rail->completions =
        ibv_create_cq(port->context, (int)least(entries, (uint32_t)port->device.max_cqe), rail,
                      rail->channel, 0);
    if (!rail->completions || ibv_req_notify_cq(rail->completions, 0) != 0)
        return false;
    struct ibv_qp_init_attr wanted = {
        .send_cq = rail->completions,
        .recv_cq = rail->completions,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = rail->requests_max,
                .max_recv_wr = VERBS_RECEIVES,
                .max_send_sge = rail->pieces_max,
                .max_recv_sge = 1,
                .max_inline_data = VERBS_INLINE_BYTES},
    };
    struct ibv_qp *pair = ibv_create_qp(port->pd, &wanted);
    if (!pair) {
        wanted.cap.max_inline_data = 0;
        pair = ibv_create_qp(port->pd, &wanted);
    }
    if (!pair)
        return false;
    rail->inline_max = least(wanted.cap.max_inline_data, VERBS_INLINE_BYTES);
    pthread_mutex_lock(&rail->lock);
    rail->pair = pair;
    pthread_mutex_unlock(&rail->lock);
    return true;
}

static bool rail_initialise(struct verbs_rail *rail)
{
    const struct verbs_endpoint *owner = rail->owner;
    /* The side that posts gives the other no access at all through this queue pair. */
    unsigned access = owner->executes ? 0
                      : owner->reads  ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
                                      : IBV_ACCESS_REMOTE_WRITE;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT,
                                     .port_num = (uint8_t)rail->port->number,
                                     .qp_access_flags = access};
    return ibv_modify_qp(rail->pair, &attributes,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             IBV_QP_ACCESS_FLAGS) == 0;
}

static bool rail_make(struct verbs_rail *rail)
{
    const struct verbs_port *port = rail->port;
    const uint32_t stale =
        VERBS_NEWS_MADE | VERBS_NEWS_JOINED | VERBS_NEWS_PROBED | VERBS_NEWS_BROKEN;
    rail->failed = false;
    rail->own_life = atomic_load_explicit(&rail->made, memory_order_acquire);
    atomic_fetch_and_explicit(&rail->news, ~stale, memory_order_acq_rel);
    atomic_store_explicit(&rail->told_made, rail->own_life, memory_order_release);
    if (!rail_make_queue(rail) || !rail_initialise(rail)) {
        verbs_rail_broken(rail, "%s: cannot make a queue pair: %s", port->name,
                          strerror(errno));
        return false;
    }
    rail->watch.fd = rail->channel->fd;
    rail->watch.ready = verbs_ready;
    if (verbs_post_receives(rail, VERBS_RECEIVES) != 0 ||
        verbs_host->worker_watch_add(rail->worker, &rail->watch, EPOLLIN) != 0) {
        verbs_rail_broken(rail, "%s: cannot prepare a queue pair: %s", port->name,
                          strerror(errno));
        return false;
    }
    rail->watched = true;
    uint32_t sequence = 0;
    if (getrandom(&sequence, sizeof(sequence), 0) != (ssize_t)sizeof(sequence))
        sequence = (uint32_t)verbs_host->clock_now_ns();
    pthread_mutex_lock(&rail->lock);
    rail->ours = (struct verbs_half){.number = rail->pair->qp_num,
                                     .sequence = sequence & 0xffffff,
                                     .gid = port->gid,
                                     .lid = port->attributes.lid,
                                     .mtu = (uint8_t)port->attributes.active_mtu};
    pthread_mutex_unlock(&rail->lock);
    return true;
}

/* It may have been cut while we connected it: then it must not stay open, and DROP follows. The peer
 * does not use it before READY, which is not sent for such a one. */
static bool rail_is_wanted(struct verbs_rail *rail)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    pthread_mutex_lock(&rail->lock);
    bool cut = rail->cut;
    if (cut)
        ibv_modify_qp(rail->pair, &reset, IBV_QP_STATE);
    pthread_mutex_unlock(&rail->lock);
    return !cut;
}

static bool rail_join(struct verbs_rail *rail)
{
    const struct verbs_port *port = rail->port;
    pthread_mutex_lock(&rail->lock);
    struct verbs_half copy = rail->theirs;
    uint32_t sequence = rail->ours.sequence;
    pthread_mutex_unlock(&rail->lock);
    const struct verbs_half *theirs = &copy;
    bool routed = port->attributes.link_layer == IBV_LINK_LAYER_ETHERNET || !theirs->lid;
    uint8_t reads = (uint8_t)least(RAIL_READS, (uint32_t)port->device.max_qp_rd_atom);
    char here[64], there[64];
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)least(theirs->mtu, (uint32_t)port->attributes.active_mtu),
        .dest_qp_num = theirs->number,
        .rq_psn = theirs->sequence,
        .max_dest_rd_atomic = reads,
        .min_rnr_timer = RAIL_RNR_TIMER,
        .ah_attr = {.dlid = theirs->lid,
                    .port_num = (uint8_t)port->number,
                    .is_global = routed,
                    .grh = {.dgid = theirs->gid,
                            .sgid_index = (uint8_t)port->gid_index,
                            .hop_limit = 64}},
    };
    int failed =
        ibv_modify_qp(rail->pair, &attributes,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    verbs_gid_text(&port->gid, here, sizeof(here));
    verbs_gid_text(&theirs->gid, there, sizeof(there));
    if (failed) {
        verbs_rail_broken(
            rail,
            "%s port %d cannot reach %s from its GID %d (%s): %s; is that address "
            "on a network of this interface?",
            port->name, port->number, there, port->gid_index, here,
            strerror(failed > 0 ? failed : errno));
        return false;
    }
    attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                      .timeout = RAIL_TIMEOUT,
                                      .retry_cnt = RAIL_RETRIES,
                                      .rnr_retry = RAIL_RNR_FOR_EVER,
                                      .sq_psn = sequence,
                                      .max_rd_atomic = reads};
    failed = ibv_modify_qp(rail->pair, &attributes,
                           IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                               IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (failed)
        verbs_rail_broken(rail, "%s: the queue pair to %s does not start: %s", port->name,
                          there, strerror(failed > 0 ? failed : errno));
    return !failed && rail_is_wanted(rail);
}

/* The worker: what the link thread wants, in the order in which it makes sense. */
static void rail_work(struct worker_job *job)
{
    struct verbs_rail *rail =
        (struct verbs_rail *)((char *)job - offsetof(struct verbs_rail, work));
    uint32_t orders = atomic_exchange_explicit(&rail->orders, 0, memory_order_acq_rel);
    if (orders & (VERBS_ORDER_DROP | VERBS_ORDER_FINISH))
        rail_drop(rail);
    if (orders & (VERBS_ORDER_DENY | VERBS_ORDER_FINISH))
        verbs_waiting_fail(rail);
    if (orders & VERBS_ORDER_FINISH) {
        verbs_host->runtime_post(rail->owner->manager->runtime, &rail->finished);
        return;
    }
    if (orders & VERBS_ORDER_MAKE && rail_make(rail) && !(orders & VERBS_ORDER_JOIN))
        verbs_rail_tell(rail, VERBS_NEWS_MADE);
    if (orders & VERBS_ORDER_JOIN && !rail->failed && rail_join(rail))
        verbs_rail_tell(rail, VERBS_NEWS_JOINED);
    if (orders & VERBS_ORDER_PROBE && !rail->failed && verbs_post_probe(rail) != 0)
        verbs_rail_broken(rail, "%s: the first message cannot be posted: %s", rail->port->name,
                          strerror(errno));
}

int verbs_rail_start(struct verbs_rail *rail, struct error err)
{
    const struct manager_config *config = &rail->owner->manager->config;
    const struct ibv_device_attr *device = &rail->port->device;
    uint32_t pieces = (uint32_t)device->max_sge;
    if (rail->owner->reads && device->max_sge_rd > 0)
        pieces = least(pieces, (uint32_t)device->max_sge_rd);
    if (config->max_sge)
        pieces = least(pieces, config->max_sge);
    rail->pieces_max = least(pieces ? pieces : 1, VERBS_SGE_MAX);
    rail->requests_max = config->max_inflight ? config->max_inflight : VERBS_INFLIGHT_DEFAULT;
    rail->requests_max = least(rail->requests_max, (uint32_t)device->max_qp_wr);
    if (rail->requests_max < 2)
        rail->requests_max = 2;
    rail->batches = calloc(rail->requests_max, sizeof(*rail->batches));
    rail->chain = calloc(VERBS_CHAIN, sizeof(*rail->chain));
    pthread_mutex_init(&rail->lock, NULL);
    rail->work.run = rail_work;
    if (rail->batches && rail->chain)
        return BATON_OK;
    return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for a rail");
}

void verbs_rail_free(struct verbs_rail *rail)
{
    pthread_mutex_destroy(&rail->lock);
    free(rail->batches);
    free(rail->chain);
}
