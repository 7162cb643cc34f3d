/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a port on a network meets: noise, frames that are cut, too long, of another
 * version or with one byte changed, connections that never say anything, a thousand of them. Each
 * costs its own connection at most. After each, a hand-over between two honest ranks of this
 * process, over the link that has been there all the time, must go on as if nothing had been. */
#include "fleet.h"
#include "puppet.h"

#include "base/clock.h"
#include "transfer/link.h"
#include "transfer/manager.h"
#include "transfer/room.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#define SECONDS(n) ((n)*1000ull * NS_PER_MS)
#define PAGES 16
#define PAGE_BYTES 4096

static baton_bootstrap *bootstrap;
static struct fleet_rank prefill, decode;
static uint64_t room_number;
static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

static uint16_t prefill_port(void)
{
    return (uint16_t)baton_manager_port(prefill.manager);
}

/* ---- the two honest ranks ---- */

static void others_go_on(void)
{
    uint64_t room = ++room_number;
    baton_sender *sender = fleet_sender(&prefill, room, NULL);
    baton_receiver *receiver = fleet_receiver(&decode, room, NULL);
    fleet_fill(&prefill, 0, 2, (uint32_t)room);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    fleet_sender_is(sender, BATON_SUCCESS);
    assert_int_equal(fleet_wrong_bytes(&decode, 4, 2, (uint32_t)room), 0);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
    assert_int_equal(fleet_counters(&decode).links_lost,
                     0); /* it has only the one to prefill */
}

static int setup(void **state)
{
    (void)state;
    struct fleet_options options = {
        .backends = "tcp", .pages = PAGES, .page_bytes = PAGE_BYTES};
    char err[256];
    random_state = 42;
    if (baton_bootstrap_open("127.0.0.1", 0, &bootstrap, NULL, 0) != BATON_OK)
        return -1;
    snprintf(options.bootstrap, sizeof(options.bootstrap), "127.0.0.1:%u",
             baton_bootstrap_port(bootstrap));
    if (fleet_rank_open(&prefill, &options, err, sizeof(err)) != BATON_OK ||
        fleet_rank_open(&decode, &options, err, sizeof(err)) != BATON_OK)
        fail_msg("%s", err);
    others_go_on();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fleet_rank_close(&decode);
    fleet_rank_close(&prefill);
    baton_bootstrap_close(bootstrap);
    return 0;
}

/* ---- raw material ---- */

static uint32_t open_files(void)
{
    uint32_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The bytes of a correct conversation of a decode rank with prefill up to a GRANT. */
static struct wire_buffer conversation(struct puppet *puppet)
{
    static uint8_t memory[PAGES * PAGE_BYTES];
    static const int32_t pages[] = {1, 2};
    struct puppet_memory registered = {.address = memory,
                                       .pages = PAGES,
                                       .page_bytes = PAGE_BYTES,
                                       .backend = "tcp",
                                       .streams = 1};
    struct wire_buffer all = {0};
    int ends[2];
    puppet_init(puppet);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    puppet->fd = ends[0];
    puppet_hello(puppet, WIRE_KIND_LINK, 0, 0);
    puppet_register(puppet, &registered);
    puppet_say_open(puppet, 1ull << 40 | draw(1u << 30), 7, 60000);
    puppet_say_grant(puppet, 5, 7, pages, 2, 60000);
    all.bytes = malloc(65536);
    all.capacity = 65536;
    all.size = (size_t)recv(ends[1], all.bytes, all.capacity, 0);
    close(ends[1]);
    puppet_hang_up(puppet);
    return all;
}

static void close_quietly(int fd)
{
    struct linger now = {1, 0}; /* RST: no thousand ports in TIME_WAIT */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
}

/* ---- the link port ---- */

static void test_noise(void **state)
{
    (void)state;
    uint8_t noise[5000];
    uint64_t bad = fleet_counters(&prefill).frames_bad;
    for (int i = 0; i < 100; i++) {
        uint32_t length = 24 + draw(sizeof(noise) - 24);
        for (uint32_t k = 0; k < length; k++)
            noise[k] = (uint8_t)draw(256);
        int fd = puppet_dial(prefill_port());
        puppet_write(fd, noise, length);
        assert_true(puppet_is_closed(fd));
        close(fd);
    }
    assert_int_equal(fleet_counters(&prefill).frames_bad, bad + 100);
    others_go_on();
}

/* Other people's protocols, each of which ends in a close. */
static void test_other_protocols(void **state)
{
    (void)state;
    static const char *const openings[] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u2\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a client hello of TLS",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++) {
        int fd = puppet_dial(prefill_port());
        puppet_write(fd, openings[i], strlen(openings[i]));
        puppet_write(fd, "........................", 24);
        assert_true(puppet_is_closed(fd));
        close(fd);
    }
    others_go_on();
}

/* A correct conversation that stops after every possible byte. */
static void test_truncated(void **state)
{
    (void)state;
    struct puppet puppet;
    struct wire_buffer all = conversation(&puppet);
    uint32_t files = open_files();
    for (size_t length = 0; length < all.size; length += 1 + length / 97) {
        int fd = puppet_dial(prefill_port());
        puppet_write(fd, all.bytes, length);
        shutdown(fd, SHUT_WR);
        assert_true(puppet_is_closed(fd));
        close_quietly(fd);
    }
    free(all.bytes);
    puppet_close(&puppet);
    EVENTUALLY(open_files() <= files);
    others_go_on();
}

/* The same with one byte, or a few, changed at random: whatever it means, it harms nobody. */
static void test_flipped_bits(void **state)
{
    (void)state;
    uint8_t bytes[65536];
    for (int i = 0; i < 400; i++) {
        struct puppet puppet;
        struct wire_buffer all = conversation(&puppet);
        memcpy(bytes, all.bytes, all.size);
        for (uint32_t flips = 1 + draw(3); flips; flips--)
            bytes[draw((uint32_t)all.size)] ^= (uint8_t)(1u << draw(8));
        int fd = puppet_dial(prefill_port());
        puppet_write(fd, bytes, all.size);
        shutdown(fd, SHUT_WR);
        assert_true(puppet_is_closed(fd));
        close_quietly(fd);
        free(all.bytes);
        puppet_close(&puppet);
    }
    others_go_on();
}

static void bye_for_header(const uint8_t *header, const char *part)
{
    struct puppet puppet;
    puppet_init(&puppet);
    puppet.fd = puppet_dial(prefill_port());
    puppet_write(puppet.fd, header, WIRE_HEADER_BYTES);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, part);
    puppet_close(&puppet);
}

/* The reason is in the BYE, for the person on the other side. */
static void test_headers_that_are_refused(void **state)
{
    (void)state;
    struct puppet puppet;
    struct wire_buffer all = conversation(&puppet);
    uint8_t header[WIRE_HEADER_BYTES];
    memcpy(header, all.bytes, sizeof(header));
    header[0] = 'X';
    bye_for_header(header, "");
    memcpy(header, all.bytes, sizeof(header));
    header[4] = 2; /* version */
    bye_for_header(header, "version 2");
    memcpy(header, all.bytes, sizeof(header));
    header[6] = 200; /* type */
    bye_for_header(header, "200");
    memcpy(header, all.bytes, sizeof(header));
    memset(header + 8, 0xff, 4); /* length */
    bye_for_header(header, "");
    memcpy(header, all.bytes, sizeof(header));
    header[9] = 0x20; /* 8 KiB: more than a HELLO may have */
    bye_for_header(header, "");
    memcpy(header, all.bytes, sizeof(header));
    header[12] = 1; /* sequence */
    bye_for_header(header, "frame 1 came where 0 was due");
    memcpy(header, all.bytes, sizeof(header));
    header[6] = WIRE_OPEN; /* before HELLO */
    header[8] = header[9] = header[10] = header[11] = 0;
    bye_for_header(header, "before the handshake");
    free(all.bytes);
    puppet_close(&puppet);
    others_go_on();
}

/* A frame of 16 MiB and more after the handshake: refused by its header, never stored. */
static void test_oversized_after_the_handshake(void **state)
{
    (void)state;
    static uint8_t memory[PAGE_BYTES];
    struct puppet puppet;
    struct puppet_memory registered = {.address = memory,
                                       .pages = 1,
                                       .page_bytes = PAGE_BYTES,
                                       .backend = "tcp",
                                       .streams = 1};
    puppet_join(&puppet, prefill_port(), &registered);
    struct wire_header header = puppet_header(&puppet, WIRE_GRANT);
    struct wire_buffer frame = {0};
    header.length = WIRE_PAYLOAD_MAX + 1;
    wire_header_put(&frame, &header);
    puppet_say(&puppet, &frame);
    puppet_expect_bye(&puppet, BATON_EPROTOCOL, "");
    puppet_close(&puppet);
    others_go_on();
}

/* One byte at a time is slow, and correct. */
static void test_one_byte_at_a_time(void **state)
{
    (void)state;
    struct puppet puppet;
    struct wire_buffer all = conversation(&puppet);
    puppet.fd = puppet_dial(prefill_port());
    for (size_t i = 0; i < all.size; i++) {
        puppet_write(puppet.fd, all.bytes + i, 1);
        if (i % 16 == 0)
            usleep(200);
    }
    puppet_expect(&puppet, WIRE_HELLO);
    puppet_expect(&puppet, WIRE_REGISTER);
    puppet_expect(&puppet, WIRE_CHOICE);
    puppet_expect_abort(&puppet, 5, BATON_ENOTFOUND, "not open on the prefill side");
    free(all.bytes);
    puppet_close(&puppet);
    others_go_on();
}

/* ---- time ---- */

static void five_seconds_pass(void)
{
    for (int i = 0; i < 7; i++) {
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
        usleep(60 * 1000);
    }
}

/* Connections that do not become anything are closed after five seconds, on TCP and AF_UNIX. */
static void test_half_open_handshakes(void **state)
{
    (void)state;
    struct puppet puppet;
    struct wire_buffer all = conversation(&puppet);
    int fds[4];
    for (int i = 0; i < 3; i++)
        fds[i] = puppet_dial(prefill_port());
    fds[3] = puppet_dial_unix(prefill.manager->m.unix_name);
    puppet_write(fds[1], all.bytes, 10);
    puppet_write(fds[2], all.bytes, 60); /* in the middle of HELLO */
    five_seconds_pass();
    for (int i = 0; i < 4; i++) {
        assert_true(puppet_is_closed(fds[i]));
        close(fds[i]);
    }
    free(all.bytes);
    puppet_close(&puppet);
    others_go_on();
}

/* A thousand at once, most of them silent: others go on, and all descriptors come back. */
static void test_a_thousand_connections(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static int fds[COUNT];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 2 * COUNT + 200) {
        limit.rlim_cur = 2 * COUNT + 200;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            skip();
    }
    uint32_t files = open_files();
    for (int i = 0; i < COUNT; i++) {
        fds[i] = i % 10 ? puppet_dial(prefill_port())
                        : puppet_dial_unix(prefill.manager->m.unix_name);
        if (i % 3 == 0 && i % 10)
            puppet_write(fds[i], "BATN", 4);
    }
    others_go_on();
    five_seconds_pass();
    for (int i = 0; i < COUNT; i++) {
        assert_true(puppet_is_closed(fds[i]));
        close(fds[i]);
    }
    EVENTUALLY(open_files() <= files);
    others_go_on();
}

/* ---- AF_UNIX ---- */

static struct wire_buffer attach_frame(uint64_t session, uint32_t fd_count)
{
    struct wire_buffer frame = {0};
    struct wire_attach attach = {.session = session, .fd_count = fd_count};
    struct wire_header header = {.version = WIRE_VERSION, .type = WIRE_ATTACH, .epoch = 1};
    wire_attach_put(&frame, header, &attach);
    return frame;
}

/* Sends bytes with `count` copies of one descriptor. */
static void send_with_files(int fd, const void *bytes, size_t size, int file, uint32_t count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 100)];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int) * count);
        for (uint32_t i = 0; i < count; i++)
            memcpy(CMSG_DATA(part) + i * sizeof(int), &file, sizeof(int));
    }
    assert_true(sendmsg(fd, &message, MSG_NOSIGNAL) >= 0);
}

static void test_garbage_on_the_unix_socket(void **state)
{
    (void)state;
    uint32_t files = open_files();
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct wire_buffer good = attach_frame(99, 2);
    for (int i = 0; i < 60; i++) {
        uint8_t noise[200];
        int fd = puppet_dial_unix(prefill.manager->m.unix_name);
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (uint8_t)draw(256);
        switch (i % 6) {
        case 0: send_with_files(fd, noise, 1 + draw(199), file, 0); break;
        case 1: send_with_files(fd, noise, 1 + draw(199), file, 3); break;
        case 2: send_with_files(fd, good.bytes, good.size - 1, file, 2); break; /* cut */
        case 3: send_with_files(fd, good.bytes, good.size, file, 1); break;     /* one short */
        case 4: send_with_files(fd, good.bytes, good.size, file, 100); break;   /* too many */
        default: shutdown(fd, SHUT_WR); break;
        }
        assert_true(puppet_is_closed(fd));
        close(fd);
    }
    wire_buffer_free(&good);
    close(file);
    EVENTUALLY(open_files() <= files); /* what was passed along is closed, too */
    others_go_on();
}

/* ATTACH for a link that there is not: it waits a little, then goes, with its descriptors. */
static void test_attach_for_nobody(void **state)
{
    (void)state;
    uint32_t files = open_files();
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct wire_buffer frame = attach_frame(0x1234, 1);
    int fd = puppet_dial_unix(prefill.manager->m.unix_name);
    send_with_files(fd, frame.bytes, frame.size, file, 1);
    close(file);
    five_seconds_pass();
    assert_true(puppet_is_closed(fd));
    close(fd);
    wire_buffer_free(&frame);
    EVENTUALLY(open_files() <= files);
    others_go_on();
}

/* ---- data streams ---- */

static void test_a_stream_for_nobody(void **state)
{
    (void)state;
    struct puppet stream;
    puppet_init(&stream);
    stream.fd = puppet_dial(prefill_port());
    puppet_hello(&stream, WIRE_KIND_STREAM, 0, 0);
    puppet_expect(&stream, WIRE_HELLO);
    puppet_expect_bye(&stream, BATON_ENOTFOUND, "no link wants this data connection");
    puppet_close(&stream);
    others_go_on();
}

/* The session of a link is not enough: the stream must come from the same process. */
static void test_a_stream_of_another_process(void **state)
{
    (void)state;
    struct puppet stream;
    puppet_init(&stream);
    for (int i = 0; i < 2; i++) {
        stream.fd = puppet_dial(prefill_port());
        stream.sent = stream.heard = 0;
        stream.session = prefill.manager->m.links->session;
        puppet_hello(&stream, WIRE_KIND_STREAM, (uint16_t)i, 0);
        puppet_expect(&stream, WIRE_HELLO);
        puppet_expect_bye(&stream, BATON_ENOTFOUND, "no link wants");
        puppet_hang_up(&stream);
    }
    puppet_close(&stream);
    others_go_on();
}

/* A peer with a link of its own writes to the tickets of others' rooms, all the time. Not one byte
 * of it may land, whatever the rooms do meanwhile (tcp_leg looks for the stream's own session). */
static struct puppet sprayer_stream;
static atomic_bool sprayer_stops;
static _Atomic uint32_t sprayer_ticket;

static void *sprayer(void *arg)
{
    static uint8_t bytes[2 * PAGE_BYTES];
    (void)arg;
    memset(bytes, 0xff, sizeof(bytes));
    while (!atomic_load(&sprayer_stops))
        puppet_data(&sprayer_stream, atomic_load(&sprayer_ticket), 4 * PAGE_BYTES, bytes,
                    sizeof(bytes), sizeof(bytes));
    return NULL;
}

static void test_data_for_other_peoples_rooms(void **state)
{
    (void)state;
    static uint8_t memory[PAGES * PAGE_BYTES];
    struct puppet puppet;
    struct puppet_memory registered = {.address = memory,
                                       .pages = PAGES,
                                       .page_bytes = PAGE_BYTES,
                                       .backend = "tcp",
                                       .streams = 1};
    baton_bootstrap *second = NULL;
    char address[64];
    pthread_t thread;
    assert_int_equal(baton_bootstrap_open("127.0.0.1", 0, &second, NULL, 0), BATON_OK);
    snprintf(address, sizeof(address), "127.0.0.1:%u", baton_bootstrap_port(second));
    puppet_listens(&puppet);
    puppet_route((uint16_t)baton_bootstrap_port(second), puppet.port, puppet.epoch);
    baton_receiver *host = fleet_receiver(&decode, 1ull << 50, address);
    puppet_serve(&puppet, &registered);
    puppet_expect_open(&puppet, 1ull << 50);
    puppet_stream_serve(&sprayer_stream, &puppet);
    atomic_store(&sprayer_stops, false);
    assert_int_equal(pthread_create(&thread, NULL, sprayer, NULL), 0);
    for (int i = 0; i < 150; i++) {
        uint64_t room = ++room_number;
        baton_sender *sender = fleet_sender(&prefill, room, NULL);
        baton_receiver *receiver = fleet_receiver(&decode, room, NULL);
        atomic_store(&sprayer_ticket, receiver_room(receiver)->grant_ticket);
        fleet_fill(&prefill, 0, 2, (uint32_t)room);
        assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
        fleet_send(sender, 0, 2);
        if (i % 5 == 4)
            baton_receiver_abort(receiver, "in between");
        EVENTUALLY(baton_receiver_fenced(receiver));
        if (baton_receiver_poll(receiver) == BATON_SUCCESS)
            assert_int_equal(fleet_wrong_bytes(&decode, 4, 2, (uint32_t)room), 0);
        baton_sender_close(sender);
        baton_receiver_close(receiver);
    }
    atomic_store(&sprayer_stops, true);
    pthread_join(thread, NULL);
    assert_true(fleet_counters(&decode).frames_stale > 0);
    assert_int_equal(fleet_counters(&decode).links_lost, 0);
    baton_receiver_close(host);
    puppet_close(&sprayer_stream);
    puppet_close(&puppet);
    baton_bootstrap_close(second);
}

/* ---- a peer that does not read ---- */

/* It sends heartbeats, but never reads what it is told: its link is given up when too much is owed
 * to it (CONNECTION_OUTPUT_MAX), its rooms fail with that reason, nobody else waits. */
static void test_a_peer_that_never_reads(void **state)
{
    (void)state;
    enum { AUX_BYTES = 4 << 20, ROOMS = 60 };
    struct fleet_options options = {
        .backends = "tcp", .page_bytes = PAGE_BYTES, .aux_count = AUX_BYTES / 4};
    static uint8_t memory[PAGES * PAGE_BYTES];
    struct puppet_memory registered = {.address = memory,
                                       .pages = PAGES,
                                       .page_bytes = PAGE_BYTES,
                                       .backend = "tcp",
                                       .streams = 1,
                                       .aux_slots = 1,
                                       .aux_bytes = AUX_BYTES};
    struct fleet_rank rank;
    struct puppet puppet, stream;
    baton_sender *senders[ROOMS];
    char err[256], text[512];
    uint32_t count = 0;
    assert_int_equal(fleet_rank_open(&rank, &options, err, sizeof(err)), BATON_OK);
    uint16_t port = (uint16_t)baton_manager_port(rank.manager);
    puppet_join(&puppet, port, &registered);
    puppet_stream_join(&stream, &puppet, port, 0);
    while (count < ROOMS && !fleet_counters(&rank).links_lost) {
        struct wire_heartbeat heartbeat = {.tick = count};
        struct wire_grant grant = {
            .room = count, .ticket = 1 + count, .time_left_ms = 60000, .required_dst = 1};
        baton_sender_init_options init = BATON_SENDER_INIT_OPTIONS_INIT;
        PUPPET_SAY(&puppet, heartbeat, WIRE_HEARTBEAT, &heartbeat);
        senders[count] = fleet_sender(&rank, count, NULL);
        puppet_say_open(&puppet, count, 1 + count, 60000);
        PUPPET_SAY(&puppet, grant, WIRE_GRANT, &grant); /* aux slot 0, no pages */
        init.aux_slot = 0;
        assert_int_equal(baton_sender_init(senders[count], &init), BATON_OK);
        assert_int_equal(baton_sender_send(senders[count], NULL, 0, true), BATON_OK);
        EVENTUALLY(atomic_load(&sender_room(senders[count])->committed) ||
                   baton_sender_poll(senders[count]) == BATON_FAILED);
        count++;
    }
    others_go_on();
    fleet_sender_is(senders[count - 1], BATON_FAILED);
    baton_sender_failure(senders[count - 1], text, sizeof(text));
    ASSERT_SAYS(text, "stopped reading");
    for (uint32_t i = 0; i < count; i++)
        baton_sender_close(senders[i]);
    puppet_close(&stream);
    puppet_close(&puppet);
    fleet_rank_close(&rank);
}

/* ---- the bootstrap port ---- */

static void test_garbage_on_the_bootstrap_port(void **state)
{
    (void)state;
    uint16_t port = (uint16_t)baton_bootstrap_port(bootstrap);
    uint8_t noise[3000];
    char reply[4096];
    static const char *const requests[] = {
        "PUT /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        "PUT /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\n[1]",
        "PUT /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
        "\xff\xfe{\"a\":1}",
        "GET /route?prefill_dp_rank=x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "POST /query_dp_ranks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        "Content-Length: 23\r\n\r\n{\"bootstrap_rooms\": 12 }",
        "DELETE /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        int status = puppet_http(port, requests[i], reply, sizeof(reply));
        assert_in_range(status, 400, 499);
    }
    for (int i = 0; i < 50; i++) {
        int fd = puppet_dial(port);
        for (size_t k = 0; k < sizeof(noise); k++)
            noise[k] = (uint8_t)draw(256);
        puppet_write(fd, noise, 1 + draw(sizeof(noise) - 1));
        shutdown(fd, SHUT_WR);
        assert_true(puppet_is_closed(fd));
        close(fd);
    }
    /* The server still answers: a new decode rank finds prefill. */
    struct fleet_options options = {
        .backends = "tcp", .pages = PAGES, .page_bytes = PAGE_BYTES};
    char err[256];
    snprintf(options.bootstrap, sizeof(options.bootstrap), "127.0.0.1:%u", port);
    fleet_rank_close(&decode);
    EVENTUALLY(fleet_counters(&prefill).links_up == 0);
    assert_int_equal(fleet_rank_open(&decode, &options, err, sizeof(err)), BATON_OK);
    baton_sender *sender = fleet_sender(&prefill, 1, NULL);
    baton_receiver *receiver = fleet_receiver(&decode, 1, NULL);
    assert_int_equal(fleet_grant(receiver, 4, 2), BATON_OK);
    fleet_send(sender, 0, 2);
    fleet_receiver_is(receiver, BATON_SUCCESS);
    baton_sender_close(sender);
    baton_receiver_close(receiver);
}

/* A bootstrap server that answers nonsense: the room says so when it gives up. */
static void test_a_bootstrap_server_that_is_none(void **state)
{
    (void)state;
    uint16_t port;
    char address[64], text[512];
    int listen_fd = puppet_listen(&port);
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    baton_receiver *receiver = fleet_receiver(&decode, 1, address);
    int fd = -1;
    EVENTUALLY((fd = accept(listen_fd, NULL, NULL)) >= 0);
    puppet_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhello!\n", 46);
    close(fd);
    for (int i = 0; i < 13; i++) {
        clock_advance_ns(SECONDS(1) - 100 * NS_PER_MS);
        usleep(60 * 1000);
    }
    fleet_receiver_is(receiver, BATON_FAILED);
    assert_int_equal(baton_receiver_failure(receiver, text, sizeof(text)), BATON_EUNMATCHED);
    ASSERT_SAYS(text, address);
    baton_receiver_close(receiver);
    close(listen_fd);
    others_go_on();
}

#define GARBAGE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        GARBAGE(test_noise),
        GARBAGE(test_other_protocols),
        GARBAGE(test_truncated),
        GARBAGE(test_flipped_bits),
        GARBAGE(test_headers_that_are_refused),
        GARBAGE(test_oversized_after_the_handshake),
        GARBAGE(test_one_byte_at_a_time),
        GARBAGE(test_half_open_handshakes),
        GARBAGE(test_a_thousand_connections),
        GARBAGE(test_garbage_on_the_unix_socket),
        GARBAGE(test_attach_for_nobody),
        GARBAGE(test_a_stream_for_nobody),
        GARBAGE(test_a_stream_of_another_process),
        GARBAGE(test_data_for_other_peoples_rooms),
        GARBAGE(test_a_peer_that_never_reads),
        GARBAGE(test_garbage_on_the_bootstrap_port),
        GARBAGE(test_a_bootstrap_server_that_is_none),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* one test: test_garbage test_noise */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
