/* SPDX-License-Identifier: Apache-2.0 */
/* Doubling, with every product and sum checked: lengths come from users and files. */
#include "tokenizer_buffer.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

int array_reserve(void **items, size_t *capacity, size_t needed, size_t item_size)
{
    if (needed <= *capacity)
        return BATON_OK;
    size_t limit = SIZE_MAX / 2 / item_size;
    if (needed > limit)
        return BATON_ENOMEM;
    size_t doubled = *capacity < limit / 2 ? *capacity * 2 : limit;
    size_t size = doubled > needed ? doubled : needed;
    if (size < 16)
        size = 16;
    void *grown = realloc(*items, size * item_size);
    if (!grown)
        return BATON_ENOMEM;
    *items = grown;
    *capacity = size;
    return BATON_OK;
}

int byte_buffer_reserve(struct byte_buffer *buffer, size_t more)
{
    if (more > SIZE_MAX - buffer->length)
        return BATON_ENOMEM;
    void *bytes = buffer->bytes;
    int rc = array_reserve(&bytes, &buffer->capacity, buffer->length + more, 1);
    buffer->bytes = bytes;
    return rc;
}

int byte_buffer_append(struct byte_buffer *buffer, const void *bytes, size_t length)
{
    if (!length)
        return BATON_OK;
    int rc = byte_buffer_reserve(buffer, length);
    if (rc)
        return rc;
    memcpy(buffer->bytes + buffer->length, bytes, length);
    buffer->length += length;
    return BATON_OK;
}

void byte_buffer_free(struct byte_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct byte_buffer){0};
}
