/* SPDX-License-Identifier: Apache-2.0 */
/* See rank_group.h. */
#include "rank_group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Who sent us the request thinks that the prefill worker lives: if it does not answer, it is gone. */
#define REACH_TIMEOUT_MS 800

#define NOTE_EMPTY (-1)

/* ---- notes ---------------------------------------------------------------------------------- */

void handover_note_write(struct handover_note *note, const struct token_choice *choice,
                         uint32_t cached_tokens)
{
    note->token = choice->token;
    note->logprob = choice->logprob;
    note->cached_tokens = cached_tokens;
    note->top_count = choice->top_count;
    for (uint32_t i = 0; i < choice->top_count; i++) {
        note->top_tokens[i] = choice->top[i].token;
        note->top_logprobs[i] = choice->top[i].logprob;
    }
}

int handover_note_read(const struct handover_note *note, uint32_t vocab_size,
                       struct token_choice *out, struct error err)
{
    if (note->token == NOTE_EMPTY)
        return error_set(err, BATON_EPROTOCOL, "no first token came with the pages");
    if (note->token < 0 || (uint32_t)note->token >= vocab_size ||
        note->top_count > SAMPLER_TOP_MAX || isnan(note->logprob))
        return error_set(err, BATON_EPROTOCOL,
                         "the first token came as %d with %u alternatives: no token of this "
                         "model",
                         note->token, note->top_count);
    out->token = note->token;
    out->logprob = note->logprob;
    out->top_count = note->top_count;
    for (uint32_t i = 0; i < note->top_count; i++) {
        if (note->top_tokens[i] < 0 || (uint32_t)note->top_tokens[i] >= vocab_size)
            return error_set(err, BATON_EPROTOCOL,
                             "an alternative to the first token came as %d: no token of this "
                             "model",
                             note->top_tokens[i]);
        out->top[i] = (struct token_logprob){note->top_tokens[i], note->top_logprobs[i]};
    }
    return BATON_OK;
}

static const baton_aux_field note_fields[] = {
    {"first_token", BATON_DTYPE_I32, 1, offsetof(struct handover_note, token)},
    {"first_logprob", BATON_DTYPE_F32, 1, offsetof(struct handover_note, logprob)},
    {"cached_tokens", BATON_DTYPE_U32, 1, offsetof(struct handover_note, cached_tokens)},
    {"top_count", BATON_DTYPE_U32, 1, offsetof(struct handover_note, top_count)},
    {"top_tokens", BATON_DTYPE_I32, SAMPLER_TOP_MAX,
     offsetof(struct handover_note, top_tokens)},
    {"top_logprobs", BATON_DTYPE_F32, SAMPLER_TOP_MAX,
     offsetof(struct handover_note, top_logprobs)},
};

int32_t rank_group_take_note(struct rank_group *group)
{
    if (!group->notes_free)
        return -1;
    int32_t note = group->free_notes[--group->notes_free];
    group->notes[note].token = NOTE_EMPTY; /* what it said of another prompt is over */
    return note;
}

void rank_group_give_note(struct rank_group *group, int32_t note)
{
    if (note >= 0)
        group->free_notes[group->notes_free++] = note;
}

/* ---- managers ------------------------------------------------------------------------------- */

static uint32_t dtype_of(enum page_element element)
{
    return element == PAGE_ELEMENT_F16    ? BATON_DTYPE_F16
           : element == PAGE_ELEMENT_BF16 ? BATON_DTYPE_BF16
                                          : BATON_DTYPE_F32;
}

static baton_layout layout_of(const struct kv_memory *memory, const struct model_config *config,
                              uint32_t rank, const baton_base *base)
{
    const struct page_layout *from = &memory->layout;
    baton_layout layout = BATON_LAYOUT_INIT;
    layout.dtype = dtype_of(from->shape.element);
    layout.pages = memory->books.pool->counts.pages;
    layout.tokens_per_page = from->shape.tokens_per_page;
    layout.layers = from->shape.layers;
    layout.kv = from->shape.kv;
    layout.heads = from->shape.heads;
    layout.first_head = engine_first_kv_head(config, memory->rank_count, rank);
    layout.total_heads = config->kv_head_count;
    layout.head_bytes = from->head_bytes;
    layout.page_stride = from->page_stride;
    layout.layer_stride = from->layer_stride;
    layout.kv_stride = from->kv_stride;
    layout.head_stride = from->head_stride;
    layout.token_stride = from->token_stride;
    layout.bases = base;
    layout.base_count = 1;
    return layout;
}

static int manager_open(struct rank_group *group, const struct kv_memory *memory,
                        const struct model_config *config,
                        const struct transfer_options *options, uint32_t rank, struct error err)
{
    const baton_base base = {.address = baton_pool_address(memory->pools[rank]),
                             .bytes = (uint64_t)memory->books.pool->counts.pages *
                                      memory->layout.page_stride,
                             .item_bytes = memory->layout.page_stride};
    const baton_region region = {.struct_size = sizeof(baton_region),
                                 .kind = BATON_REGION_KV,
                                 .name = "kv",
                                 .layout = layout_of(memory, config, rank, &base)};
    const baton_aux aux = {.struct_size = sizeof(baton_aux),
                           .slots = group->note_count,
                           .address = group->notes,
                           .slot_bytes = sizeof(struct handover_note),
                           .fields = note_fields,
                           .field_count = sizeof(note_fields) / sizeof(note_fields[0])};
    baton_manager_options manager = BATON_MANAGER_OPTIONS_INIT;
    manager.rank = rank;
    manager.tp_size = group->ranks;
    manager.host = options->host;
    manager.bootstrap = options->bootstrap;
    manager.register_rank = options->bootstrap != NULL;
    manager.bootstrap_allow = options->bootstrap_allow;
    manager.fingerprint = options->fingerprint;
    manager.kv_cache_dtype = page_element_name(memory->layout.shape.element);
    manager.regions = &region;
    manager.region_count = 1;
    manager.aux = &aux;
    manager.backends = options->backends;
    manager.ib_device = options->ib_device;
    manager.key = options->key;
    manager.tls_certificate = options->tls_certificate;
    manager.tls_key = options->tls_key;
    manager.tls_ca = options->tls_ca;
    manager.deadline_ms = options->deadline_ms;
    manager.reach_timeout_ms = REACH_TIMEOUT_MS;
    manager.verify = options->verify;
    return baton_manager_open(&manager, &group->managers[rank], err.text, err.size);
}

int rank_group_open(const struct kv_memory *memory, const struct model_config *config,
                    const struct transfer_options *options, uint32_t notes,
                    struct rank_group *out, struct error err)
{
    *out = (struct rank_group){.ranks = memory->rank_count,
                               .layers = memory->layout.shape.layers,
                               .note_count = notes};
    out->notes = calloc(notes, sizeof(*out->notes));
    out->free_notes = calloc(notes, sizeof(*out->free_notes));
    int rc = out->notes && out->free_notes
                 ? BATON_OK
                 : error_set(err, BATON_ENOMEM, "no memory for %u hand-overs", notes);
    for (uint32_t i = 0; i < notes && !rc; i++)
        out->free_notes[out->notes_free++] = (int32_t)(notes - 1 - i);
    for (uint32_t rank = 0; rank < out->ranks && !rc; rank++)
        rc = manager_open(out, memory, config, options, rank, err);
    if (rc)
        rank_group_close(out);
    return rc;
}

void rank_group_close(struct rank_group *group)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (group->managers[rank])
            baton_manager_close(group->managers[rank]);
    free(group->free_notes);
    free(group->notes);
    *group = (struct rank_group){0};
}

uint32_t rank_group_watch(const struct rank_group *group, struct pollfd *out, uint32_t most)
{
    uint32_t count = 0;
    for (; count < group->ranks && count < most; count++)
        out[count] = (struct pollfd){.fd = baton_manager_eventfd(group->managers[count]),
                                     .events = POLLIN};
    return count;
}

void rank_group_answer(const struct rank_group *group)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        uint64_t rung;
        while (read(baton_manager_eventfd(group->managers[rank]), &rung, sizeof(rung)) > 0)
            ;
        baton_manager_tick(group->managers[rank]);
    }
}

void rank_group_counters(const struct rank_group *group, baton_counters *out)
{
    *out = (baton_counters){.struct_size = sizeof(*out)};
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        baton_counters one = {.struct_size = sizeof(one)};
        if (baton_manager_counters(group->managers[rank], &one))
            continue;
        out->rooms_open += one.rooms_open;
        out->rooms_quarantined += one.rooms_quarantined;
        out->pages_quarantined += one.pages_quarantined;
        out->links_up += one.links_up;
        out->links_degraded += one.links_degraded;
        out->rooms_succeeded += one.rooms_succeeded;
        out->rooms_failed += one.rooms_failed;
        out->rooms_refused += one.rooms_refused;
        out->bytes_sent += one.bytes_sent;
        out->operations_sent += one.operations_sent;
        out->bytes_received += one.bytes_received;
        out->links_lost += one.links_lost;
        out->fallbacks += one.fallbacks;
        out->fences += one.fences;
    }
}
