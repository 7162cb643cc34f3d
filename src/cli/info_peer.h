/* SPDX-License-Identifier: Apache-2.0 */
/* `baton info --peer`: by which backend would pages come from that rank to here, and why not by
 * another one? */
#ifndef BATON_CLI_INFO_PEER_H
#define BATON_CLI_INFO_PEER_H

#include "base/error.h"

#include <jansson.h>

#define PEER_VERDICTS_MAX 16

struct peer_question {
    const char *address;   /* of a manager, or with peer_rank of a bootstrap server */
    const char *peer_rank; /* "TP"; NULL: the address is the manager's own */
    uint32_t peer_dp, peer_pp;
    uint32_t rank;         /* ours */
    const char *ib_device; /* as for a manager; NULL: its defaults */
    const char *backends;
    const char *key; /* "": none */
    const char *tls_certificate, *tls_key, *tls_ca;
};

enum peer_verdict_kind {
    VERDICT_TAKEN,
    VERDICT_USABLE, /* seen from here; but one before it was taken */
    VERDICT_HERE,   /* not, for a reason of this side */
    VERDICT_THERE,  /* not, for a reason of the peer's side */
    VERDICT_TRIED,  /* it was taken first, and its rails did not come up */
};

struct peer_verdict {
    char backend[16];
    enum peer_verdict_kind kind;
    char why[256];
};

struct peer_answer {
    char name[96]; /* "rank 0 at 10.0.0.1:4000" */
    bool same_host, same_process;
    uint32_t tp_size;
    uint32_t rails; /* streams, queue pairs or threads of the link */
    uint32_t up;    /* of those; queue pairs are made after the link is up, and may fail */
    struct peer_verdict verdicts[PEER_VERDICTS_MAX]; /* in the order of preference */
    uint32_t verdict_count;
};

/* Opens a link as a receiver would, opens no room, and closes it. A backend whose rails do not come up
 * is given up as a receiver would give it up, and the next one is tried. Errors say what was wrong: nobody
 * there, another version, another key, no backend in common. */
int peer_ask(const struct peer_question *question, struct peer_answer *out, struct error err);

void peer_print(const struct peer_answer *answer);
json_t *peer_json(const struct peer_answer *answer);

#endif
