/* SPDX-License-Identifier: Apache-2.0 */
/* Loading, which for a mapped file means reading ahead of the first use. MADV_POPULATE_READ
 * (Linux 5.14) does it in one call per stretch and reports a disk error or a truncated file as an
 * errno; on older kernels one byte of each page is read, and the same ends in SIGBUS. */
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define STRETCH_BYTES_MIN (4u << 20)
#define REPORTS_MAX 256

struct loading {
    uint64_t done, total, stretch;
    uint64_t next_report;
    weights_progress *progress;
    void *context;
};

static int pages_touch(uintptr_t first, uintptr_t end, uintptr_t page)
{
    for (uintptr_t at = first; at < end; at += page)
        (void)*(const volatile uint8_t *)at;
    return 0;
}

/* 0, or -1 with errno. */
static int bytes_populate(const uint8_t *bytes, uint64_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)bytes & ~(page - 1), end = (uintptr_t)bytes + size;
    int rc;
    do
        rc = madvise((void *)first, end - first, MADV_POPULATE_READ);
    while (rc && errno == EINTR);
    if (rc && (errno == EINVAL || errno == ENOSYS))
        rc = pages_touch(first, end, page);
    return rc;
}

static bool loading_report(struct loading *loading)
{
    if (!loading->progress || loading->done < loading->next_report)
        return true;
    loading->next_report = loading->done + loading->stretch;
    return loading->progress(loading->context, loading->done, loading->total);
}

static int weight_load(struct loading *loading, const struct weight *weight, struct error err)
{
    uint64_t size = weight->rows * weight->row_bytes;
    for (uint64_t at = 0; at < size;) {
        uint64_t some = size - at < loading->stretch ? size - at : loading->stretch;
        if (bytes_populate(weight->data + at, some))
            return error_set(err, BATON_ESYSTEM,
                             "%s cannot be read: %s (is the file being changed, or the disk "
                             "failing?)",
                             weight->name, strerror(errno));
        at += some;
        loading->done += some;
        if (!loading_report(loading))
            return error_set(err, BATON_EABORTED, "loading was stopped");
    }
    return BATON_OK;
}

int weights_prefault(const struct weights *weights, weights_progress *progress, void *context,
                     struct error err)
{
    struct loading loading = {.total = weights->bytes,
                              .stretch = weights->bytes / REPORTS_MAX + 1,
                              .progress = progress,
                              .context = context};
    int rc = BATON_OK;
    if (loading.stretch < STRETCH_BYTES_MIN)
        loading.stretch = STRETCH_BYTES_MIN;
    for (uint32_t i = 0; i < weights_count(weights) && !rc; i++) {
        const struct weight *weight = weights_at(weights, i);
        if (weight)
            rc = weight_load(&loading, weight, err);
    }
    if (!rc && progress && !progress(context, loading.total, loading.total))
        rc = error_set(err, BATON_EABORTED, "loading was stopped");
    return rc;
}
