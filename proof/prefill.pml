/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill, the sender: a link thread that talks and a worker that stores into the other process's
 * memory. They are two because the danger lies between them: the link thread can say that a room
 * is over while the worker is still in the middle of a store. Part of the model in handover.pml.
 * In the inlines, e is the epoch of the process that pastes them in. */

inline sender_fail(r)
{
    sender[r] = FAILED;
    granted[r] = false;
    printf("prefill %d    room %d FAILED\n", e, r);
    /* Never against the receiver's SUCCESS, except where the sender says that it does not know,
     * or where there is no receiver any more. */
    assert(receiver[r] != SUCCESS || unknown[r] || !decode_alive); /* [agree] */
    if
    :: job[e] == r -> cancel[e] = true
    :: else
    fi
}

inline sender_succeed(r)
{
    sender[r] = SUCCESS;
    printf("prefill %d    room %d SUCCESS\n", e, r);
#ifndef OWN_SUCCESS
    assert(receiver[r] == SUCCESS); /* [agree] never ahead of the receiver */
#endif
    assert(receiver[r] != FAILED) /* [agree] */
}

/* Answers a ticket that has failed here: ABORT now, FENCED when the worker is off it. */
inline sender_refuse(r)
{
    tell_decode(e, ABORT, r);
    owes[r] = true
}

/* Frames. `fresh`: came on the present link; else on the old one, where no answer arrives. */

inline sender_on_open(r, fresh)
{
    if
#ifndef NO_TOMBSTONE
    :: sender[r] == FAILED || sender[r] == REFUSED ->
        if
        :: fresh -> heard[r] = true; sender_refuse(r)
        :: else
        fi
#endif
    :: else -> heard[r] = true; on_old[r] = !fresh
    fi
}

inline sender_on_grant(r, fresh)
{
    if
    :: (sender[r] == NEW || sender[r] == WAITING) && heard[r] && on_old[r] == !fresh ->
        granted[r] = true
#ifndef NO_TOMBSTONE
    :: fresh && (sender[r] == FAILED || sender[r] == REFUSED) -> sender_refuse(r)
#endif
    :: else
    fi
}

inline sender_on_landed(r)
{
    if
    :: sender[r] == COMMITTED || sender[r] == DOUBT || sender[r] == ASKED -> sender_succeed(r)
    :: sender[r] == SUCCESS || unknown[r]
    :: else -> assert(false) /* [never] */
    fi
}

/* The receiver gives the room up, or asks again for the fence: the same answer. What is FENCED
 * here must stay so: a grant of that ticket may still be unread on the old link. So the room ends
 * now, sender or no sender, whether OPEN has been read or not. */
inline sender_on_abort(r, fresh)
{
    if
    :: PEER(r) != e -> tell_decode(e, FENCED, r) /* a new process means only itself by that */
#ifdef ABORT_NEEDS_OPEN
    :: PEER(r) == e && sender[r] == WAITING && !heard[r] ->
        tell_decode(e, FENCED, r) /* BROKEN: "on no link of mine; a sender is not concerned" */
#endif
    :: else ->
        if
        :: sender[r] == NEW ->
            granted[r] = false
#ifndef NO_TOMBSTONE
            ; sender[r] = REFUSED
#endif
        :: sender[r] == REFUSED || sender[r] == FAILED
        :: sender[r] == SUCCESS -> assert(false) /* [never] */
        :: else -> sender_fail(r)
        fi;
        if
        :: fresh ->
            heard[r] = true;
            on_old[r] = false;
#ifdef FENCED_EARLY
            tell_decode(e, FENCED, r) /* BROKEN: "the room is FAILED here too" */
#else
            owes[r] = true
#endif
        :: else /* asked again on the new link, if it matters */
        fi
    fi
}

inline prefill_read(channel, fresh)
{
    channel?m, t;
    printf("prefill %d    reads %e(%d)\n", e, m, t);
    if
    :: m == OPEN -> sender_on_open(t, fresh)
    :: m == GRANT -> sender_on_grant(t, fresh)
    :: m == LANDED -> sender_on_landed(t)
    :: m == ABORT -> sender_on_abort(t, fresh)
    :: else -> assert(false) /* [never] */
    fi;
    m = 0; t = 0
}

/* The engine opens its sender: before OPEN and GRANT, or after, or too late. */
inline sender_open(r)
{
    printf("prefill %d    opens a sender for room %d\n", e, r);
    if
    :: sender[r] == NEW -> sender[r] = WAITING
    :: sender[r] == REFUSED -> sender_fail(r)
    fi
}

/* The client left, or the deadline has passed. Not after the last COMMIT. */
inline sender_leave(r)
{
    printf("prefill %d    gives room %d up\n", e, r);
    sender_fail(r);
    if
    :: prefill_up[e] && heard[r] -> sender_refuse(r)
    :: else /* the tombstone (FAILED) answers whoever comes */
    fi
}

#ifdef ABORT_AFTER_COMMIT /* BROKEN: the receiver may have decided already */
#define may_sender_leave(r) (sender[r] == WAITING || sender[r] == COPYING || sender[r] == COMMITTED)
#else
#define may_sender_leave(r) (sender[r] == WAITING || sender[r] == COPYING)
#endif

inline sender_start(r)
{
    sender[r] = COPYING;
    job[e] = r;
    cancel[e] = false
}

inline job_clear()
{
    job[e] = NOBODY;
    finished[e] = false;
    cancel[e] = false
}

inline sender_commit(r)
{
    tell_decode(e, COMMIT, r);
#ifdef OWN_SUCCESS
    sender_succeed(r) /* BROKEN: "all is written, so all is well" */
#else
    sender[r] = COMMITTED
#endif
}

/* Grants die with the link that carried them; only what is committed can still be saved. */
inline sender_link_lost(r)
{
    if
#ifdef LOSS_FAILS_COMMITTED
    :: sender[r] == COMMITTED -> sender_fail(r) /* BROKEN: LANDED may be what was lost */
#endif
    :: sender[r] == COMMITTED || sender[r] == ASKED -> sender[r] = DOUBT
    :: heard[r] && (sender[r] == WAITING || sender[r] == COPYING) -> sender_fail(r)
    :: else
    fi;
    heard[r] = false;
    granted[r] = false;
    owes[r] = false /* Decode asks again on the next link */
}

inline prefill_notice_loss()
{
    prefill_up[e] = false;
    printf("prefill %d    notices that the link is lost\n", e);
    drain(to_prefill[e]);
    for (i : 1 .. ROOMS) {
        if
        :: PEER(i) == e && !on_old[i] -> sender_link_lost(i)
        :: else
        fi
    }
    i = 0
}

inline prefill_notice_old_loss()
{
    old_up[e] = false;
    printf("prefill %d    notices that the old link is lost\n", e);
    drain(old_inbox[e]);
    for (i : 1 .. ROOMS) {
        if
        :: PEER(i) == e && on_old[i] ->
            sender_link_lost(i);
            on_old[i] = false
#ifdef QUERY_AT_CONNECT
            ; if
            :: sender[i] == DOUBT && prefill_up[e] -> sender[i] = ASKED /* BROKEN: has not asked */
            :: else
            fi
#endif
        :: else
        fi
    }
    i = 0
}

inline sender_query(r)
{
    sender[r] = ASKED;
    asked[r] = true;
    heard[r] = true; /* the question hangs on this link */
    tell_decode(e, QUERY, r)
}

inline sender_give_up(r)
{
    unknown[r] = true;
    printf("prefill %d    waits no longer: the outcome of room %d is unknown\n", e, r);
    sender_fail(r)
}

#define here(r) (PEER(r) == e)
#define may_start(r) (sender[r] == WAITING && granted[r] && job[e] == NOBODY)
#ifdef COMMIT_EARLY /* BROKEN: commits while the worker is at it */
#define may_commit(r) (job[e] == r && sender[r] == COPYING)
#else
#define may_commit(r) (job[e] == r && sender[r] == COPYING && finished[e])
#endif
#define may_clear(r) (job[e] == r && sender[r] != COPYING && finished[e])
#define may_fence(r) (owes[r] && job[e] != r && prefill_up[e])
#ifdef NO_QUERY
#define may_query(r) false
#else
#define may_query(r) (sender[r] == DOUBT && prefill_up[e])
#endif
#define in_doubt(r) (sender[r] == DOUBT || sender[r] == ASKED)

/* The events of one room; pasted once per room into the loop below. */
#define SENDER_EVENTS(r) \
    :: atomic { here(r) && (sender[r] == NEW || sender[r] == REFUSED) -> sender_open(r) } \
    :: atomic { here(r) && may_leave && may_sender_leave(r) -> sender_leave(r) } \
    :: d_step { here(r) && may_start(r) -> sender_start(r) } \
    :: atomic { here(r) && may_commit(r) -> sender_commit(r) } \
    :: d_step { here(r) && may_clear(r) -> job_clear() } \
    :: atomic { here(r) && may_fence(r) -> owes[r] = false; tell_decode(e, FENCED, r) } \
    :: atomic { here(r) && may_query(r) -> sender_query(r) } \
    :: d_step { here(r) && in_doubt(r) && may_give_up -> sender_give_up(r) } \
    :: d_step { here(r) && sender[r] == DOUBT && !decode_alive -> sender_fail(r) }

proctype Prefill(byte e) provided (running[e] && !frozen[e])
{
    mtype m;
    byte t;
end:
    do
    :: atomic { prefill_up[e] && nempty(to_prefill[e]) -> prefill_read(to_prefill[e], true) }
    :: d_step { prefill_up[e] && !up[e] -> prefill_notice_loss() }
    :: atomic { old_up[e] && nempty(old_inbox[e]) -> prefill_read(old_inbox[e], false) }
    :: d_step { old_up[e] -> prefill_notice_old_loss() }
    SENDER_EVENTS(1)
    SENDER_EVENTS(2)
    od
}

/* The thread that stores. Labels that begin with "end" mark where it may stand still for ever: it
 * can be stopped or killed anywhere. */
proctype Worker(byte e) provided (running[e] && !stopped[e])
{
    byte t;    /* the ticket it works on */
    byte done; /* stores so far */
end_idle:
    do
    :: atomic { job[e] != NOBODY && !finished[e] -> t = job[e] }
end_copying:
        do
        :: atomic { done < STORES && !cancel[e] -> skip } /* it looks: shall I go on? ... */
end_looked:
            atomic { /* ... anything can happen here, for any time, and then it stores */
                printf("worker %d     stores for room %d\n", e, t);
                assert(owner == t || !decode_alive); /* [page] (a dead Decode has no pages) */
                wrote[t] = true;
                done++
            }
        :: atomic { done == STORES || cancel[e] -> break }
        od;
end_stopping:
        atomic {
            finished[e] = true;
            t = 0; done = 0
        }
    od
}
