/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of this worker as one end of hand-overs: a manager of the transfer library for each, over
 * that rank's pages, and rooms that are open on all of them. A room over the ranks has the smallest of
 * their states, so that they never disagree about it. Used by the scheduler's thread. */
#ifndef BATON_SCHED_RANK_GROUP_H
#define BATON_SCHED_RANK_GROUP_H

#include "kv_memory.h"

#include <poll.h>

/* What goes with the pages: the first token, which prefill has drawn, and what is known about it. */
struct handover_note {
    int32_t token;
    float logprob;
    uint32_t cached_tokens; /* of the prompt, on the prefill side */
    uint32_t top_count;
    int32_t top_tokens[SAMPLER_TOP_MAX];
    float top_logprobs[SAMPLER_TOP_MAX];
};

void handover_note_write(struct handover_note *note, const struct token_choice *choice,
                         uint32_t cached_tokens);
/* EINVAL: it is not what a prefill worker writes. */
int handover_note_read(const struct handover_note *note, uint32_t vocab_size,
                       struct token_choice *out, struct error err);

struct rank_group {
    uint32_t ranks, layers;
    baton_manager *managers[KV_RANKS_MAX];
    struct handover_note *notes; /* [note_count]: the aux slots of all managers */
    uint32_t note_count, notes_free;
    int32_t *free_notes; /* a stack */
};

int rank_group_open(const struct kv_memory *memory, const struct model_config *config,
                    const struct transfer_options *options, uint32_t notes,
                    struct rank_group *out, struct error err);
/* Every room must have been closed. All zero is fine. */
void rank_group_close(struct rank_group *group);

/* One for each rank: readable when one of its rooms has changed. */
uint32_t rank_group_watch(const struct rank_group *group, struct pollfd *out, uint32_t most);
void rank_group_answer(const struct rank_group *group); /* before the rooms are looked at */
void rank_group_counters(const struct rank_group *group,
                         baton_counters *out); /* of all ranks */

int32_t rank_group_take_note(struct rank_group *group); /* -1: none is free */
void rank_group_give_note(struct rank_group *group, int32_t note);

/* ---- rooms ---------------------------------------------------------------------------------- */

struct group_room {
    struct rank_group *group;
    uint64_t id;
    bool sends, layerwise;
    uint32_t pages_by_layer; /* sender: so many were released layer by layer */
    int32_t note;            /* -1: none */
    baton_sender *senders[KV_RANKS_MAX];
    baton_receiver *receivers[KV_RANKS_MAX];
};

/* bootstrap: "host:port" of the prefill side. EEXIST: the number is in use here. */
int group_room_open_sender(struct rank_group *group, uint64_t id, const char *bootstrap,
                           uint32_t deadline_ms, bool layerwise, struct group_room **out,
                           struct error err);
int group_room_open_receiver(struct rank_group *group, uint64_t id, const char *bootstrap,
                             uint32_t deadline_ms, uint32_t queue_position,
                             struct group_room **out, struct error err);
/* Closes it on all ranks and gives its note back. Before it is fenced, the pages must not be used. */
void group_room_close(struct group_room *room); /* NULL is fine */

int group_room_state(const struct group_room *room); /* enum baton_state */
int group_room_failure(const struct group_room *room, char *text, size_t size);
bool group_room_fenced(const struct group_room *room);
/* Of a receiver's room that has failed: how many tokens have landed on every rank; their pages can be
 * used once it is fenced. False: some rank's is still open. */
bool group_room_landed(const struct group_room *room, uint32_t *tokens);
/* Times and words of rank 0, bytes and operations of all. */
void group_room_timeline(const struct group_room *room, baton_timeline *out);
uint64_t group_room_written(const struct group_room *room); /* so far; 0 for a receiver */

/* Sender. Pages are the same numbers on every rank. */
int group_room_announce(struct group_room *room, uint32_t pages, uint32_t tokens, int32_t note);
int group_room_send(struct group_room *room, const int32_t *pages, uint32_t count);
/* Layer-wise rooms: send only names the pages; rank `rank` has stored so many layers of them. */
int group_room_layers(struct group_room *room, uint32_t rank, uint32_t layers);

/* Receiver. */
int group_room_grant(struct group_room *room, const int32_t *pages, uint32_t count,
                     uint32_t prefix_tokens, int32_t note);
void group_room_decline(struct group_room *room, const char *reason);

/* Either. refuse: what is asked for is wrong; the other side fails with EINVAL. */
void group_room_abort(struct group_room *room, const char *reason);
void group_room_refuse(struct group_room *room, const char *reason);

#endif
