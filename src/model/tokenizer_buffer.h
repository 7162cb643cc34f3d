/* SPDX-License-Identifier: Apache-2.0 */
/* The growing arrays of the tokenizer: bytes, and items of any one size. They only grow, so that
 * a buffer that is used again and again soon stops allocating. */
#ifndef BATON_MODEL_TOKENIZER_BUFFER_H
#define BATON_MODEL_TOKENIZER_BUFFER_H

#include <stddef.h>
#include <stdint.h>

/* All zero is empty. */
struct byte_buffer {
    char *bytes;
    size_t length, capacity;
};

/* Room for `needed` items in all. 0, or ENOMEM with everything as it was. */
int array_reserve(void **items, size_t *capacity, size_t needed, size_t item_size);

int byte_buffer_reserve(struct byte_buffer *buffer, size_t more);
int byte_buffer_append(struct byte_buffer *buffer, const void *bytes, size_t length);
void byte_buffer_free(struct byte_buffer *buffer);

#endif
