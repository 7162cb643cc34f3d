/* SPDX-License-Identifier: Apache-2.0 */
/* See fleet.h. */
#include "fleet.h"

#include "transfer/room.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

int fleet_bound_ms(void)
{
    const char *patience = getenv("FLEET_PATIENCE");
    int factor = patience ? atoi(patience) : 1;
    return 20000 * (factor > 0 ? factor : 1);
}

uint64_t fleet_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- a rank ---- */

static const char *text_or_null(const char *text)
{
    return *text ? text : NULL;
}

static int rank_memory(struct fleet_rank *rank, bool foreign, char *err, size_t err_size)
{
    uint64_t bytes = (uint64_t)rank->pages * rank->page_bytes;
    if (!foreign) {
        int code = baton_pool_alloc(bytes, &rank->pool, err, err_size);
        if (code == BATON_OK)
            rank->memory = baton_pool_address(rank->pool);
        return code;
    }
    rank->memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return rank->memory == MAP_FAILED ? BATON_ENOMEM : BATON_OK;
}

static int rank_open_manager(struct fleet_rank *rank, const struct fleet_options *from,
                             char *err, size_t err_size)
{
    baton_base base = {rank->memory, (uint64_t)rank->pages * rank->page_bytes,
                       rank->page_bytes};
    baton_region region = {.struct_size = sizeof(region),
                           .kind = BATON_REGION_KV,
                           .name = "kv",
                           .layout = BATON_LAYOUT_INIT};
    region.layout.pages = rank->pages;
    region.layout.layers = 1;
    region.layout.bases = &base;
    region.layout.base_count = 1;
    baton_aux_field field = {"token", BATON_DTYPE_I32, from->aux_count, 0};
    baton_aux aux = {.struct_size = sizeof(aux),
                     .slots = 16,
                     .address = rank->aux,
                     .slot_bytes = 4ull * from->aux_count,
                     .fields = &field,
                     .field_count = 1};
    baton_manager_options options = BATON_MANAGER_OPTIONS_INIT;
    options.rank = from->rank;
    options.tp_size = from->tp_size;
    options.host = "127.0.0.1";
    options.port = from->port;
    options.register_rank = from->register_rank;
    options.bootstrap = text_or_null(from->bootstrap);
    options.bootstrap_allow = text_or_null(from->allow);
    options.fingerprint = text_or_null(from->fingerprint);
    options.backends = text_or_null(from->backends);
    options.ib_device = text_or_null(from->ib_device);
    options.key = text_or_null(from->key);
    options.tls_certificate = text_or_null(from->certificate);
    options.tls_key = text_or_null(from->certificate_key);
    options.tls_ca = text_or_null(from->authority);
    options.regions = &region;
    options.region_count = 1;
    options.aux = from->aux_count ? &aux : NULL;
    options.heartbeat_ms = from->heartbeat_ms;
    options.silent_ms = from->silent_ms;
    options.match_timeout_ms = from->match_timeout_ms;
    options.deadline_ms = from->deadline_ms;
    options.max_rooms = from->max_rooms;
    options.copy_threads = from->copy_threads;
    options.tcp_streams = from->tcp_streams;
    options.verify = from->verify;
    return baton_manager_open(&options, &rank->manager, err, err_size);
}

int fleet_rank_open(struct fleet_rank *rank, const struct fleet_options *options, char *err,
                    size_t err_size)
{
    *rank =
        (struct fleet_rank){.pages = options->pages ? options->pages : 16,
                            .page_bytes = options->page_bytes ? options->page_bytes : 32768};
    int code = rank_memory(rank, options->foreign, err, err_size);
    if (code != BATON_OK)
        return code;
    rank->aux = calloc(16, 4ull * options->aux_count + 1);
    code = rank_open_manager(rank, options, err, err_size);
    if (code != BATON_OK)
        fleet_rank_close(rank);
    return code;
}

void fleet_rank_close(struct fleet_rank *rank)
{
    baton_manager_close(rank->manager);
    if (rank->pool)
        baton_pool_free(rank->pool);
    else if (rank->memory)
        munmap(rank->memory, (size_t)rank->pages * rank->page_bytes);
    free(rank->aux);
    *rank = (struct fleet_rank){0};
}

baton_counters fleet_counters(const struct fleet_rank *rank)
{
    baton_counters counters = {.struct_size = sizeof(counters)};
    baton_manager_counters(rank->manager, &counters);
    return counters;
}

static uint8_t pattern(uint32_t seed, uint32_t position, uint32_t byte)
{
    uint32_t x = (seed * 0x9e3779b9u) ^ (position * 0x85ebca6bu) ^ (byte * 0xc2b2ae35u);
    return (uint8_t)(x >> 24 ^ x >> 13 ^ x);
}

void fleet_fill(struct fleet_rank *rank, uint32_t first, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t at = 0; at < rank->page_bytes; at++)
            rank->memory[(uint64_t)(first + i) * rank->page_bytes + at] = pattern(seed, i, at);
}

uint64_t fleet_wrong_bytes(const struct fleet_rank *rank, uint32_t first, uint32_t count,
                           uint32_t seed)
{
    uint64_t wrong = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t at = 0; at < rank->page_bytes; at++)
            wrong += rank->memory[(uint64_t)(first + i) * rank->page_bytes + at] !=
                     pattern(seed, i, at);
    return wrong;
}

/* ---- rooms; used by tests and by workers ---- */

static int32_t *page_list(uint32_t first, uint32_t count)
{
    int32_t *pages = calloc((size_t)count + 1, sizeof(*pages));
    for (uint32_t i = 0; pages && i < count; i++)
        pages[i] = (int32_t)(first + i);
    return pages;
}

static int sender_open(baton_manager *manager, uint64_t room, const char *bootstrap,
                       uint32_t deadline_ms, baton_sender **out, char *err, size_t err_size)
{
    baton_sender_options options = BATON_SENDER_OPTIONS_INIT;
    options.room = room;
    options.bootstrap = bootstrap;
    options.deadline_ms = deadline_ms;
    return baton_sender_open(manager, &options, out, err, err_size);
}

static int receiver_open(baton_manager *manager, uint64_t room, const char *bootstrap,
                         uint32_t deadline_ms, baton_receiver **out, char *err, size_t err_size)
{
    baton_receiver_options options = BATON_RECEIVER_OPTIONS_INIT;
    options.room = room;
    options.bootstrap = bootstrap;
    options.deadline_ms = deadline_ms;
    return baton_receiver_open(manager, &options, out, err, err_size);
}

static int sender_init(baton_sender *sender, uint32_t pages)
{
    baton_sender_init_options options = BATON_SENDER_INIT_OPTIONS_INIT;
    options.pages = pages;
    return baton_sender_init(sender, &options);
}

static int sender_send(baton_sender *sender, uint32_t first, uint32_t count)
{
    int32_t *pages = page_list(first, count);
    int code = baton_sender_send(sender, pages, count, false);
    free(pages);
    return code;
}

int fleet_grant(baton_receiver *receiver, uint32_t first, uint32_t count)
{
    baton_receiver_init_options options = BATON_RECEIVER_INIT_OPTIONS_INIT;
    int32_t *pages = page_list(first, count);
    options.pages = pages;
    options.page_count = count;
    int code = baton_receiver_init(receiver, &options);
    free(pages);
    return code;
}

baton_sender *fleet_sender(struct fleet_rank *rank, uint64_t room, const char *bootstrap)
{
    baton_sender *sender = NULL;
    char err[256] = "";
    if (sender_open(rank->manager, room, bootstrap, 0, &sender, err, sizeof(err)) != BATON_OK)
        fail_msg("no sender: %s", err);
    return sender;
}

void fleet_send(baton_sender *sender, uint32_t first, uint32_t count)
{
    assert_int_equal(sender_init(sender, count), BATON_OK);
    assert_int_equal(sender_send(sender, first, count), BATON_OK);
}

baton_receiver *fleet_receiver(struct fleet_rank *rank, uint64_t room, const char *bootstrap)
{
    baton_receiver *receiver = NULL;
    char err[256] = "";
    if (receiver_open(rank->manager, room, bootstrap, 0, &receiver, err, sizeof(err)) !=
        BATON_OK)
        fail_msg("no receiver: %s", err);
    return receiver;
}

static bool state_is_final(int state)
{
    return state == BATON_FAILED || state == BATON_SUCCESS;
}

void fleet_sender_is(baton_sender *sender, int state)
{
    char text[512];
    int now;
    EVENTUALLY((now = baton_sender_poll(sender)) == state || state_is_final(now));
    baton_sender_failure(sender, text, sizeof(text));
    if (now != state)
        fail_msg("sender is %s, not %s: %s", baton_state_name(now), baton_state_name(state),
                 text);
}

void fleet_receiver_is(baton_receiver *receiver, int state)
{
    char text[512];
    int now;
    EVENTUALLY((now = baton_receiver_poll(receiver)) == state || state_is_final(now));
    baton_receiver_failure(receiver, text, sizeof(text));
    if (now != state)
        fail_msg("receiver is %s, not %s: %s", baton_state_name(now), baton_state_name(state),
                 text);
}

/* ---- the worker's side ---- */

struct member_room {
    uint64_t room;
    baton_sender *sender; /* one of the two */
    baton_receiver *receiver;
};

struct member {
    struct fleet_rank rank;
    baton_bootstrap *bootstrap;
    struct member_room *rooms;
    uint32_t room_count, room_capacity;
    uint32_t many_from; /* index in rooms of the first that FLEET_MANY opened */
};

static struct member_room *member_add(struct member *member)
{
    if (member->room_count == member->room_capacity) {
        uint32_t capacity = member->room_capacity * 2 + 64;
        struct member_room *rooms = realloc(member->rooms, capacity * sizeof(*rooms));
        if (!rooms)
            abort();
        member->rooms = rooms;
        member->room_capacity = capacity;
    }
    member->rooms[member->room_count] = (struct member_room){0};
    return &member->rooms[member->room_count++];
}

static struct member_room *member_find(struct member *member, const struct fleet_order *order)
{
    for (uint32_t i = member->room_count; i-- > 0;) {
        struct member_room *one = &member->rooms[i];
        if (one->room == order->room && (order->sender ? !!one->sender : !!one->receiver))
            return one;
    }
    return NULL;
}

static int room_poll(const struct member_room *one)
{
    return one->sender ? baton_sender_poll(one->sender) : baton_receiver_poll(one->receiver);
}

static bool room_fenced(const struct member_room *one)
{
    return one->sender ? baton_sender_fenced(one->sender)
                       : baton_receiver_fenced(one->receiver);
}

static void room_end(struct member_room *one)
{
    baton_sender_close(one->sender);
    baton_receiver_close(one->receiver);
    *one = (struct member_room){0};
}

static void room_report(const struct member_room *one, struct fleet_reply *reply)
{
    reply->state = (uint32_t)room_poll(one);
    reply->fenced = room_fenced(one);
    reply->timeline.struct_size = sizeof(reply->timeline);
    if (one->sender) {
        reply->committed = atomic_load(&sender_room(one->sender)->committed);
        reply->failure = baton_sender_failure(one->sender, reply->text, sizeof(reply->text));
        baton_sender_timeline(one->sender, &reply->timeline);
    } else {
        reply->failure =
            baton_receiver_failure(one->receiver, reply->text, sizeof(reply->text));
        baton_receiver_timeline(one->receiver, &reply->timeline);
    }
}

/* Loops until the room is there or final; the parent's own bound is larger. */
static void room_await(const struct member_room *one, int state, bool fence)
{
    uint64_t end = fleet_now_ms() + FLEET_BOUND_MS;
    while (fleet_now_ms() < end) {
        int now = room_poll(one);
        if (fence ? room_fenced(one) : now == state || state_is_final(now))
            return;
        usleep(500);
    }
}

static int member_many(struct member *member, const struct fleet_order *order, char *err,
                       size_t err_size)
{
    member->many_from = member->room_count;
    for (uint32_t i = 0; i < order->count; i++) {
        struct member_room *one = member_add(member);
        int code;
        one->room = order->room + i;
        if (order->sender) {
            code = sender_open(member->rank.manager, one->room, NULL, order->deadline_ms,
                               &one->sender, err, err_size);
            if (code == BATON_OK)
                code = sender_init(one->sender, 1);
            if (code == BATON_OK && !order->seed) /* seed 1: wait, do not send */
                code = sender_send(one->sender, order->first + i, 1);
        } else {
            code = receiver_open(member->rank.manager, one->room, NULL, order->deadline_ms,
                                 &one->receiver, err, err_size);
            if (code == BATON_OK)
                code = fleet_grant(one->receiver, order->first + i, 1);
        }
        if (code != BATON_OK)
            return code;
    }
    return BATON_OK;
}

static uint64_t member_many_await(struct member *member, int state, bool fence)
{
    uint64_t end = fleet_now_ms() + 2 * FLEET_BOUND_MS, missing;
    do {
        missing = 0;
        for (uint32_t i = member->many_from; i < member->room_count; i++)
            missing +=
                fence ? !room_fenced(&member->rooms[i]) : room_poll(&member->rooms[i]) != state;
        if (missing)
            usleep(2000);
    } while (missing && fleet_now_ms() < end);
    return missing;
}

static uint64_t member_cpu_us(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (uint64_t)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static uint64_t member_resident_kb(void)
{
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
}

/* Leaves room for `more` descriptors above those that are open now. */
static int member_limit_files(uint32_t more)
{
    int highest = dup(0);
    if (highest < 0)
        return BATON_ESYSTEM;
    close(highest);
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return BATON_ESYSTEM;
    limit.rlim_cur = (rlim_t)highest + more;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? BATON_OK : BATON_ESYSTEM;
}

/* A sanitizer's leak check opens files. */
static void member_unlimit_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int member_open_room(struct member *member, const struct fleet_order *order,
                            struct fleet_reply *reply)
{
    struct member_room *one = member_add(member);
    one->room = order->room;
    int code = order->op == FLEET_SENDER
                   ? sender_open(member->rank.manager, order->room, NULL, order->deadline_ms,
                                 &one->sender, reply->text, sizeof(reply->text))
                   : receiver_open(member->rank.manager, order->room, NULL, order->deadline_ms,
                                   &one->receiver, reply->text, sizeof(reply->text));
    if (code != BATON_OK)
        member->room_count--;
    return code;
}

static void member_do_room(struct member *member, const struct fleet_order *order,
                           struct fleet_reply *reply)
{
    struct member_room *one = member_find(member, order);
    if (!one) {
        reply->code = BATON_ENOTFOUND;
        return;
    }
    switch (order->op) {
    case FLEET_INIT:
        reply->code = one->sender ? sender_init(one->sender, order->count)
                                  : fleet_grant(one->receiver, order->first, order->count);
        break;
    case FLEET_SEND: reply->code = sender_send(one->sender, order->first, order->count); break;
    case FLEET_WAIT: room_await(one, (int)order->state, false); break;
    case FLEET_FENCE: room_await(one, 0, true); break;
    case FLEET_ABORT:
        reply->code = one->sender ? baton_sender_abort(one->sender, order->text)
                                  : baton_receiver_abort(one->receiver, order->text);
        break;
    case FLEET_END: room_end(one); return;
    default: break;
    }
    room_report(one, reply);
}

static void member_do_many(struct member *member, const struct fleet_order *order,
                           struct fleet_reply *reply)
{
    struct member_room *from = member->rooms + member->many_from;
    uint32_t count = member->room_count - member->many_from;
    switch (order->op) {
    case FLEET_MANY:
        reply->code = member_many(member, order, reply->text, sizeof(reply->text));
        break;
    case FLEET_MANY_WAIT:
        reply->value = member_many_await(member, (int)order->state, false);
        for (uint32_t i = 0; reply->value && i < count; i++)
            if (room_poll(&from[i]) == BATON_FAILED)
                room_report(&from[i], reply);
        break;
    case FLEET_MANY_FENCE: reply->value = member_many_await(member, 0, true); break;
    case FLEET_MANY_ABORT:
        for (uint32_t i = 0; i < count; i++)
            if (from[i].sender)
                baton_sender_abort(from[i].sender, order->text);
            else
                baton_receiver_abort(from[i].receiver, order->text);
        break;
    default:
        for (uint32_t i = 0; i < count; i++)
            room_end(&from[i]);
        member->room_count = member->many_from;
        break;
    }
}

static void member_close(struct member *member)
{
    for (uint32_t i = 0; i < member->room_count; i++)
        room_end(&member->rooms[i]);
    member->room_count = 0;
    if (member->rank.manager)
        fleet_rank_close(&member->rank);
}

static void member_do(struct member *member, const struct fleet_order *order,
                      struct fleet_reply *reply)
{
    struct fleet_rank *rank = &member->rank;
    switch (order->op) {
    case FLEET_BOOTSTRAP:
        reply->code = baton_bootstrap_open("127.0.0.1", order->count, &member->bootstrap,
                                           reply->text, sizeof(reply->text));
        if (reply->code == BATON_OK)
            reply->value = baton_bootstrap_port(member->bootstrap);
        break;
    case FLEET_OPEN:
        reply->code = fleet_rank_open(rank, &order->options, reply->text, sizeof(reply->text));
        if (reply->code == BATON_OK)
            reply->value = baton_manager_port(rank->manager);
        break;
    case FLEET_SENDER:
    case FLEET_RECEIVER: reply->code = member_open_room(member, order, reply); break;
    case FLEET_FILL: fleet_fill(rank, order->first, order->count, order->seed); break;
    case FLEET_CHECK:
        reply->value = fleet_wrong_bytes(rank, order->first, order->count, order->seed);
        break;
    case FLEET_COUNTERS: reply->counters = fleet_counters(rank); break;
    case FLEET_FILES: reply->code = member_limit_files(order->count); break;
    case FLEET_CPU: reply->value = member_cpu_us(); break;
    case FLEET_MEMORY: reply->value = member_resident_kb(); break;
    case FLEET_CLOSE: member_close(member); break;
    case FLEET_MANY:
    case FLEET_MANY_WAIT:
    case FLEET_MANY_ABORT:
    case FLEET_MANY_FENCE:
    case FLEET_MANY_END: member_do_many(member, order, reply); break;
    default: member_do_room(member, order, reply); break;
    }
}

static void member_main(int channel)
{
    struct member member = {0};
    struct fleet_order order;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(channel, &order, sizeof(order)) == (ssize_t)sizeof(order) &&
           order.op != FLEET_QUIT) {
        struct fleet_reply reply = {0};
        member_do(&member, &order, &reply);
        if (write(channel, &reply, sizeof(reply)) != (ssize_t)sizeof(reply))
            break;
    }
    member_close(&member);
    baton_bootstrap_close(member.bootstrap);
    free(member.rooms);
    member_unlimit_files();
    exit(0); /* with the leak check of sanitizer builds */
}

/* ---- the test's side ---- */

static struct fleet_worker workers[FLEET_WORKERS_MAX];

struct fleet_worker *fleet_start(void)
{
    struct fleet_worker *worker = workers;
    int pair[2];
    while (worker < workers + FLEET_WORKERS_MAX && worker->pid)
        worker++;
    if (worker == workers + FLEET_WORKERS_MAX)
        fail_msg("more than %d workers", FLEET_WORKERS_MAX);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        for (int i = 0; i < FLEET_WORKERS_MAX; i++)
            if (workers[i].pid)
                close(workers[i].channel);
        close(pair[0]);
        member_main(pair[1]);
    }
    close(pair[1]);
    *worker = (struct fleet_worker){pid, pair[0]};
    return worker;
}

/* What became of a worker that does not answer any more. */
static void worker_is_gone(const struct fleet_worker *worker, uint32_t op)
{
    int status = 0;
    usleep(100 * 1000);
    if (waitpid(worker->pid, &status, WNOHANG) == worker->pid)
        fail_msg("order %u: worker %d ended with %s %d", op, worker->pid,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fail_msg("order %u: worker %d has closed its channel", op, worker->pid);
}

void fleet_tell(struct fleet_worker *worker, struct fleet_order order)
{
    if (send(worker->channel, &order, sizeof(order), MSG_NOSIGNAL) != (ssize_t)sizeof(order))
        worker_is_gone(worker, order.op);
}

struct fleet_reply fleet_answer(struct fleet_worker *worker)
{
    struct fleet_reply reply;
    struct pollfd ready = {worker->channel, POLLIN, 0};
    if (poll(&ready, 1, 3 * FLEET_BOUND_MS) <= 0)
        fail_msg("worker %d does not answer", worker->pid);
    if (read(worker->channel, &reply, sizeof(reply)) != (ssize_t)sizeof(reply))
        worker_is_gone(worker, UINT32_MAX);
    return reply;
}

struct fleet_reply fleet_order(struct fleet_worker *worker, struct fleet_order order)
{
    fleet_tell(worker, order);
    return fleet_answer(worker);
}

void fleet_signal(struct fleet_worker *worker, int signal)
{
    assert_int_equal(kill(worker->pid, signal), 0);
}

void fleet_await_stopped(struct fleet_worker *worker)
{
    int status = 0;
    EVENTUALLY(waitpid(worker->pid, &status, WUNTRACED | WNOHANG) == worker->pid);
    assert_true(WIFSTOPPED(status));
}

/* Longer than elsewhere: a leak check at exit can take tens of seconds on a busy machine. */
static int worker_reap(struct fleet_worker *worker)
{
    int status = 0;
    uint64_t end = fleet_now_ms() + 6 * FLEET_BOUND_MS;
    while (waitpid(worker->pid, &status, WNOHANG) != worker->pid) {
        if (fleet_now_ms() > end)
            fail_msg("worker %d does not end", worker->pid);
        usleep(500);
    }
    close(worker->channel);
    *worker = (struct fleet_worker){0};
    return status;
}

void fleet_kill(struct fleet_worker *worker)
{
    fleet_signal(worker, SIGKILL);
    worker_reap(worker);
}

void fleet_await_death(struct fleet_worker *worker)
{
    int status = worker_reap(worker);
    assert_true(WIFSIGNALED(status));
}

void fleet_quit(struct fleet_worker *worker)
{
    fleet_tell(worker, (struct fleet_order){.op = FLEET_QUIT});
    int status = worker_reap(worker);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("a worker ended with status 0x%x", status);
}

int fleet_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < FLEET_WORKERS_MAX; i++) {
        if (!workers[i].pid)
            continue;
        kill(workers[i].pid, SIGKILL);
        waitpid(workers[i].pid, NULL, 0);
        close(workers[i].channel);
        workers[i] = (struct fleet_worker){0};
    }
    return 0;
}

/* ---- shorthands ---- */

uint32_t fleet_bootstrap(struct fleet_worker *worker)
{
    struct fleet_reply reply = fleet_order(worker, (struct fleet_order){.op = FLEET_BOOTSTRAP});
    if (reply.code != BATON_OK)
        fail_msg("no bootstrap server: %s", reply.text);
    return (uint32_t)reply.value;
}

void fleet_open(struct fleet_worker *worker, struct fleet_options options)
{
    struct fleet_reply reply =
        fleet_order(worker, (struct fleet_order){.op = FLEET_OPEN, .options = options});
    if (reply.code != BATON_OK)
        fail_msg("no rank: %s", reply.text);
}

struct fleet_reply fleet_room_state(struct fleet_worker *worker, bool sender, uint64_t room)
{
    struct fleet_reply reply = fleet_order(
        worker, (struct fleet_order){.op = FLEET_STATE, .sender = sender, .room = room});
    assert_int_equal(reply.code, BATON_OK);
    return reply;
}

struct fleet_reply fleet_room_wait(struct fleet_worker *worker, bool sender, uint64_t room,
                                   int state)
{
    struct fleet_reply reply = fleet_order(
        worker,
        (struct fleet_order){
            .op = FLEET_WAIT, .sender = sender, .room = room, .state = (uint32_t)state});
    assert_int_equal(reply.code, BATON_OK);
    if ((int)reply.state != state)
        fail_msg("%s of room %llu is %s, not %s: %s", sender ? "sender" : "receiver",
                 (unsigned long long)room, baton_state_name((int)reply.state),
                 baton_state_name(state), reply.text);
    return reply;
}
