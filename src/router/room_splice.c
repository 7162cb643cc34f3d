/* SPDX-License-Identifier: Apache-2.0 */
#include "room_splice.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

int room_splice(const char *body, size_t length, const char *host, int port, uint64_t room,
                char text[ROOM_SPLICE_BYTES], struct iovec pieces[2], struct error err)
{
    size_t begin = 0, end = length;
    char number[16] = "null";
    while (begin < length && is_blank(body[begin]))
        begin++;
    while (end > begin && is_blank(body[end - 1]))
        end--;
    if (end - begin < 2 || body[begin] != '{' || body[end - 1] != '}')
        return error_set(err, BATON_EINVAL, "the body must be a JSON object");
    end--;
    size_t last = end;
    while (is_blank(body[last - 1]))
        last--;
    if (port >= 0)
        snprintf(number, sizeof(number), "%d", port);
    int written = snprintf(
        text, ROOM_SPLICE_BYTES,
        "%s\"bootstrap_host\":\"%s\",\"bootstrap_port\":%s,\"bootstrap_room\":%" PRIu64 "}",
        last == begin + 1 ? "" : ",", host, number, room);
    BATON_ASSERT(written > 0 && written < ROOM_SPLICE_BYTES);
    pieces[0] = (struct iovec){(void *)(uintptr_t)body, end};
    pieces[1] = (struct iovec){text, (size_t)written};
    return BATON_OK;
}
