/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP messages from strangers. The first byte says how far to cut the rest into pieces and whether it is
 * a request or an answer; whatever comes, nothing may be read outside, and a body cut in pieces must be
 * the body read at once. */
#include "net/http_message.h"

#include <stdlib.h>
#include <string.h>

static size_t body_collect(struct http_body body, const char *bytes, size_t length, size_t step,
                           char *out, bool *broken)
{
    size_t at = 0, total = 0;
    *broken = false;
    while (at < length && !body.done) {
        const char *data;
        size_t data_length, piece = length - at < step ? length - at : step;
        long taken = http_body_take(&body, bytes + at, piece, &data, &data_length);
        if (taken < 0) {
            *broken = true;
            return total;
        }
        BATON_ASSERT(taken > 0 && (size_t)taken <= piece && data_length <= piece);
        if (data_length)
            memcpy(out + total, data, data_length);
        total += data_length;
        at += (size_t)taken;
    }
    return total;
}

static void bodies_compare(struct http_body body, const char *bytes, size_t length, size_t step)
{
    bool broken[2];
    char *whole = malloc(length + 1), *pieces = malloc(length + 1);
    size_t one = body_collect(body, bytes, length, length + 1, whole, &broken[0]);
    size_t many = body_collect(body, bytes, length, step, pieces, &broken[1]);
    BATON_ASSERT(broken[0] == broken[1]);
    BATON_ASSERT(broken[0] || (one == many && !memcmp(whole, pieces, one)));
    free(whole);
    free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[128] = "";
    struct http_head head;
    struct http_body body;
    if (size < 1)
        return 0;
    bool answer = data[0] & 1;
    size_t step = (size_t)(data[0] >> 1) + 1, scanned = 0, length = 0, whole = 0;
    const char *bytes = (const char *)data + 1;
    size--;
    while (!whole && length < size) {
        length = size - length < step ? size : length + step;
        whole = http_head_find(bytes, length, &scanned);
    }
    scanned = 0;
    BATON_ASSERT(whole == http_head_find(bytes, size, &scanned));
    if (!whole)
        return 0;
    int status = answer ? http_head_parse_answer(&head, bytes, whole, ERROR_BUFFER(why))
                        : http_head_parse_request(&head, bytes, whole, ERROR_BUFFER(why));
    BATON_ASSERT(!status || (status >= 400 && *why));
    if (status)
        return 0;
    status = answer ? http_body_of_answer(&body, &head, false, ERROR_BUFFER(why))
                    : http_body_of_request(&body, &head, ERROR_BUFFER(why));
    (void)http_head_keeps_alive(&head);
    if (!status)
        bodies_compare(body, bytes + whole, size - whole, step);
    if (head.target) {
        char *target = strdup(head.target);
        http_decode_percent(target, true);
        free(target);
    }
    http_head_free(&head);
    return 0;
}
