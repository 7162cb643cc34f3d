/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: which bytes go where. One pure function of two layouts, two page lists and what is
 * ready; no I/O, no allocation, no clock. It is an iterator, because 100,000 pages need not be in
 * memory as copies, and because the copier wants to look up from its work between two batches. */
#ifndef BATON_TRANSFER_PLAN_H
#define BATON_TRANSFER_PLAN_H

#include "layout.h"

/* One copy: length bytes from offset in a source base to offset in a destination base. */
struct plan_run {
    uint32_t src_base;
    uint32_t dst_base;
    uint64_t src_offset;
    uint64_t dst_offset;
    uint64_t length;
};

/* Page lists are positions in the sequence: page i of the source list holds the tokens
 * [src_first_token + i*tokens_per_page, ...), likewise for the destination. What both sides have
 * is copied, nothing else: a prefix the receiver has is not in its list, a partial last page ends
 * at `tokens`. */
struct plan_input {
    const struct layout *src;
    const struct layout *dst;
    const int32_t *src_pages;
    const int32_t *dst_pages;
    uint32_t src_page_count;
    uint32_t dst_page_count;
    uint32_t src_first_token;
    uint32_t dst_first_token;
    uint32_t tokens; /* end of the sequence as a token position; 0: the end of the lists */
    /* Of the source list: only positions in [page_begin, page_end) go now. */
    uint32_t page_begin;
    uint32_t page_end;
    /* Of the source's own layers: only [layer_begin, layer_end) go now. */
    uint32_t layer_begin;
    uint32_t layer_end;
};

/* No run is longer: what backends keep in 31 bits never overflows. */
#define PLAN_RUN_MAX (1u << 30)
#define PLAN_LOOPS_MAX 4

struct plan_loop { /* a dimension that could not be merged into the run */
    uint32_t count;
    uint64_t src_stride;
    uint64_t dst_stride;
};

/* How one piece of a page breaks up into runs. */
struct plan_shape {
    uint64_t run_bytes;
    uint32_t loop_count;
    struct plan_loop loops[PLAN_LOOPS_MAX]; /* outermost first */
};

/* What the walk needs of one side. A piece is the smaller of the two sides' pages; the side with
 * the larger ones has several in a page. */
struct plan_side {
    const int32_t *pages;
    uint64_t first_piece; /* counted from the start of the list */
    uint32_t pieces_per_page;
    uint64_t piece_stride;
    uint64_t page_stride;
    uint64_t offset; /* of the present unit and the first head, in page 0 */
};

struct plan {
    struct plan_input in;
    /* The rest is plan.c's business. */
    uint32_t layer_begin, layer_count; /* in the source's numbering */
    uint32_t head_src, head_dst, head_count;
    uint32_t piece_tokens;
    uint32_t tail_tokens; /* of the last piece, where `tokens` ends inside it; 0: it does not */
    uint64_t full_count, piece_count;
    struct plan_shape full, tail;
    struct plan_side src, dst;
    uint32_t unit_count, units_per_layer; /* a unit is what has one pair of bases */
    /* Where the walk is. */
    uint32_t unit;
    uint64_t piece;
    uint32_t index[PLAN_LOOPS_MAX];
    struct plan_run pending; /* may still grow */
};

/* Checks the lists against the layouts (every page that this plan can touch is inside its region)
 * and sets the iterator to the first run. An empty intersection is fine: the first plan_next
 * returns 0. The layouts have passed layout_check; they and the lists are borrowed. The pages of
 * the destination list must differ: whoever accepted the list has seen to that.
 * Errors: EINVAL (a page outside, ranges outside the lists), ELAYOUT (layout_match says no, or the
 * lists do not line up: first tokens that are not whole pages apart). */
int plan_open(struct plan *plan, const struct plan_input *input, struct error err);

/* The next runs, at most max (> 0), merged where both sides are contiguous (across pages too), up
 * to PLAN_RUN_MAX; returns how many, 0 at the end. No two runs of a whole plan overlap in the
 * destination. */
uint32_t plan_next(struct plan *plan, struct plan_run *runs, uint32_t max);

/* Bytes of the whole plan, without walking every run. */
uint64_t plan_bytes(const struct plan *plan);

/* The length that runs have when no pages merge (of opaque pages the shortest): what the medium
 * will see at worst, but for a partial last page. 0: the plan is empty. */
uint64_t plan_run_bytes(const struct plan *plan);

/* Do the source's and the grant's page lists describe the same sequence? The sender may have more
 * before the grant's first token (the prefix), never less; both must end in the same page of
 * the larger page size, and neither before `tokens`. EINVAL with both numbers when not; ELAYOUT
 * where the lists do not line up. */
int plan_covers(const struct plan_input *input, struct error err);

/* Direct (0) or packed (1): small runs cost more in the medium than a copy through staging.
 * run_bytes_min is the backend's (0: always direct). Writes why, in words, into reason. */
int plan_packs(const struct plan *plan, uint64_t run_bytes_min, char *reason,
               size_t reason_size);

#endif
