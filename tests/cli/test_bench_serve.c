/* SPDX-License-Identifier: Apache-2.0 */
/* `baton bench serve` against a server of this file that makes up tokens: every count in its report must be
 * what the server saw. No time is asserted. */
#include "net/http_server.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum fault { FAULT_NONE, FAULT_STATUS, FAULT_CUT, FAULT_EVENT, FAULT_SHORT };

/* One loop: what it writes is read when the server is closed. */
static struct seen {
    uint32_t requests, running, running_most, left;
    uint64_t prompt_tokens, tokens;
    uint32_t fault_every;
    enum fault fault;
    uint32_t faults;
    bool with_key, wrong_key, wrong_model;
    uint64_t first_tokens[64]; /* of each prompt: the sum of its first 16 ids */
} seen;

struct stream {
    struct http_exchange *exchange;
    struct http_timer *timer;
    uint32_t sent, wanted, prompt;
    enum fault fault;
    char kind; /* g, c or m (messages) */
};

static void stream_left(struct http_exchange *exchange, void *context)
{
    struct stream *stream = context;
    (void)exchange;
    http_timer_cancel(stream->timer);
    seen.running--;
    seen.left++;
    free(stream);
}

static void event_write(struct stream *stream, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    http_exchange_stream_write(stream->exchange, text, (size_t)length);
}

static void token_write(struct stream *stream)
{
    stream->sent++;
    seen.tokens++;
    if (stream->kind == 'g')
        event_write(stream,
                    "data: {\"text\": \"x\", \"meta_info\": {\"completion_tokens\": %u, "
                    "\"prompt_tokens\": %u}}\n\n",
                    stream->sent, stream->prompt);
    else if (stream->kind == 'c')
        event_write(stream, "data: {\"choices\": [{\"text\": \"x\"}]}\n\n");
    else
        event_write(stream, ": comment\n\ndata: {\"choices\": [{\"delta\": {\"content\": "
                            "\"x\"}}]}\n\n");
}

static void stream_finish(struct stream *stream)
{
    if (stream->fault == FAULT_CUT) {
        http_exchange_cut(stream->exchange);
    } else {
        if (stream->fault == FAULT_EVENT)
            event_write(stream, "data: {\"error\": {\"message\": \"lost the cache\"}}\n\n");
        if (stream->kind != 'g')
            event_write(stream,
                        "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": %u, "
                        "\"completion_tokens\": %u}}\n\n",
                        stream->prompt, stream->sent);
        event_write(stream, "data: [DONE]\n\n");
        http_exchange_stream_end(stream->exchange);
    }
    seen.running--;
    free(stream);
}

static void stream_step(void *context)
{
    struct stream *stream = context;
    bool faulty = stream->fault != FAULT_NONE && stream->sent * 2 >= stream->wanted;
    if (stream->sent == stream->wanted || faulty) {
        stream_finish(stream);
        return;
    }
    token_write(stream);
    stream->timer =
        http_loop_after(http_exchange_loop(stream->exchange), 1, stream_step, stream);
}

static uint32_t words_of(const char *text)
{
    uint32_t count = *text ? 1 : 0;
    for (; *text; text++)
        count += *text == ' ';
    return count;
}

/* Lengths out of the body, and what all prompts may have in common. */
static void body_read(struct stream *stream, const json_t *body)
{
    const json_t *sampling = json_object_get(body, "sampling_params");
    const json_t *ids = json_object_get(body, stream->kind == 'g' ? "input_ids" : "prompt");
    const json_t *message = json_array_get(json_object_get(body, "messages"), 0);
    const json_t *text = stream->kind == 'm' ? json_object_get(message, "content") : ids;
    assert_true(json_is_true(json_object_get(body, "stream")));
    stream->wanted = (uint32_t)json_integer_value(
        stream->kind == 'g' ? json_object_get(sampling, "max_new_tokens")
                            : json_object_get(body, "max_tokens"));
    stream->prompt =
        json_is_array(ids) ? (uint32_t)json_array_size(ids) : words_of(json_string_value(text));
    for (uint32_t i = 0; i < 16 && seen.requests < 64; i++)
        seen.first_tokens[seen.requests] +=
            (uint64_t)json_integer_value(json_array_get(ids, i)) * (i + 1);
    const char *model = json_string_value(json_object_get(body, "model"));
    if (stream->kind != 'g' && (!model || strcmp(model, "tiny")))
        seen.wrong_model = true;
}

static void generate(struct http_exchange *exchange, char kind)
{
    size_t length;
    const char *text = http_exchange_body(exchange, &length);
    const char *key = http_exchange_header(exchange, "Authorization");
    json_t *body = json_loadb(text, length, 0, NULL);
    struct stream *stream = calloc(1, sizeof(*stream));
    *stream = (struct stream){.exchange = exchange, .kind = kind};
    body_read(stream, body);
    json_decref(body);
    seen.requests++;
    if (seen.with_key && (!key || strcmp(key, "Bearer sesame")))
        seen.wrong_key = true;
    if (seen.fault_every && seen.requests % seen.fault_every == 0) {
        stream->fault = seen.fault;
        seen.faults++;
    }
    if (stream->fault == FAULT_STATUS) {
        http_exchange_reply_error(exchange, 503, "overloaded", NULL, "queue is full");
        free(stream);
        return;
    }
    if (stream->fault == FAULT_NONE || stream->fault == FAULT_SHORT)
        seen.prompt_tokens += stream->prompt;
    seen.running++;
    if (seen.running > seen.running_most)
        seen.running_most = seen.running;
    http_exchange_watch(exchange, stream_left, NULL, stream);
    http_exchange_stream_begin(exchange, 200, "text/event-stream");
    stream_step(stream);
}

static void handle(struct http_exchange *exchange, void *context)
{
    static const char models[] = "{\"object\": \"list\", \"data\": [{\"id\": \"tiny\"}]}";
    const char *path = http_exchange_path(exchange);
    (void)context;
    if (!strcmp(path, "/v1/models"))
        http_exchange_reply(exchange, 200, "application/json", models, sizeof(models) - 1);
    else if (!strcmp(path, "/generate"))
        generate(exchange, 'g');
    else if (!strcmp(path, "/v1/completions"))
        generate(exchange, 'c');
    else if (!strcmp(path, "/v1/chat/completions"))
        generate(exchange, 'm');
    else
        http_exchange_reply_error(exchange, 404, "not_found", NULL, "no such path");
}

/* ---- the program -------------------------------------------------------------------------- */

static int setup(void **state)
{
    (void)state;
    seen = (struct seen){0};
    return 0;
}

/* The report. The server lives only meanwhile: before, faults may be set, and after, what it saw may be
 * read. `status` is the program's. */
static json_t *bench(const char *arguments, int status)
{
    static bool again;
    char command[1024];
    char text[256] = "";
    struct http_server_options options = {.host = "127.0.0.1", .loops = 1, .handler = handle};
    struct http_server *server;
    const char *baton = getenv("BATON");
    assert_non_null(baton);
    if (http_server_open(&options, &server, ERROR_BUFFER(text)) != BATON_OK)
        fail_msg("%s", text);
    if (again) /* looking for leaks takes many seconds; the first run has done it */
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    again = true;
    snprintf(command, sizeof(command),
             "%s bench serve --url http://127.0.0.1:%u/ --json - --quiet %s 2>/dev/null", baton,
             http_server_port(server), arguments);
    FILE *out = popen(command, "r");
    json_t *report = json_loadf(out, 0, NULL);
    int ended = pclose(out);
    http_server_close(server);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), status);
    return report;
}

static json_int_t number(const json_t *report, const char *name)
{
    const json_t *value = json_object_get(report, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* mean, p50 .. of a series make sense, and it has so many values. */
static void expect_figures(const json_t *report, const char *name, json_int_t count)
{
    const json_t *figures = json_object_get(report, name);
    assert_int_equal(number(figures, "count"), count);
    double p50 = json_real_value(json_object_get(figures, "p50"));
    double p90 = json_real_value(json_object_get(figures, "p90"));
    double p99 = json_real_value(json_object_get(figures, "p99"));
    double max = json_real_value(json_object_get(figures, "max"));
    assert_true(0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= max);
}

static void expect_counts(const json_t *report, json_int_t completed, json_int_t errors)
{
    assert_int_equal(number(report, "requests"), completed + errors);
    assert_int_equal(number(report, "completed"), completed);
    assert_int_equal(number(report, "errors"), errors);
    expect_figures(report, "ttft_ms", completed);
    expect_figures(report, "e2e_ms", completed);
    double seconds = json_real_value(json_object_get(report, "seconds"));
    double rate = json_real_value(json_object_get(report, "generated_tokens_per_second"));
    double tokens = (double)number(report, "generated_tokens");
    assert_true(rate * seconds / tokens > 0.999 && rate * seconds / tokens < 1.001);
}

static void test_closed_loop(void **state)
{
    (void)state;
    json_t *report =
        bench("--concurrency 4 --requests 40 --input-tokens 100 --output-tokens 10 "
              "--warmup 0 --slo-ttft 100000",
              0);
    expect_counts(report, 40, 0);
    assert_int_equal(seen.requests, 40);
    assert_int_equal(seen.running_most, 4);
    assert_int_equal(number(report, "prompt_tokens"), 4000);
    assert_int_equal(number(report, "generated_tokens"), 400);
    assert_int_equal(number(report, "good"), 40);
    expect_figures(report, "tpot_ms", 40);
    expect_figures(report, "itl_ms", 360);
    json_decref(report);
}

static void test_open_loop_with_different_lengths(void **state)
{
    (void)state;
    json_t *report = bench("--rate 500 --requests 60 --input-tokens 200 --output-tokens 20 "
                           "--length-percent 10 --warmup 3",
                           0);
    expect_counts(report, 60, 0);
    assert_int_equal(seen.requests, 63);
    assert_true(number(report, "generated_tokens") < (json_int_t)seen.tokens); /* warm-up */
    assert_int_equal(number(report, "shorter"), 0);
    json_decref(report);
}

static void test_openai_endpoints(void **state)
{
    static const char *const endpoints[] = {"completions", "chat"};
    for (int i = 0; i < 2; i++) {
        char arguments[256];
        if (i)
            setup(state);
        seen.with_key = true;
        snprintf(arguments, sizeof(arguments),
                 "--endpoint %s --concurrency 3 --requests 12 --input-tokens 30 "
                 "--output-tokens 5 --warmup 0 --api-key sesame",
                 endpoints[i]);
        json_t *report = bench(arguments, 0);
        expect_counts(report, 12, 0);
        assert_int_equal(number(report, "prompt_tokens"), seen.prompt_tokens);
        assert_int_equal(seen.prompt_tokens, 12 * 30);
        assert_int_equal(number(report, "generated_tokens"), 60);
        expect_figures(report, "itl_ms", 48);
        assert_false(seen.wrong_key);
        assert_false(seen.wrong_model);
        json_decref(report);
    }
}

static void test_errors_are_counted_by_reason(void **state)
{
    static const struct {
        enum fault fault;
        const char *reason, *text;
    } cases[] = {{FAULT_STATUS, "HTTP 503", "queue is full"},
                 {FAULT_CUT, "connection broken", "in the middle of its answer"},
                 {FAULT_EVENT, "error in the stream", "lost the cache"}};
    for (int i = 0; i < 3; i++) {
        if (i)
            setup(state);
        seen.fault_every = 5;
        seen.fault = cases[i].fault;
        json_t *report = bench("--requests 20 --concurrency 2 --warmup 0 --output-tokens 6", 0);
        expect_counts(report, 16, 4);
        assert_int_equal(seen.faults, 4);
        const json_t *reasons = json_object_get(report, "error_reasons");
        assert_int_equal(json_array_size(reasons), 1);
        const json_t *reason = json_array_get(reasons, 0);
        assert_string_equal(json_string_value(json_object_get(reason, "reason")),
                            cases[i].reason);
        assert_int_equal(number(reason, "count"), 4);
        assert_non_null(
            strstr(json_string_value(json_object_get(reason, "first")), cases[i].text));
        assert_int_equal(number(report, "generated_tokens"), 16 * 6);
        json_decref(report);
    }
}

static void test_short_answers_are_told(void **state)
{
    (void)state;
    seen.fault_every = 2;
    seen.fault = FAULT_SHORT;
    json_t *report = bench("--requests 10 --warmup 0 --output-tokens 6", 0);
    expect_counts(report, 10, 0);
    assert_int_equal(number(report, "shorter"), 5);
    assert_int_equal(number(report, "generated_tokens"), 5 * 6 + 5 * 3);
    json_decref(report);
}

static void test_prompts_share_what_they_should(void **state)
{
    json_t *report =
        bench("--requests 5 --shared-prefix 16 --input-tokens 40 --output-tokens 1 "
              "--warmup 1",
              0);
    json_decref(report);
    for (int i = 2; i < 6; i++)
        assert_int_equal(seen.first_tokens[i], seen.first_tokens[1]);
    assert_int_not_equal(seen.first_tokens[0],
                         seen.first_tokens[1]); /* the warm-up's are others */
    setup(state);
    report = bench("--requests 5 --input-tokens 40 --output-tokens 1 --warmup 0", 0);
    json_decref(report);
    for (int i = 1; i < 5; i++)
        assert_int_not_equal(seen.first_tokens[i], seen.first_tokens[0]);
}

static void test_trace(void **state)
{
    char path[] = "/tmp/baton-test-trace-XXXXXX", arguments[128];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    (void)state;
    for (int i = 0; i < 30; i++)
        fprintf(file,
                "{\"timestamp\": %d, \"input_length\": %d, \"output_length\": 4, "
                "\"hash_ids\": [%d]}\n",
                i * 20, 100 + i, i / 10);
    fclose(file);
    snprintf(arguments, sizeof(arguments),
             "--trace %s --trace-scale 10 --input-max 120 --warmup 0", path);
    json_t *report = bench(arguments, 0);
    unlink(path);
    expect_counts(report, 30, 0);
    uint64_t prompts = 0;
    for (uint64_t i = 0; i < 30; i++)
        prompts += 100 + i > 120 ? 120 : 100 + i;
    assert_int_equal(number(report, "prompt_tokens"), prompts);
    assert_int_equal(seen.prompt_tokens, prompts);
    assert_int_equal(number(report, "generated_tokens"), 120);
    for (int i = 0; i < 30; i++) {
        for (int j = 0; j < 30; j++)
            assert_int_equal(seen.first_tokens[i] == seen.first_tokens[j], i / 10 == j / 10);
    }
    json_decref(report);
}

static void test_wrong_command_lines(void **state)
{
    static const char *const wrong[] = {
        "--rate 0",        "--rate x",         "--rate 5 --trace /nowhere",
        "--trace-scale 2", "--trace /nowhere", "--endpoint chat --prompt ids"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        if (i)
            setup(state);
        json_t *report = bench(wrong[i], 2);
        assert_null(report);
        assert_int_equal(seen.requests, 0);
    }
    setup(state);
    assert_null(bench("--url http://127.0.0.1:1 --requests 1", 1)); /* nobody is there */
}

#define WITH_SERVER(test) cmocka_unit_test_setup(test, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_closed_loop),
        WITH_SERVER(test_open_loop_with_different_lengths),
        WITH_SERVER(test_openai_endpoints),
        WITH_SERVER(test_errors_are_counted_by_reason),
        WITH_SERVER(test_short_answers_are_told),
        WITH_SERVER(test_prompts_share_what_they_should),
        WITH_SERVER(test_trace),
        WITH_SERVER(test_wrong_command_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
