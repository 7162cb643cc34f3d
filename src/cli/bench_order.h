/* SPDX-License-Identifier: Apache-2.0 */
/* What the order of the dimensions inside a page costs, on the wire and in attention. */
#ifndef BATON_CLI_BENCH_ORDER_H
#define BATON_CLI_BENCH_ORDER_H

#include "bench_pages.h"

#define ORDER_TOKENS 16u         /* in a page */
#define ORDER_SEQUENCE_PAGES 64u /* 1,024 tokens of context */

struct order_shape {
    const char *name;
    uint32_t layers, heads; /* KV heads */
    uint32_t group;         /* query heads for each of them */
    uint32_t dim;           /* of two bytes each */
};

uint64_t order_page_bytes(const struct order_shape *shape);

/* ---- bench_order_plan.c: on the wire ---- */

enum order_pages {
    PAGES_IN_ORDER, /* neighbours on both sides */
    PAGES_GATHERED, /* scattered at the source, neighbours at the destination */
    PAGES_SCATTERED,
    PAGES_KINDS
};

struct order_question {
    const struct order_shape *shape;
    enum order src_order, dst_order;
    uint32_t src_tp, dst_tp;
    enum order_pages pages;
    uint32_t max_sge;
    bool reads; /* the destination reads; else the source writes */
};

/* Of one page of the sequence, over all pairs of ranks. */
struct order_count {
    double runs;          /* copies of the plan */
    double requests;      /* RDMA writes or reads */
    double request_bytes; /* in one of them, on average */
};

int order_count(const struct order_question *question, struct order_count *out,
                struct error err);

/* ---- bench_order_attention.c: in attention ---- */

enum attention_kernel {
    KERNEL_ENGINE, /* the engine's own, on this processor */
    KERNEL_ATTEND, /* a plain one */
    KERNEL_READ, /* the same addresses, one addition for eight elements: the memory's share alone */
    KERNELS
};

struct attention_question {
    const struct order_shape *shape;
    uint64_t pool_bytes; /* of each order */
    bool huge;           /* MADV_HUGEPAGE; else the kernel's small pages */
    uint32_t rounds;
};

/* [0]: a sequence's pages are scattered over the pool, [1]: they are neighbours. */
struct attention_answer {
    struct attention_figures {
        double seconds[ORDERS]; /* of processor time for all layers and sequences, median */
        double ratio[ORDERS];   /* to per-layer pools, median over the rounds */
    } figures[2][KERNELS];
    uint64_t bytes;    /* that one pass reads */
    double huge_share; /* of the pools that the kernel gave huge pages */
};

/* All orders must give the same bits: ECORRUPT when not. */
int attention_measure(const struct attention_question *question, struct attention_answer *out,
                      struct error err);

/* ---- bench_order_engine.c: in the engine's attention ---- */

struct engine_attention;

int engine_attention_open(const struct order_shape *shape, uint32_t sequences,
                          struct engine_attention **out, struct error err);
void engine_attention_close(struct engine_attention *self); /* NULL is fine */
/* `pages` has ORDER_SEQUENCE_PAGES for each sequence; base_bytes: of one K or V pool of a layer, 0:
 * all are in one. */
uint64_t engine_attention_step(struct engine_attention *self, const baton_layout *order,
                               uint64_t base_bytes, uint8_t *memory, const int32_t *pages);

#endif
