/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of a request's JSON body, read with their types checked. The first thing that is wrong
 * is remembered as a reply for the client, and everything after it reads as if absent: a parser
 * reads all it wants and asks once at the end. A field that is null counts as absent, one that
 * nobody reads does not matter: routers add fields and send nulls for those without a value. */
#ifndef BATON_SERVER_REQUEST_READER_H
#define BATON_SERVER_REQUEST_READER_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* What a client is told. status 0: nothing is wrong. */
struct request_error {
    int status;
    char parameter[64]; /* the field at fault; "" when it is none */
    char text[640];
};

/* Remembers it unless there is one already. `parameter` may be NULL. */
void request_refuse(struct request_error *error, int status, const char *parameter,
                    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* EINVAL and what else is the request's own fault is 400; a full queue or a server that goes away
 * 503, a deadline 504, the rest 500. */
int request_status(int code);

/* The body as an object that the caller decrefs; NULL, with the reason and where it is. */
json_t *request_parse(const char *body, size_t length, struct request_error *error);

struct request_reader {
    const json_t *object;
    struct request_error *error;
};

bool request_has(const struct request_reader *reader,
                 const char *name); /* there and not null */

/* All of these leave *value alone when the field is absent. */
void request_bool(const struct request_reader *reader, const char *name, bool *value);
void request_u32(const struct request_reader *reader, const char *name, uint32_t min,
                 uint32_t max, uint32_t *value);
void request_i64(const struct request_reader *reader, const char *name, int64_t min,
                 int64_t max, int64_t *value);
void request_float(const struct request_reader *reader, const char *name, double min,
                   double max, float *value);
/* NULL when absent. Borrowed from the body; a NUL inside is refused. */
const char *request_string(const struct request_reader *reader, const char *name);
const json_t *request_object(const struct request_reader *reader, const char *name);
const json_t *request_array(const struct request_reader *reader, const char *name);
const json_t *request_any(const struct request_reader *reader, const char *name);

const char *request_type_name(const json_t *value); /* "a string" */

#endif
