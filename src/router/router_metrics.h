/* SPDX-License-Identifier: Apache-2.0 */
/* What a loop counts. Only its own thread writes, so a plain load and store are enough; others may
 * read at any time. */
#ifndef BATON_ROUTER_ROUTER_METRICS_H
#define BATON_ROUTER_ROUTER_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

/* How a request ended, and what went wrong on the way. */
#define ROUTER_COUNTERS(X)                                                                 \
    X(requests, "requests_total", "Requests to be passed on.")                             \
    X(answered, "answers_total{kind=\"ok\"}", "How requests ended.")                       \
    X(refused, "answers_total{kind=\"refused\"}", NULL)                                    \
    X(failed, "answers_total{kind=\"failed\"}", NULL)                                      \
    X(broken, "answers_total{kind=\"broken\"}", NULL)                                      \
    X(left, "answers_total{kind=\"client_left\"}", NULL)                                   \
    X(retries, "retries_total", "Requests that were sent to other workers.")               \
    X(alone, "without_prefill_total", "Requests for which no prefill worker was usable.")  \
    X(unreachable, "failures_total{kind=\"unreachable\"}", "Legs that failed, by reason.") \
    X(timeouts, "failures_total{kind=\"timeout\"}", NULL)                                  \
    X(breaks, "failures_total{kind=\"broken\"}", NULL)                                     \
    X(garbled, "failures_total{kind=\"garbled\"}", NULL)                                   \
    X(errors, "failures_total{kind=\"status\"}", NULL)                                     \
    X(stalls, "failures_total{kind=\"stalled\"}", NULL)                                    \
    X(holds, "streams_held_total", "Times that a worker was held for a slow client.")

#define ROUTER_BUCKETS 20
struct router_histogram {
    _Atomic uint64_t buckets[ROUTER_BUCKETS + 1];
    _Atomic uint64_t sum_ns;
};

struct router_numbers {
#define ROUTER_COUNTER_FIELD(field, name, help) _Atomic uint64_t field;
    ROUTER_COUNTERS(ROUTER_COUNTER_FIELD)
#undef ROUTER_COUNTER_FIELD
    struct router_histogram added;      /* what the router itself spent on a request */
    struct router_histogram first_byte; /* until the answer began */
    struct router_histogram whole;      /* until it was out */
};

static inline void router_count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}
void router_observe(struct router_histogram *histogram, uint64_t ns);

#endif
