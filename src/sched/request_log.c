/* SPDX-License-Identifier: Apache-2.0 */
/* See request_log.h. */
#include "request_log.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *request_moment_name(enum request_moment moment)
{
    static const char *const names[] = {
#define REQUEST_MOMENT_NAME(name, text) text,
        REQUEST_MOMENTS(REQUEST_MOMENT_NAME)
#undef REQUEST_MOMENT_NAME
    };
    return names[moment];
}

int request_log_open(struct request_log *log)
{
    *log = (struct request_log){.next = 1};
    log->records = calloc(REQUEST_LOG_ENTRIES, sizeof(*log->records));
    if (!log->records)
        return BATON_ENOMEM;
    pthread_mutex_init(&log->lock, NULL);
    return BATON_OK;
}

void request_log_close(struct request_log *log)
{
    if (!log->records)
        return;
    pthread_mutex_destroy(&log->lock);
    free(log->records);
    *log = (struct request_log){0};
}

uint64_t request_log_add(struct request_log *log, const struct generation *generation)
{
    pthread_mutex_lock(&log->lock);
    uint64_t number = log->next++;
    struct request_record *record = &log->records[number % REQUEST_LOG_ENTRIES];
    memset(record, 0, sizeof(*record));
    record->number = number;
    snprintf(record->rid, sizeof(record->rid), "%s", generation->rid);
    record->kind = generation->handover.kind;
    record->room = generation->handover.room;
    record->prompt_tokens = generation->prompt_count;
    record->moments_ns[MOMENT_QUEUED] = clock_now_ns();
    pthread_mutex_unlock(&log->lock);
    return number;
}

/* NULL: newer ones took its place. Under the lock. */
static struct request_record *record_of(struct request_log *log, uint64_t number)
{
    struct request_record *record = &log->records[number % REQUEST_LOG_ENTRIES];
    return record->number == number ? record : NULL;
}

void request_log_mark(struct request_log *log, uint64_t number, enum request_moment moment)
{
    pthread_mutex_lock(&log->lock);
    struct request_record *record = record_of(log, number);
    if (record && !record->moments_ns[moment])
        record->moments_ns[moment] = clock_now_ns();
    pthread_mutex_unlock(&log->lock);
}

void request_log_computed(struct request_log *log, uint64_t number, uint64_t early_bytes)
{
    pthread_mutex_lock(&log->lock);
    struct request_record *record = record_of(log, number);
    if (record && !record->moments_ns[MOMENT_COMPUTED]) {
        record->moments_ns[MOMENT_COMPUTED] = clock_now_ns();
        record->early_bytes = early_bytes;
    }
    pthread_mutex_unlock(&log->lock);
}

static void moment_set(struct request_record *record, enum request_moment moment,
                       uint64_t opened_ns, uint64_t since_ns)
{
    if (since_ns && !record->moments_ns[moment])
        record->moments_ns[moment] = opened_ns + since_ns;
}

void request_log_transfer(struct request_log *log, uint64_t number, uint64_t opened_ns,
                          const baton_timeline *timeline, const char *chunks)
{
    pthread_mutex_lock(&log->lock);
    struct request_record *record = record_of(log, number);
    if (record) {
        moment_set(record, MOMENT_BOOTSTRAPPED, opened_ns, timeline->bootstrapped_ns);
        moment_set(record, MOMENT_GRANTED, opened_ns, timeline->granted_ns);
        moment_set(record, MOMENT_FIRST_SENT, opened_ns, timeline->first_send_ns);
        moment_set(record, MOMENT_LAST_BYTE, opened_ns, timeline->last_byte_ns);
        record->moments_ns[MOMENT_LANDED] = clock_now_ns();
        record->bytes = timeline->bytes;
        record->operations = timeline->operations;
        memcpy(record->backend, timeline->backend, sizeof(record->backend));
        snprintf(record->plan, sizeof(record->plan), "%s%s%s", timeline->reason,
                 *chunks ? "; " : "", chunks);
    }
    pthread_mutex_unlock(&log->lock);
}

void request_log_finish(struct request_log *log, uint64_t number, enum generation_finish finish,
                        const char *reason, uint32_t cached, uint32_t generated)
{
    pthread_mutex_lock(&log->lock);
    struct request_record *record = record_of(log, number);
    if (record) {
        record->finish = finish;
        record->cached_tokens = cached;
        record->generated_tokens = generated;
        snprintf(record->reason, sizeof(record->reason), "%s", reason ? reason : "");
        record->moments_ns[MOMENT_FINISHED] = clock_now_ns();
    }
    pthread_mutex_unlock(&log->lock);
}

bool request_log_find(struct request_log *log, const char *rid, struct request_record *out)
{
    bool found = false;
    pthread_mutex_lock(&log->lock);
    uint64_t oldest = log->next > REQUEST_LOG_ENTRIES ? log->next - REQUEST_LOG_ENTRIES : 1;
    for (uint64_t number = log->next - 1; number >= oldest && !found; number--) {
        const struct request_record *record = &log->records[number % REQUEST_LOG_ENTRIES];
        found = strcmp(record->rid, rid) == 0;
        if (found)
            *out = *record;
    }
    pthread_mutex_unlock(&log->lock);
    return found;
}
