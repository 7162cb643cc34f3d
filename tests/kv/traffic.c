/* SPDX-License-Identifier: Apache-2.0 */
/* See traffic.h. A request is a list of segments (a system prompt, a question, an answer, a block of
 * a trace), and token i of segment s is a hash of (s, i).
 *
 * The figures of the made-up conversations are read off the trace: 61 of 100 requests open a
 * conversation; their prompts are log-normal around 5,264 tokens behind a system prompt that all
 * share; the others continue one that was last heard of some hundred requests ago, 15 of 100 of them
 * after an edit; answers have a median of 350 tokens. */
#include "traffic.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEGMENTS_MAX 64u
#define SESSIONS 2048u
#define BLOCK_TOKENS 512u
#define VOCABULARY 128000u

struct segment {
    uint64_t id;
    uint32_t tokens;
};

struct session {
    uint32_t count; /* 0: over */
    struct segment segments[SEGMENTS_MAX];
};

struct traffic {
    struct random_source random;
    FILE *file; /* NULL: made up */
    uint32_t left;
    uint64_t next_id;
    struct session *sessions; /* the last SESSIONS that were heard of, a ring */
    uint32_t newest;
    int32_t *tokens;
};

static struct traffic *traffic_new(uint32_t count)
{
    struct traffic *traffic = calloc(1, sizeof(*traffic));
    traffic->sessions = calloc(SESSIONS, sizeof(*traffic->sessions));
    traffic->tokens = calloc(2 * TRAFFIC_TOKENS_MAX, sizeof(*traffic->tokens));
    traffic->left = count;
    traffic->next_id = 1ull << 40; /* above the hash_ids of traces */
    return traffic;
}

struct traffic *traffic_make(uint64_t seed, uint32_t count)
{
    struct traffic *traffic = traffic_new(count);
    traffic->random.state = seed;
    return traffic;
}

struct traffic *traffic_read(const char *path, uint32_t count)
{
    struct traffic *traffic = traffic_new(count);
    traffic->file = fopen(path, "r");
    if (traffic->file)
        return traffic;
    traffic_free(traffic);
    return NULL;
}

void traffic_free(struct traffic *traffic)
{
    if (traffic->file)
        fclose(traffic->file);
    free(traffic->tokens);
    free(traffic->sessions);
    free(traffic);
}

static uint32_t segments_write(int32_t *tokens, const struct segment *segments, uint32_t count)
{
    uint32_t length = 0;
    for (uint32_t s = 0; s < count; s++) {
        struct random_source source = {segments[s].id * 0xd1342543de82ef95u};
        for (uint32_t i = 0; i < segments[s].tokens; i++)
            tokens[length++] = (int32_t)random_below(&source, VOCABULARY);
    }
    return length;
}

/* ---- made up ----------------------------------------------------------------------------- */

static double random_normal(struct random_source *random)
{
    return sqrt(-2 * log(random_unit(random))) * cos(2 * M_PI * random_unit(random));
}

static uint32_t random_length(struct random_source *random, double median, double sigma,
                              uint32_t least, uint32_t most)
{
    double length = median * exp(sigma * random_normal(random));
    return length < least ? least : length > most ? most : (uint32_t)length;
}

static uint32_t session_tokens(const struct session *session)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < session->count; i++)
        tokens += session->segments[i].tokens;
    return tokens;
}

static void session_add(struct traffic *traffic, struct session *session, uint32_t tokens)
{
    session->segments[session->count++] = (struct segment){traffic->next_id++, tokens};
}

/* Some requests ago, most often a few hundred. */
static const struct session *session_continued(struct traffic *traffic)
{
    uint32_t ago = random_length(&traffic->random, 400, 1.2, 1, SESSIONS - 1);
    const struct session *session = &traffic->sessions[(traffic->newest - ago) % SESSIONS];
    bool full =
        session->count + 2 > SEGMENTS_MAX || session_tokens(session) > TRAFFIC_TOKENS_MAX / 2;
    return session->count && !full ? session : NULL;
}

static void session_next(struct traffic *traffic, struct session *session)
{
    struct random_source *random = &traffic->random;
    const struct session *old =
        random_below(random, 100) < 39 ? session_continued(traffic) : NULL;
    if (!old) {
        session->count = 1;
        session->segments[0] = (struct segment){1, 500};
        session_add(traffic, session, random_length(random, 4764, 1.25, 390, 100000));
        return;
    }
    *session = *old;
    if (random_below(random, 100) < 15 && session->count > 2)
        session->count -= 2; /* the last question is asked in other words */
    session_add(traffic, session, random_length(random, 60, 2.4, 5, 20000));
}

static void request_make(struct traffic *traffic, struct traffic_request *out)
{
    struct session session;
    session_next(traffic, &session);
    uint32_t output = random_length(&traffic->random, 350, 0.8, 3, 2000);
    out->input = segments_write(traffic->tokens, session.segments, session.count);
    session_add(traffic, &session, output);
    out->output =
        segments_write(traffic->tokens + out->input, &session.segments[session.count - 1], 1);
    traffic->sessions[++traffic->newest % SESSIONS] = session;
}

/* ---- from a trace ------------------------------------------------------------------------ */

static bool request_parse(struct traffic *traffic, json_t *line, struct traffic_request *out)
{
    json_int_t input, output;
    json_t *blocks, *block;
    size_t i;
    if (json_unpack(line, "{s:I, s:I, s:o}", "input_length", &input, "output_length", &output,
                    "hash_ids", &blocks))
        return false;
    if (input < 1 || output < 1 || input > TRAFFIC_TOKENS_MAX || output > TRAFFIC_TOKENS_MAX)
        return false;
    out->input = 0;
    json_array_foreach(blocks, i, block)
    {
        uint32_t left = (uint32_t)input - out->input;
        struct segment segment = {(uint64_t)json_integer_value(block) + 1,
                                  left < BLOCK_TOKENS ? left : BLOCK_TOKENS};
        out->input += segments_write(traffic->tokens + out->input, &segment, 1);
    }
    struct segment answer = {traffic->next_id++, (uint32_t)output};
    out->output = segments_write(traffic->tokens + out->input, &answer, 1);
    return out->input > 0;
}

/* The next line that can be used; longer requests than we have room for are left out. */
static bool request_read(struct traffic *traffic, struct traffic_request *out)
{
    json_t *line;
    while ((line = json_loadf(traffic->file, JSON_DISABLE_EOF_CHECK, NULL))) {
        bool usable = request_parse(traffic, line, out);
        json_decref(line);
        if (usable)
            return true;
    }
    return false;
}

bool traffic_next(struct traffic *traffic, struct traffic_request *out)
{
    if (!traffic->left)
        return false;
    traffic->left--;
    out->tokens = traffic->tokens;
    if (traffic->file)
        return request_read(traffic, out);
    request_make(traffic, out);
    return true;
}
