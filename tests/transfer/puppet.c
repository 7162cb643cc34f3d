/* SPDX-License-Identifier: Apache-2.0 */
/* See puppet.h. */
#include "puppet.h"

#include "net/socket.h"
#include "transfer/bootstrap_table.h"
#include "transfer/room.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

static uint8_t puppet_cookie[16] = "a puppet's own.";

/* ---- sockets ---- */

static void bound_reads(int fd)
{
    struct timeval bound = {FLEET_BOUND_MS / 1000, 0};
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

int puppet_try_dial(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    bound_reads(fd);
    return fd;
}

int puppet_dial(uint16_t port)
{
    int fd = puppet_try_dial(port);
    if (fd < 0)
        fail_msg("cannot connect to port %u: %s", port, strerror(errno));
    return fd;
}

int puppet_dial_unix(const char *abstract_name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(abstract_name);
    memcpy(address.sun_path + 1, abstract_name, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)),
                     0);
    bound_reads(fd);
    return fd;
}

int puppet_listen(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

/* A peer that has hung up is for the test to find out by reading. */
void puppet_write(int fd, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    while (size) {
        ssize_t wrote = send(fd, at, size, MSG_NOSIGNAL);
        if (wrote <= 0)
            return;
        at += wrote;
        size -= (size_t)wrote;
    }
}

bool puppet_is_closed(int fd)
{
    uint8_t bytes[4096];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0)
        ;
    return got == 0 || errno == ECONNRESET;
}

int puppet_http(uint16_t port, const char *request, char *reply, size_t size)
{
    int fd = puppet_dial(port), status = 0;
    size_t have = 0;
    ssize_t got;
    puppet_write(fd, request, strlen(request));
    while (have < size - 1 && (got = recv(fd, reply + have, size - 1 - have, 0)) > 0)
        have += (size_t)got;
    reply[have] = 0;
    close(fd);
    if (sscanf(reply, "HTTP/1.1 %d", &status) != 1)
        status = 0;
    return status;
}

void puppet_route(uint16_t bootstrap_port, uint16_t rank_port, uint64_t epoch)
{
    struct bootstrap_route route = {.tp_size = 1,
                                    .pp_size = 1,
                                    .dp_size = 1,
                                    .rank_ip = "127.0.0.1",
                                    .rank_port = rank_port,
                                    .page_size = 1,
                                    .kv_cache_dtype = "auto",
                                    .epoch = epoch};
    char request[2048], reply[2048];
    char *body = bootstrap_route_encode(&route);
    assert_non_null(body);
    snprintf(request, sizeof(request),
             "PUT /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    free(body);
    if (puppet_http(bootstrap_port, request, reply, sizeof(reply)) != 200)
        fail_msg("PUT /route: %s", reply);
}

/* ---- frames ---- */

struct wire_header puppet_header(struct puppet *puppet, uint16_t type)
{
    return (struct wire_header){.version = WIRE_VERSION,
                                .type = type,
                                .sequence = puppet->sent++,
                                .epoch = puppet->epoch};
}

void puppet_say(struct puppet *puppet, struct wire_buffer *frame)
{
    assert_false(frame->failed);
    puppet_write(puppet->fd, frame->bytes, frame->size);
    wire_buffer_free(frame);
}

static bool read_all(int fd, void *bytes, size_t size)
{
    uint8_t *at = bytes;
    while (size) {
        ssize_t got = recv(fd, at, size, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            fail_msg("the manager said nothing for %d ms", FLEET_BOUND_MS);
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

uint16_t puppet_hear(struct puppet *puppet)
{
    uint8_t head[WIRE_HEADER_BYTES];
    char why[160] = "";
    do {
        if (!read_all(puppet->fd, head, sizeof(head)))
            return 0;
        if (wire_header_get(head, &puppet->header, ERROR_BUFFER(why)) != BATON_OK)
            fail_msg("the manager said a bad frame: %s", why);
        assert_int_equal(puppet->header.sequence, puppet->heard++);
        free(puppet->payload);
        puppet->payload = malloc((size_t)puppet->header.length + 1);
        if (!read_all(puppet->fd, puppet->payload, puppet->header.length))
            return 0;
    } while (puppet->header.type == WIRE_HEARTBEAT);
    return puppet->header.type;
}

/* What came instead, if it has a text. */
static void say_what_came(const struct puppet *puppet, uint16_t type, uint16_t wanted)
{
    char text[WIRE_TEXT_MAX] = "";
    struct wire_bye bye;
    struct wire_abort abort;
    if (type == WIRE_BYE &&
        wire_bye_get(puppet->payload, puppet->header.length, &bye, ERROR_NONE) == BATON_OK)
        wire_string_copy(bye.text, text, sizeof(text));
    if (type == WIRE_ABORT &&
        wire_abort_get(puppet->payload, puppet->header.length, &abort, ERROR_NONE) == BATON_OK)
        wire_string_copy(abort.text, text, sizeof(text));
    fail_msg("%s came where %s was due: %s", type ? wire_type_name(type) : "the end",
             wire_type_name(wanted), text);
}

void puppet_expect(struct puppet *puppet, uint16_t type)
{
    uint16_t came = puppet_hear(puppet);
    if (came != type)
        say_what_came(puppet, came, type);
}

void puppet_expect_bye(struct puppet *puppet, int code, const char *part)
{
    struct wire_bye bye;
    char text[WIRE_TEXT_MAX];
    puppet_expect(puppet, WIRE_BYE);
    assert_int_equal(wire_bye_get(puppet->payload, puppet->header.length, &bye, ERROR_NONE),
                     BATON_OK);
    wire_string_copy(bye.text, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_int_equal(bye.code, code);
    assert_int_equal(puppet_hear(puppet), 0);
}

struct wire_abort puppet_expect_abort(struct puppet *puppet, uint64_t room, int code,
                                      const char *part)
{
    struct wire_abort abort;
    char text[WIRE_TEXT_MAX];
    puppet_expect(puppet, WIRE_ABORT);
    assert_int_equal(wire_abort_get(puppet->payload, puppet->header.length, &abort, ERROR_NONE),
                     BATON_OK);
    wire_string_copy(abort.text, text, sizeof(text));
    ASSERT_SAYS(text, part);
    assert_int_equal(abort.code, code);
    assert_int_equal(abort.room, room);
    return abort;
}

struct wire_room puppet_expect_room(struct puppet *puppet, uint16_t type, uint64_t room)
{
    struct wire_room frame;
    puppet_expect(puppet, type);
    assert_int_equal(wire_room_get(puppet->payload, puppet->header.length, &frame, ERROR_NONE),
                     BATON_OK);
    assert_int_equal(frame.room, room);
    return frame;
}

struct wire_open puppet_expect_open(struct puppet *puppet, uint64_t room)
{
    struct wire_open open;
    puppet_expect(puppet, WIRE_OPEN);
    assert_int_equal(wire_open_get(puppet->payload, puppet->header.length, &open, ERROR_NONE),
                     BATON_OK);
    assert_int_equal(open.room, room);
    return open;
}

struct wire_grant puppet_expect_grant(struct puppet *puppet, uint64_t room)
{
    struct wire_grant grant;
    puppet_expect(puppet, WIRE_GRANT);
    assert_int_equal(wire_grant_get(puppet->payload, puppet->header.length, &grant, ERROR_NONE),
                     BATON_OK);
    assert_int_equal(grant.room, room);
    return grant;
}

struct wire_commit puppet_expect_commit(struct puppet *puppet, uint64_t room)
{
    struct wire_commit commit;
    puppet_expect(puppet, WIRE_COMMIT);
    assert_int_equal(
        wire_commit_get(puppet->payload, puppet->header.length, &commit, ERROR_NONE), BATON_OK);
    assert_int_equal(commit.room, room);
    return commit;
}

void puppet_say_room(struct puppet *puppet, uint16_t type, uint64_t room, uint32_t ticket)
{
    struct wire_room frame = {.room = room, .ticket = ticket};
    PUPPET_SAY(puppet, room, type, &frame);
}

void puppet_say_abort(struct puppet *puppet, uint64_t room, uint32_t ticket, int code,
                      const char *text)
{
    struct wire_abort abort = {
        .room = room, .ticket = ticket, .code = code, .text = wire_string_of(text)};
    PUPPET_SAY(puppet, abort, WIRE_ABORT, &abort);
}

void puppet_say_open(struct puppet *puppet, uint64_t room, uint32_t ticket,
                     uint32_t time_left_ms)
{
    struct wire_open open = {
        .room = room, .ticket = ticket, .time_left_ms = time_left_ms, .required_dst = 1};
    PUPPET_SAY(puppet, open, WIRE_OPEN, &open);
}

void puppet_say_grant(struct puppet *puppet, uint64_t room, uint32_t ticket,
                      const int32_t *pages, uint32_t count, uint32_t time_left_ms)
{
    struct wire_grant grant = {.room = room,
                               .ticket = ticket,
                               .time_left_ms = time_left_ms,
                               .required_dst = 1,
                               .aux_slot = -1,
                               .pages = {(const uint8_t *)pages, count}};
    PUPPET_SAY(puppet, grant, WIRE_GRANT, &grant);
}

void puppet_say_commit(struct puppet *puppet, uint64_t room, uint32_t ticket, uint32_t pages,
                       uint64_t bytes, bool last)
{
    struct watermark done = {.complete = pages, .partial = pages, .last = last};
    struct wire_commit commit = {.room = room,
                                 .ticket = ticket,
                                 .flags = WIRE_COMMIT_SOURCE | (last ? WIRE_COMMIT_LAST : 0),
                                 .watermark = watermark_pack(done),
                                 .lanes = {{bytes, 1, 0}},
                                 .lane_count = 1,
                                 .total_pages = pages};
    PUPPET_SAY(puppet, commit, WIRE_COMMIT, &commit);
}

/* ---- links ---- */

void puppet_init(struct puppet *puppet)
{
    *puppet = (struct puppet){.fd = -1, .listen_fd = -1, .unix_fd = -1};
    assert_int_equal(getrandom(&puppet->epoch, sizeof(puppet->epoch), 0),
                     sizeof(puppet->epoch));
    assert_int_equal(getrandom(&puppet->session, sizeof(puppet->session), 0),
                     sizeof(puppet->session));
}

void puppet_hello(struct puppet *puppet, uint16_t kind, uint16_t stream, uint64_t expected)
{
    char host[96], name[64] = "";
    host_identity(host, sizeof(host));
    if (puppet->unix_fd >= 0)
        snprintf(name, sizeof(name), "puppet-%016llx", (unsigned long long)puppet->epoch);
    struct wire_hello hello = {.kind = kind,
                               .stream = stream,
                               .pp_size = 1,
                               .pid = (uint32_t)getpid(),
                               .process = puppet->epoch,
                               .session = puppet->session,
                               .expected_epoch = expected,
                               .host_id = wire_string_of(host),
                               .unix_name = wire_string_of(name)};
    PUPPET_SAY(puppet, hello, WIRE_HELLO, &hello);
}

static void take_hello(struct puppet *puppet)
{
    struct wire_hello hello;
    assert_int_equal(wire_hello_get(puppet->payload, puppet->header.length, &hello, ERROR_NONE),
                     BATON_OK);
    puppet->peer_epoch = puppet->header.epoch;
    puppet->session = hello.session;
}

static void expect_hello(struct puppet *puppet)
{
    puppet_expect(puppet, WIRE_HELLO);
    take_hello(puppet);
}

static void take_register(struct puppet *puppet)
{
    wire_register_free(&puppet->theirs);
    memset(&puppet->theirs, 0, sizeof(puppet->theirs));
    assert_int_equal(
        wire_register_get(puppet->payload, puppet->header.length, &puppet->theirs, ERROR_NONE),
        BATON_OK);
}

static void expect_register(struct puppet *puppet)
{
    puppet_expect(puppet, WIRE_REGISTER);
    take_register(puppet);
}

/* The key by which the manager believes that this backend reaches us. */
static void memory_key(const struct puppet_memory *memory, struct wire_backend_key *out,
                       uint8_t *key)
{
    snprintf(out->name, sizeof(out->name), "%s", memory->backend);
    out->key = key;
    if (strcmp(memory->backend, "tcp") == 0) {
        memcpy(key, &memory->streams, 4);
        out->key_bytes = 4;
    } else if (strcmp(memory->backend, "cma") == 0) {
        uint64_t address = (uint64_t)(uintptr_t)puppet_cookie;
        memcpy(key, &address, 8);
        memcpy(key + 8, puppet_cookie, sizeof(puppet_cookie));
        out->key_bytes = 24;
    } else { /* shm, as the writer: it is not our memory that is mapped */
        memset(key, 0, 4);
        out->key_bytes = 4;
    }
}

void puppet_register(struct puppet *puppet, const struct puppet_memory *memory)
{
    struct wire_register *frame = calloc(1, sizeof(*frame));
    uint8_t key[24];
    struct layout_base base = {(uint64_t)(uintptr_t)memory->address,
                               (uint64_t)memory->pages * memory->page_bytes,
                               memory->page_bytes};
    assert_non_null(frame);
    frame->region_count = !memory->no_regions;
    snprintf(frame->regions[0].name, sizeof(frame->regions[0].name), "kv");
    snprintf(frame->fingerprint, sizeof(frame->fingerprint), "%s",
             memory->fingerprint ? memory->fingerprint : "");
    frame->regions[0].layout = (struct layout){.pages = memory->pages,
                                               .tokens_per_page = 1,
                                               .layers = 1,
                                               .kv = 1,
                                               .heads = 1,
                                               .total_heads = 1,
                                               .base_count = 1,
                                               .bases = &base};
    memory_key(memory, &frame->backends[0], key);
    frame->backend_count = 1;
    frame->aux_slots = memory->aux_slots;
    frame->aux_slot_bytes = memory->aux_bytes;
    frame->aux_field_count = memory->aux_slots != 0;
    frame->aux_fields[0] = (struct wire_aux_field){
        .name = "token", .dtype = BATON_DTYPE_I32, .count = memory->aux_bytes / 4};
    PUPPET_SAY(puppet, register, WIRE_REGISTER, frame);
    free(frame);
}

void puppet_join(struct puppet *puppet, uint16_t port, const struct puppet_memory *memory)
{
    struct wire_choice choice;
    puppet_init(puppet);
    puppet->fd = puppet_dial(port);
    puppet_hello(puppet, WIRE_KIND_LINK, 0, 0);
    expect_hello(puppet);
    expect_register(puppet);
    puppet_register(puppet, memory);
    puppet_expect(puppet, WIRE_CHOICE);
    assert_int_equal(
        wire_choice_get(puppet->payload, puppet->header.length, &choice, ERROR_NONE), BATON_OK);
    wire_string_copy(choice.code ? choice.text : choice.backend, puppet->choice,
                     sizeof(puppet->choice));
    if (choice.code != 0)
        fail_msg("the manager refuses the puppet: %s", puppet->choice);
}

void puppet_listens(struct puppet *puppet)
{
    char name[64];
    puppet_init(puppet);
    puppet->listen_fd = puppet_listen(&puppet->port);
    snprintf(name, sizeof(name), "puppet-%016llx", (unsigned long long)puppet->epoch);
    assert_int_equal(socket_listen_unix(name, &puppet->unix_fd, ERROR_NONE), BATON_OK);
}

static int take_connection(int listen_fd)
{
    struct pollfd ready = {listen_fd, POLLIN, 0};
    if (poll(&ready, 1, FLEET_BOUND_MS) != 1)
        fail_msg("the manager does not call the puppet");
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    assert_true(fd >= 0);
    bound_reads(fd);
    return fd;
}

/* False when the caller had given up before: old attempts wait in the backlog. */
static bool shake_hands(struct puppet *puppet, const struct puppet_memory *memory)
{
    puppet->sent = puppet->heard = 0;
    if (puppet_hear(puppet) != WIRE_HELLO)
        return false;
    take_hello(puppet);
    puppet_hello(puppet, WIRE_KIND_LINK, 0, 0);
    puppet_register(puppet, memory);
    if (puppet_hear(puppet) != WIRE_REGISTER)
        return false;
    take_register(puppet);
    struct wire_choice choice = {.backend = wire_string_of(memory->backend)};
    PUPPET_SAY(puppet, choice, WIRE_CHOICE, &choice);
    return true;
}

void puppet_serve(struct puppet *puppet, const struct puppet_memory *memory)
{
    do {
        puppet_hang_up(puppet);
        puppet->fd = take_connection(puppet->listen_fd);
    } while (!shake_hands(puppet, memory));
}

void puppet_hang_up(struct puppet *puppet)
{
    if (puppet->fd >= 0)
        close(puppet->fd);
    puppet->fd = -1;
}

void puppet_close(struct puppet *puppet)
{
    puppet_hang_up(puppet);
    if (puppet->listen_fd >= 0)
        close(puppet->listen_fd);
    socket_close(puppet->unix_fd);
    wire_register_free(&puppet->theirs);
    free(puppet->payload);
    memset(puppet, 0, sizeof(*puppet));
    puppet->fd = puppet->listen_fd = puppet->unix_fd = -1;
}

void puppet_stream_join(struct puppet *stream, const struct puppet *link, uint16_t port,
                        uint16_t index)
{
    puppet_init(stream);
    stream->epoch = link->epoch;
    stream->session = link->session;
    stream->fd = puppet_dial(port);
    puppet_hello(stream, WIRE_KIND_STREAM, index, 0);
    expect_hello(stream);
}

void puppet_stream_serve(struct puppet *stream, const struct puppet *link)
{
    puppet_init(stream);
    stream->epoch = link->epoch;
    stream->fd = take_connection(link->listen_fd);
    expect_hello(stream);
    assert_int_equal(stream->session, link->session);
    puppet_hello(stream, WIRE_KIND_STREAM, 0, 0);
}

void puppet_data(struct puppet *stream, uint32_t ticket, uint64_t offset, const uint8_t *bytes,
                 uint32_t length, uint32_t given)
{
    uint8_t head[WIRE_HEADER_BYTES + 16 + WIRE_DATA_RUN_BYTES];
    struct wire_data_run run = {.length = length, .offset = offset};
    size_t size = wire_data_put(head, stream->epoch, stream->sent++, ticket, length, &run, 1);
    puppet_write(stream->fd, head, size);
    puppet_write(stream->fd, bytes, given);
}
