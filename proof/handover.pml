/* SPDX-License-Identifier: Apache-2.0 */
/* The hand-over of a page between two processes, as a model small enough to be searched whole.
 *
 * Tests try some interleavings of two processes and a network; `spin` tries all of them, for a
 * system that is small but has every part that matters. What it must show:
 *
 *   [page]    no byte lands in a page after the page was given to somebody else;
 *   [ends]    every room ends, on every side that is alive, even if a writer is stopped for ever,
 *             and every page comes back, except from a writer that can still store into it;
 *   [agree]   nobody says SUCCESS to a hand-over that the other side calls FAILED;
 *   and nothing stands still before that (no deadlock), and no run goes on for ever.
 *
 * The assertions below carry these marks. README.md maps the names here to the code, lists what
 * is left out, and explains how to read a counter-example. run.sh runs all variants.
 *
 * ---- Promela, for readers who have never used spin -------------------------------------------
 *   proctype         a process. All run at once; spin tries every interleaving of their steps.
 *   provided (x)     the process takes no step while x is false: how we stop and kill processes.
 *   do :: a :: b od  loop: of the options whose first statement (the guard) can run, ANY may be
 *                    taken. A guard is an expression; it waits until it is true.
 *   if :: a :: b fi  the same, once.
 *   ->               the same as ; it only reads better after a guard.
 *   atomic { }       no other process takes a step in between. Each atomic option below is one
 *                    event in the real program's link thread, which handles one at a time.
 *   d_step { }       the same, without any choice inside: cheaper for spin.
 *   c!m,t  c?m,t     put message (m, t) into channel c; take the oldest one out.
 *   timeout          true when NO process can take another step: everything stands still.
 *   assert(x)        if spin finds a way to get here with x false, it prints that way.
 *   inline f(r)      a macro with a body; arguments are pasted in. It has no scope of its own.
 *   printf           shown when a counter-example is replayed; nothing otherwise.
 *
 * ---- The cast ----------------------------------------------------------------------------------
 *   Decode      decode.pml   the receiver: owns the page, grants it, decides SUCCESS, takes it
 *                            back.
 *   Prefill(e)  prefill.pml  the sender's link thread: reads and answers frames. e is its epoch:
 *                            1 is the process we start with, 2 the one that is started in its
 *                            place (RESTART).
 *   Worker(e)   prefill.pml  the copy worker of that process: stores into Decode's page, beside
 *                            the link thread: between two of its steps anything can happen.
 *   Trouble     world.pml    cuts links; stops, kills and restarts processes; at some moment it
 *                            leaves everybody in peace (`calm`).
 *   Clock       world.pml    time passes when everything else stands still: deadlines strike.
 *
 * Two rooms, 1 and 2, want the same page. Room 2 opens when it likes and is granted the page once
 * room 1 has given it back: that is the reuse that a late store would corrupt. (Or room 2 has it
 * first, and room 1 comes second.) A room's ticket is its number.
 *
 * ---- What can go wrong: chosen with -D by run.sh ----------------------------------------------
 *   LEAVE    either side's client may leave at any moment (the same event as an early deadline)
 *   CUTS=n   the link is cut up to n times while both processes live; Decode reconnects
 *   STOP     the worker is stopped, anywhere in its copy, until Clock lets it go on
 *   FREEZE   the same for the whole prefill process (SIGSTOP): its link thread is silent too
 *   KILL_P   kill -9 of the prefill process
 *   KILL_D   kill -9 of the decode process
 *   LATE_COMMIT_SILENT  (a choice, not a trouble) COMMIT for a failed room gets no answer
 *   RESTART  a new prefill process (epoch 2) takes the old one's address. The old one is dead, or
 *            alive and merely cut off. Room 2 goes to the new one.
 *
 * ---- What is built wrongly on purpose, to see that the checker notices -------------------------
 *   pages come back too early:  NO_FENCE EOF_FENCE TIMER_FENCE CROSSED_ABORT_FENCE STALE_FENCE
 *                               EPOCH_FENCE FENCED_EARLY COMMIT_EARLY ABORT_NEEDS_OPEN
 *   the sides disagree:         OWN_SUCCESS ABORT_AFTER_COMMIT LOSS_FAILS_COMMITTED
 *   something never ends:       NO_RESEND NO_QUERY NO_TOMBSTONE NO_PIDFD QUERY_AT_CONNECT
 */
#ifndef CUTS
#define CUTS 0
#endif
#ifndef WITNESS
#define WITNESS 0
#endif

#define ROOMS 2
#define STORES 2 /* steps of one copy: it can be stopped before, between and after them */
#ifdef RESTART
#define PROCESSES 2
#define PEER(r) (r) /* room 1 is with process 1, room 2 with process 2 */
#else
#define PROCESSES 1
#define PEER(r) 1
#endif

/* Frames, as in src/transfer/wire.h. All of them carry the ticket. */
mtype = { OPEN, GRANT, COMMIT, LANDED, ABORT, FENCED, QUERY };

/* States of a room. Both sides start in NEW and end in SUCCESS or FAILED, for good. */
mtype = {
    NEW,       /* this side has not opened it yet */
    OPENED,    /* receiver: OPEN sent, no page yet */
    GRANTED,   /* receiver: GRANT sent, the page is the room's */
    REFUSED,   /* sender: ABORT came before the sender: a tombstone waits for it */
    WAITING,   /* sender: exists, waits for the grant or for its turn at the worker */
    COPYING,   /* sender: the worker is at it */
    COMMITTED, /* sender: the last COMMIT is sent; only the receiver decides now */
    DOUBT,     /* sender: the link was lost after the last COMMIT */
    ASKED,     /* sender: QUERY sent on the new link */
    SUCCESS,
    FAILED
};
#define ended(s) ((s) == SUCCESS || (s) == FAILED)

mtype receiver[ROOMS + 1] = NEW; /* [0] is not used: rooms and epochs count from 1 */
mtype sender[ROOMS + 1] = NEW;

/* The page. A failed room that still owns it is in quarantine. */
#define NOBODY 0
byte owner = NOBODY;
#define quarantined(r) (receiver[r] == FAILED && owner == (r))

/* Links: two inboxes each. `up` is the truth; what each side believes follows when it notices.
 * Frames sent into a broken link are lost. What had arrived can still be read until the loss is
 * noticed, and is lost then. Real links do not block their sender; that these inboxes have a
 * bound changes nothing as long as it is never reached: [bound]. */
#define INBOX 8
chan to_prefill[PROCESSES + 1] = [INBOX] of { mtype, byte };
chan to_decode[PROCESSES + 1] = [INBOX] of { mtype, byte };
bool up[PROCESSES + 1];
bool decode_up[PROCESSES + 1];
bool prefill_up[PROCESSES + 1];

/* Decode may be back on a new link before Prefill has noticed the end of the old one, and what
 * had arrived on the old one may be read after what comes on the new one. */
chan old_inbox[PROCESSES + 1] = [INBOX] of { mtype, byte };
bool old_up[PROCESSES + 1];  /* Prefill still believes in an old link beside the new one */
bool on_old[ROOMS + 1];      /* that link is the one on which it knows the room */

/* Processes. */
bool decode_alive = true;
bool running[PROCESSES + 1];   /* prefill process e exists */
bool exited[PROCESSES + 1];    /* it has died: what a pidfd would tell */
bool exit_seen[PROCESSES + 1]; /* and Decode has read that */
bool frozen[PROCESSES + 1];    /* its link thread stands still */
bool stopped[PROCESSES + 1];   /* its worker stands still */

/* Between the link thread and the worker of process e. */
byte job[PROCESSES + 1];      /* the ticket to copy, or NOBODY */
bool cancel[PROCESSES + 1];   /* link thread: stop when you next look */
bool finished[PROCESSES + 1]; /* worker: done or cancelled; not one more store for this job */

/* What a prefill process remembers of a room beside its state. */
bool heard[ROOMS + 1];   /* a frame about it came on a link that is not known to be lost */
bool granted[ROOMS + 1]; /* a grant, valid as long as that link */
bool owes[ROOMS + 1];    /* FENCED is owed; it goes out when the worker is off the ticket */
bool unknown[ROOMS + 1]; /* FAILED as "outcome unknown": gave up waiting in doubt */

/* History, for the witnesses in world.pml only. */
bool asked[ROOMS + 1]; /* QUERY was sent */
bool wrote[ROOMS + 1]; /* a store was made */

bool calm = false; /* nothing more goes wrong, nobody leaves any more */
bool late = false; /* the deadlines have struck */
#ifdef LEAVE
#define may_leave (!calm || late)
#else
#define may_leave (late)
#endif
#define may_give_up (!calm || late) /* the timer of a sender in doubt: at any moment */

byte i; /* scratch for loops inside d_step; 0 again after each, so that it adds no situations */

inline tell_prefill(link, frame, ticket)
{
    if
    :: up[link] ->
        assert(len(to_prefill[link]) < INBOX); /* [bound] */
        to_prefill[link]!frame, ticket;
        printf("decode       sends %e(%d) to process %d\n", frame, ticket, link)
    :: else -> printf("decode       sends %e(%d) into the broken link\n", frame, ticket)
    fi
}

inline tell_decode(link, frame, ticket)
{
    if
    :: up[link] && !on_old[ticket] ->
        assert(len(to_decode[link]) < INBOX); /* [bound] */
        to_decode[link]!frame, ticket;
        printf("prefill %d    sends %e(%d)\n", link, frame, ticket)
    :: else -> printf("prefill %d    sends %e(%d) into the broken link\n", link, frame, ticket)
    fi
}

inline drain(channel)
{
    do
    :: nempty(channel) -> channel?_, _
    :: empty(channel) -> break
    od
}

#include "decode.pml"
#include "prefill.pml"
#include "world.pml"

init
{
    atomic {
        up[1] = true; decode_up[1] = true; prefill_up[1] = true; /* REGISTER is done */
        running[1] = true;
        run Decode();
        run Prefill(1);
        run Worker(1);
#ifdef RESTART
        run Prefill(2);
        run Worker(2);
#endif
        run Trouble();
        run Clock()
    }
}
