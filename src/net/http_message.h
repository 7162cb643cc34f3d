/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.x messages as bytes: heads (RFC 9112, sections 2 to 5) and body framing (6, 7). Server and
 * client share it, and it knows nothing of sockets, so that tests and the fuzzer can feed it.
 *
 *   POST /generate HTTP/1.1 CRLF          request line, or status line
 *   Content-Type: application/json CRLF   headers
 *   CRLF
 *   body: Content-Length bytes, or chunks, or (answers only) all until the connection ends
 *
 * Strict where two readers could disagree about where a message ends (lengths given twice or with
 * other characters, a length beside chunks, folded lines, blanks before a colon); lenient where
 * they cannot (a lone LF, blank lines before a request). */
#ifndef BATON_NET_HTTP_MESSAGE_H
#define BATON_NET_HTTP_MESSAGE_H

#include "base/error.h"

#include <stdbool.h>

#define HTTP_HEADERS_MAX 100

struct http_header {
    const char *name, *value;
};

struct http_head {
    char *text;                  /* owned: the head, cut into the strings below */
    const char *method, *target; /* of a request */
    int status;                  /* of an answer */
    const char *reason;
    int minor; /* HTTP/1.minor */
    uint32_t header_count;
    struct http_header headers[HTTP_HEADERS_MAX];
};

/* How long the head at `bytes` is, with its blank line; 0: not whole yet. `scanned`, 0 at first, keeps
 * what was looked at, so that a head that comes byte by byte is not read again each time. */
size_t http_head_find(const char *bytes, size_t length, size_t *scanned);

/* Parses a whole head, as found. 0, or the status to refuse it with, and why in `err`: the head is
 * then empty. */
int http_head_parse_request(struct http_head *head, const char *bytes, size_t length,
                            struct error err);
int http_head_parse_answer(struct http_head *head, const char *bytes, size_t length,
                           struct error err);
void http_head_free(struct http_head *head);

const char *http_head_header(const struct http_head *head, const char *name); /* or NULL */
/* Is `token` in the comma-separated lists of that name? */
bool http_head_lists(const struct http_head *head, const char *name, const char *token);
bool http_head_keeps_alive(const struct http_head *head);

/* Takes %41 and, if asked, + apart in place; false: not an encoding, or a NUL is hidden in it. */
bool http_decode_percent(char *text, bool plus);

/* ---- bodies ------------------------------------------------------------------------------- */

enum http_framing {
    HTTP_FRAMING_NONE,   /* no body */
    HTTP_FRAMING_LENGTH, /* `left` bytes */
    HTTP_FRAMING_CHUNKS,
    HTTP_FRAMING_CLOSE /* until the connection ends */
};

enum http_chunk_state {
    HTTP_CHUNK_SIZE,      /* at the first digit of a size */
    HTTP_CHUNK_DIGITS,    /* among its further digits */
    HTTP_CHUNK_EXTENSION, /* after them, up to LF */
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_DATA_END, /* CR, or LF, after the data */
    HTTP_CHUNK_DATA_LF,
    HTTP_CHUNK_TRAILER,      /* at the start of a line after the last chunk */
    HTTP_CHUNK_TRAILER_LINE, /* within it */
    HTTP_CHUNK_TRAILER_LF    /* the LF of the blank line */
};

struct http_body {
    enum http_framing framing;
    enum http_chunk_state chunk;
    uint64_t left;     /* of the body, or of the chunk */
    uint32_t overhead; /* bytes of extensions and trailers since data came */
    bool done;
};

/* How the body after this head is framed. 0, or the status to refuse it with. */
int http_body_of_request(struct http_body *body, const struct http_head *head,
                         struct error err);
/* head_only: the request was HEAD. */
int http_body_of_answer(struct http_body *body, const struct http_head *head, bool head_only,
                        struct error err);

/* Reads on: returns how many bytes it took (0 only when `length` is 0 or the body is done), negative
 * if they are no body. *data is set to the body bytes among them, or to NULL. */
long http_body_take(struct http_body *body, const char *bytes, size_t length, const char **data,
                    size_t *data_length);

#endif
