/* SPDX-License-Identifier: Apache-2.0 */
/* See info_peer.h. The question is put by a manager of our own without any memory: the two sides
 * shake hands, tell each other their backends, and the peer chooses, by the same code as for a real
 * receiver. Then the link is given up, and what the peer has seen is a link that came and went.
 *
 * Without memory there is nothing that shm could find in the wrong place, so its answer is that of
 * a decode rank whose pages come from baton_pool_alloc; and layouts are not compared. */
#include "info_peer.h"

#include "base/clock.h"
#include "base/options.h"
#include "transfer/link.h"
#include "transfer/manager.h"
#include "transfer/route.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define ASK_TIMEOUT_NS (15000 * NS_PER_MS)
#define RAILS_WAIT_NS (20000 * NS_PER_MS) /* three tries, each with the device's own patience */

struct ask {
    const struct peer_question *question;
    struct manager *manager;
    char host[64];
    uint16_t port;
    uint32_t peer_rank;
    struct route *route;
    bool up;
    char backend[16]; /* of the link that is up, or was the last time */
    char trouble[WIRE_TEXT_MAX];
    struct peer_answer *answer;
};

/* ---- on the link thread ---- */

static void ask_start(void *arg)
{
    struct ask *ask = arg;
    const struct peer_question *question = ask->question;
    struct route *route = route_find(ask->manager, question->address, question->peer_dp,
                                     ask->peer_rank, question->peer_pp);
    if (!route) {
        snprintf(ask->trouble, sizeof(ask->trouble), "out of memory for a route");
        return;
    }
    ask->route = route;
    if (question->peer_rank)
        route->keep_until_ns = UINT64_MAX; /* the tick asks the bootstrap server and connects */
    else if (!(route->link = link_initiate(ask->manager, ask->host, ask->port, 0, route)))
        snprintf(ask->trouble, sizeof(ask->trouble), "cannot start a connection to %s",
                 question->address);
}

/* What the peer said in CHOICE about one backend: "name: why", joined by "; ". */
static void choice_reason(const struct link *link, const char *name, char *out, size_t size)
{
    char mark[24];
    snprintf(mark, sizeof(mark), "%s: ", name);
    const char *found = strstr(link->choice, mark);
    while (found && found != link->choice && strncmp(found - 2, "; ", 2) != 0)
        found = strstr(found + 1, mark);
    if (!found) {
        snprintf(out, size, "passed over, without a reason that fits");
        return;
    }
    found += strlen(mark);
    size_t length = strlen(found);
    for (uint32_t i = 0; i < link->manager->backend_count; i++) {
        snprintf(mark, sizeof(mark), "; %.15s: ", link->manager->backends[i].ops->name);
        const char *next = strstr(found, mark);
        if (next && (size_t)(next - found) < length)
            length = (size_t)(next - found);
    }
    snprintf(out, size, "%.*s", (int)length, found);
}

static void entry_judge(const struct link *link, const struct backend_entry *entry,
                        bool before_taken, struct peer_verdict *out)
{
    const char *name = entry->ops->name;
    out->kind = VERDICT_HERE;
    const char *avoided = link->route ? route_avoids(link->route, name) : NULL;
    if (entry->ops == link->endpoint->ops) {
        out->kind = VERDICT_TAKEN;
    } else if (avoided) {
        out->kind = VERDICT_TRIED;
        snprintf(out->why, sizeof(out->why), "%s", avoided);
    } else if (!entry->opened) {
        snprintf(out->why, sizeof(out->why), "%s", entry->why);
    } else if (!peer_backend_key(link->peer, name)) {
        out->kind = VERDICT_THERE;
        snprintf(out->why, sizeof(out->why), "it does not offer it");
    } else if (entry->ops->can_reach(link->manager, entry->state, link->peer,
                                     ERROR_BUFFER(out->why)) == BATON_OK) {
        out->kind = before_taken ? VERDICT_THERE : VERDICT_USABLE;
        out->why[0] = '\0';
        if (before_taken)
            choice_reason(link, name, out->why, sizeof(out->why));
    }
}

static const struct backend_entry *entry_find(const struct manager *manager, const char *name,
                                              uint32_t *index)
{
    for (*index = 0; *index < manager->backend_count; ++*index)
        if (strcmp(manager->backends[*index].ops->name, name) == 0)
            return &manager->backends[*index];
    return NULL;
}

static void link_judge(const struct link *link, struct peer_answer *answer)
{
    const struct manager *manager = link->manager;
    baton_backend_info info = {.struct_size = sizeof(info)};
    uint32_t taken = 0, index = 0;
    entry_find(manager, link->endpoint->ops->name, &taken);
    *answer = (struct peer_answer){0};
    snprintf(answer->name, sizeof(answer->name), "%s", link->peer->name);
    answer->same_host = link->peer->same_host;
    answer->same_process = link->peer->same_process;
    answer->tp_size = link->peer->tp_size;
    answer->rails = link->endpoint->rail_count;
    for (uint32_t i = 0; i < manager->backend_count; i++) {
        struct peer_verdict *verdict = &answer->verdicts[answer->verdict_count++];
        snprintf(verdict->backend, sizeof(verdict->backend), "%s",
                 manager->backends[i].ops->name);
        entry_judge(link, &manager->backends[i], i < taken, verdict);
    }
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++) {
        if (entry_find(manager, info.name, &index) ||
            answer->verdict_count == PEER_VERDICTS_MAX)
            continue;
        struct peer_verdict *verdict = &answer->verdicts[answer->verdict_count++];
        *verdict = (struct peer_verdict){.kind = VERDICT_HERE};
        snprintf(verdict->backend, sizeof(verdict->backend), "%s", info.name);
        snprintf(verdict->why, sizeof(verdict->why), "%s",
                 info.available ? "not in the list of backends" : info.why);
    }
}

static uint32_t link_rails_up(const struct link *link)
{
    const struct endpoint *endpoint = link->endpoint;
    return endpoint->ops->rails_up ? endpoint->ops->rails_up(endpoint) : endpoint->rail_count;
}

/* The link was up and is gone: a backend that was given up is passed over from here on. */
static void ask_again(struct ask *ask)
{
    struct route *route = ask->route;
    ask->up = false;
    route->trouble[0] = '\0';
    ask_start(ask);
}

static void ask_look(void *arg)
{
    struct ask *ask = arg;
    struct route *route = ask->route;
    const struct link *link = route ? route->link : NULL;
    if (link && link->state == LINK_READY) {
        if (!ask->up)
            link_judge(link, ask->answer);
        ask->up = true;
        ask->answer->up = link_rails_up(link);
        snprintf(ask->backend, sizeof(ask->backend), "%s", link->endpoint->ops->name);
    }
    if (link || !route || !route->trouble[0])
        return;
    if (ask->up && route_avoids(route, ask->backend))
        ask_again(ask);
    else
        snprintf(ask->trouble, sizeof(ask->trouble), "%s", route->trouble);
}

/* ---- the caller's thread ---- */

static bool ask_is_answered(const struct ask *ask)
{
    return ask->up && ask->answer->up == ask->answer->rails;
}

static void ask_wait(struct ask *ask)
{
    struct timespec pause = {.tv_nsec = 5000000};
    uint64_t until = clock_now_ns() + ASK_TIMEOUT_NS;
    bool was_up = false;
    runtime_call(ask->manager->runtime, ask_start, ask);
    while (!ask_is_answered(ask) && !ask->trouble[0] && clock_now_ns() < until) {
        nanosleep(&pause, NULL);
        runtime_call(ask->manager->runtime, ask_look, ask);
        if (ask->up != was_up)
            until = clock_now_ns() + (ask->up ? RAILS_WAIT_NS : ASK_TIMEOUT_NS);
        was_up = ask->up;
    }
}

/* A bootstrap server stays silent, since HELLO is no whole line; others answer "HTTP". */
static const char *ask_advice(const char *trouble)
{
    bool http = strstr(trouble, "did not finish the handshake") ||
                strstr(trouble, "starts with bytes 48 54 54 50");
    return http ? " (is it a bootstrap server? then --peer-rank names the rank behind it)" : "";
}

static int ask_address(struct ask *ask, struct error err)
{
    const struct peer_question *question = ask->question;
    uint64_t rank = 0;
    int rc = bootstrap_address_parse(question->address, ask->host, sizeof(ask->host),
                                     &ask->port, err);
    if (!rc && question->peer_rank)
        rc = options_number(question->peer_rank, "--peer-rank", 0, UINT32_MAX, &rank, err);
    ask->peer_rank = (uint32_t)rank;
    return rc;
}

int peer_ask(const struct peer_question *question, struct peer_answer *out, struct error err)
{
    struct peer_answer answer = {0};
    struct ask ask = {.question = question, .answer = &answer};
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    baton_manager *manager = NULL;
    int rc = ask_address(&ask, err);
    if (rc)
        return rc;
    options.rank = question->rank;
    options.max_rooms = 1;
    options.backends = question->backends;
    options.ib_device = question->ib_device;
    options.key = question->key;
    options.tls_certificate = question->tls_certificate;
    options.tls_key = question->tls_key;
    options.tls_ca = question->tls_ca;
    rc = baton_manager_open(&options, &manager, err.text, err.size);
    if (rc)
        return rc;
    ask.manager = &manager->m;
    ask_wait(&ask);
    baton_manager_close(manager);
    if (ask.trouble[0])
        return error_set(err, BATON_EPEER, "%s%s", ask.trouble,
                         question->peer_rank ? "" : ask_advice(ask.trouble));
    if (!ask.up)
        return error_set(err, BATON_ETIMEOUT, "%s did not answer within %llu s",
                         question->address,
                         (unsigned long long)(ASK_TIMEOUT_NS / (1000 * NS_PER_MS)));
    *out = answer;
    return BATON_OK;
}

/* ---- telling ---- */

static const char *verdict_word(enum peer_verdict_kind kind)
{
    static const char *const words[] = {[VERDICT_TAKEN] = "taken",
                                        [VERDICT_USABLE] = "would do",
                                        [VERDICT_HERE] = "not from here",
                                        [VERDICT_THERE] = "not from there",
                                        [VERDICT_TRIED] = "tried"};
    return words[kind];
}

static const char *verdict_text(const struct peer_answer *answer,
                                const struct peer_verdict *verdict, char *out, size_t size)
{
    if (verdict->kind == VERDICT_TAKEN && answer->up < answer->rails)
        snprintf(out, size, "the first that both sides can use; %u of %u rails came up",
                 answer->up, answer->rails);
    else if (verdict->kind == VERDICT_TAKEN)
        snprintf(out, size, "the first that both sides can use; %u rail%s", answer->rails,
                 answer->rails == 1 ? "" : "s");
    else if (verdict->kind == VERDICT_TRIED)
        snprintf(out, size, "without success: %s", verdict->why);
    else if (verdict->kind == VERDICT_USABLE)
        snprintf(out, size, "as far as this side can tell, if those before it were not there");
    else
        snprintf(out, size, "%s", verdict->why);
    return out;
}

void peer_print(const struct peer_answer *answer)
{
    char text[320];
    printf("%s, %s\n\n", answer->name,
           answer->same_process ? "this process"
           : answer->same_host  ? "on this host"
                                : "on another host");
    for (uint32_t i = 0; i < answer->verdict_count; i++) {
        const struct peer_verdict *verdict = &answer->verdicts[i];
        printf("  %-14s %-14s %s\n", verdict->backend, verdict_word(verdict->kind),
               verdict_text(answer, verdict, text, sizeof(text)));
    }
    printf("\nshm needs decode's pages from baton_pool_alloc; this assumes that they are.\n");
}

json_t *peer_json(const struct peer_answer *answer)
{
    const char *taken = "";
    char text[320];
    json_t *list = json_array();
    for (uint32_t i = 0; i < answer->verdict_count; i++) {
        const struct peer_verdict *verdict = &answer->verdicts[i];
        if (verdict->kind == VERDICT_TAKEN)
            taken = verdict->backend;
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s}", "name", verdict->backend, "verdict",
                                        verdict_word(verdict->kind), "why",
                                        verdict_text(answer, verdict, text, sizeof(text))));
    }
    return json_pack("{s:s, s:b, s:i, s:s, s:i, s:o}", "peer", answer->name, "same_host",
                     (int)answer->same_host, "tp_size", (int)answer->tp_size, "backend", taken,
                     "rails", (int)answer->rails, "backends", list);
}
