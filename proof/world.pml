/* SPDX-License-Identifier: Apache-2.0 */
/* The world around the two sides: what goes wrong, how time passes, and what must be true when
 * everything is over. Part of the model in handover.pml. */

proctype Trouble()
{
    byte cuts = CUTS;
    do
    :: d_step { cuts > 0 && up[1] ->
        up[1] = false; cuts--; printf("world        the link is cut\n") }
#ifdef STOP
    :: d_step { !stopped[1] -> stopped[1] = true; printf("world        the worker is stopped\n") }
#endif
#ifdef FREEZE
    /* Decode hears nothing any more and gives the link up; Prefill notices when it wakes. */
    :: d_step { !frozen[1] ->
        stopped[1] = true; frozen[1] = true; up[1] = false;
        printf("world        the prefill process is stopped\n") }
#endif
#ifdef KILL_P
    /* What it has sent can still be read. EOF and pidfd tell of it in any order. */
    :: d_step { running[1] ->
        running[1] = false; exited[1] = true; printf("world        process 1 is killed\n") }
#endif
#ifdef KILL_D
    :: d_step { decode_alive ->
        decode_alive = false; up[1] = false; printf("world        decode is killed\n") }
#endif
#ifdef RESTART
    /* Under the old one's address: from now on nobody can reach that one any more. */
    :: d_step { !running[2] ->
        running[2] = true; up[1] = false; printf("world        process 2 takes its place\n") }
    :: atomic { running[2] -> calm = true; break }
#else
    :: atomic { calm = true; break }
#endif
    od
}

/* A writer that Decode cannot wait for: it stands still, or nobody can reach it any more. */
#ifdef RESTART
#define held_up (stopped[1] || running[1])
#else
#define held_up stopped[1]
#endif
#define untold(r) (sender[r] == WAITING && !heard[r])
#define awake(r) (running[PEER(r)] && !frozen[PEER(r)])
#define writing(r) (running[PEER(r)] && job[PEER(r)] == (r) && !finished[PEER(r)])

/* Everything stands still for the first time. Where no writer is held up, no room needs a deadline
 * to end, and the page is back. One sender may still wait: one that nobody has ever told of its
 * room (match_timeout is for that). */
inline check_without_deadlines(r)
{
    assert(ended(receiver[r]) || held_up || !decode_alive); /* [ends] */
    assert(!quarantined(r) || held_up || !decode_alive); /* [ends] */
    assert(ended(sender[r]) || untold(r) || held_up || !awake(r)) /* [ends] */
}

/* The deadlines have struck. Every room has ended on every side that lives, whatever the writer
 * does; and a page that can still be written belongs to the room of its writer. */
inline check_with_deadlines(r)
{
    assert(ended(receiver[r]) || !decode_alive); /* [ends] */
    assert(ended(sender[r]) || !awake(r)); /* [ends] */
    assert(!writing(r) || owner == r || !decode_alive); /* [page] */
    assert(sender[r] == receiver[r] || unknown[r] || !awake(r) || !decode_alive) /* [agree] */
}

/* The stopped writer has gone on after all: now its page is back too. */
inline check_after_resume(r)
{
    check_with_deadlines(r);
    assert(!quarantined(r) || held_up || !decode_alive) /* [ends] */
}

/* A model in which nothing ever happens proves everything. So these must be possible: spin is
 * asked to find each of them, as if it were an error. */
#if WITNESS == 1 /* both rooms succeed, one after the other, in the same page */
#define witness (sender[1] == SUCCESS && sender[2] == SUCCESS)
#elif WITNESS == 2 /* one room fails half written, is fenced, and the other succeeds in its page */
#define witness (receiver[1] == FAILED && wrote[1] && sender[2] == SUCCESS)
#elif WITNESS == 3 /* a stopped writer keeps the page, and both rooms end all the same */
#define witness (quarantined(1) && writing(1) && receiver[2] == FAILED)
#elif WITNESS == 4 /* a sender in doubt learns that the bytes had landed ... */
#define witness (sender[1] == SUCCESS && asked[1])
#elif WITNESS == 5 /* ... or that they had not */
#define witness (sender[1] == FAILED && asked[1] && !unknown[1])
#elif WITNESS == 6 /* the old process lives and keeps its page; the new one's room ends by time */
#define witness (quarantined(1) && running[1] && receiver[2] == FAILED)
#elif WITNESS == 7 /* the old process died in mid-copy, and the new one fills the same page */
#define witness (exit_seen[1] && sender[1] == COPYING && wrote[1] && sender[2] == SUCCESS)
#else
#define witness false
#endif

proctype Clock()
{
    timeout -> atomic {
        printf("clock        everything stands still\n");
#ifdef ALWAYS_SUCCESS /* nothing goes wrong: then nothing may fail */
        assert(sender[1] == SUCCESS && receiver[1] == SUCCESS); /* [ends] */
        assert(sender[2] == SUCCESS && receiver[2] == SUCCESS); /* [ends] */
#endif
        check_without_deadlines(1);
        check_without_deadlines(2);
        late = true
    }
    timeout -> atomic {
        printf("clock        the deadlines are over\n");
        check_with_deadlines(1);
        check_with_deadlines(2);
        assert(!witness); /* [witness] */
        stopped[1] = false; /* SIGCONT, after all that time */
        frozen[1] = false
    }
    timeout -> atomic {
        printf("clock        whoever was stopped has gone on\n");
        check_after_resume(1);
        check_after_resume(2)
    }
}
