/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever comes to the bootstrap port, every request gets one well-formed answer; and
 * whatever a server answers, the client's decoders refuse it or understand all of it. The
 * input is text, so that the corpus can be read and written by hand: messages separated by
 * lines of "---", each
 *
 *   PUT /route          a request: method and URI, on the following lines the body
 *   {"attn_tp_size": ...
 *
 *   ANSWER              a server's answer: the following lines go to each of the decoders
 *   ADDRESS host:port   an address, and on the following lines a list of allowed ones
 *   LATER 30            so many seconds pass
 *
 * All requests of one input go to the same table. A question about processes that may still
 * live is answered by a rule that depends on nothing but the input. */
#include "transfer/bootstrap_table.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_bootstrap: %s\n", what);
    abort();
}

static void decoders_try(const char *body, size_t size)
{
    struct bootstrap_topology topology;
    struct bootstrap_rank rank;
    uint32_t dp_rank;
    char text[256] = "";
    int rc = bootstrap_topology_decode(body, size, &topology, ERROR_BUFFER(text));
    require(rc == BATON_OK
                ? topology.tp_size > 0 && topology.pp_size > 0 && topology.dp_size > 0
                : rc == BATON_EPROTOCOL && *text,
            "a topology was neither understood nor refused with a reason");
    *text = '\0';
    rc = bootstrap_rank_decode(body, size, &rank, ERROR_BUFFER(text));
    require(rc == BATON_OK ? *rank.rank_ip && rank.rank_port : rc == BATON_EPROTOCOL && *text,
            "a rank was neither understood nor refused with a reason");
    *text = '\0';
    rc = bootstrap_dp_rank_decode(body, size, 7, &dp_rank, ERROR_BUFFER(text));
    require(rc == BATON_OK || *text, "a dp rank was refused without a reason");
}

static void address_try(const char *addr, const char *allow)
{
    char host[64], text[512] = "";
    uint16_t port = 0;
    int rc = bootstrap_address_parse(addr, host, sizeof(host), &port, ERROR_BUFFER(text));
    require(rc == BATON_OK ? *host && port : rc == BATON_EINVAL && *text,
            "an address was neither taken apart nor refused with a reason");
    int allowed = bootstrap_address_allowed(addr, allow, ERROR_BUFFER(text));
    require(allowed != BATON_OK || rc == BATON_OK, "a malformed address was allowed");
}

/* What the server tells, our own client must be able to read. */
static void reply_check(const struct bootstrap_request *request,
                        const struct bootstrap_reply *reply)
{
    static const int statuses[] = {200, 400, 404, 405, 409, 503};
    bool known = false;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        known |= reply->status == statuses[i];
    require(known && reply->body && reply->content_type, "a reply is not well-formed");
    require((reply->status == 405) == (reply->allow != NULL), "405 goes with Allow");
    if (reply->status != 200 || strcmp(request->method, "GET") != 0 || *reply->body != '{')
        return;
    struct bootstrap_topology topology;
    struct bootstrap_rank rank;
    size_t size = strlen(reply->body);
    require(bootstrap_topology_decode(reply->body, size, &topology, ERROR_NONE) == BATON_OK ||
                bootstrap_rank_decode(reply->body, size, &rank, ERROR_NONE) == BATON_OK,
            "our client cannot read our server's reply");
}

static void request_try(struct bootstrap_table *table, const struct bootstrap_request *request)
{
    struct bootstrap_reply reply;
    struct bootstrap_pending *pending = bootstrap_table_handle(table, request, &reply);
    if (pending) {
        int64_t count = bootstrap_pending_count(pending);
        require(count > 0, "a question about nobody");
        for (uint32_t i = 0; i < count; i++)
            require(*bootstrap_pending_endpoint(pending, i)->ip != '\0', "nowhere to ask");
        int64_t answer = (int64_t)(request->body_size % 4) - 2;
        bootstrap_pending_finish(table, pending, answer < count ? answer : 0, &reply);
    }
    reply_check(request, &reply);
    bootstrap_reply_free(&reply);
}

/* The body on a heap block of exactly its size, so that one byte too far is seen. */
static void message_try(struct bootstrap_table *table, char *head, const char *body,
                        size_t body_size)
{
    char *space = strchr(head, ' ');
    const char *uri = space ? space + 1 : "";
    if (space)
        *space = '\0';
    char *block = malloc(body_size ? body_size : 1);
    require(block != NULL, "out of memory");
    memcpy(block, body, body_size);
    struct bootstrap_request request = {head, uri, block, body_size};
    if (strcmp(head, "ANSWER") == 0)
        decoders_try(block, body_size);
    else if (strcmp(head, "ADDRESS") == 0)
        address_try(uri, body); /* ends with the NUL that main put there */
    else if (strcmp(head, "LATER") == 0)
        clock_advance_ns((uint64_t)(atoi(uri) & 0xff) * 1000 * NS_PER_MS);
    else
        request_try(table, &request);
    free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char separator[] = "\n---\n";
    struct bootstrap_table *table = bootstrap_table_new(8);
    char *text = malloc(size + 1);
    require(table && text, "out of memory");
    baton_log_level(0);
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *message = text, *end = text + size; message && message <= end;) {
        char *next = memmem(message, (size_t)(end - message), separator, sizeof(separator) - 1);
        char *stop = next ? next : end;
        *stop = '\0';
        char *line_end = memchr(message, '\n', (size_t)(stop - message));
        char *body = line_end ? line_end + 1 : stop;
        if (line_end)
            *line_end = '\0';
        message_try(table, message, body, (size_t)(stop - body));
        message = next ? next + sizeof(separator) - 1 : NULL;
    }
    free(text);
    bootstrap_table_free(table);
    return 0;
}
