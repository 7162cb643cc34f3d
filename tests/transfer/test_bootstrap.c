/* SPDX-License-Identifier: Apache-2.0 */
/* SGLang's bootstrap contract: first the table as a plain function, row by row; then a real
 * server and a real client over loopback on one event base, with the clients that a port on a
 * network meets. */
#include "transfer/bootstrap_table.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/dns.h>
#include <event2/dns_struct.h>
#include <event2/event.h>
#include <event2/http.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TOPOLOGY \
    "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
#define RANK_0 "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"
#define RANK_1 "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0"

/* ---- the table ------------------------------------------------------------------------- */

/* A PUT body as SGLang sends it for a group of one, with the keys of `changes` put over it. */
static char *route_body(const char *changes, ...)
{
    static const char sglang[] =
        "{\"attn_tp_size\": 1, \"attn_tp_rank\": 0, \"attn_cp_size\": 1, \"attn_cp_rank\": 0, "
        "\"attn_dp_size\": 1, \"attn_dp_rank\": 0, \"pp_size\": 1, \"pp_rank\": 0, "
        "\"system_dp_size\": 1, \"system_dp_rank\": 0, \"rank_ip\": \"10.0.0.1\", "
        "\"rank_port\": 17000, \"page_size\": 64, \"kv_cache_dtype\": \"auto\", "
        "\"load_balance_method\": \"follow_bootstrap_room\", "
        "\"enable_dsa_cache_layer_split\": false, \"prefill_http_port\": 30000}";
    char text[1024];
    va_list args;
    va_start(args, changes);
    vsnprintf(text, sizeof(text), changes, args);
    va_end(args);
    json_t *body = json_loads(sglang, 0, NULL), *over = json_loads(text, 0, NULL);
    assert_non_null(body);
    if (!over)
        fail_msg("the test's own JSON is wrong: %s", text);
    json_object_update(body, over);
    char *dump = json_dumps(body, 0);
    json_decref(over);
    json_decref(body);
    return dump;
}

static struct bootstrap_pending *ask(struct bootstrap_table *table, const char *method,
                                     const char *uri, const char *body,
                                     struct bootstrap_reply *reply)
{
    struct bootstrap_request request = {method, uri, body, body ? strlen(body) : 0};
    *reply = (struct bootstrap_reply){0};
    return bootstrap_table_handle(table, &request, reply);
}

/* The reply's status must be this, and its body contain that. */
static void expect(struct bootstrap_table *table, const char *method, const char *uri,
                   const char *body, int status, const char *part)
{
    struct bootstrap_reply reply;
    assert_null(ask(table, method, uri, body, &reply));
    assert_non_null(reply.body);
    if (reply.status != status || !strstr(reply.body, part))
        fail_msg("%s %s %s: %d %s, expected %d %s", method, uri, body ? body : "", reply.status,
                 reply.body, status, part);
    assert_non_null(reply.content_type);
    bootstrap_reply_free(&reply);
}

/* PUT /route; the body is freed. */
static void expect_put(struct bootstrap_table *table, char *body, int status, const char *part)
{
    expect(table, "PUT", "/route", body, status, part);
    free(body);
}

/* PUT /route that the table has a question about, which is answered so. */
static void expect_question(struct bootstrap_table *table, char *body, uint32_t count,
                            int64_t answer, int status, const char *part)
{
    struct bootstrap_reply reply;
    struct bootstrap_pending *pending = ask(table, "PUT", "/route", body, &reply);
    free(body);
    assert_non_null(pending);
    assert_int_equal(bootstrap_pending_count(pending), count);
    bootstrap_pending_finish(table, pending, answer, &reply);
    if (reply.status != status || !strstr(reply.body, part))
        fail_msg("%d %s, expected %d %s", reply.status, reply.body, status, part);
    bootstrap_reply_free(&reply);
}

static json_t *get_json(struct bootstrap_table *table, const char *uri)
{
    struct bootstrap_reply reply;
    assert_null(ask(table, "GET", uri, NULL, &reply));
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.content_type, "application/json; charset=utf-8");
    json_t *json = json_loads(reply.body, 0, NULL);
    assert_true(json_is_object(json));
    bootstrap_reply_free(&reply);
    return json;
}

static int table_setup(void **state)
{
    *state = bootstrap_table_new(BOOTSTRAP_ROOMS_MAX);
    return *state ? 0 : -1;
}

static int table_teardown(void **state)
{
    bootstrap_table_free(*state);
    return 0;
}

static void test_topology_has_exactly_sglangs_keys(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"epoch\": \"7\"}"), 200, "OK");
    json_t *got = get_json(table, TOPOLOGY);
    json_t *expected =
        json_pack("{s:i, s:i, s:i, s:i, s:i, s:s, s:b, s:b, s:i}", "attn_tp_size", 1,
                  "attn_cp_size", 1, "dp_size", 1, "pp_size", 1, "page_size", 64,
                  "kv_cache_dtype", "auto", "follow_bootstrap_room", 1,
                  "enable_dsa_cache_layer_split", 0, "prefill_http_port", 30000);
    assert_true(json_equal(got, expected));
    json_decref(got);
    json_decref(expected);
}

static void test_put_is_answered_ok_in_plain_text(void **state)
{
    struct bootstrap_reply reply;
    char *body = route_body("{}");
    assert_null(ask(*state, "PUT", "/route", body, &reply));
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply.body, "OK");
    assert_string_equal(reply.content_type, "text/plain; charset=utf-8");
    bootstrap_reply_free(&reply);
    free(body);
}

static void test_group_is_ready_when_each_rank_is_there(void **state)
{
    struct bootstrap_table *table = *state;
    expect(table, "GET", TOPOLOGY, NULL, 503, "0 of 0");
    for (int dp = 0; dp < 2; dp++)
        for (int cp = 0; cp < 2; cp++)
            for (int tp = 0; tp < 2; tp++)
                for (int pp = 0; pp < 2; pp++) {
                    /* Each comes twice: PUTs are not what is counted. */
                    for (int again = 0; again < 2; again++) {
                        expect(table, "GET", TOPOLOGY, NULL, 503, "not fully registered");
                        expect(table, "GET", RANK_0, NULL, 503, "not fully registered");
                        expect_put(table,
                                   route_body("{\"attn_dp_size\": 2, \"attn_dp_rank\": %d, "
                                              "\"attn_cp_size\": 2, \"attn_cp_rank\": %d, "
                                              "\"attn_tp_size\": 2, \"attn_tp_rank\": %d, "
                                              "\"pp_size\": 2, \"pp_rank\": %d, "
                                              "\"rank_port\": %d}",
                                              dp, cp, tp, pp,
                                              20000 + dp * 8 + cp * 4 + tp * 2 + pp),
                                   200, "OK");
                        if (dp + cp + tp + pp == 4)
                            break;
                    }
                }
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"attn_cp_size\":2");
    for (int i = 0; i < 16; i++) {
        char uri[160], port[32];
        snprintf(
            uri, sizeof(uri),
            "/route?prefill_dp_rank=%d&prefill_cp_rank=%d&target_tp_rank=%d&target_pp_rank=%d",
            i >> 3, i >> 2 & 1, i >> 1 & 1, i & 1);
        snprintf(port, sizeof(port), "\"rank_port\":%d}", 20000 + i);
        expect(table, "GET", uri, NULL, 200, port);
    }
}

static void test_rank_query(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{}"), 200, "OK");
    json_t *got = get_json(table, RANK_0);
    json_t *expected = json_pack("{s:s, s:i}", "rank_ip", "10.0.0.1", "rank_port", 17000);
    assert_true(json_equal(got, expected));
    json_decref(got);
    json_decref(expected);
    expect(table, "GET", RANK_1, NULL, 404, "tp_rank=1");
    static const char *const unknown[] = {
        "/route?prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0",
        "/route?prefill_dp_rank=0&prefill_cp_rank=1&target_tp_rank=0&target_pp_rank=0",
        "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=1",
        "/route?prefill_dp_rank=-1&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0",
        "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=4294967296&target_pp_rank=0",
        "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=-9&target_pp_rank=0",
    };
    for (size_t i = 0; i < COUNT(unknown); i++)
        expect(table, "GET", unknown[i], NULL, 404, "not found");
    static const struct {
        const char *uri, *name;
    } bad[] = {
        {"/route", "prefill_dp_rank"},
        {"/route?", "prefill_dp_rank"},
        {"/route?prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", "prefill_dp_rank"},
        {"/route?prefill_dp_rank=0&target_tp_rank=0&target_pp_rank=0", "prefill_cp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_pp_rank=0", "target_tp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0", "target_pp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=x&target_pp_rank=0",
         "target_tp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0x0&target_pp_rank=0",
         "target_tp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=&target_pp_rank=0",
         "target_tp_rank"},
        {"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=99999999999999999999&"
         "target_pp_rank=0",
         "target_tp_rank"},
        {"/route?target_dp_group=0", "target_tp_rank"},
        {"/route?engine_rank=0", "prefill_dp_rank"},
        {"/route?=&&&%zz", ""},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        expect(table, "GET", bad[i].uri, NULL, 400, bad[i].name);
}

static void test_older_parameter_names(void **state)
{
    struct bootstrap_table *table = *state;
    for (int tp = 0; tp < 2; tp++)
        expect_put(table,
                   route_body("{\"attn_tp_size\": 2, \"attn_tp_rank\": %d, \"rank_port\": %d}",
                              tp, 17000 + tp),
                   200, "OK");
    expect(table, "GET", "/route?engine_rank=1&target_dp_group=0&target_pp_rank=0", NULL, 200,
           "17001");
    expect(table, "GET", "/route?engine_rank=1&target_dp_group=0", NULL, 200, "17001");
    expect(table, "GET", "/route?target_tp_rank=1&target_dp_group=0&target_pp_rank=0", NULL,
           200, "17001");
    expect(table, "GET", "/route?engine_rank=2&target_dp_group=0&target_pp_rank=0", NULL, 404,
           "");
    json_t *now = get_json(table, TOPOLOGY);
    json_t *older =
        get_json(table, "/route?engine_rank=-1&target_dp_group=-1&target_pp_rank=-1");
    json_t *oldest = get_json(table, "/route?engine_rank=-1&target_dp_group=-1");
    assert_true(json_equal(now, older) && json_equal(now, oldest));
    json_decref(now);
    json_decref(older);
    json_decref(oldest);
}

static void test_put_names_the_missing_key(void **state)
{
    static const struct {
        const char *key;
        bool null_is_fine;
    } keys[] = {
        {"attn_tp_size", false},   {"attn_tp_rank", false},  {"attn_cp_size", false},
        {"attn_cp_rank", false},   {"attn_dp_size", false},  {"attn_dp_rank", false},
        {"pp_size", false},        {"pp_rank", false},       {"system_dp_size", false},
        {"system_dp_rank", false}, {"rank_ip", false},       {"rank_port", false},
        {"page_size", true},       {"kv_cache_dtype", true},
    };
    struct bootstrap_table *table = *state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        char *whole = route_body("{}"), quoted[40];
        json_t *json = json_loads(whole, 0, NULL);
        snprintf(quoted, sizeof(quoted), "\"%s\"", keys[i].key);
        json_object_del(json, keys[i].key);
        expect_put(table, json_dumps(json, 0), 400, quoted);
        if (!keys[i].null_is_fine)
            expect_put(table, route_body("{\"%s\": null}", keys[i].key), 400, quoted);
        json_decref(json);
        free(whole);
    }
    expect(table, "GET", TOPOLOGY, NULL, 503, ""); /* none of them left anything behind */
}

static void test_put_tolerates_what_sglang_sends(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(
        table,
        route_body("{\"rank_port\": \" 17000 \", \"page_size\": null, "
                   "\"kv_cache_dtype\": null, \"prefill_http_port\": null, "
                   "\"load_balance_method\": null, \"enable_dsa_cache_layer_split\": null, "
                   "\"epoch\": null, \"role\": \"Prefill\", \"extra\": {\"a\": [1]}}"),
        200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "\"rank_port\":17000");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"page_size\":null");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"kv_cache_dtype\":null");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"prefill_http_port\":null");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"follow_bootstrap_room\":true");
    /* Who comes later may say what nobody has said before. */
    expect_put(table, route_body("{\"page_size\": \"32\", \"prefill_http_port\": \"30001\"}"),
               200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"page_size\":32");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"prefill_http_port\":30001");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"kv_cache_dtype\":\"auto\"");
}

static void test_put_refuses_bad_values(void **state)
{
    static const char *const bad[][2] = {
        {"{\"attn_tp_size\": 0}", "attn_tp_size"},
        {"{\"attn_tp_size\": -1}", "attn_tp_size"},
        {"{\"attn_tp_size\": true}", "attn_tp_size"},
        {"{\"attn_tp_size\": 1.5}", "attn_tp_size"},
        {"{\"attn_tp_size\": \"\"}", "attn_tp_size"},
        {"{\"attn_tp_size\": \"1x\"}", "attn_tp_size"},
        {"{\"attn_tp_size\": [1]}", "attn_tp_size"},
        {"{\"pp_size\": 9223372036854775807}", "pp_size"},
        {"{\"attn_tp_rank\": 1}", "tp rank"},
        {"{\"attn_cp_rank\": 1}", "cp rank"},
        {"{\"attn_dp_rank\": 1}", "dp rank"},
        {"{\"pp_rank\": 1}", "pp rank"},
        {"{\"system_dp_size\": 2, \"system_dp_rank\": 2}", "dp rank"},
        {"{\"attn_tp_size\": 16384, \"pp_size\": 2}", "more than 16384 ranks"},
        {"{\"attn_tp_size\": 16384, \"pp_size\": 16384, \"attn_cp_size\": 16384, "
         "\"attn_dp_size\": 16384}",
         "more than 16384 ranks"},
        {"{\"rank_port\": 0}", "rank_port"},
        {"{\"rank_port\": 65536}", "rank_port"},
        {"{\"rank_port\": \"x\"}", "rank_port"},
        {"{\"rank_ip\": \"\"}", "rank_ip"},
        {"{\"rank_ip\": 7}", "rank_ip"},
        {"{\"rank_ip\": \"a b\"}", "rank_ip"},
        {"{\"rank_ip\": \"a\\nb\"}", "rank_ip"},
        {"{\"rank_ip\": \"0123456789012345678901234567890123456789012345678901234567890123\"}",
         "rank_ip"},
        {"{\"page_size\": -1}", "page_size"},
        {"{\"page_size\": \"x\"}", "page_size"},
        {"{\"kv_cache_dtype\": 3}", "kv_cache_dtype"},
        {"{\"kv_cache_dtype\": "
         "\"0123456789012345678901234567890123456789012345678901234567890123\"}",
         "kv_cache_dtype"},
        {"{\"load_balance_method\": 3}", "load_balance_method"},
        {"{\"enable_dsa_cache_layer_split\": \"yes\"}", "enable_dsa_cache_layer_split"},
        {"{\"prefill_http_port\": 70000}", "prefill_http_port"},
        {"{\"epoch\": -1}", "epoch"},
        {"{\"epoch\": \"-1\"}", "epoch"},
        {"{\"epoch\": \"18446744073709551616\"}", "epoch"},
        {"{\"epoch\": \"\"}", "epoch"},
        {"{\"epoch\": 1.5}", "epoch"},
    };
    struct bootstrap_table *table = *state;
    for (size_t i = 0; i < COUNT(bad); i++)
        expect_put(table, route_body("%s", bad[i][0]), 400, bad[i][1]);
    expect(table, "GET", TOPOLOGY, NULL, 503, "0 of 0");
}

static void test_bad_bodies_are_answered_400(void **state)
{
    static const char *const bodies[] = {
        NULL,
        "",
        "x",
        "[]",
        "3",
        "null",
        "\"a\"",
        "{",
        "{}x",
        "{\"a\": 1e400}",
        "{\"a\": \"\\u0000\"}",
        "{\"bootstrap_room\": 9223372036854775808, \"dp_rank\": 0}",
        "\xff\xfe",
    };
    static const char *const calls[][2] = {
        {"PUT", "/route"}, {"POST", "/register_dp_rank"}, {"POST", "/query_dp_ranks"}};
    struct bootstrap_table *table = *state;
    for (size_t i = 0; i < COUNT(bodies); i++)
        for (size_t j = 0; j < COUNT(calls); j++)
            expect(table, calls[j][0], calls[j][1], bodies[i], 400, "");
    size_t depth = 100000;
    char *deep = malloc(depth + 1);
    memset(deep, '[', depth);
    deep[depth] = '\0';
    expect(table, "PUT", "/route", deep, 400, "not JSON");
    free(deep);
}

static void test_system_dp_makes_the_group(void **state)
{
    struct bootstrap_table *table = *state;
    for (int dp = 0; dp < 2; dp++)
        expect_put(
            table,
            route_body("{\"system_dp_size\": 2, \"system_dp_rank\": %d, \"attn_dp_size\": 4, "
                       "\"attn_dp_rank\": 3, \"rank_port\": %d}",
                       dp, 17000 + dp),
            200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"dp_size\":2");
    expect(table, "GET",
           "/route?prefill_dp_rank=1&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", NULL,
           200, "17001");
}

#define TWO(rank, port, more) \
    "{\"attn_tp_size\": 2, \"attn_tp_rank\": " #rank ", \"rank_port\": " #port more "}"

static void test_first_put_describes_the_group(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body(TWO(0, 17000, "")), 200, "OK");
    expect_put(table,
               route_body(TWO(1, 17001,
                              ", \"page_size\": 16, \"kv_cache_dtype\": \"fp8\", "
                              "\"load_balance_method\": \"round_robin\", "
                              "\"enable_dsa_cache_layer_split\": true, "
                              "\"prefill_http_port\": 1")),
               200, "OK");
    const char *first =
        "\"page_size\":64,\"kv_cache_dtype\":\"auto\",\"follow_bootstrap_room\":true,"
        "\"enable_dsa_cache_layer_split\":false,\"prefill_http_port\":30000";
    expect(table, "GET", TOPOLOGY, NULL, 200, first);
    /* The same process again: still the first word. */
    expect_put(table, route_body(TWO(0, 17000, ", \"page_size\": 16")), 200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200, first);
    /* Another process in the first one's place: its word. */
    expect_question(table, route_body(TWO(0, 17002, ", \"page_size\": 16")), 1,
                    BOOTSTRAP_ALL_GONE, 200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"page_size\":16");
}

static void test_load_balance_method_decides_follow(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table,
               route_body("{\"load_balance_method\": \"round_robin\", "
                          "\"enable_dsa_cache_layer_split\": true}"),
               200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200,
           "\"follow_bootstrap_room\":false,\"enable_dsa_cache_layer_split\":true");
}

static void test_epoch_is_told_per_rank_only(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"epoch\": \"18446744073709551615\"}"), 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "\"epoch\":\"18446744073709551615\"");
    expect_put(table, route_body("{\"epoch\": 12}"), 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "\"epoch\":\"12\"");
}

static void test_rank_of_the_same_process_is_renewed(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"epoch\": \"1\"}"), 200, "OK");
    expect_put(table, route_body("{\"epoch\": \"1\", \"rank_port\": 17001}"), 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "17001");
    /* A port has one owner: the process that had it before is gone, nobody is asked. */
    expect_put(table, route_body("{\"epoch\": \"2\", \"rank_port\": 17001}"), 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "\"epoch\":\"2\"");
    expect_put(table, route_body("{\"rank_port\": 17001}"), 200, "OK");
}

static void test_rank_of_a_dead_process_is_replaced(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"epoch\": \"1\"}"), 200, "OK");
    expect_question(table, route_body("{\"epoch\": \"2\", \"rank_port\": 17001}"), 1,
                    BOOTSTRAP_ALL_GONE, 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "17001");
    /* SGLang's ranks have no epoch: another address is another process. */
    expect_question(table, route_body("{\"rank_port\": 17002}"), 1, BOOTSTRAP_ALL_GONE, 200,
                    "OK");
    expect_question(table, route_body("{\"rank_ip\": \"10.0.0.2\", \"rank_port\": 17002}"), 1,
                    BOOTSTRAP_ALL_GONE, 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "10.0.0.2");
}

static void test_rank_of_a_live_process_is_refused(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"epoch\": \"1\", \"rank_ip\": \"fd00::1\"}"), 200, "OK");
    expect_question(
        table, route_body("{\"epoch\": \"2\"}"), 1, 0, 409,
        "rank tp 0 pp 0 dp 0 is already registered by a live process at [fd00::1]:17000");
    expect_question(table, route_body("{\"epoch\": \"2\"}"), 1, BOOTSTRAP_UNKNOWN, 503,
                    "ask again");
    expect(table, "GET", RANK_0, NULL, 200, "fd00::1");
}

static void test_question_says_where_to_ask(void **state)
{
    static const char *const ips[][2] = {
        {"10.0.0.1", "10.0.0.1"}, {"[::1]", "::1"}, {"::1", "::1"}, {"localhost", "127.0.0.1"}};
    for (size_t i = 0; i < COUNT(ips); i++) {
        struct bootstrap_table *table = bootstrap_table_new(1);
        struct bootstrap_reply reply;
        expect_put(table, route_body("{\"rank_ip\": \"%s\"}", ips[i][0]), 200, "OK");
        char *body = route_body("{\"rank_port\": 1}");
        struct bootstrap_pending *pending = ask(table, "PUT", "/route", body, &reply);
        assert_non_null(pending);
        assert_string_equal(bootstrap_pending_endpoint(pending, 0)->ip, ips[i][1]);
        assert_int_equal(bootstrap_pending_endpoint(pending, 0)->port, 17000);
        bootstrap_pending_free(pending);
        bootstrap_table_free(table);
        free(body);
    }
    (void)state;
}

static void test_rank_with_a_name_is_replaced_unasked(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body("{\"rank_ip\": \"prefill-0\"}"), 200, "OK");
    expect_put(table, route_body("{\"rank_port\": 17001}"), 200, "OK");
    expect(table, "GET", RANK_0, NULL, 200, "17001");
}

static void test_port_taken_over_by_another_rank_is_no_sign_of_life(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body(TWO(0, 17000, ", \"epoch\": \"1\"")), 200, "OK");
    expect_put(table, route_body(TWO(1, 17001, ", \"epoch\": \"2\"")), 200, "OK");
    /* Both restart, and rank 1 gets the port that rank 0 had. */
    expect_question(table, route_body(TWO(1, 17000, ", \"epoch\": \"3\"")), 1,
                    BOOTSTRAP_ALL_GONE, 200, "OK");
    expect_put(table, route_body(TWO(0, 17009, ", \"epoch\": \"4\"")), 200, "OK");
}

static void test_answer_about_an_older_registration_is_not_used(void **state)
{
    struct bootstrap_table *table = *state;
    struct bootstrap_reply reply;
    char *second = route_body("{\"epoch\": \"2\", \"rank_port\": 17002}");
    for (int64_t answer = BOOTSTRAP_ALL_GONE; answer <= 0; answer++) {
        expect_put(table, route_body("{\"epoch\": \"1\"}"), 200, "OK");
        struct bootstrap_pending *pending = ask(table, "PUT", "/route", second, &reply);
        assert_non_null(pending);
        expect_question(table, route_body("{\"epoch\": \"3\", \"rank_port\": 17003}"), 1,
                        BOOTSTRAP_ALL_GONE, 200, "OK");
        bootstrap_pending_finish(table, pending, answer, &reply);
        assert_int_equal(reply.status, 503);
        bootstrap_reply_free(&reply);
        expect(table, "GET", RANK_0, NULL, 200, "\"epoch\":\"3\"");
        expect_question(table, route_body("{\"epoch\": \"1\"}"), 1, BOOTSTRAP_ALL_GONE, 200,
                        "OK");
    }
    free(second);
}

static void test_other_sizes_are_refused_while_the_group_lives(void **state)
{
    struct bootstrap_table *table = *state;
    expect_put(table, route_body(TWO(0, 17000, "")), 200, "OK");
    expect_put(table, route_body(TWO(1, 17001, "")), 200, "OK");
    const char *four = "{\"attn_tp_size\": 4, \"rank_port\": 18000}";
    expect_question(table, route_body("%s", four), 2, 1, 409,
                    "says dp 1 x cp 1 x tp 4 x pp 1, but the group registered here is "
                    "dp 1 x cp 1 x tp 2 x pp 1 and its process at 10.0.0.1:17001 lives");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"attn_tp_size\":2");
    expect_question(table, route_body("%s", four), 2, BOOTSTRAP_ALL_GONE, 200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 503, "1 of 4");
    /* The old group's word about itself is gone with it. */
    expect_question(table,
                    route_body("{\"rank_port\": 18001, \"page_size\": 1, \"pp_size\": 1}"), 1,
                    BOOTSTRAP_ALL_GONE, 200, "OK");
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"page_size\":1,");
}

static void test_two_ranks_of_a_new_group_come_at_once(void **state)
{
    struct bootstrap_table *table = *state;
    struct bootstrap_reply reply;
    expect_put(table, route_body("{}"), 200, "OK");
    char *zero = route_body(TWO(0, 18000, "")), *one = route_body(TWO(1, 18001, ""));
    struct bootstrap_pending *first = ask(table, "PUT", "/route", zero, &reply);
    struct bootstrap_pending *second = ask(table, "PUT", "/route", one, &reply);
    assert_true(first && second);
    bootstrap_pending_finish(table, first, BOOTSTRAP_ALL_GONE, &reply);
    assert_int_equal(reply.status, 200);
    bootstrap_reply_free(&reply);
    bootstrap_pending_finish(table, second, BOOTSTRAP_ALL_GONE, &reply);
    assert_int_equal(reply.status, 200);
    bootstrap_reply_free(&reply);
    expect(table, "GET", TOPOLOGY, NULL, 200, "\"attn_tp_size\":2");
    free(zero);
    free(one);
}

static void test_rooms_and_their_dp_ranks(void **state)
{
    struct bootstrap_table *table = *state;
    const char *query = "{\"bootstrap_rooms\": [9223372036854775807, \"0\", 5, 5, null]}";
    expect(table, "POST", "/query_dp_ranks", query, 200, "{}");
    expect(table, "POST", "/register_dp_rank",
           "{\"bootstrap_room\": 9223372036854775807, \"dp_rank\": 3}", 200, "OK");
    expect(table, "POST", "/register_dp_rank",
           "{\"bootstrap_room\": \"0\", \"dp_rank\": \"1\"}", 200, "OK");
    expect(table, "POST", "/query_dp_ranks", query, 200, "\"9223372036854775807\":3");
    expect(table, "POST", "/query_dp_ranks", query, 200, "\"0\":1");
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 0, \"dp_rank\": 2}", 200,
           "OK");
    expect(table, "POST", "/query_dp_ranks", "{\"bootstrap_rooms\": [0]}", 200, "{\"0\":2}");
    expect(table, "POST", "/query_dp_ranks", "{\"bootstrap_rooms\": null}", 200, "{}");
    assert_int_equal(bootstrap_table_rooms(table), 2);
    static const char *const bad[][2] = {
        {"{\"dp_rank\": 0}", "bootstrap_room"},
        {"{\"bootstrap_room\": null, \"dp_rank\": 0}", "bootstrap_room"},
        {"{\"bootstrap_room\": -1, \"dp_rank\": 0}", "bootstrap_room"},
        {"{\"bootstrap_room\": 1.5, \"dp_rank\": 0}", "bootstrap_room"},
        {"{\"bootstrap_room\": \"9223372036854775808\", \"dp_rank\": 0}", "bootstrap_room"},
        {"{\"bootstrap_room\": 1}", "dp_rank"},
        {"{\"bootstrap_room\": 1, \"dp_rank\": -1}", "dp_rank"},
        {"{\"bootstrap_room\": 1, \"dp_rank\": 16384}", "dp_rank"},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        expect(table, "POST", "/register_dp_rank", bad[i][0], 400, bad[i][1]);
    expect(table, "POST", "/query_dp_ranks", "{}", 400, "bootstrap_rooms");
    expect(table, "POST", "/query_dp_ranks", "{\"bootstrap_rooms\": 1}", 400,
           "bootstrap_rooms");
    expect(table, "POST", "/query_dp_ranks", "{\"bootstrap_rooms\": [1, -1]}", 400, "entry 1");
}

static void test_rooms_are_forgotten_after_their_time(void **state)
{
    struct bootstrap_table *table = *state;
    const char *one = "{\"bootstrap_room\": 1, \"dp_rank\": 1}";
    const char *two = "{\"bootstrap_room\": 2, \"dp_rank\": 2}";
    const char *query = "{\"bootstrap_rooms\": [1, 2]}";
    expect(table, "POST", "/register_dp_rank", one, 200, "OK");
    expect(table, "POST", "/register_dp_rank", two, 200, "OK");
    clock_advance_ns(100 * 1000 * NS_PER_MS);
    expect(table, "POST", "/register_dp_rank", one, 200, "OK"); /* renewed */
    clock_advance_ns(21 * 1000 * NS_PER_MS);
    expect(table, "POST", "/query_dp_ranks", query, 200, "{\"1\":1}");
    assert_int_equal(bootstrap_table_rooms(table), 2);
    bootstrap_table_sweep(table);
    assert_int_equal(bootstrap_table_rooms(table), 1);
    clock_advance_ns(BOOTSTRAP_ROOM_TTL_NS);
    expect(table, "POST", "/query_dp_ranks", query, 200, "{}");
    bootstrap_table_sweep(table);
    assert_int_equal(bootstrap_table_rooms(table), 0);
}

static void test_rooms_are_bounded(void **state)
{
    struct bootstrap_table *table = bootstrap_table_new(2);
    (void)state;
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 1, \"dp_rank\": 0}", 200,
           "OK");
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 2, \"dp_rank\": 0}", 200,
           "OK");
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 3, \"dp_rank\": 0}", 503,
           "2 rooms");
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 1, \"dp_rank\": 1}", 200,
           "OK");
    clock_advance_ns(BOOTSTRAP_ROOM_TTL_NS + 1);
    expect(table, "POST", "/register_dp_rank", "{\"bootstrap_room\": 3, \"dp_rank\": 0}", 200,
           "OK");
    assert_int_equal(bootstrap_table_rooms(table), 1);
    bootstrap_table_free(table);
}

static void test_paths_and_methods(void **state)
{
    static const struct {
        const char *method, *uri;
        int status;
        const char *allow;
    } cases[] = {
        {"GET", "/health", 200, NULL},
        {"HEAD", "/health", 200, NULL},
        {"GET", "//health", 200, NULL},
        {"GET", "///health?x=y", 200, NULL},
        {"GET", "http://host:8998/health", 200, NULL},
        {"POST", "/health", 405, "GET, HEAD"},
        {"POST", "/route", 405, "GET, PUT"},
        {"DELETE", "/route", 405, "GET, PUT"},
        {"HEAD", "/route", 405, "GET, PUT"},
        {"PATCH", "//route", 405, "GET, PUT"},
        {"GET", "/register_dp_rank", 405, "POST"},
        {"PUT", "/query_dp_ranks", 405, "POST"},
        {"GET", "/", 404, NULL},
        {"GET", "", 404, NULL},
        {"GET", "/route/", 404, NULL},
        {"GET", "/routes", 404, NULL},
        {"PUT", "/", 404, NULL},
        {"GET", "http://health", 404, NULL},
        {"GET", "*", 404, NULL},
        {"GET",
         "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "a",
         404, NULL},
    };
    struct bootstrap_table *table = *state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bootstrap_reply reply;
        assert_null(ask(table, cases[i].method, cases[i].uri, NULL, &reply));
        if (reply.status != cases[i].status)
            fail_msg("%s %s: %d", cases[i].method, cases[i].uri, reply.status);
        if (cases[i].allow)
            assert_string_equal(reply.allow, cases[i].allow);
        else
            assert_null(reply.allow);
        if (reply.status == 200)
            assert_string_equal(reply.body, "OK");
        bootstrap_reply_free(&reply);
    }
}

/* ---- what the client makes of replies -------------------------------------------------- */

static void test_decode_topology(void **state)
{
    /* As SGLang's Python server sends it, client-only fields and all. */
    static const char python[] =
        "{\"attn_tp_size\": 4, \"attn_cp_size\": 1, \"dp_size\": 2, \"pp_size\": 1, "
        "\"page_size\": 64, \"kv_cache_dtype\": \"auto\", \"follow_bootstrap_room\": false, "
        "\"enable_dsa_cache_layer_split\": false, \"prefill_http_port\": null, "
        "\"target_tp_rank\": null, \"target_tp_ranks\": null, \"target_cp_ranks\": null, "
        "\"target_pp_ranks\": null, \"required_dst_info_num\": null, "
        "\"required_prefill_response_num\": null}";
    struct bootstrap_topology topology;
    char text[256];
    (void)state;
    assert_int_equal(
        bootstrap_topology_decode(python, strlen(python), &topology, ERROR_BUFFER(text)),
        BATON_OK);
    assert_int_equal(topology.tp_size, 4);
    assert_int_equal(topology.dp_size, 2);
    assert_int_equal(topology.pp_size, 1);
    assert_int_equal(topology.page_size, 64);
    assert_string_equal(topology.kv_cache_dtype, "auto");
    assert_false(topology.follow_bootstrap_room);

    static const char bare[] =
        "{\"attn_tp_size\": \"8\", \"page_size\": null, \"dp_size\": null, "
        "\"kv_cache_dtype\": null, \"follow_bootstrap_room\": null}";
    assert_int_equal(
        bootstrap_topology_decode(bare, strlen(bare), &topology, ERROR_BUFFER(text)), BATON_OK);
    assert_int_equal(topology.tp_size, 8);
    assert_int_equal(topology.dp_size, 1);
    assert_int_equal(topology.page_size, 0);
    assert_string_equal(topology.kv_cache_dtype, "");
    assert_true(topology.follow_bootstrap_room);

    static const char *const bad[][2] = {
        {"", "not JSON"},
        {"[]", "not an object"},
        {"OK", "not JSON"},
        {"{}", "attn_tp_size"},
        {"{\"attn_tp_size\": null}", "attn_tp_size"},
        {"{\"attn_tp_size\": 0}", "attn_tp_size"},
        {"{\"attn_tp_size\": 1, \"pp_size\": -1}", "pp_size"},
        {"{\"attn_tp_size\": 1, \"dp_size\": 1e9}", "dp_size"},
        {"{\"attn_tp_size\": 1, \"page_size\": 4294967296}", "page_size"},
        {"{\"attn_tp_size\": 1, \"kv_cache_dtype\": 1}", "kv_cache_dtype"},
        {"{\"attn_tp_size\": 1, \"kv_cache_dtype\": \"01234567890123456789012345678901\"}",
         "kv_cache_dtype"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(bootstrap_topology_decode(bad[i][0], strlen(bad[i][0]), &topology,
                                                   ERROR_BUFFER(text)),
                         BATON_EPROTOCOL);
        assert_non_null(strstr(text, bad[i][1]));
    }
    assert_int_equal(topology.tp_size, 8); /* set only on success */
}

static void test_decode_rank(void **state)
{
    static const struct {
        const char *body;
        int code;
        uint16_t port;
        uint64_t epoch;
    } cases[] = {
        {"{\"rank_ip\": \"10.0.0.1\", \"rank_port\": 17000}", 0, 17000, 0},
        {"{\"rank_ip\": \"10.0.0.1\", \"rank_port\": \"17000\", \"is_dummy\": false}", 0, 17000,
         0},
        {"{\"rank_ip\": \"::1\", \"rank_port\": 1, \"epoch\": \"18446744073709551615\"}", 0, 1,
         UINT64_MAX},
        {"{\"rank_ip\": \"::1\", \"rank_port\": 1, \"epoch\": 5}", 0, 1, 5},
        {"{\"rank_ip\": \"::1\", \"rank_port\": 1, \"epoch\": null}", 0, 1, 0},
        {"{\"rank_ip\": null, \"rank_port\": 1}", BATON_EPROTOCOL, 0, 0},
        {"{\"rank_ip\": \"a/b\", \"rank_port\": 1}", BATON_EPROTOCOL, 0, 0},
        {"{\"rank_ip\": \"a\", \"rank_port\": null}", BATON_EPROTOCOL, 0, 0},
        {"{\"rank_ip\": \"a\", \"rank_port\": 0}", BATON_EPROTOCOL, 0, 0},
        {"{\"rank_ip\": \"a\", \"rank_port\": 65536}", BATON_EPROTOCOL, 0, 0},
        {"{\"rank_ip\": \"a\", \"rank_port\": 1, \"epoch\": \"x\"}", BATON_EPROTOCOL, 0, 0},
        {"not found", BATON_EPROTOCOL, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bootstrap_rank rank = {0};
        char text[256];
        assert_int_equal(bootstrap_rank_decode(cases[i].body, strlen(cases[i].body), &rank,
                                               ERROR_BUFFER(text)),
                         cases[i].code);
        assert_int_equal(rank.rank_port, cases[i].port);
        assert_true(rank.epoch == cases[i].epoch);
    }
}

static void test_decode_dp_rank(void **state)
{
    static const struct {
        const char *body;
        int code;
    } cases[] = {
        {"{\"7\": 3, \"8\": 1}", BATON_OK},
        {"{\"7\": \"3\"}", BATON_OK},
        {"{}", BATON_AGAIN},
        {"{\"7\": null}", BATON_AGAIN},
        {"{\"7\": -1}", BATON_EPROTOCOL},
        {"{\"7\": {}}", BATON_EPROTOCOL},
        {"[3]", BATON_EPROTOCOL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        uint32_t dp_rank = 99;
        char text[256];
        assert_int_equal(bootstrap_dp_rank_decode(cases[i].body, strlen(cases[i].body), 7,
                                                  &dp_rank, ERROR_BUFFER(text)),
                         cases[i].code);
        assert_int_equal(dp_rank, cases[i].code == BATON_OK ? 3 : 99);
    }
}

/* ---- server and client on one event base ----------------------------------------------- */

struct loop {
    struct event_base *base;
    struct bootstrap_server *server;
    struct bootstrap_client *client;
    char addr[64];
};

static int loop_setup(void **state)
{
    struct loop *loop = calloc(1, sizeof(*loop));
    char text[256];
    loop->base = event_base_new();
    assert_int_equal(
        bootstrap_server_open(loop->base, "127.0.0.1", 0, &loop->server, ERROR_BUFFER(text)),
        BATON_OK);
    assert_int_equal(bootstrap_client_open(loop->base, NULL, &loop->client), BATON_OK);
    snprintf(loop->addr, sizeof(loop->addr), "127.0.0.1:%u",
             bootstrap_server_port(loop->server));
    *state = loop;
    return 0;
}

static int loop_teardown(void **state)
{
    struct loop *loop = *state;
    bootstrap_client_close(loop->client);
    bootstrap_server_close(loop->server);
    event_base_free(loop->base);
    free(loop);
    return 0;
}

static void loop_turn(struct loop *loop)
{
    static const struct timeval moment = {0, 2000};
    event_base_loopexit(loop->base, &moment);
    event_base_dispatch(loop->base);
}

/* Turns the loop until *flag has reached the value; half a minute means that it never will. */
static void loop_until(struct loop *loop, const int *flag, int value)
{
    uint64_t start = clock_now_ns();
    while (*flag < value) {
        if (clock_now_ns() - start > 30000 * NS_PER_MS)
            fail_msg("waited 30 s in vain: %d of %d", *flag, value);
        loop_turn(loop);
    }
}

struct outcome {
    int calls, code;
    char text[700];
    struct bootstrap_topology topology;
    struct bootstrap_rank rank;
    uint32_t dp_rank;
};

static void outcome_set(struct outcome *outcome, int code, const char *text)
{
    outcome->calls++;
    outcome->code = code;
    snprintf(outcome->text, sizeof(outcome->text), "%s", text);
}

static void on_done(void *arg, int code, const char *text)
{
    outcome_set(arg, code, text);
}

static void on_topology(void *arg, int code, const char *text,
                        const struct bootstrap_topology *topology)
{
    struct outcome *outcome = arg;
    outcome_set(outcome, code, text);
    assert_true((code == BATON_OK) == (topology != NULL));
    if (topology)
        outcome->topology = *topology;
}

static void on_rank(void *arg, int code, const char *text, const struct bootstrap_rank *rank)
{
    struct outcome *outcome = arg;
    outcome_set(outcome, code, text);
    assert_true((code == BATON_OK) == (rank != NULL));
    if (rank)
        outcome->rank = *rank;
}

static void on_dp_rank(void *arg, int code, const char *text, uint32_t dp_rank)
{
    struct outcome *outcome = arg;
    outcome_set(outcome, code, text);
    outcome->dp_rank = dp_rank;
}

static struct outcome outcome_wait(struct loop *loop, struct outcome *outcome)
{
    assert_int_equal(outcome->calls, 0); /* never from inside the call */
    loop_until(loop, &outcome->calls, 1);
    return *outcome;
}

static struct bootstrap_route route_of(uint32_t tp_size, uint32_t tp_rank, uint16_t port,
                                       uint64_t epoch)
{
    return (struct bootstrap_route){.tp_size = tp_size,
                                    .tp_rank = tp_rank,
                                    .pp_size = 1,
                                    .dp_size = 1,
                                    .rank_ip = "127.0.0.1",
                                    .rank_port = port,
                                    .page_size = 16,
                                    .kv_cache_dtype = "auto",
                                    .epoch = epoch};
}

static struct outcome put_route(struct loop *loop, struct bootstrap_route route)
{
    struct outcome outcome = {0};
    assert_non_null(bootstrap_put_route(loop->client, loop->addr, &route, on_done, &outcome));
    return outcome_wait(loop, &outcome);
}

static struct outcome get_topology(struct loop *loop, const char *addr)
{
    struct outcome outcome = {0};
    assert_non_null(bootstrap_get_topology(loop->client, addr, on_topology, &outcome));
    return outcome_wait(loop, &outcome);
}

static struct outcome get_rank(struct loop *loop, const char *addr, uint32_t tp_rank)
{
    struct outcome outcome = {0};
    assert_non_null(bootstrap_get_rank(loop->client, addr, 0, tp_rank, 0, on_rank, &outcome));
    return outcome_wait(loop, &outcome);
}

/* A socket on loopback that listens, as a live rank's does; -1 for the backlog: it does not. */
static int rank_socket(int backlog, uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    if (backlog >= 0)
        assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static int raw_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
    assert_true(rc == 0 || errno == EINPROGRESS);
    return fd;
}

/* Sends as fast as the server reads; false when the server closes before all is sent. */
static bool raw_send(struct loop *loop, int fd, const char *bytes, size_t size)
{
    for (int turns = 0; size > 0; turns++) {
        assert_true(turns < 5000);
        ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        } else if (errno != EAGAIN && errno != ENOTCONN) {
            return false;
        }
        loop_turn(loop);
    }
    return true;
}

/* Reads until the server closes or `enough` shows up. */
static void raw_receive(struct loop *loop, int fd, const char *enough, char *out, size_t size)
{
    size_t length = 0;
    for (int turns = 0; turns < 5000; turns++) {
        ssize_t got = recv(fd, out + length, size - 1 - length, MSG_DONTWAIT);
        length += got > 0 ? (size_t)got : 0;
        out[length] = '\0';
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != ENOTCONN) ||
            (enough && strstr(out, enough)))
            return;
        loop_turn(loop);
    }
    fail_msg("the server neither answered nor closed; so far: %s", out);
}

static void expect_server_healthy(struct loop *loop)
{
    static const char request[] =
        "GET //health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char reply[1024];
    int fd = raw_connect(bootstrap_server_port(loop->server));
    assert_true(raw_send(loop, fd, request, strlen(request)));
    raw_receive(loop, fd, NULL, reply, sizeof(reply));
    assert_non_null(strstr(reply, "200 OK"));
    assert_non_null(strstr(reply, "\r\n\r\nOK"));
    close(fd);
}

static void test_server_and_client_find_each_other(void **state)
{
    struct loop *loop = *state;
    struct bootstrap_route route = route_of(2, 0, 17000, UINT64_MAX);
    assert_int_equal(get_topology(loop, loop->addr).code, BATON_AGAIN);
    route.pp_size = 2;
    route.dp_size = 2;
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(get_rank(loop, loop->addr, 0).code, BATON_AGAIN); /* 503 */
        route.tp_rank = i & 1;
        route.pp_rank = i >> 1 & 1;
        route.dp_rank = i >> 2;
        route.rank_port = (uint16_t)(17000 + i);
        assert_int_equal(put_route(loop, route).code, BATON_OK);
    }
    struct outcome topology = get_topology(loop, loop->addr);
    assert_int_equal(topology.code, BATON_OK);
    assert_int_equal(topology.topology.tp_size, 2);
    assert_int_equal(topology.topology.pp_size, 2);
    assert_int_equal(topology.topology.dp_size, 2);
    assert_int_equal(topology.topology.page_size, 16);
    assert_string_equal(topology.topology.kv_cache_dtype, "auto");
    assert_true(topology.topology.follow_bootstrap_room);
    for (uint32_t i = 0; i < 8; i++) {
        struct outcome rank = {0};
        assert_non_null(bootstrap_get_rank(loop->client, loop->addr, i >> 2, i & 1, i >> 1 & 1,
                                           on_rank, &rank));
        outcome_wait(loop, &rank);
        assert_int_equal(rank.code, BATON_OK);
        assert_string_equal(rank.rank.rank_ip, "127.0.0.1");
        assert_int_equal(rank.rank.rank_port, 17000 + i);
        assert_true(rank.rank.epoch == UINT64_MAX);
    }
    assert_int_equal(get_rank(loop, loop->addr, 2).code, BATON_AGAIN); /* 404 */
}

static void test_client_registers_and_asks_for_rooms(void **state)
{
    struct loop *loop = *state;
    struct outcome before = {0}, put = {0}, after = {0}, big = {0};
    bootstrap_query_dp_rank(loop->client, loop->addr, INT64_MAX, on_dp_rank, &before);
    assert_int_equal(outcome_wait(loop, &before).code, BATON_AGAIN);
    assert_non_null(strstr(before.text, "9223372036854775807"));
    bootstrap_register_dp_rank(loop->client, loop->addr, INT64_MAX, 5, on_done, &put);
    assert_int_equal(outcome_wait(loop, &put).code, BATON_OK);
    bootstrap_query_dp_rank(loop->client, loop->addr, INT64_MAX, on_dp_rank, &after);
    assert_int_equal(outcome_wait(loop, &after).code, BATON_OK);
    assert_int_equal(after.dp_rank, 5);
    bootstrap_register_dp_rank(loop->client, loop->addr, 1ull << 63, 5, on_done, &big);
    assert_int_equal(outcome_wait(loop, &big).code, BATON_EINVAL);
}

static void test_hundred_registrations_at_once(void **state)
{
    enum { RANKS = 100 };
    struct loop *loop = *state;
    static struct outcome outcomes[RANKS];
    memset(outcomes, 0, sizeof(outcomes));
    for (uint32_t i = 0; i < RANKS; i++) {
        struct bootstrap_route route = route_of(RANKS, i, (uint16_t)(20000 + i), i + 1);
        assert_non_null(
            bootstrap_put_route(loop->client, loop->addr, &route, on_done, &outcomes[i]));
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        loop_until(loop, &outcomes[i].calls, 1);
        assert_int_equal(outcomes[i].code, BATON_OK);
    }
    assert_int_equal(get_topology(loop, loop->addr).topology.tp_size, RANKS);
    assert_int_equal(get_rank(loop, loop->addr, 99).rank.rank_port, 20099);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(outcomes[i].calls, 1);
}

static void test_restarted_rank_replaces_the_dead_one(void **state)
{
    struct loop *loop = *state;
    uint16_t dead_port;
    int held = rank_socket(-1, &dead_port); /* ours, so that nobody else listens there */
    assert_int_equal(put_route(loop, route_of(1, 0, dead_port, 1)).code, BATON_OK);
    assert_int_equal(put_route(loop, route_of(1, 0, 17001, 2)).code, BATON_OK);
    struct outcome rank = get_rank(loop, loop->addr, 0);
    assert_int_equal(rank.rank.rank_port, 17001);
    assert_int_equal(rank.rank.epoch, 2);
    close(held);
}

static void test_second_live_process_is_refused(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    char address[40];
    int live = rank_socket(8, &port);
    assert_int_equal(put_route(loop, route_of(1, 0, port, 1)).code, BATON_OK);
    struct outcome refused = put_route(loop, route_of(1, 0, 17001, 2));
    assert_int_equal(refused.code, BATON_EEXIST);
    snprintf(address, sizeof(address), "live process at 127.0.0.1:%u", port);
    assert_non_null(strstr(refused.text, "rank tp 0 pp 0 dp 0 is already registered"));
    assert_non_null(strstr(refused.text, address));
    assert_int_equal(get_rank(loop, loop->addr, 0).rank.epoch, 1);
    /* It dies: now the other may. */
    close(live);
    assert_int_equal(put_route(loop, route_of(1, 0, 17001, 2)).code, BATON_OK);
    assert_int_equal(get_rank(loop, loop->addr, 0).rank.epoch, 2);
}

/* A listener whose queue is full drops connects without a word, as a host that is gone does. */
static int silent_socket(uint16_t *port, int fillers[4])
{
    int fd = rank_socket(0, port);
    for (int i = 0; i < 4; i++)
        fillers[i] = raw_connect(*port);
    return fd;
}

static void test_silent_address_counts_as_gone(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    int fillers[4], silent = silent_socket(&port, fillers);
    assert_int_equal(put_route(loop, route_of(1, 0, port, 1)).code, BATON_OK);
    uint64_t start = clock_now_ns();
    assert_int_equal(put_route(loop, route_of(1, 0, 17001, 2)).code, BATON_OK);
    assert_true(clock_now_ns() - start >= 290 * NS_PER_MS);
    assert_int_equal(get_rank(loop, loop->addr, 0).rank.epoch, 2);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(silent);
}

static void test_other_requests_go_on_during_a_probe(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    int fillers[4], silent = silent_socket(&port, fillers);
    struct outcome waiting = {0};
    struct bootstrap_route second = route_of(1, 0, 17001, 2);
    assert_int_equal(put_route(loop, route_of(1, 0, port, 1)).code, BATON_OK);
    bootstrap_put_route(loop->client, loop->addr, &second, on_done, &waiting);
    assert_int_equal(get_rank(loop, loop->addr, 0).rank.epoch, 1);
    assert_int_equal(waiting.calls, 0);
    loop_until(loop, &waiting.calls, 1);
    assert_int_equal(waiting.code, BATON_OK);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(silent);
}

static void test_client_that_leaves_during_a_probe_leaks_nothing(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    char request[2048];
    int fillers[4], silent = silent_socket(&port, fillers);
    assert_int_equal(put_route(loop, route_of(1, 0, port, 1)).code, BATON_OK);
    char *body = route_body("{\"rank_ip\": \"127.0.0.1\", \"epoch\": \"2\"}");
    snprintf(request, sizeof(request),
             "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
             body);
    free(body);
    int fd = raw_connect(bootstrap_server_port(loop->server));
    assert_true(raw_send(loop, fd, request, strlen(request)));
    close(fd);
    for (uint64_t epoch = 1, turns = 0; epoch != 2; turns++) {
        assert_true(turns < 1000);
        epoch = get_rank(loop, loop->addr, 0).rank.epoch;
    }
    expect_server_healthy(loop);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(silent);
}

static void test_server_closes_during_a_probe(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    int fillers[4], silent = silent_socket(&port, fillers);
    struct outcome waiting = {0};
    struct bootstrap_route second = route_of(1, 0, 17001, 2);
    assert_int_equal(put_route(loop, route_of(1, 0, port, 1)).code, BATON_OK);
    bootstrap_put_route(loop->client, loop->addr, &second, on_done, &waiting);
    for (int i = 0; i < 20; i++)
        loop_turn(loop);
    assert_int_equal(waiting.calls, 0);
    bootstrap_server_close(loop->server);
    loop->server = NULL;
    loop_until(loop, &waiting.calls, 1);
    assert_int_equal(waiting.code, BATON_AGAIN);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(silent);
}

static void test_new_sizes_need_the_old_group_gone(void **state)
{
    enum { RANKS = 150 }; /* more than are probed at once */
    struct loop *loop = *state;
    static struct outcome outcomes[RANKS];
    uint16_t dead_port, live_port;
    int held = rank_socket(-1, &dead_port), live = rank_socket(8, &live_port);
    memset(outcomes, 0, sizeof(outcomes));
    for (uint32_t i = 0; i < RANKS; i++) {
        struct bootstrap_route route =
            route_of(RANKS, i, i == RANKS - 1 ? live_port : dead_port, i + 1);
        bootstrap_put_route(loop->client, loop->addr, &route, on_done, &outcomes[i]);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        loop_until(loop, &outcomes[i].calls, 1);
    struct outcome refused = put_route(loop, route_of(2, 0, 17000, 1000));
    assert_int_equal(refused.code, BATON_EEXIST);
    assert_non_null(strstr(refused.text, "tp 2"));
    assert_non_null(strstr(refused.text, "tp 150"));
    assert_int_equal(get_topology(loop, loop->addr).topology.tp_size, RANKS);
    close(live);
    assert_int_equal(put_route(loop, route_of(2, 0, 17000, 1000)).code, BATON_OK);
    assert_int_equal(get_topology(loop, loop->addr).code, BATON_AGAIN);
    assert_int_equal(put_route(loop, route_of(2, 1, 17001, 1001)).code, BATON_OK);
    assert_int_equal(get_topology(loop, loop->addr).topology.tp_size, 2);
    close(held);
}

static void test_taken_port_is_named(void **state)
{
    struct loop *loop = *state;
    static const char too_long[] =
        "a23456789a23456789a23456789a23456789a23456789a23456789a23456789a23456789.invalid";
    struct bootstrap_server *second = NULL;
    char text[256], port[16];
    uint16_t taken = bootstrap_server_port(loop->server);
    snprintf(port, sizeof(port), "port %u", taken);
    static const char *const hosts[] = {"127.0.0.1", "0.0.0.0", NULL};
    for (size_t i = 0; i < COUNT(hosts); i++) {
        assert_int_equal(
            bootstrap_server_open(loop->base, hosts[i], taken, &second, ERROR_BUFFER(text)),
            BATON_EBUSY);
        assert_non_null(strstr(text, port));
        assert_non_null(strstr(text, "choose another port"));
        assert_null(second);
    }
    assert_int_equal(
        bootstrap_server_open(loop->base, "192.0.2.1", 0, &second, ERROR_BUFFER(text)),
        BATON_ESYSTEM);
    assert_int_equal(
        bootstrap_server_open(loop->base, too_long, 0, &second, ERROR_BUFFER(text)),
        BATON_EINVAL);
    assert_non_null(strstr(text, too_long));
}

static void test_port_is_free_again_after_close(void **state)
{
    struct loop *loop = *state;
    char text[256];
    uint16_t port = bootstrap_server_port(loop->server);
    expect_server_healthy(loop);
    bootstrap_server_close(loop->server);
    assert_int_equal(
        bootstrap_server_open(loop->base, "127.0.0.1", port, &loop->server, ERROR_BUFFER(text)),
        BATON_OK);
    expect_server_healthy(loop);
}

static void test_server_on_every_address_takes_ipv4_and_ipv6(void **state)
{
    struct loop *loop = *state;
    struct bootstrap_server *server;
    char text[256], addr[64];
    struct outcome outcome = {0};
    assert_int_equal(bootstrap_server_open(loop->base, NULL, 0, &server, ERROR_BUFFER(text)),
                     BATON_OK);
    snprintf(addr, sizeof(addr), "localhost:%u", bootstrap_server_port(server));
    bootstrap_register_dp_rank(loop->client, addr, 1, 4, on_done, &outcome);
    assert_int_equal(outcome_wait(loop, &outcome).code, BATON_OK);
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&v6, sizeof(v6)) == 0) {
        struct outcome found = {0};
        snprintf(addr, sizeof(addr), "[::1]:%u", bootstrap_server_port(server));
        bootstrap_query_dp_rank(loop->client, addr, 1, on_dp_rank, &found);
        assert_int_equal(outcome_wait(loop, &found).code, BATON_OK);
        assert_int_equal(found.dp_rank, 4);
    }
    if (fd >= 0)
        close(fd);
    bootstrap_server_close(server);
}

/* ---- the clients that a port on a network meets ---------------------------------------- */

static void test_garbage_does_not_disturb_the_server(void **state)
{
    static const char *const garbage[] = {
        "\r\n\r\n\r\n",
        "hello\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /health HTTP/9.9\r\n\r\n",
        "GET\r\n\r\n",
        "FROB /route HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nno colon here\r\n\r\n",
        "PUT /route HTTP/1.1\r\nContent-Length: -5\r\n\r\nhello",
        "PUT /route HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
        "PUT /route HTTP/1.1\r\nContent-Length: 9999999\r\n\r\nhello",
        "PUT /route HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        "PUT /route HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhello",
        "BATN\x01\x00\x01\x00",
    };
    struct loop *loop = *state;
    for (size_t i = 0; i < COUNT(garbage); i++) {
        int fd = raw_connect(bootstrap_server_port(loop->server));
        raw_send(loop, fd, garbage[i], strlen(garbage[i]));
        for (int turns = 0; turns < 5; turns++)
            loop_turn(loop);
        close(fd);
        expect_server_healthy(loop);
    }
    char noise[4096];
    unsigned seed = 12345;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof(noise); i++)
            noise[i] = (char)((seed = seed * 1103515245u + 12345u) >> 16);
        int fd = raw_connect(bootstrap_server_port(loop->server));
        raw_send(loop, fd, noise, sizeof(noise));
        close(fd);
    }
    expect_server_healthy(loop);
}

static void test_half_sent_requests_hold_up_nobody(void **state)
{
    static const char *const halves[] = {
        "", "G", "GET /health HT", "GET /health HTTP/1.1\r\nHost:",
        "PUT /route HTTP/1.1\r\nContent-Length: 500\r\n\r\n{\"attn_tp_size\": 1, "};
    struct loop *loop = *state;
    int fds[COUNT(halves)];
    for (size_t i = 0; i < COUNT(halves); i++) {
        fds[i] = raw_connect(bootstrap_server_port(loop->server));
        assert_true(raw_send(loop, fds[i], halves[i], strlen(halves[i])));
    }
    expect_server_healthy(loop);
    assert_int_equal(put_route(loop, route_of(1, 0, 17000, 1)).code, BATON_OK);
    for (size_t i = 0; i + 1 < COUNT(halves); i++)
        close(fds[i]);
    expect_server_healthy(loop);
    close(fds[COUNT(halves) - 1]); /* with the server still waiting for the rest of the body */
    expect_server_healthy(loop);
}

static void test_too_large_bodies_and_headers_are_refused(void **state)
{
    struct loop *loop = *state;
    size_t size = BOOTSTRAP_BODY_MAX + 1;
    char *body = malloc(size), reply[4096], head[200];
    memset(body, 'a', size);
    int fd = raw_connect(bootstrap_server_port(loop->server));
    snprintf(head, sizeof(head),
             "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", size);
    raw_send(loop, fd, head, strlen(head));
    raw_send(loop, fd, body, size);
    raw_receive(loop, fd, NULL, reply, sizeof(reply));
    assert_true(!*reply || strstr(reply, "413"));
    close(fd);

    fd = raw_connect(bootstrap_server_port(loop->server));
    const char *start = "GET /health HTTP/1.1\r\nX: ";
    raw_send(loop, fd, start, strlen(start));
    bool all = raw_send(loop, fd, body, size);
    raw_receive(loop, fd, NULL, reply, sizeof(reply));
    assert_true(!all || !strstr(reply, "200"));
    close(fd);
    free(body);
    expect_server_healthy(loop);
}

static void test_requests_follow_each_other_on_one_connection(void **state)
{
    struct loop *loop = *state;
    char reply[4096], request[4096];
    char *body = route_body("{}");
    int fd = raw_connect(bootstrap_server_port(loop->server));
    /* Pipelined: three at once; the last closes. */
    snprintf(
        request, sizeof(request),
        "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n%s"
        "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n"
        "DELETE /route HTTP/1.1\r\nHost: x\r\n\r\n"
        "GET //route?engine_rank=0&target_dp_group=0&target_pp_rank=0 HTTP/1.1\r\nHost: x\r\n"
        "Connection: close\r\n\r\n",
        strlen(body), body);
    free(body);
    assert_true(raw_send(loop, fd, request, strlen(request)));
    raw_receive(loop, fd, NULL, reply, sizeof(reply));
    close(fd);
    assert_non_null(strstr(reply, "\r\n\r\nOK"));
    char *second = strstr(reply, "405");
    assert_non_null(second);
    assert_non_null(strstr(second, "Allow: GET, PUT\r\n"));
    assert_non_null(strstr(second, "Content-Type: application/json; charset=utf-8"));
    assert_non_null(strstr(second, "{\"rank_ip\":\"10.0.0.1\",\"rank_port\":17000}"));
}

static uint64_t thread_busy_ns(void)
{
    struct timespec busy;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &busy);
    return (uint64_t)busy.tv_sec * 1000 * NS_PER_MS + (uint64_t)busy.tv_nsec;
}

static void test_server_without_file_descriptors_recovers(void **state)
{
    struct loop *loop = *state;
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    char reply[1024];
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int fd = raw_connect(bootstrap_server_port(loop->server));
    none = limit;
    none.rlim_cur = 3; /* lower than any that is still free */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_true(raw_send(loop, fd, request, strlen(request)));
    uint64_t start = clock_now_ns(), busy = thread_busy_ns();
    while (clock_now_ns() - start < 200 * NS_PER_MS)
        loop_turn(loop);
    busy = thread_busy_ns() - busy;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(busy < 100 * NS_PER_MS); /* it does not spin on what it cannot accept */
    raw_receive(loop, fd, NULL, reply, sizeof(reply));
    assert_non_null(strstr(reply, "200 OK"));
    close(fd);
}

/* ---- what the client makes of bad servers ---------------------------------------------- */

static void test_client_asks_again_when_nobody_is_there(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    char addr[64];
    int held = rank_socket(-1, &port);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
    struct outcome outcome = get_topology(loop, addr);
    assert_int_equal(outcome.code, BATON_AGAIN);
    assert_non_null(strstr(outcome.text, addr));
    close(held);
}

static void test_client_refuses_bad_addresses(void **state)
{
    static const char *const bad[] = {
        "", "host", "[::1]", "127.0.0.1:0", "http://127.0.0.1:1", "no-such-host:8998"};
    struct loop *loop = *state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct outcome outcome = get_topology(loop, bad[i]);
        assert_int_equal(outcome.code, BATON_EINVAL);
        assert_true(strlen(outcome.text) > 20);
    }
    assert_int_equal(get_topology(loop, NULL).code, BATON_EINVAL);
}

/* A name server that knows one name. */
static void name_reply(struct evdns_server_request *request, void *arg)
{
    uint32_t loopback = htonl(INADDR_LOOPBACK);
    struct evdns_server_question *question = request->questions[0];
    (void)arg;
    if (strcasecmp(question->name, "prefill-7") != 0)
        evdns_server_request_respond(request, 3 /* NXDOMAIN */);
    else {
        if (question->type == EVDNS_TYPE_A)
            evdns_server_request_add_a_reply(request, question->name, 1, &loopback, 60);
        evdns_server_request_respond(request, 0);
    }
}

static void test_client_resolves_names(void **state)
{
    struct loop *loop = *state;
    struct bootstrap_client *client;
    struct outcome known = {0}, unknown = {0};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    char addr[64];
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    struct evdns_server_port *names =
        evdns_add_server_port_with_base(loop->base, fd, 0, name_reply, NULL);
    struct evdns_base *dns = evdns_base_new(loop->base, 0);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(evdns_base_nameserver_ip_add(dns, addr), 0);
    assert_int_equal(bootstrap_client_open(loop->base, dns, &client), BATON_OK);
    snprintf(addr, sizeof(addr), "prefill-7:%u", bootstrap_server_port(loop->server));
    bootstrap_register_dp_rank(client, addr, 1, 1, on_done, &known);
    assert_int_equal(outcome_wait(loop, &known).code, BATON_OK);
    bootstrap_register_dp_rank(client, "prefill-8:8998", 1, 1, on_done, &unknown);
    assert_int_equal(outcome_wait(loop, &unknown).code, BATON_AGAIN);
    assert_non_null(strstr(unknown.text, "prefill-8:8998"));
    bootstrap_client_close(client);
    evdns_base_free(dns, 1);
    evdns_close_server_port(names);
    loop_turn(loop);
}

/* A server that gives one reply to all. */
struct canned {
    int status;
    const char *body;
};

static void canned_reply(struct evhttp_request *request, void *arg)
{
    const struct canned *canned = arg;
    evbuffer_add_printf(evhttp_request_get_output_buffer(request), "%s", canned->body);
    evhttp_send_reply(request, canned->status, NULL, NULL);
}

static void test_client_understands_statuses_and_bodies(void **state)
{
    static const struct {
        struct canned canned;
        int code;
        const char *part;
    } cases[] = {
        {{200, "{\"rank_ip\": \"10.0.0.2\", \"rank_port\": \"12345\", \"is_dummy\": null}"},
         0,
         "OK"},
        {{200, "{\"rank_ip\": \"10.0.0.2\"}"}, BATON_EPROTOCOL, "rank_port"},
        {{200, "<html>"}, BATON_EPROTOCOL, "not JSON"},
        {{200, ""}, BATON_EPROTOCOL, "not JSON"},
        {{404, "Bootstrap info not found"}, BATON_AGAIN, "404"},
        {{503, "Prefill server not fully registered yet"}, BATON_AGAIN, "not fully"},
        {{409, "somebody has it"}, BATON_EEXIST, "somebody has it"},
        {{409, ""}, BATON_EEXIST, "409"},
        {{400, "Missing inputs"}, BATON_EPROTOCOL, "Missing inputs"},
        {{500, "Internal\x1b[31m\r\n"}, BATON_EPROTOCOL, "500 to GET /route: Internal?[31m"},
        {{302, ""}, BATON_EPROTOCOL, "302"},
        {{204, ""}, BATON_EPROTOCOL, "204"},
    };
    struct loop *loop = *state;
    struct evhttp *http = evhttp_new(loop->base);
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(http, "127.0.0.1", 0);
    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    char addr[64];
    assert_int_equal(
        getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &size), 0);
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", ntohs(address.sin_port));
    for (size_t i = 0; i < COUNT(cases); i++) {
        evhttp_set_gencb(http, canned_reply, (void *)&cases[i].canned);
        struct outcome outcome = get_rank(loop, addr, 0);
        if (outcome.code != cases[i].code || !strstr(outcome.text, cases[i].part))
            fail_msg("case %zu: %d %s", i, outcome.code, outcome.text);
    }
    evhttp_free(http);
}

/* Answers with raw bytes after it has read something, then closes. */
static struct outcome get_rank_from(struct loop *loop, const char *bytes, size_t size)
{
    uint16_t port;
    char addr[64], request[1024] = "";
    struct outcome outcome = {0};
    int listener = rank_socket(1, &port), fd = -1;
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    assert_non_null(bootstrap_get_rank(loop->client, addr, 0, 0, 0, on_rank, &outcome));
    for (int turns = 0; fd < 0; turns++) {
        assert_true(turns < 5000);
        loop_turn(loop);
        fd = accept(listener, NULL, NULL);
    }
    raw_receive(loop, fd, "\r\n\r\n", request, sizeof(request));
    assert_non_null(strstr(request, addr)); /* Host: */
    raw_send(loop, fd, bytes, size);
    close(fd);
    close(listener);
    loop_until(loop, &outcome.calls, 1);
    return outcome;
}

static void test_client_survives_servers_that_are_none(void **state)
{
    struct loop *loop = *state;
    static const struct {
        const char *bytes;
        int code;
    } cases[] = {
        {"", BATON_AGAIN},                              /* died before it answered */
        {"HTTP/1.1 200 OK\r\nContent-Le", BATON_AGAIN}, /* died while it answered */
        {"SSH-2.0-OpenSSH_9.2\r\n", BATON_EPROTOCOL},
        {"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n", BATON_EPROTOCOL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{", BATON_EPROTOCOL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}x", BATON_EPROTOCOL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct outcome outcome = get_rank_from(loop, cases[i].bytes, strlen(cases[i].bytes));
        if (outcome.code != cases[i].code)
            fail_msg("case %zu: %d %s", i, outcome.code, outcome.text);
    }
}

static void test_client_gives_up_on_silence(void **state)
{
    struct loop *loop = *state;
    uint16_t port;
    char addr[64];
    int listener = rank_socket(8, &port); /* accepts, and never says a word */
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
    struct outcome outcome = get_topology(loop, addr);
    assert_int_equal(outcome.code, BATON_AGAIN);
    assert_non_null(strstr(outcome.text, "no answer"));
    close(listener);
}

static void test_cancelled_calls_never_call_back(void **state)
{
    struct loop *loop = *state;
    struct outcome outcome = {0};
    /* At once, and after any number of turns of the loop, until the call is too fast for us. */
    for (int turns = 0; turns < 100; turns++) {
        struct outcome other = {0};
        memset(&outcome, 0, sizeof(outcome));
        struct bootstrap_call *call =
            bootstrap_get_topology(loop->client, loop->addr, on_topology, &outcome);
        for (int i = 0; i < turns && !outcome.calls; i++)
            event_base_loop(loop->base, EVLOOP_ONCE);
        if (outcome.calls) {
            assert_true(turns > 1);
            break;
        }
        bootstrap_cancel(call);
        bootstrap_get_topology(loop->client, loop->addr, on_topology, &other);
        loop_until(loop, &other.calls, 1);
        assert_int_equal(outcome.calls, 0);
    }
    assert_int_equal(outcome.calls, 1);
    outcome.calls = 0;
    bootstrap_cancel(
        bootstrap_get_topology(loop->client, "bad address", on_topology, &outcome));
    loop_turn(loop);
    assert_int_equal(outcome.calls, 0);
}

static void test_closed_client_never_calls_back(void **state)
{
    struct loop *loop = *state;
    struct outcome outcome = {0};
    for (int i = 0; i < 10; i++)
        bootstrap_get_topology(loop->client, i & 1 ? loop->addr : "bad", on_topology, &outcome);
    bootstrap_client_close(loop->client);
    loop->client = NULL;
    for (int i = 0; i < 10; i++)
        loop_turn(loop);
    assert_int_equal(outcome.calls, 0);
    expect_server_healthy(loop);
}

struct closing {
    struct loop *loop;
    int calls;
};

static void on_done_close(void *arg, int code, const char *text)
{
    struct closing *closing = arg;
    (void)code, (void)text;
    closing->calls++;
    bootstrap_client_close(closing->loop->client);
    closing->loop->client = NULL;
}

static void test_client_may_be_closed_from_a_callback(void **state)
{
    struct closing closing = {*state, 0};
    struct bootstrap_route route = route_of(1, 0, 17000, 1);
    for (int i = 0; i < 3; i++)
        bootstrap_put_route(closing.loop->client, closing.loop->addr, &route, on_done_close,
                            &closing);
    loop_until(closing.loop, &closing.calls, 1);
    for (int i = 0; i < 5; i++)
        loop_turn(closing.loop);
    assert_int_equal(closing.calls, 1);
}

#define TABLE_TEST(name) cmocka_unit_test_setup_teardown(name, table_setup, table_teardown)
#define LOOP_TEST(name) cmocka_unit_test_setup_teardown(name, loop_setup, loop_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TABLE_TEST(test_topology_has_exactly_sglangs_keys),
        TABLE_TEST(test_put_is_answered_ok_in_plain_text),
        TABLE_TEST(test_group_is_ready_when_each_rank_is_there),
        TABLE_TEST(test_rank_query),
        TABLE_TEST(test_older_parameter_names),
        TABLE_TEST(test_put_names_the_missing_key),
        TABLE_TEST(test_put_tolerates_what_sglang_sends),
        TABLE_TEST(test_put_refuses_bad_values),
        TABLE_TEST(test_bad_bodies_are_answered_400),
        TABLE_TEST(test_system_dp_makes_the_group),
        TABLE_TEST(test_first_put_describes_the_group),
        TABLE_TEST(test_load_balance_method_decides_follow),
        TABLE_TEST(test_epoch_is_told_per_rank_only),
        TABLE_TEST(test_rank_of_the_same_process_is_renewed),
        TABLE_TEST(test_rank_of_a_dead_process_is_replaced),
        TABLE_TEST(test_rank_of_a_live_process_is_refused),
        TABLE_TEST(test_question_says_where_to_ask),
        TABLE_TEST(test_rank_with_a_name_is_replaced_unasked),
        TABLE_TEST(test_port_taken_over_by_another_rank_is_no_sign_of_life),
        TABLE_TEST(test_answer_about_an_older_registration_is_not_used),
        TABLE_TEST(test_other_sizes_are_refused_while_the_group_lives),
        TABLE_TEST(test_two_ranks_of_a_new_group_come_at_once),
        TABLE_TEST(test_rooms_and_their_dp_ranks),
        TABLE_TEST(test_rooms_are_forgotten_after_their_time),
        TABLE_TEST(test_rooms_are_bounded),
        TABLE_TEST(test_paths_and_methods),
        cmocka_unit_test(test_decode_topology),
        cmocka_unit_test(test_decode_rank),
        cmocka_unit_test(test_decode_dp_rank),
        LOOP_TEST(test_server_and_client_find_each_other),
        LOOP_TEST(test_client_registers_and_asks_for_rooms),
        LOOP_TEST(test_hundred_registrations_at_once),
        LOOP_TEST(test_restarted_rank_replaces_the_dead_one),
        LOOP_TEST(test_second_live_process_is_refused),
        LOOP_TEST(test_silent_address_counts_as_gone),
        LOOP_TEST(test_other_requests_go_on_during_a_probe),
        LOOP_TEST(test_client_that_leaves_during_a_probe_leaks_nothing),
        LOOP_TEST(test_server_closes_during_a_probe),
        LOOP_TEST(test_new_sizes_need_the_old_group_gone),
        LOOP_TEST(test_taken_port_is_named),
        LOOP_TEST(test_port_is_free_again_after_close),
        LOOP_TEST(test_server_on_every_address_takes_ipv4_and_ipv6),
        LOOP_TEST(test_garbage_does_not_disturb_the_server),
        LOOP_TEST(test_half_sent_requests_hold_up_nobody),
        LOOP_TEST(test_too_large_bodies_and_headers_are_refused),
        LOOP_TEST(test_requests_follow_each_other_on_one_connection),
        LOOP_TEST(test_server_without_file_descriptors_recovers),
        LOOP_TEST(test_client_asks_again_when_nobody_is_there),
        LOOP_TEST(test_client_refuses_bad_addresses),
        LOOP_TEST(test_client_resolves_names),
        LOOP_TEST(test_client_understands_statuses_and_bodies),
        LOOP_TEST(test_client_survives_servers_that_are_none),
        LOOP_TEST(test_client_gives_up_on_silence),
        LOOP_TEST(test_cancelled_calls_never_call_back),
        LOOP_TEST(test_closed_client_never_calls_back),
        LOOP_TEST(test_client_may_be_closed_from_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
