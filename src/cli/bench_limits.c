/* SPDX-License-Identifier: Apache-2.0 */
/* The limits: memcpy of one core for shared memory, iperf3 on loopback for tcp. They are taken
 * in the same run as what they are compared with, because a machine is not the same twice. */
#include "bench_limits.h"

#include "base/clock.h"
#include "subprocess.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int copy_limit_open(const struct bench_case *work, struct copy_limit *out, struct error err)
{
    struct copy_limit limit = {.pages = work->pages};
    bench_case_items(work, &limit.bases, &limit.item_bytes);
    uint64_t bytes = bench_case_bytes(work);
    uint64_t rounded = (bytes + 4095) / 4096 * 4096;
    limit.src = aligned_alloc(4096, rounded);
    limit.dst = aligned_alloc(4096, rounded);
    limit.src_pages = malloc(work->pages * sizeof(int32_t));
    limit.dst_pages = malloc(work->pages * sizeof(int32_t));
    if (!limit.src || !limit.dst || !limit.src_pages || !limit.dst_pages) {
        copy_limit_close(&limit);
        return error_set(err, BATON_ENOMEM, "no memory to measure memcpy of %llu bytes",
                         (unsigned long long)bytes);
    }
    memset(limit.src, 1, rounded);
    memset(limit.dst, 2, rounded);
    pages_list(work, true, limit.src_pages);
    pages_list(work, false, limit.dst_pages);
    *out = limit;
    return BATON_OK;
}

double copy_limit_seconds(struct copy_limit *limit)
{
    uint64_t base_bytes = limit->item_bytes * limit->pages;
    uint64_t begin = clock_now_ns();
    for (uint32_t base = 0; base < limit->bases; base++) {
        uint8_t *dst = limit->dst + base * base_bytes;
        const uint8_t *src = limit->src + base * base_bytes;
        for (uint32_t i = 0; i < limit->pages; i++)
            memcpy(dst + (uint64_t)limit->dst_pages[i] * limit->item_bytes,
                   src + (uint64_t)limit->src_pages[i] * limit->item_bytes, limit->item_bytes);
        __asm__ volatile("" : : "r"(dst) : "memory"); /* the copies are the point */
    }
    return (double)(clock_now_ns() - begin) * 1e-9;
}

void copy_limit_close(struct copy_limit *limit)
{
    free(limit->src);
    free(limit->dst);
    free(limit->src_pages);
    free(limit->dst_pages);
    *limit = (struct copy_limit){0};
}

/* ---- iperf3 ------------------------------------------------------------------------------ */

static uint32_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        address.sin_port = 0;
    close(fd);
    return ntohs(address.sin_port);
}

static int iperf3_read(const char *text, double *out, struct error err)
{
    json_error_t where;
    json_t *root = json_loads(text, 0, &where);
    if (!root)
        return error_set(err, BATON_EPROTOCOL, "iperf3's answer is not JSON: %s", where.text);
    json_t *received = json_object_get(json_object_get(root, "end"), "sum_received");
    double bits = json_number_value(json_object_get(received, "bits_per_second"));
    const char *problem = json_string_value(json_object_get(root, "error"));
    int rc = BATON_OK;
    if (bits > 0)
        *out = bits / 8e9;
    else
        rc = error_set(err, BATON_AGAIN, "iperf3: %s", problem ? problem : "no figure");
    json_decref(root);
    return rc;
}

/* The server needs a moment before it listens, so the client is tried again for a while. */
static int iperf3_client(const char *port, double *out, struct error err)
{
    char *const client[] = {"iperf3", "-c", "127.0.0.1", "-p", (char *)port,
                            "-t",     "1",  "-J",        NULL};
    int rc = BATON_AGAIN;
    for (int attempt = 0; attempt < 20 && rc == BATON_AGAIN; attempt++) {
        char *text = NULL;
        int status = 0;
        struct timespec pause = {.tv_nsec = 50000000};
        nanosleep(&pause, NULL);
        rc = subprocess_capture(client, 20000, &text, &status, err);
        if (!rc)
            rc = iperf3_read(text, out, err);
        free(text);
    }
    return rc == BATON_AGAIN ? BATON_ESYSTEM : rc;
}

int iperf3_gbps(double *out, struct error err)
{
    char port[16];
    pid_t server = 0;
    snprintf(port, sizeof(port), "%u", free_port());
    char *const command[] = {"iperf3", "-s", "-1", "-p", port, NULL};
    int rc = subprocess_start(command, SUBPROCESS_QUIET, &server, NULL, err);
    if (rc)
        return rc;
    rc = iperf3_client(port, out, err);
    subprocess_stop(server);
    return rc;
}
