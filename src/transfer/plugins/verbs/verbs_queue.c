/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over a rail. Runs become work requests: those that are neighbours in the peer's memory
 * share one, with a list of local pieces (gather for a write, scatter for a read). Requests
 * collect in a chain and are posted together, one doorbell; only the last of a chain is signalled,
 * so completions come per doorbell, never per page.
 *
 * The landing proof: the last request of a lane is a write with an immediate, the room's ticket. On
 * one queue pair it cannot overtake the writes before it; between queue pairs nothing is ordered,
 * so every rail that a room used sends its own.
 *
 * A lane's requests count as under way until they completed well or the rail was dropped: after an
 * error the device says nothing that could be relied on. The rail's worker only. */
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#define POLL_BATCH 32
#define PROBE_BATCH UINT64_MAX

/* ---- lanes that wait ---- */

static struct verbs_rail *lane_rail(const struct lane *lane)
{
    struct verbs_endpoint *owner = lane->copy->endpoint->state;
    return &owner->rails[lane->rail];
}

static int lane_wait(struct verbs_rail *rail, struct lane *lane)
{
    if (!lane->waiting) {
        lane->waiting = true;
        lane->wait_next = rail->waiting;
        rail->waiting = lane;
    }
    return 0;
}

static void lane_wait_no_more(struct verbs_rail *rail, struct lane *lane)
{
    for (struct lane **slot = &rail->waiting; lane->waiting && *slot;
         slot = &(*slot)->wait_next) {
        if (*slot == lane) {
            *slot = lane->wait_next;
            lane->waiting = false;
            return;
        }
    }
}

void verbs_wake(struct verbs_rail *rail)
{
    while (rail->waiting) {
        struct lane *lane = rail->waiting;
        rail->waiting = lane->wait_next;
        lane->waiting = false;
        verbs_host->lane_post(lane);
    }
}

static void lane_lose(struct verbs_rail *rail, struct lane *lane)
{
    if (!atomic_load_explicit(&lane->error, memory_order_relaxed)) {
        pthread_mutex_lock(&rail->lock);
        snprintf(lane->error_text, sizeof(lane->error_text), "%.*s",
                 (int)sizeof(lane->error_text) - 1, rail->text);
        pthread_mutex_unlock(&rail->lock);
        verbs_host->lane_fail(lane, BATON_EPEER);
    }
    verbs_host->lane_post(lane); /* one that is cancelled can stop now */
}

/* A completion came, or the first is awaited: from now on it is quiet, if any is under way. */
static void rail_quiet(struct verbs_rail *rail)
{
    uint64_t now = rail->batch_count ? verbs_host->clock_now_ns() : 0;
    atomic_store_explicit(&rail->quiet_ns, now, memory_order_relaxed);
}

void verbs_queue_fail(struct verbs_rail *rail)
{
    struct lane *open = rail->chain_count ? rail->chain_lane : NULL;
    rail->chain_count = 0;
    rail->chain_bytes = 0;
    rail->chain_lane = NULL;
    for (; rail->batch_count; rail->batch_count--) {
        struct verbs_batch *batch = &rail->batches[rail->batch_head];
        rail->batch_head = (rail->batch_head + 1) % rail->requests_max;
        if (!batch->lane)
            continue;
        batch->lane->in_flight -= batch->requests;
        if (batch->lane == open)
            open = NULL;
        lane_lose(rail, batch->lane);
    }
    if (open)
        lane_lose(rail, open);
    for (struct lane **slot = &rail->waiting; *slot;) {
        struct lane *lane = *slot;
        if (!lane->rail_life) {
            slot = &lane->wait_next; /* it may have the next one */
            continue;
        }
        *slot = lane->wait_next;
        lane->waiting = false;
        lane_lose(rail, lane);
    }
    rail->requests_in_flight = 0;
    rail->bytes_in_flight = 0;
    atomic_store_explicit(&rail->load, 0, memory_order_relaxed);
    rail_quiet(rail);
}

void verbs_waiting_fail(struct verbs_rail *rail)
{
    while (rail->waiting) {
        struct lane *lane = rail->waiting;
        rail->waiting = lane->wait_next;
        lane->waiting = false;
        lane_lose(rail, lane);
    }
}

/* ---- posting ---- */

int verbs_post_receives(struct verbs_rail *rail, uint32_t count)
{
    struct ibv_recv_wr receive = {.wr_id = 0}, *bad = NULL;
    for (uint32_t i = 0; i < count; i++)
        if (ibv_post_recv(rail->pair, &receive, &bad) != 0)
            return -1;
    return 0;
}

static bool rail_has_room(const struct verbs_rail *rail)
{
    return rail->requests_in_flight + rail->chain_count < rail->requests_max &&
           rail->bytes_in_flight + rail->chain_bytes < VERBS_FLIGHT_BYTES;
}

static void batch_push(struct verbs_rail *rail, struct lane *lane, uint32_t requests,
                       uint64_t bytes)
{
    uint32_t at = (rail->batch_head + rail->batch_count++) % rail->requests_max;
    rail->batches[at] = (struct verbs_batch){lane, requests, bytes};
    rail->requests_in_flight += requests;
    rail->bytes_in_flight += bytes;
    atomic_store_explicit(&rail->load, rail->bytes_in_flight, memory_order_relaxed);
    if (rail->batch_count == 1)
        rail_quiet(rail);
}

static void chain_post(struct verbs_rail *rail)
{
    struct ibv_send_wr *bad = NULL;
    struct lane *lane = rail->chain_lane;
    uint32_t count = rail->chain_count;
    if (!count)
        return;
    for (uint32_t i = 0; i < count; i++) {
        struct verbs_request *request = &rail->chain[i];
        request->wr.sg_list = request->wr.num_sge ? request->pieces : NULL;
        request->wr.next = i + 1 < count ? &rail->chain[i + 1].wr : NULL;
        if (!rail->owner->reads && request->bytes <= rail->inline_max && request->bytes)
            request->wr.send_flags |= IBV_SEND_INLINE;
    }
    rail->chain[count - 1].wr.send_flags |= IBV_SEND_SIGNALED;
    lane->in_flight += count;
    lane->requests_taken += count;
    lane->doorbells_taken++;
    batch_push(rail, lane, count, rail->chain_bytes);
    rail->chain_count = 0;
    rail->chain_bytes = 0;
    rail->chain_lane = NULL;
    int failed = ibv_post_send(rail->pair, &rail->chain[0].wr, &bad);
    if (failed)
        verbs_rail_broken(rail, "%s: cannot post: %s", rail->port->name,
                          strerror(failed > 0 ? failed : errno));
}

int verbs_post_probe(struct verbs_rail *rail)
{
    struct ibv_send_wr *bad = NULL, probe = {.wr_id = PROBE_BATCH,
                                             .opcode = IBV_WR_RDMA_WRITE,
                                             .send_flags = IBV_SEND_SIGNALED};
    batch_push(rail, NULL, 1, 0);
    return ibv_post_send(rail->pair, &probe, &bad);
}

static struct verbs_request *chain_add(struct verbs_rail *rail, struct lane *lane,
                                       enum ibv_wr_opcode opcode)
{
    if (rail->chain_count == VERBS_CHAIN)
        chain_post(rail);
    struct verbs_request *request = &rail->chain[rail->chain_count++];
    rail->chain_lane = lane;
    request->bytes = request->remote_end = 0;
    request->wr = (struct ibv_send_wr){.opcode = opcode};
    return request;
}

/* One run: an own request, or one more piece of the last one. */
static int run_add(struct verbs_rail *rail, struct lane *lane, const struct plan_run *run)
{
    const struct verbs_endpoint *owner = rail->owner;
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    uint64_t source = region->src->bases[run->src_base].address + run->src_offset;
    uint64_t target = region->dst->bases[run->dst_base].address + run->dst_offset;
    uint64_t local = owner->reads ? target : source, remote = owner->reads ? source : target;
    uint32_t mine = verbs_range_find(owner->mine->ranges, owner->mine->range_count, local,
                                     run->length, &rail->local_hint);
    uint32_t theirs = verbs_range_find(owner->theirs.ranges, owner->theirs.range_count, remote,
                                       run->length, &rail->remote_hint);
    if (mine == UINT32_MAX || theirs == UINT32_MAX) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "%s memory at %llx is not registered",
                 mine == UINT32_MAX ? "own" : "the peer's",
                 (unsigned long long)(mine == UINT32_MAX ? local : remote));
        return BATON_EPROTOCOL;
    }
    uint32_t key = owner->theirs.keys[rail->peer_port * owner->theirs.range_count + theirs];
    struct ibv_sge piece = {local, (uint32_t)run->length, rail->port->regions[mine]->lkey};
    struct verbs_request *request =
        rail->chain_count ? &rail->chain[rail->chain_count - 1] : NULL;
    if (!request || request->remote_end != remote || request->wr.wr.rdma.rkey != key ||
        request->wr.num_sge == (int)rail->pieces_max ||
        request->bytes + run->length > VERBS_MESSAGE_MAX) {
        request = chain_add(rail, lane, owner->reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE);
        request->wr.wr.rdma.remote_addr = remote;
        request->wr.wr.rdma.rkey = key;
        request->remote_end = remote;
    }
    request->pieces[request->wr.num_sge++] = piece;
    request->bytes += run->length;
    request->remote_end += run->length;
    rail->chain_bytes += run->length;
    return BATON_OK;
}

int verbs_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    struct verbs_rail *rail = lane_rail(lane);
    uint32_t taken = 0;
    if (!rail->up)
        return lane_wait(rail, lane); /* it comes up, or is dropped and the lane with it */
    if (lane->rail_life && lane->rail_life != rail->own_life) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "the rail was made anew in the middle of the transfer");
        return BATON_EPEER;
    }
    lane->rail_life = rail->own_life;
    if (rail->chain_lane && rail->chain_lane != lane)
        chain_post(rail);
    if (!rail_has_room(rail))
        verbs_poll(rail);
    while (taken < count && !rail->failed && rail_has_room(rail)) {
        int code = run_add(rail, lane, &runs[taken]);
        if (code != BATON_OK)
            return code;
        taken++;
    }
    if (taken < count)
        chain_post(rail); /* full: what is collected must not wait for a place */
    return taken ? (int)taken : lane_wait(rail, lane);
}

/* Everything of the lane is collected: the proof goes behind it. */
static bool lane_prove(struct verbs_rail *rail, struct lane *lane)
{
    bool last = watermark_unpack(lane->accepted).last;
    if (rail->owner->reads || !last || !lane->bytes_taken || lane->landings_taken)
        return true;
    if (rail->chain_lane != lane) {
        chain_post(rail);
        if (!rail_has_room(rail))
            verbs_poll(rail);
        if (!rail_has_room(rail) || rail->failed)
            return false;
        chain_add(rail, lane, IBV_WR_RDMA_WRITE);
    }
    struct ibv_send_wr *wr = &rail->chain[rail->chain_count - 1].wr;
    wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr->imm_data = htonl(lane->copy->ticket);
    lane->landings_taken++;
    return true;
}

int verbs_flush(struct lane *lane)
{
    struct verbs_rail *rail = lane_rail(lane);
    if (lane->cancelled) {
        lane_wait_no_more(rail, lane);
        if (rail->chain_lane == lane) {
            rail->chain_count = 0; /* nobody has seen anything of it */
            rail->chain_bytes = 0;
            rail->chain_lane = NULL;
            verbs_wake(rail);
        }
        return lane->in_flight == 0;
    }
    if (!lane->bytes_taken)
        return 1;
    if (!rail->up || !lane_prove(rail, lane))
        return lane_wait(rail, lane);
    chain_post(rail);
    /* A write is proven by its immediate; a read has come when it completed. */
    return rail->owner->reads ? lane->in_flight == 0 : !rail->failed;
}

/* ---- completions ---- */

static void batch_complete(struct verbs_rail *rail)
{
    struct verbs_batch batch = rail->batches[rail->batch_head];
    rail->batch_head = (rail->batch_head + 1) % rail->requests_max;
    rail->batch_count--;
    rail->requests_in_flight -= batch.requests;
    rail->bytes_in_flight -= batch.bytes;
    atomic_store_explicit(&rail->load, rail->bytes_in_flight, memory_order_relaxed);
    rail_quiet(rail);
    if (!batch.lane) {
        rail->up = true;
        verbs_rail_tell(rail, VERBS_NEWS_PROBED);
        return;
    }
    batch.lane->in_flight -= batch.requests;
    if (batch.lane->in_flight == 0 && (rail->owner->reads || batch.lane->cancelled))
        verbs_host->lane_post(batch.lane);
}

static const char *status_advice(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "the other side's port does not answer: is it up, does the path carry the MTU?";
    case IBV_WC_REM_ACCESS_ERR: return "the peer has closed or replaced its memory";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "the peer takes no more messages";
    case IBV_WC_WR_FLUSH_ERR: return "the queue pair is in error";
    default: return "see the device's counters";
    }
}

static void completion_take(struct verbs_rail *rail, const struct ibv_wc *wc)
{
    if (rail->failed)
        return; /* after the first error nothing can be concluded any more */
    if (wc->status != IBV_WC_SUCCESS) {
        verbs_rail_broken(rail, "%s port %d: %s (%s)", rail->port->name, rail->port->number,
                          ibv_wc_status_str(wc->status), status_advice(wc->status));
        return;
    }
    if (wc->opcode & IBV_WC_RECV) {
        if (wc->wc_flags & IBV_WC_WITH_IMM) {
            struct leg *leg = verbs_host->leg_of_ticket(
                rail->owner->manager, rail->owner->session, ntohl(wc->imm_data));
            if (leg)
                verbs_host->leg_count_landed(leg, rail->index, 1);
        }
        if (verbs_post_receives(rail, 1) != 0)
            verbs_rail_broken(rail, "%s: cannot post a receive: %s", rail->port->name,
                              strerror(errno));
        return;
    }
    batch_complete(rail);
}

void verbs_poll(struct verbs_rail *rail)
{
    struct ibv_wc completions[POLL_BATCH];
    int count;
    if (!rail->completions)
        return;
    while ((count = ibv_poll_cq(rail->completions, POLL_BATCH, completions)) > 0)
        for (int i = 0; i < count; i++)
            completion_take(rail, &completions[i]);
    if (count < 0)
        verbs_rail_broken(rail, "%s: the completion queue is broken", rail->port->name);
    if (rail->waiting && rail->up && rail_has_room(rail))
        verbs_wake(rail);
}

void verbs_ready(struct worker_watch *watch, uint32_t events)
{
    struct verbs_rail *rail = (struct verbs_rail *)watch;
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    if (!(events & EPOLLIN) || ibv_get_cq_event(rail->channel, &cq, &context) != 0)
        return;
    ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(cq, 0) != 0) /* first armed, then polled: nothing slips between */
        verbs_rail_broken(rail, "%s: the completion queue cannot be armed: %s",
                          rail->port->name, strerror(errno));
    verbs_poll(rail);
}
