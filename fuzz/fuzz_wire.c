/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a peer sends, a decoder must either refuse it or understand all of it. The first byte
 * of the input chooses what the rest is:
 *
 *   1 .. 16   the payload of a frame of that type
 *   0         a header
 *   others    a connection: frames one after the other, DATA with its bytes behind it
 *
 * A frame that is understood is encoded again and must come out byte for byte (see wire_recode.h).
 * The payload is copied to a block of its own size, so that one byte too far is seen. */
#include "../tests/transfer/wire_recode.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_wire: %s\n", what);
    abort();
}

/* A refusal must say why. */
static void require_reason(const char *text)
{
    require(text[0] != '\0' && wire_text_valid(text, strlen(text)), "refused without a reason");
}

/* Returns whether the frame was understood. */
static int frame_try(struct wire_header header, const uint8_t *payload, size_t length)
{
    uint8_t *block = malloc(length ? length : 1);
    require(block != NULL, "out of memory");
    if (length)
        memcpy(block, payload, length);

    struct wire_buffer again = {0};
    char text[512] = "";
    int rc = wire_recode(header, block, length, &again, ERROR_BUFFER(text));
    if (rc) {
        require(rc == BATON_EPROTOCOL, "refused with another code than EPROTOCOL");
        require_reason(text);
    } else {
        struct wire_header seen;
        require(!again.failed, "understood, but cannot be encoded");
        require(again.size == WIRE_HEADER_BYTES + length, "encodes to another length");
        require(!wire_header_get(again.bytes, &seen, ERROR_NONE), "encodes to a bad header");
        require(seen.type == header.type && seen.length == length &&
                    seen.sequence == header.sequence && seen.epoch == header.epoch,
                "encodes to another header");
        require(!length || !memcmp(again.bytes + WIRE_HEADER_BYTES, payload, length),
                "encodes to other bytes");
    }
    wire_buffer_free(&again);
    free(block);
    return !rc;
}

static int header_try(const uint8_t *data, size_t size, struct wire_header *header)
{
    if (size < WIRE_HEADER_BYTES)
        return 0;
    char text[512] = "";
    if (wire_header_get(data, header, ERROR_BUFFER(text))) {
        require_reason(text);
        return 0;
    }
    struct wire_buffer again = {0};
    wire_header_put(&again, header);
    require(again.size == WIRE_HEADER_BYTES && !memcmp(again.bytes, data, WIRE_HEADER_BYTES),
            "header encodes to other bytes");
    wire_buffer_free(&again);
    return 1;
}

static void connection_try(const uint8_t *data, size_t size)
{
    struct wire_header header;
    while (header_try(data, size, &header)) {
        data += WIRE_HEADER_BYTES;
        size -= WIRE_HEADER_BYTES;
        if (header.length > size || !frame_try(header, data, header.length))
            return;
        uint64_t bytes = 0;
        if (header.type == WIRE_DATA) {
            struct wire_data frame;
            require(!wire_data_get(data, header.length, &frame, ERROR_NONE), "not twice alike");
            bytes = frame.bytes;
        }
        data += header.length;
        size -= header.length;
        if (bytes > size)
            return;
        data += bytes;
        size -= bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct wire_header header = {.type = data[0], .sequence = 7, .epoch = 0x1122334455667788u};
    if (data[0] == 0)
        header_try(data + 1, size - 1, &header);
    else if (data[0] <= WIRE_SIGNAL)
        frame_try(header, data + 1, size - 1);
    else
        connection_try(data + 1, size - 1);
    return 0;
}
