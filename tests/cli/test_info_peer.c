/* SPDX-License-Identifier: Apache-2.0 */
/* `baton info --peer` against real managers in this process: what is taken and why not the others;
 * every way in which it cannot work has its own sentence; and the peer is left as it was. */
#include "baton.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char output[8192];

/* Runs `baton info --peer 127.0.0.1:port MORE`; returns its exit status, what it said is in output. */
static int info_peer(uint32_t port, const char *more)
{
    char command[1024];
    const char *baton = getenv("BATON");
    assert_non_null(baton);
    snprintf(command, sizeof(command),
             "ASAN_OPTIONS=detect_leaks=0 '%s' info --peer 127.0.0.1:%u %s 2>&1", baton, port,
             more);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = fread(output, 1, sizeof(output) - 1, pipe);
    output[used] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define assert_says(words)                                                   \
    do {                                                                     \
        if (!strstr(output, (words)))                                        \
            fail_msg("\"%s\" is not in what it said:\n%s", (words), output); \
    } while (0)

/* A line that begins with the backend's name and the verdict. */
static void assert_verdict(const char *backend, const char *verdict, const char *why)
{
    char line[256];
    snprintf(line, sizeof(line), "  %-14s %-14s %s", backend, verdict, why);
    assert_says(line);
}

static uint8_t memory[4096];

static baton_manager *prefill_open(const char *backends, const char *key, const char *bootstrap)
{
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    baton_region region = {
        .struct_size = sizeof(region), .name = "kv", .layout = BATON_LAYOUT_INIT};
    baton_base base = {memory, sizeof(memory), 1024};
    baton_manager *manager = NULL;
    char text[256] = "";
    region.layout.pages = 4;
    region.layout.page_stride = 1024;
    region.layout.layers = region.layout.base_count = 1;
    region.layout.bases = &base;
    options.tp_size = 1;
    options.regions = &region;
    options.region_count = 1;
    options.host = "127.0.0.1";
    options.backends = backends;
    options.key = key;
    options.bootstrap = bootstrap;
    options.register_rank = bootstrap != NULL;
    if (baton_manager_open(&options, &manager, text, sizeof(text)))
        fail_msg("%s", text);
    return manager;
}

/* The links that came are gone, and nothing was left behind. */
static void prefill_close(baton_manager *manager, uint64_t links)
{
    baton_counters counters = {.struct_size = sizeof(counters)};
    for (int i = 0; i < 500; i++) {
        assert_int_equal(baton_manager_counters(manager, &counters), 0);
        if (!counters.links_up && counters.links_lost == links)
            break;
        usleep(10000);
    }
    assert_int_equal(counters.links_up, 0);
    assert_int_equal(counters.links_lost, links);
    assert_int_equal(counters.rooms_open, 0);
    assert_int_equal(counters.rooms_failed + counters.rooms_refused, 0);
    assert_int_equal(counters.frames_bad, 0);
    baton_manager_close(manager);
}

static void test_the_first_that_both_can_use_is_taken(void **state)
{
    (void)state;
    baton_manager *manager = prefill_open("shm,cma,tcp", NULL, NULL);
    assert_int_equal(info_peer(baton_manager_port(manager), "--backends shm,tcp"), 0);
    assert_says("rank 0 at 127.0.0.1:");
    assert_says("on this host");
    assert_verdict("shm", "taken", "the first that both sides can use");
    assert_verdict("tcp", "would do", "");
    assert_verdict("cma", "not from here", "not in the list of backends");
    prefill_close(manager, 1);
}

static void test_reasons_of_both_sides_are_told(void **state)
{
    (void)state;
    baton_manager *manager = prefill_open("tcp", NULL, NULL);
    assert_int_equal(info_peer(baton_manager_port(manager), "--backends loopback,shm,tcp"), 0);
    assert_verdict("loopback", "not from there", "it does not offer it");
    assert_verdict("shm", "not from there", "it does not offer it");
    assert_verdict("tcp", "taken", "the first that both sides can use; 2 rails");
    assert_int_equal(
        info_peer(baton_manager_port(manager), "--backends loopback,shm,tcp --json"), 0);
    assert_says("\"backend\":\"tcp\"");
    assert_says("\"verdict\":\"not from there\",\"why\":\"it does not offer it\"");
    prefill_close(manager, 2);
}

static void test_nothing_in_common_is_refused_with_the_reason(void **state)
{
    (void)state;
    baton_manager *manager = prefill_open("shm", NULL, NULL);
    assert_int_equal(info_peer(baton_manager_port(manager), "--backends tcp"), 1);
    assert_says("refused the link: the two ranks have no backend in common");
    prefill_close(manager, 0);
}

static void test_a_bootstrap_server_leads_to_the_rank(void **state)
{
    (void)state;
    baton_bootstrap *server = NULL;
    char address[32];
    assert_int_equal(baton_bootstrap_open("127.0.0.1", 0, &server, output, sizeof(output)), 0);
    uint32_t port = baton_bootstrap_port(server);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    baton_manager *manager = prefill_open("tcp", NULL, address);
    int status = 1;
    for (int i = 0; i < 50 && status; i++) { /* it registers itself in its own time */
        status = info_peer(port, "--peer-rank 0 --backends tcp");
        usleep(status ? 20000 : 0);
    }
    assert_int_equal(status, 0);
    assert_verdict("tcp", "taken", "");
    assert_int_equal(info_peer(port, "--peer-rank 7 --backends tcp"), 1);
    assert_says("rank");
    assert_int_equal(info_peer(port, "--peer-rank seven"), 1);
    assert_says("--peer-rank");
    assert_int_equal(info_peer(port, "--backends tcp"), 1);
    assert_says("is it a bootstrap server? then --peer-rank names the rank behind it");
    prefill_close(manager, 1);
    baton_bootstrap_close(server);
}

static void test_keys_must_agree(void **state)
{
    (void)state;
    char file[] = "/tmp/baton-info-XXXXXX", more[128];
    baton_manager *manager = prefill_open("tcp", "a common secret", NULL);
    uint32_t port = baton_manager_port(manager);
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    snprintf(more, sizeof(more), "--backends tcp --key-file %s", file);
    assert_int_equal(info_peer(port, more), 1);
    assert_says("there is no key in");
    assert_int_equal(write(fd, "a common secret\n", 16), 16);
    assert_int_equal(info_peer(port, more), 0);
    assert_verdict("tcp", "taken", "");
    assert_int_equal(pwrite(fd, "another", 7, 0), 7);
    assert_int_equal(info_peer(port, more), 1);
    assert_says("could not prove the shared key");
    assert_int_equal(info_peer(port, "--backends tcp"), 1);
    assert_says("demands a shared key");
    close(fd);
    unlink(file);
    prefill_close(manager, 1);
}

/* ---- peers that are none ---- */

struct listener {
    int fd;
    uint32_t port;
    const char *answer;
    size_t length;
};

static void listener_open(struct listener *listener)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener->fd >= 0);
    assert_int_equal(bind(listener->fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(listener->fd, (struct sockaddr *)&address, &size), 0);
    listener->port = ntohs(address.sin_port);
}

/* Answers one caller and waits until it leaves. */
static void *listener_serve(void *arg)
{
    const struct listener *listener = arg;
    char bytes[512];
    int fd = accept(listener->fd, NULL, NULL);
    if (fd < 0)
        return NULL;
    if (read(fd, bytes, sizeof(bytes)) > 0 && listener->length &&
        write(fd, listener->answer, listener->length) < 0)
        perror("write");
    while (read(fd, bytes, sizeof(bytes)) > 0)
        continue;
    close(fd);
    return NULL;
}

static void stranger_is_told(const char *answer, size_t length, const char *words)
{
    struct listener listener = {.answer = answer, .length = length};
    pthread_t thread;
    listener_open(&listener);
    assert_int_equal(listen(listener.fd, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, listener_serve, &listener), 0);
    assert_int_equal(info_peer(listener.port, "--backends tcp"), 1);
    assert_says(words);
    pthread_join(thread, NULL);
    close(listener.fd);
}

static void test_nobody_there(void **state)
{
    (void)state;
    struct listener nobody = {0};
    listener_open(&nobody); /* bound, but it does not listen */
    assert_int_equal(info_peer(nobody.port, "--backends tcp"), 1);
    assert_says("Connection refused");
    close(nobody.fd);
}

static void test_another_version(void **state)
{
    (void)state;
    static const char hello[24] = {'B', 'A', 'T', 'N', 99, 0, 1, 0};
    stranger_is_told(hello, sizeof(hello), "the peer speaks wire version 99");
}

static void test_silence(void **state)
{
    (void)state;
    stranger_is_told("", 0, "did not finish the handshake in time");
}

static void test_another_protocol(void **state)
{
    (void)state;
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    stranger_is_told(answer, sizeof(answer) - 1, "is it a bootstrap server?");
}

static void test_wrong_addresses(void **state)
{
    (void)state;
    assert_int_equal(info_peer(0, ""), 1);
    assert_says("127.0.0.1:0");
    assert_int_equal(info_peer(1, "--backends quantum"), 1);
    assert_says("no backend is called 'quantum'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_that_both_can_use_is_taken),
        cmocka_unit_test(test_reasons_of_both_sides_are_told),
        cmocka_unit_test(test_nothing_in_common_is_refused_with_the_reason),
        cmocka_unit_test(test_a_bootstrap_server_leads_to_the_rank),
        cmocka_unit_test(test_keys_must_agree),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_another_protocol),
        cmocka_unit_test(test_wrong_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
