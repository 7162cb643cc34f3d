/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events out of a stream of bytes that may be cut anywhere:
 *
 *   : a comment
 *   event: name
 *   data: one line
 *   data: another
 *   (blank line: the event is whole, its data "one line\nanother")
 *
 * Lines end with LF, CRLF or CR. */
#ifndef BATON_NET_SSE_H
#define BATON_NET_SSE_H

#include "base/error.h"

#include <stdbool.h>

/* `name` is "" where the event has none; data ends with a NUL too. Returns false to stop: then, and only
 * then, the splitter may be closed in the callback. */
typedef bool sse_on_event(const char *name, const char *data, size_t length, void *context);

struct sse {
    sse_on_event *event;
    void *context;
    size_t event_max;
    struct sse_text {
        char *bytes;
        size_t length, room;
    } line, data;
    char name[64];
    bool has_data;
    bool after_cr; /* a LF now belongs to the CR before */
    bool begun;    /* the first line, which may have a mark of order, is over */
};

void sse_open(struct sse *sse, size_t event_max, sse_on_event *event, void *context);
void sse_close(struct sse *sse);

/* 0; BATON_AGAIN: the callback stopped it; BATON_EPROTOCOL: an event larger than event_max;
 * BATON_ENOMEM. */
int sse_feed(struct sse *sse, const char *bytes, size_t length);

#endif
