/* SPDX-License-Identifier: Apache-2.0 */
/* REGISTER and CHOICE: do the two ranks fit together, and by which backend will the bytes go?
 *
 * The acceptor (prefill) tells its memory first. The initiator (decode) tries every backend from its
 * side and answers with its own memory and those that work. The acceptor checks the layouts, takes the
 * first of them that works from its side too, and says so in CHOICE, with the reason why earlier ones
 * were passed over; or refuses with both values that do not fit. Link thread only. */
#include "base/clock.h"
#include "base/log.h"
#include "link.h"
#include "manager.h"
#include "route.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void link_send_register(struct link *link, const struct wire_backend_key *keys,
                               uint32_t key_count)
{
    struct manager *manager = link->manager;
    struct wire_register *frame = calloc(1, sizeof(*frame));
    if (!frame) {
        link_close(link, BATON_ENOMEM, "out of memory for REGISTER");
        return;
    }
    snprintf(frame->fingerprint, sizeof(frame->fingerprint), "%s", manager->config.fingerprint);
    for (uint32_t i = 0; i < manager->region_count; i++) {
        memcpy(frame->regions[i].name, manager->regions[i].name,
               sizeof(frame->regions[i].name));
        frame->regions[i].kind = manager->regions[i].kind;
        frame->regions[i].layout = manager->regions[i].layout;
    }
    frame->region_count = manager->region_count;
    frame->aux_slots = manager->aux_slots;
    frame->aux_slot_bytes = manager->aux_slot_bytes;
    memcpy(frame->aux_fields, manager->aux_fields, sizeof(frame->aux_fields));
    frame->aux_field_count = manager->aux_field_count;
    memcpy(frame->backends, keys, key_count * sizeof(*keys));
    frame->backend_count = key_count;
    frame->attach = link->unix_fd >= 0;
    frame->verify = manager->config.verify;
    LINK_SEND(link, register, WIRE_REGISTER, frame);
    free(frame);
}

/* Our keys for every backend of our list that this machine has. */
static uint32_t link_export_keys(struct manager *manager, struct wire_backend_key *keys)
{
    uint32_t count = 0;
    char why[160];
    for (uint32_t i = 0; i < manager->backend_count; i++) {
        const struct backend_ops *ops = manager->backends[i].ops;
        struct wire_backend_key *key = &keys[count];
        memset(key, 0, sizeof(*key));
        if (!manager->backends[i].opened)
            continue; /* said when the manager was opened */
        if (ops->available(why, sizeof(why)) != 0 ||
            ops->export_key(manager, manager->backends[i].state, &key->key, &key->key_bytes,
                            ERROR_BUFFER(why)) != BATON_OK) {
            LOG_INFO(link, "backend %s is not offered: %s", ops->name, why);
            continue;
        }
        snprintf(key->name, sizeof(key->name), "%s", ops->name);
        count++;
    }
    return count;
}

static void link_free_keys(struct wire_backend_key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        free(keys[i].key);
}

static struct backend_entry *link_listed(struct manager *manager, const char *name)
{
    for (uint32_t i = 0; i < manager->backend_count; i++)
        if (manager->backends[i].opened && strcmp(manager->backends[i].ops->name, name) == 0)
            return &manager->backends[i];
    return NULL;
}

static bool link_offers(const struct wire_register *memory, const char *name)
{
    for (uint32_t i = 0; i < memory->backend_count; i++)
        if (strcmp(memory->backends[i].name, name) == 0)
            return true;
    return false;
}

static bool link_use_backend(struct link *link, const char *name, struct error err)
{
    struct manager *manager = link->manager;
    const struct backend_entry *entry = link_listed(manager, name);
    if (!entry) {
        error_set(err, BATON_EUNREACHABLE, "backend %s is not in our list", name);
        return false;
    }
    struct endpoint *endpoint = calloc(1, sizeof(*endpoint));
    if (!endpoint) {
        error_set(err, BATON_ENOMEM, "out of memory for an endpoint");
        return false;
    }
    *endpoint = (struct endpoint){.ops = entry->ops,
                                  .references = 1,
                                  .manager = manager,
                                  .opened = entry->state,
                                  .peer = peer_hold(link->peer),
                                  .link = link,
                                  .fault = entry->fault};
    if (endpoint->ops->connect(endpoint, err) != BATON_OK) {
        peer_release(endpoint->peer);
        free(endpoint);
        return false;
    }
    link->endpoint = endpoint;
    return true;
}

static void link_ready(struct link *link)
{
    struct manager *manager = link->manager;
    link->state = LINK_READY;
    atomic_fetch_add(&manager->links_up, 1);
    if (link->endpoint->ops != manager->backends[0].ops &&
        !(manager->backends[0].ops == &backend_loopback && manager->backend_count > 1 &&
          link->endpoint->ops == manager->backends[1].ops)) {
        atomic_fetch_add(&manager->fallbacks, 1);
        LOG_INFO(link, "peer %s gets %s: %s", link->peer->name, link->endpoint->ops->name,
                 link->choice);
    }
    LOG_INFO(link, "link with %s is up over %s, %u rails", link->peer->name,
             link->endpoint->ops->name, link->endpoint->rail_count);
}

/* Why the two ranks cannot work together, if so. The acceptor is the source. */
static int link_check_memory(struct link *link, struct error err)
{
    struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    if (manager->config.fingerprint[0] && theirs->fingerprint[0] &&
        strcmp(manager->config.fingerprint, theirs->fingerprint) != 0)
        return error_set(err, BATON_ELAYOUT,
                         "the model differs: this rank has fingerprint %s, the peer %s",
                         manager->config.fingerprint, theirs->fingerprint);
    for (uint32_t i = 0; i < theirs->region_count; i++) {
        const struct wire_region *dst = &theirs->regions[i];
        int mine = i == 0 ? 0 : manager_region_named(manager, dst->name);
        if (mine < 0 || (uint32_t)mine >= manager->region_count)
            return error_set(err, BATON_ELAYOUT,
                             "the peer has a region '%s' that this rank lacks", dst->name);
        char why[256];
        if (layout_match(&manager->regions[mine].layout, &dst->layout, ERROR_BUFFER(why)) !=
            BATON_OK)
            return error_set(err, BATON_ELAYOUT, "region '%s': %s", dst->name, why);
    }
    return aux_map_make(manager, theirs, &link->aux_map, &link->aux_map_count, err);
}

/* The same from the initiator's side, whose memory is the destination. */
static int link_check_peer_source(struct link *link, struct error err)
{
    const struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    for (uint32_t i = 0; i < manager->region_count; i++) {
        const struct region *mine = &manager->regions[i];
        const struct layout *src =
            i == 0 && theirs->region_count ? &theirs->regions[0].layout : NULL;
        for (uint32_t k = 1; i > 0 && k < theirs->region_count; k++)
            if (strcmp(theirs->regions[k].name, mine->name) == 0)
                src = &theirs->regions[k].layout;
        if (!src)
            return error_set(err, BATON_ELAYOUT, "it has no region '%s'", mine->name);
        if (layout_match(src, &mine->layout, err) != BATON_OK)
            return BATON_ELAYOUT;
    }
    return BATON_OK;
}

static void link_refuse(struct link *link, int code, const char *text)
{
    struct wire_choice choice = {.code = code, .text = {text, (uint32_t)strlen(text)}};
    atomic_fetch_add(&link->manager->links_refused, 1);
    manager_note_refusal(link->manager, text);
    LOG_WARNING(link, "peer %s is refused: %s", link->peer->name, text);
    link->state = LINK_REFUSED; /* the peer ends it, or the time for the handshake does */
    LINK_SEND(link, choice, WIRE_CHOICE, &choice);
}

/* Acceptor, with everything known: the first backend of the initiator's list that works here. */
void link_choose(struct link *link)
{
    struct manager *manager = link->manager;
    const struct wire_register *theirs = &link->peer->memory;
    char text[WIRE_TEXT_MAX] = "", why[256];
    int code = link_check_memory(link, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        link_refuse(link, code, why);
        return;
    }
    size_t used = 0;
    for (uint32_t i = 0; i < theirs->backend_count; i++) {
        const char *name = theirs->backends[i].name;
        const struct backend_entry *entry = link_listed(manager, name);
        if (!entry)
            snprintf(why, sizeof(why), "not in the prefill side's list");
        else if (entry->ops->can_reach(manager, entry->state, link->peer, ERROR_BUFFER(why)) ==
                     BATON_OK &&
                 link_use_backend(link, name, ERROR_BUFFER(why))) {
            snprintf(link->choice, sizeof(link->choice), "%s", used ? text : "first choice");
            struct wire_choice choice = {.backend = {name, (uint32_t)strlen(name)},
                                         .text = {text, (uint32_t)strlen(text)}};
            LINK_SEND(link, choice, WIRE_CHOICE, &choice);
            if (link->state == LINK_DEAD)
                return;
            link_ready(link);
            sender_resume_doubts(link);
            return;
        }
        int more =
            snprintf(text + used, sizeof(text) - used, "%s%s: %s", used ? "; " : "", name, why);
        if (more > 0)
            used += (size_t)more < sizeof(text) - used ? (size_t)more : sizeof(text) - used - 1;
    }
    link_refuse(link, BATON_EUNREACHABLE,
                used ? text : "the two ranks have no backend in common");
}

/* Remembers why a backend was passed over: "name: why", joined. */
static void link_pass_over(struct link *link, const char *name, const char *why)
{
    size_t used = strlen(link->choice);
    snprintf(link->choice + used, sizeof(link->choice) - used, "%s%s%s%s", used ? "; " : "",
             name, *name ? ": " : "", why);
}

/* Initiator: our memory, and of our backends those that work from here. */
static void link_answer(struct link *link)
{
    struct manager *manager = link->manager;
    struct wire_backend_key keys[WIRE_BACKENDS_MAX], usable[WIRE_BACKENDS_MAX];
    const char *avoided;
    char why[256];
    link_attach(link);
    uint32_t count = link_export_keys(manager, keys), usable_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct backend_entry *entry = link_listed(manager, keys[i].name);
        if (!link_offers(&link->peer->memory, keys[i].name))
            link_pass_over(link, keys[i].name, "the prefill side does not offer it");
        else if (link->route && (avoided = route_avoids(link->route, keys[i].name)))
            link_pass_over(link, keys[i].name, avoided);
        else if (entry->ops->can_reach(manager, entry->state, link->peer, ERROR_BUFFER(why)) !=
                 BATON_OK)
            link_pass_over(link, keys[i].name, why);
        else
            usable[usable_count++] = keys[i];
    }
    link_send_register(link, usable, usable_count);
    link_free_keys(keys, count);
}

void link_on_register(struct link *link, const struct wire_header *header,
                      const uint8_t *payload)
{
    struct manager *manager = link->manager;
    char why[256];
    if (link->state != LINK_REGISTER || link->registered) {
        link_close(link, BATON_EPROTOCOL, "REGISTER came twice");
        return;
    }
    link->registered = true;
    int code =
        wire_register_get(payload, header->length, &link->peer->memory, ERROR_BUFFER(why));
    if (code != BATON_OK) {
        atomic_fetch_add(&manager->frames_bad, 1);
        link_close(link, code, "bad REGISTER from %s: %s", link->peer->name, why);
        return;
    }
    if (link->initiator) {
        link_answer(link);
        return;
    }
    if (!link->peer->memory.attach) {
        link_choose(link);
        return;
    }
    link->state = LINK_ATTACH;
    link_claim_attachment(link);
}

/* Initiator: nothing will come of this link. The peer may have senders for the rooms that wait for it;
 * without a word they would wait for their timeout. */
static void link_part(struct link *link, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void link_part(struct link *link, int code, const char *format, ...)
{
    char text[WIRE_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    for (struct leg *leg = link->route ? link->route->waiting : NULL; leg;
         leg = leg->route_next) {
        struct wire_abort abort = {.room = leg->room->id,
                                   .ticket = leg->ticket,
                                   .code = code,
                                   .text = {text, (uint32_t)strlen(text)}};
        LINK_SEND(link, abort, WIRE_ABORT, &abort);
        if (link->state == LINK_DEAD)
            return;
    }
    link_close(link, code, "%s", text);
}

void link_on_choice(struct link *link, const struct wire_header *header, const uint8_t *payload)
{
    struct wire_choice choice;
    char name[16], why[256], text[WIRE_TEXT_MAX];
    if (!link->initiator || link->state != LINK_REGISTER ||
        wire_choice_get(payload, header->length, &choice, ERROR_NONE) != BATON_OK) {
        atomic_fetch_add(&link->manager->frames_bad, 1);
        link_close(link, BATON_EPROTOCOL, "bad or unexpected CHOICE from %s", link->peer->name);
        return;
    }
    wire_string_copy(choice.backend, name, sizeof(name));
    wire_string_copy(choice.text, text, sizeof(text));
    if (text[0])
        link_pass_over(link, "", text);
    if (!link->choice[0])
        snprintf(link->choice, sizeof(link->choice), "first choice");
    if (choice.code != 0) {
        atomic_fetch_add(&link->manager->links_refused, 1);
        link_part(link, choice.code, "%s refused the link: %s", link->peer->name, text);
        return;
    }
    /* The acceptor has checked this; its word is not enough to plan copies with. */
    if (link_check_peer_source(link, ERROR_BUFFER(why)) != BATON_OK) {
        link_part(link, BATON_ELAYOUT, "%s: %s", link->peer->name, why);
        return;
    }
    if (!link_use_backend(link, name, ERROR_BUFFER(why))) {
        link_part(link, BATON_EUNREACHABLE, "%s chose backend %s: %s", link->peer->name, name,
                  why);
        return;
    }
    link_ready(link);
    if (link->endpoint->ops->capabilities & BACKEND_STREAMS) {
        char host[64];
        unsigned port = 0;
        const char *colon = strrchr(link->connection->name, ':');
        const char *begin = link->connection->name + (link->connection->name[0] == '[');
        int length = (int)(colon - begin) - (link->connection->name[0] == '[');
        snprintf(host, sizeof(host), "%.*s", length, begin);
        port = (unsigned)strtoul(colon + 1, NULL, 10);
        struct link *self = link;
        link_open_streams(self, host, (uint16_t)port);
        if (link->state == LINK_DEAD)
            return;
    }
    if (link->route)
        route_link_up(link->route);
}

void link_greet(struct link *link)
{
    struct wire_backend_key keys[WIRE_BACKENDS_MAX];
    uint32_t count = link_export_keys(link->manager, keys);
    link_send_register(link, keys, count);
    link_free_keys(keys, count);
}
