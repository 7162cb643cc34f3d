/* SPDX-License-Identifier: Apache-2.0 */
/* What goes over a rail: a put per run, and a flush when a lane wants to know that its puts are
 * complete at the target. UCP's put has no list of pieces, so runs that are neighbours in the peer's
 * memory but not in ours cannot share one; layouts with many small runs pay for each of them here,
 * where verbs gathers up to 32 into one request.
 *
 * A lane is dirty from its first put until a flush was started behind the last one. It is at rest when
 * it is not dirty and nothing of it is in flight, or when the rail it used is gone: before FENCED
 * can be said for such a lane the other side has read BROKEN and cut.
 *
 * UCX completes inside ucp_worker_progress, and wakes us by a descriptor that must be armed before
 * every sleep. The rail's copy worker only. */
#include "ucx.h"

#include <stdio.h>
#include <string.h>

#define POLL_ROUNDS 4
#define POLL_TURNS 16 /* then other rails and lanes have their turn */

/* ---- lanes ---- */

static struct ucx_rail *lane_rail(const struct lane *lane)
{
    struct ucx_endpoint *owner = lane->copy->endpoint->state;
    return &owner->rails[lane->rail];
}

/* lane->rail_life: which life of the rail it has used, and whether it is dirty. */
static uint32_t lane_life(const struct lane *lane)
{
    return lane->rail_life >> 1;
}

static bool lane_dirty(const struct lane *lane)
{
    return lane->rail_life & 1;
}

static void lane_used(struct lane *lane, uint32_t life, bool dirty)
{
    lane->rail_life = life << 1 | dirty;
}

static int lane_wait(struct ucx_rail *rail, struct lane *lane)
{
    if (!lane->waiting) {
        lane->waiting = true;
        lane->wait_next = rail->waiting;
        rail->waiting = lane;
    }
    return 0;
}

static void lane_wait_no_more(struct ucx_rail *rail, struct lane *lane)
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

static void waiting_wake(struct ucx_rail *rail)
{
    while (rail->waiting) {
        struct lane *lane = rail->waiting;
        rail->waiting = lane->wait_next;
        lane->waiting = false;
        ucx_host->lane_post(lane);
    }
}

static void lane_lose(struct ucx_rail *rail, struct lane *lane)
{
    if (!atomic_load_explicit(&lane->error, memory_order_relaxed)) {
        pthread_mutex_lock(&rail->lock);
        snprintf(lane->error_text, sizeof(lane->error_text), "%.*s",
                 (int)sizeof(lane->error_text) - 1, rail->text);
        pthread_mutex_unlock(&rail->lock);
        ucx_host->lane_fail(lane, BATON_EPEER);
    }
    ucx_host->lane_post(lane); /* one that is cancelled can stop now */
}

/* ---- requests ---- */

static bool rail_has_room(const struct ucx_rail *rail)
{
    return rail->free_request && rail->bytes_in_flight < UCX_FLIGHT_BYTES;
}

static struct ucx_request *request_take(struct ucx_rail *rail, struct lane *lane,
                                        uint64_t bytes)
{
    struct ucx_request *request = rail->free_request;
    rail->free_request = request->next;
    request->lane = lane;
    request->flush = false;
    request->bytes = bytes;
    request->used = true;
    rail->requests_in_flight++;
    rail->bytes_in_flight += bytes;
    atomic_store_explicit(&rail->load, rail->bytes_in_flight, memory_order_relaxed);
    if (lane)
        lane->in_flight++;
    return request;
}

static void request_give_back(struct ucx_request *request)
{
    struct ucx_rail *rail = request->rail;
    rail->bytes_in_flight -= request->bytes;
    atomic_store_explicit(&rail->load, rail->bytes_in_flight, memory_order_relaxed);
    if (request->lane)
        request->lane->in_flight--;
    request->used = false;
    request->next = rail->free_request;
    rail->free_request = request;
}

/* UCX has let go of it. After a failure its lane hears of that when the rail is dropped, not before:
 * only then does the other side know. */
static void request_end(struct ucx_request *request, ucs_status_t status)
{
    struct ucx_rail *rail = request->rail;
    const struct lane *lane = request->lane;
    rail->requests_in_flight--;
    if (status != UCS_OK) {
        ucx_rail_broken(rail, "UCX: %s", ucs_status_string(status));
        return;
    }
    request_give_back(request);
    if (!lane && request->flush) {
        rail->probed = true;
        ucx_rail_tell(rail, UCX_NEWS_MADE);
    }
}

static void request_completed(void *handle, ucs_status_t status, void *arg)
{
    struct ucx_request *request = arg;
    struct lane *lane = request->lane;
    ucp_request_free(handle);
    request_end(request, status);
    if (lane && !lane->in_flight)
        ucx_host->lane_post(lane);
}

/* What a call to UCX returned: done at once, refused, or under way. */
static void request_started(struct ucx_request *request, ucs_status_ptr_t handle)
{
    if (!UCS_PTR_IS_PTR(handle))
        request_end(request, UCS_PTR_STATUS(handle));
    else
        ucx_rail_order(request->rail, UCX_ORDER_POLL);
}

static void flush_start(struct ucx_rail *rail, struct lane *lane)
{
    struct ucx_request *request = request_take(rail, lane, 0);
    ucp_request_param_t with = {.op_attr_mask =
                                    UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                .cb.send = request_completed,
                                .user_data = request};
    request->flush = true;
    request_started(request, ucp_ep_flush_nbx(rail->ep, &with));
}

/* False: one of the two addresses is in no registered range; *strange is it. */
static bool put_start(struct ucx_rail *rail, struct lane *lane, uint64_t source,
                      uint64_t target, uint64_t length, uint64_t *strange)
{
    const struct ucx_endpoint *owner = rail->owner;
    uint32_t mine = ucx_range_find(owner->mine->ranges, owner->mine->range_count, source,
                                   length, &rail->local_hint);
    uint32_t theirs = ucx_range_find(owner->theirs.ranges, owner->theirs.range_count, target,
                                     length, &rail->remote_hint);
    *strange = mine == UINT32_MAX ? source : target;
    if (mine == UINT32_MAX || theirs == UINT32_MAX)
        return false;
    struct ucx_request *request = request_take(rail, lane, length);
    ucp_request_param_t with = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                UCP_OP_ATTR_FIELD_USER_DATA |
                                                UCP_OP_ATTR_FIELD_MEMH,
                                .cb.send = request_completed,
                                .user_data = request,
                                .memh = owner->mine->handles[mine]};
    request_started(request, ucp_put_nbx(rail->ep, (const void *)(uintptr_t)source, length,
                                         target, rail->keys[theirs], &with));
    return true;
}

static int run_put(struct ucx_rail *rail, struct lane *lane, const struct plan_run *run)
{
    const struct copy_region *region = &lane->copy->regions[lane->region_index];
    uint64_t source = region->src->bases[run->src_base].address + run->src_offset;
    uint64_t target = region->dst->bases[run->dst_base].address + run->dst_offset, strange;
    if (!put_start(rail, lane, source, target, run->length, &strange)) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "%s memory at %llx is not registered",
                 strange == source ? "own" : "the peer's", (unsigned long long)strange);
        return BATON_EPROTOCOL;
    }
    lane->requests_taken++;
    return BATON_OK;
}

/* A put into the peer's cell and a flush behind it: done when both sides have met. */
void ucx_probe(struct ucx_rail *rail)
{
    const struct ucx_endpoint *owner = rail->owner;
    uint64_t strange, source = (uint64_t)(uintptr_t)owner->mine->cell;
    if (!put_start(rail, NULL, source, owner->theirs.cell, sizeof(uint64_t), &strange))
        ucx_rail_broken(rail, "the peer's UCX key has no cell");
    else if (!rail->failed)
        flush_start(rail, NULL);
}

/* ---- what lanes ask for ---- */

int ucx_copy(struct lane *lane, const struct plan_run *runs, uint32_t count)
{
    struct ucx_rail *rail = lane_rail(lane);
    uint32_t taken = 0;
    if (lane_dirty(lane) && lane_life(lane) != rail->own_life) {
        snprintf(lane->error_text, sizeof(lane->error_text),
                 "the rail was made anew in the middle of the transfer");
        return BATON_EPEER;
    }
    if (!rail->up)
        return lane_wait(rail, lane); /* it comes up, or is dropped and the lane with it */
    if (!rail_has_room(rail))
        ucx_poll(rail);
    while (taken < count && !rail->failed && rail_has_room(rail)) {
        lane_used(lane, rail->own_life, true);
        int code = run_put(rail, lane, &runs[taken]);
        if (code != BATON_OK)
            return code;
        taken++;
    }
    if (taken)
        lane->doorbells_taken++;
    return taken ? (int)taken : lane_wait(rail, lane);
}

int ucx_flush(struct lane *lane)
{
    struct ucx_rail *rail = lane_rail(lane);
    if (lane->cancelled)
        lane_wait_no_more(rail, lane);
    if (lane_dirty(lane) && lane_life(lane) != rail->own_life) {
        if (!lane->cancelled)
            lane_lose(rail, lane);
        return lane->cancelled;
    }
    if (lane_dirty(lane)) {
        if (rail->failed || !rail->free_request)
            return lane_wait(rail, lane); /* until it is dropped, or one is free */
        lane_used(lane, rail->own_life, false);
        flush_start(rail, lane);
    }
    return lane->in_flight == 0;
}

/* ---- progress ---- */

bool ucx_progress(struct ucx_rail *rail, int rounds)
{
    unsigned moved = 0;
    pthread_mutex_lock(&rail->gate);
    ucx_call_begin();
    for (int round = 0; rail->ucp && round < rounds; round++)
        moved += ucp_worker_progress(rail->ucp);
    ucx_call_end();
    pthread_mutex_unlock(&rail->gate);
    return moved;
}

/* True: nothing is to be done, and the descriptor will tell when there is. */
static bool rail_sleeps(struct ucx_rail *rail)
{
    pthread_mutex_lock(&rail->gate);
    ucs_status_t status = rail->ucp ? ucp_worker_arm(rail->ucp) : UCS_OK;
    pthread_mutex_unlock(&rail->gate);
    if (status != UCS_OK && status != UCS_ERR_BUSY)
        ucx_rail_broken(rail, "UCX's events fail: %s", ucx_reason(status));
    return status != UCS_ERR_BUSY;
}

void ucx_poll(struct ucx_rail *rail)
{
    bool sleeps = false;
    for (int turn = 0; !sleeps && turn < POLL_TURNS; turn++)
        sleeps = !ucx_progress(rail, POLL_ROUNDS) && rail_sleeps(rail);
    if (!sleeps)
        ucx_rail_order(rail, UCX_ORDER_POLL);
    if (rail->waiting && rail->up && rail_has_room(rail))
        waiting_wake(rail);
}

void ucx_ready(struct worker_watch *watch, uint32_t events)
{
    (void)events;
    ucx_poll((struct ucx_rail *)watch);
}

/* ---- the end of a rail ---- */

/* The UCP worker is gone: nothing reads the sources any more. */
void ucx_queue_fail(struct ucx_rail *rail)
{
    for (uint32_t i = 0; i < rail->requests_max; i++) {
        struct ucx_request *request = &rail->requests[i];
        struct lane *lane = request->lane;
        if (!request->used)
            continue;
        request_give_back(request);
        if (lane)
            lane_lose(rail, lane);
    }
    rail->requests_in_flight = 0;
    for (struct lane **slot = &rail->waiting; *slot;) {
        struct lane *lane = *slot;
        if (!lane_dirty(lane)) {
            slot = &lane->wait_next; /* it may have the next one */
            continue;
        }
        *slot = lane->wait_next;
        lane->waiting = false;
        lane_lose(rail, lane);
    }
}

void ucx_waiting_fail(struct ucx_rail *rail)
{
    while (rail->waiting) {
        struct lane *lane = rail->waiting;
        rail->waiting = lane->wait_next;
        lane->waiting = false;
        lane_lose(rail, lane);
    }
}
