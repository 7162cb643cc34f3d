/* SPDX-License-Identifier: Apache-2.0 */
/* See plan_model.h. */
#include "plan_model.h"

#include <math.h>
#include <stdlib.h>

static uint32_t ceil_pages(const struct plan_model *model, double tokens)
{
    return (uint32_t)ceil(tokens / model->tokens_per_page);
}

static uint32_t free_pages(const struct plan_model *model)
{
    uint32_t free = model->pages;
    for (uint32_t i = 0; i < model->request_count; i++)
        free -= model->requests[i].pages;
    return free;
}

static bool is_active(const struct model_request *request)
{
    return request->phase == MODEL_PREFILL || request->phase == MODEL_RUNNING;
}

/* ---- sorted lists of requests --------------------------------------------------------------- */

struct listed {
    const struct model_request *request;
    uint32_t index;
};
struct request_list {
    struct listed items[PLAN_MODEL_MAX];
    uint32_t count;
};

static int by_number(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_admission(const void *a, const void *b)
{
    return by_number(((const struct listed *)a)->request->admitted,
                     ((const struct listed *)b)->request->admitted);
}

/* The first keeps its pages longest. */
static int by_progress(const void *a, const void *b)
{
    const struct model_request *one = ((const struct listed *)a)->request;
    const struct model_request *other = ((const struct listed *)b)->request;
    if (one->generated != other->generated)
        return by_number(other->generated, one->generated);
    if (one->prompt != other->prompt)
        return by_number(one->prompt, other->prompt);
    return by_number(one->admitted, other->admitted);
}

static int by_turn(const void *a, const void *b)
{
    const struct model_request *one = ((const struct listed *)a)->request;
    const struct model_request *other = ((const struct listed *)b)->request;
    if (one->priority != other->priority)
        return one->priority > other->priority ? -1 : 1;
    return by_number(one->arrival, other->arrival);
}

static void list_active(const struct plan_model *model, struct request_list *list,
                        int (*order)(const void *, const void *))
{
    list->count = 0;
    for (uint32_t i = 0; i < model->request_count; i++)
        if (is_active(&model->requests[i]))
            list->items[list->count++] = (struct listed){&model->requests[i], i};
    qsort(list->items, list->count, sizeof(*list->items), order);
}

static void list_waiting(const struct plan_model *model, struct request_list *list,
                         bool retracted)
{
    list->count = 0;
    for (uint32_t i = 0; i < model->request_count; i++)
        if (model->requests[i].phase == MODEL_WAITING &&
            model->requests[i].retracted == retracted)
            list->items[list->count++] = (struct listed){&model->requests[i], i};
    qsort(list->items, list->count, sizeof(*list->items), by_turn);
}

/* ---- decode --------------------------------------------------------------------------------- */

static uint32_t decode_need(const struct plan_model *model, uint32_t steps)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < model->request_count; i++) {
        const struct model_request *request = &model->requests[i];
        if (request->phase != MODEL_RUNNING)
            continue;
        uint32_t remaining = request->limit - request->generated;
        uint32_t end = request->tokens + (steps < remaining ? steps : remaining);
        if (ceil_pages(model, end) > request->pages)
            need += ceil_pages(model, end) - request->pages;
    }
    return need;
}

static void retract_last(struct plan_model *model)
{
    static struct request_list list;
    list_active(model, &list, by_progress);
    struct model_request *victim = &model->requests[list.items[list.count - 1].index];
    victim->phase = MODEL_WAITING;
    victim->retracted = true;
    victim->pages = victim->computed = 0;
    model->retracted++;
}

static uint32_t active_count(const struct plan_model *model)
{
    static struct request_list list;
    list_active(model, &list, by_admission);
    return list.count;
}

void plan_model_decode(struct plan_model *model)
{
    static struct request_list list;
    model->piece_count = model->retracted = 0;
    model->retracted_ratio = false;
    if (decode_need(model, 0) > free_pages(model)) {
        if (active_count(model) > 1)
            retract_last(model);
        while (active_count(model) > 1 && decode_need(model, 20) > free_pages(model))
            retract_last(model);
        double generated = 0, most = 0;
        list_active(model, &list, by_admission);
        for (uint32_t i = 0; i < list.count; i++) {
            generated += list.items[i].request->generated + 20;
            most += list.items[i].request->limit;
        }
        model->retracted_ratio = true;
        model->ratio_after = generated >= most ? 1 : generated / most;
    }
    list_active(model, &list, by_admission);
    for (uint32_t i = 0; i < list.count; i++) {
        struct model_request *request = &model->requests[list.items[i].index];
        if (request->phase != MODEL_RUNNING)
            continue;
        request->pages = ceil_pages(model, request->tokens);
        model->pieces[model->piece_count++] = (struct model_piece){list.items[i].index, 1};
    }
}

/* ---- prompts -------------------------------------------------------------------------------- */

/* Pages it will need beyond those it has. */
static uint32_t future(const struct plan_model *model, const struct model_request *request,
                       double ratio)
{
    uint32_t remaining = request->limit - request->generated;
    double expected = ceil((remaining < 4096 ? remaining : 4096) * ratio);
    uint32_t pages = ceil_pages(model, request->tokens + expected);
    return pages > request->pages ? pages - request->pages : 0;
}

static uint32_t reserved(const struct plan_model *model, double ratio)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < model->request_count; i++)
        if (is_active(&model->requests[i]))
            sum += future(model, &model->requests[i],
                          model->requests[i].phase == MODEL_RUNNING ? ratio : 1);
    return sum;
}

/* The longest allowed piece, found by trying. */
static uint32_t piece(const struct plan_model *model, const struct model_request *request,
                      uint32_t room, bool alone)
{
    uint32_t rest = request->tokens - request->computed;
    if (rest <= room)
        return rest;
    for (uint32_t length = room; length > 0; length--)
        if ((request->computed + length) % model->tokens_per_page == 0)
            return length;
    return alone ? room : 0;
}

static void take(struct plan_model *model, uint32_t index, uint32_t length, uint32_t *room)
{
    struct model_request *request = &model->requests[index];
    request->pages = ceil_pages(model, request->computed + length);
    model->pieces[model->piece_count++] = (struct model_piece){index, length};
    *room -= length;
}

static bool ends_prompt(const struct plan_model *model, uint32_t index, uint32_t length)
{
    return model->requests[index].computed + length == model->requests[index].tokens;
}

static void admit_in_turn(struct plan_model *model, double ratio, uint32_t room,
                          uint32_t decoding)
{
    static struct request_list list;
    uint32_t refused[PLAN_MODEL_MAX], refused_count = 0;
    list_waiting(model, &list, true);
    bool retracted = list.count > 0;
    if (!retracted)
        list_waiting(model, &list, false);
    for (uint32_t i = 0; i < list.count && refused_count < SCAN_MAX; i++) {
        uint32_t index = list.items[i].index;
        struct model_request *request = &model->requests[index];
        for (uint32_t j = 0; j < refused_count; j++)
            if (model->requests[refused[j]].overtaken >= OVERTAKES_MAX)
                return;
        if (room == 0 || active_count(model) == model->limits.max_running)
            return;
        uint32_t length = piece(model, request, room, model->piece_count == decoding);
        if (length == 0 ||
            reserved(model, ratio) + future(model, request, 1) > free_pages(model)) {
            if (retracted)
                return;
            refused[refused_count++] = index;
            continue;
        }
        for (uint32_t j = 0; j < refused_count; j++)
            model->requests[refused[j]].overtaken++;
        request->phase = MODEL_PREFILL;
        request->admitted = ++model->admissions;
        request->retracted = false;
        request->overtaken = 0;
        bool ends = ends_prompt(model, index, length);
        take(model, index, length, &room);
        if (!ends)
            return;
    }
}

void plan_model_prompts(struct plan_model *model, double ratio)
{
    uint32_t room = model->limits.chunk_tokens, decoding = model->piece_count;
    for (uint32_t i = 0; i < model->request_count; i++) {
        struct model_request *request = &model->requests[i];
        if (request->phase != MODEL_PREFILL)
            continue;
        uint32_t fit = (request->pages + free_pages(model)) * model->tokens_per_page;
        uint32_t length = piece(model, request, room, true);
        if (request->computed + length > fit)
            length = fit - request->computed;
        if (length == 0)
            return;
        bool ends = ends_prompt(model, i, length);
        take(model, i, length, &room);
        if (!ends)
            return;
        break;
    }
    if (model->retracted == 0)
        admit_in_turn(model, ratio, room, decoding);
}
