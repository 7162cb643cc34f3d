/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text, written piece by piece into a buffer. Replies are written with this rather than built
 * as jansson values: a streamed token costs a tenth of a microsecond instead of three. Commas are
 * put where they belong. Running out of memory is remembered and told at the end. */
#ifndef BATON_SERVER_JSON_WRITER_H
#define BATON_SERVER_JSON_WRITER_H

#include "model/unicode.h"

struct json_writer {
    struct byte_buffer out;
    bool comma;  /* something of this object or array is there already */
    bool failed; /* out of memory: what is in `out` is not whole */
};

void json_writer_reset(struct json_writer *writer); /* empty, the memory is kept */
void json_writer_free(struct json_writer *writer);

void json_put_raw(struct json_writer *writer, const char *bytes, size_t length);
void json_put_open(struct json_writer *writer, char bracket);   /* { or [ */
void json_put_close(struct json_writer *writer, char bracket);  /* } or ] */
void json_put_key(struct json_writer *writer, const char *key); /* one that needs no escapes */

/* Bytes that are not UTF-8 become U+FFFD: a token need not be whole characters. */
void json_put_view(struct json_writer *writer, struct text_view text);
void json_put_text(struct json_writer *writer, const char *text); /* NULL: null */
void json_put_int(struct json_writer *writer, int64_t number);
void json_put_real(struct json_writer *writer, double number); /* what is no number: null */
void json_put_bool(struct json_writer *writer, bool value);
void json_put_null(struct json_writer *writer);

/* A key and its value. */
void json_put_key_text(struct json_writer *writer, const char *key, const char *text);
void json_put_key_view(struct json_writer *writer, const char *key, struct text_view text);
void json_put_key_int(struct json_writer *writer, const char *key, int64_t number);
void json_put_key_real(struct json_writer *writer, const char *key, double number);
void json_put_key_bool(struct json_writer *writer, const char *key, bool value);
void json_put_key_null(struct json_writer *writer, const char *key);

#endif
