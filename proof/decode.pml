/* SPDX-License-Identifier: Apache-2.0 */
/* Decode, the receiver: the only one who may say that the page is free again. Part of the model
 * in handover.pml, which explains the notation and holds the variables. */

/* The page goes back to the pool. Every caller must have proof that nobody stores any more. */
inline page_release(r)
{
    if
    :: owner == r ->
        owner = NOBODY;
        printf("decode       has its page back from room %d\n", r)
    :: else
    fi
}

inline receiver_fail(r)
{
    receiver[r] = FAILED;
    printf("decode       room %d FAILED\n", r);
    assert(sender[r] != SUCCESS); /* [agree] */
#ifdef NO_FENCE
    page_release(r) /* BROKEN: "the room has failed, so its page is free" */
#endif
}

inline receiver_succeed(r)
{
    receiver[r] = SUCCESS;
    printf("decode       room %d SUCCESS\n", r);
    assert(sender[r] != FAILED || unknown[r]); /* [agree] */
    page_release(r) /* the engine uses it, and then goes on to something else */
}

/* COMMIT(last): the receiver decides, and says so. */
inline receiver_on_commit(r)
{
    if
    :: receiver[r] == GRANTED ->
        receiver_succeed(r);
        tell_prefill(PEER(r), LANDED, r)
#ifdef LATE_COMMIT_SILENT /* no harm: the sender has been told, or will ask */
    :: receiver[r] == FAILED
#else
    :: receiver[r] == FAILED -> tell_prefill(PEER(r), ABORT, r) /* too late */
#endif
    :: else -> assert(false) /* [never] */
    fi
}

inline receiver_on_abort(r)
{
    if
    :: receiver[r] == OPENED || receiver[r] == GRANTED -> receiver_fail(r)
    :: receiver[r] == FAILED ->
        skip /* crossed with our own; it says nothing about the writer */
#ifdef CROSSED_ABORT_FENCE
        ; page_release(r) /* BROKEN: "both sides have aborted, so it is over" */
#endif
    :: else
    fi
}

/* FENCED counts for the ticket it names, and from the process that was granted that ticket. */
inline receiver_on_fenced(r, link)
{
    if
#if defined(STALE_FENCE)
    :: quarantined(1) -> page_release(1) /* BROKEN: for whatever is in quarantine just now */
    :: quarantined(2) -> page_release(2)
#elif defined(EPOCH_FENCE)
    :: quarantined(r) -> page_release(r) /* BROKEN: from any process at that address */
#else
    :: quarantined(r) && PEER(r) == link -> page_release(r)
#endif
    :: else
    fi
}

inline receiver_on_query(r)
{
    if
    :: receiver[r] == SUCCESS -> tell_prefill(PEER(r), LANDED, r)
    :: receiver[r] == FAILED -> tell_prefill(PEER(r), ABORT, r)
    :: else -> assert(false) /* [never] the loss of the link has ended every live room */
    fi
}

inline decode_read(link)
{
    to_decode[link]?m, t;
    printf("decode       reads %e(%d) from process %d\n", m, t, link);
    if
    :: m == COMMIT -> receiver_on_commit(t)
    :: m == ABORT -> receiver_on_abort(t)
    :: m == FENCED -> receiver_on_fenced(t, link)
    :: m == QUERY -> receiver_on_query(t)
    :: else -> assert(false) /* [never] */
    fi;
    m = 0; t = 0 /* forget, so that equal situations look equal to spin */
}

inline receiver_open(r)
{
    receiver[r] = OPENED;
    tell_prefill(PEER(r), OPEN, r)
}

inline receiver_grant(r)
{
    owner = r;
    receiver[r] = GRANTED;
    tell_prefill(PEER(r), GRANT, r)
}

/* The client left, or the deadline has passed: FAILED at once; the page comes later. */
inline receiver_leave(r)
{
    printf("decode       gives room %d up\n", r);
    receiver_fail(r);
    if
    :: decode_up[PEER(r)] -> tell_prefill(PEER(r), ABORT, r)
    :: else
    fi
}

/* EOF or silence. The rooms fail; the page stays where it is. */
inline decode_notice_loss(link)
{
    decode_up[link] = false;
    printf("decode       notices that the link to process %d is lost\n", link);
    drain(to_decode[link]);
    for (i : 1 .. ROOMS) {
        if
        :: PEER(i) == link && (receiver[i] == OPENED || receiver[i] == GRANTED) ->
            receiver_fail(i)
        :: else
        fi
#ifdef EOF_FENCE
        ; if
        :: PEER(i) == link && quarantined(i) -> page_release(i) /* BROKEN: "he hung up" */
        :: else
        fi
#endif
    }
    i = 0
}

/* Prefill has two links now: the new one, and one that it does not know to be dead. */
inline prefill_keep_old(link)
{
    old_up[link] = true;
    do
    :: nempty(to_prefill[link]) -> to_prefill[link]?m, t; old_inbox[link]!m, t
    :: empty(to_prefill[link]) -> break
    od;
    m = 0; t = 0;
    for (i : 1 .. ROOMS) {
        on_old[i] = (heard[i] && PEER(i) == link) || on_old[i]
    }
}

#ifdef EPOCH_FENCE
#define fence_wanted(r, link) quarantined(r) /* BROKEN: asks whoever is at that address now */
#else
#define fence_wanted(r, link) (PEER(r) == link && quarantined(r))
#endif

/* A handshake of both sides, so one step. Then every fence that is missing is asked for anew. */
inline decode_connect(link)
{
    if
    :: prefill_up[link] -> prefill_keep_old(link)
    :: else -> drain(to_prefill[link])
    fi;
    up[link] = true;
    decode_up[link] = true;
    prefill_up[link] = true;
    printf("decode       connects to process %d\n", link);
#ifndef NO_RESEND
    for (i : 1 .. ROOMS) {
        if
        :: fence_wanted(i, link) -> tell_prefill(link, ABORT, i)
        :: else
        fi
    }
#endif
    i = 0
}

/* pidfd: the process is gone, and its worker with it. That is a fence. */
inline decode_notice_exit(link)
{
    exit_seen[link] = true;
    up[link] = false;
    decode_up[link] = false;
    printf("decode       sees that process %d has exited\n", link);
    drain(to_decode[link]);
    for (i : 1 .. ROOMS) {
        if
        :: PEER(i) == link && !ended(receiver[i]) -> receiver_fail(i)
        :: else
        fi;
        if
#ifndef NO_PIDFD
        :: PEER(i) == link && quarantined(i) -> page_release(i)
#endif
        :: else
        fi
    }
    i = 0
}

#define may_open(r) (receiver[r] == NEW && decode_up[PEER(r)])
#define may_grant(r) (receiver[r] == OPENED && owner == NOBODY && decode_up[PEER(r)])
/* There is somebody to answer. (One unnoticed old link at a time is enough to keep in mind.) */
#define may_connect(e) \
    (!up[e] && !decode_up[e] && running[e] && !frozen[e] && !(prefill_up[e] && old_up[e]))

proctype Decode() provided (decode_alive)
{
    mtype m;
    byte t;
end: /* a loop may stand still here without that being an error; Clock judges what is left */
    do
    :: atomic { may_open(1) -> receiver_open(1) }
    :: atomic { may_open(2) -> receiver_open(2) }
    :: atomic { may_grant(1) -> receiver_grant(1) }
    :: atomic { may_grant(2) -> receiver_grant(2) }
    :: atomic { may_leave && !ended(receiver[1]) -> receiver_leave(1) }
    :: atomic { may_leave && !ended(receiver[2]) -> receiver_leave(2) }
    :: atomic { decode_up[1] && nempty(to_decode[1]) -> decode_read(1) }
    :: d_step { decode_up[1] && !up[1] -> decode_notice_loss(1) }
    :: d_step { exited[1] && !exit_seen[1] -> decode_notice_exit(1) }
#ifdef RESTART
    /* Whoever calls the address reaches the new process, once there is one. */
    :: d_step { may_connect(1) && !running[2] -> decode_connect(1) }
    :: d_step { may_connect(2) -> decode_connect(2) }
    :: atomic { decode_up[2] && nempty(to_decode[2]) -> decode_read(2) }
#else
    :: d_step { may_connect(1) -> decode_connect(1) }
#endif
#ifdef TIMER_FENCE
    /* BROKEN: "that was long enough". No clock knows how long a writer can be held up. */
    :: d_step { quarantined(1) -> page_release(1) }
    :: d_step { quarantined(2) -> page_release(2) }
#endif
    od
}
