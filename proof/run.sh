#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Searches the model of the hand-over with spin: the protocol as it is, under every kind of trouble,
# where nothing may be found; the protocol with one rule broken at a time, where the checker must
# find the damage; and a few good ends that must be reachable, so that the model is not empty.
#
#   proof/run.sh               all of it: a line per variant, then "N passed, N failed"
#   proof/run.sh NAME ...      only these
#   proof/run.sh --list        the variants
#   proof/run.sh --show NAME   tells the shortest counter-example of a variant as a story
#
# Needs spin, gcc and less than 2 GB of memory for each of the two searches that run at a time.
set -u -o pipefail

proof=$(cd "$(dirname "$0")" && pwd)
jobs=${PROOF_JOBS:-2}
seconds=${PROOF_SECONDS:-300} # a search that takes longer has grown too large: that is a failure

# name | what must come out | model flags | what it is
#   holds:  the search is complete and finds nothing
#   finite: no run goes on for ever (spin's search for cycles without progress; there are no
#           progress marks in the model, so that every cycle counts)
#   else:   the mark of the assertion that must be found violated
# The long ones come first, so that two cores finish together.
variants="
everything     | holds   | LEAVE CUTS=1 STOP FREEZE KILL_P  | all troubles of one process at once
finite         | finite  | LEAVE CUTS=1                     | no run goes on for ever
everything-new | holds   | LEAVE CUTS=1 STOP KILL_P RESTART | and a new process takes its place
finite-restart | finite  | KILL_P RESTART                   | nor does one with a restart
decode-killed  | holds   | LEAVE CUTS=1 KILL_D              | kill -9 of decode
two-cuts       | holds   | LEAVE CUTS=2                     | the link is lost twice
stopped        | holds   | LEAVE STOP                       | the writer is stopped in mid-copy
frozen         | holds   | LEAVE FREEZE                     | the whole prefill process is stopped
killed         | holds   | LEAVE KILL_P                     | kill -9 of prefill
restarted      | holds   | LEAVE KILL_P RESTART             | the old process is dead or cut off
silent         | holds   | LEAVE LATE_COMMIT_SILENT         | a late COMMIT is not even answered
leaving        | holds   | LEAVE                            | aborts across every frame
cut            | holds   | CUTS=1                           | link loss and reconnect, nobody leaves
undisturbed    | holds   | ALWAYS_SUCCESS                   | nothing goes wrong: both rooms succeed
no-fence       | page    | LEAVE NO_FENCE                   | pages reused once the room failed
eof-fence      | page    | CUTS=1 EOF_FENCE                 | EOF taken as a fence
timer-fence    | page    | LEAVE TIMER_FENCE                | a timer taken as a fence
crossed-fence  | page    | LEAVE CROSSED_ABORT_FENCE        | a crossing ABORT taken as a fence
stale-fence    | page    | LEAVE STALE_FENCE                | another ticket's FENCED taken
epoch-fence    | page    | RESTART EPOCH_FENCE              | the new process's FENCED taken
fenced-early   | page    | LEAVE FENCED_EARLY               | FENCED before the worker stopped
legless-abort  | page    | CUTS=1 ABORT_NEEDS_OPEN          | ABORT spares a sender without OPEN
commit-early   | page    | COMMIT_EARLY                     | COMMIT before the worker finished
own-success    | agree   | LEAVE OWN_SUCCESS                | SUCCESS without LANDED
late-abort     | agree   | LEAVE ABORT_AFTER_COMMIT         | abort or deadline after last COMMIT
loss-fails     | agree   | CUTS=1 LOSS_FAILS_COMMITTED      | committed sender fails at link loss
no-resend      | ends    | CUTS=1 NO_RESEND                 | ABORT is not sent on the new link
no-query       | ends    | CUTS=1 NO_QUERY                  | a sender in doubt does not ask
query-at-link  | ends    | CUTS=1 QUERY_AT_CONNECT          | doubt after the new link is not asked
no-tombstone   | ends    | LEAVE NO_TOMBSTONE               | an ABORT that came first is forgotten
no-pidfd       | ends    | KILL_P NO_PIDFD                  | the exit is not taken as a fence
reuse          | witness | WITNESS=1                        | both rooms succeed in the same page
reuse-fenced   | witness | CUTS=1 WITNESS=2                 | one fails half written, one succeeds
kept           | witness | STOP WITNESS=3                   | a stopped writer keeps its page
doubt-landed   | witness | CUTS=1 WITNESS=4                 | in doubt, asks, and it had landed
doubt-aborted  | witness | CUTS=1 WITNESS=5                 | in doubt, asks, and it had not
cut-off        | witness | RESTART WITNESS=6                | the old process keeps its page
taken-over     | witness | KILL_P RESTART WITNESS=7         | a page of the dead is filled again
"

# Searches that take longer than gcc takes to optimise them.
large="everything finite everything-new decode-killed two-cuts"

die() {
    echo "proof/run.sh: $*" >&2
    exit 2
}

names() {
    awk -F'|' 'NF > 1 { gsub(/ /, "", $1); print $1 }' <<<"$variants"
}

# variant_load NAME: sets expect, flags, about
variant_load() {
    local line
    line=$(awk -F'|' -v name="$1" '{ n = $1; gsub(/ /, "", n) } n == name' <<<"$variants")
    [ -n "$line" ] || die "no variant is called '$1'; proof/run.sh --list names them"
    IFS='|' read -r _ expect flags about <<<"$line"
    expect=${expect// /}
    flags=$(sed 's/\([^ ]\+\)/-D\1/g' <<<"$flags")
    about=$(sed 's/^ *//' <<<"$about")
}

# search NAME: builds the checker of the loaded variant in the current folder, and runs it into `out`.
# Negative and witness variants are searched breadth first: the shortest example is the clearest.
# -DNOREDUCE: spin's partial order reduction gains nothing here, and without it there is nothing
# to argue about (`timeout` and `provided` look at the whole state).
search() {
    local options="-DSAFETY -DBFS" arguments="" optimise=-O0
    case $expect in
    holds) options="-DSAFETY" ;;
    finite) options="-DNP -DNOFAIR" arguments="-l" ;;
    esac
    case " $large " in *" $1 "*) optimise=-O1 ;; esac
    cp "$proof"/*.pml . &&
        spin $flags -a handover.pml >spin.out 2>&1 &&
        gcc -w $optimise $options -DNOREDUCE -DMEMLIM=1900 -o pan pan.c >gcc.out 2>&1 || return 1
    timeout "$seconds" ./pan -w22 -m20000 $arguments >out 2>&1
}

# The file:line of the violated assertion, from a replay of the example that pan has written.
violation() {
    spin $flags -t -T handover.pml >replay 2>/dev/null
    sed -n 's/^spin: \([a-z]*\.pml:[0-9]*\), Error: assertion violated.*/\1/p' replay | head -1
}

# check NAME FOLDER: one variant, one line; the exit status says whether it came out as expected.
check() {
    local where mark states verdict=FAILED
    variant_load "$1"
    mkdir "$2/$1" && cd "$2/$1" || die "cannot make a folder in $2"
    if ! search "$1"; then
        echo "FAILED  $1: could not be built, or ran into its limit of $seconds s; it said:"
        cat spin.out gcc.out out 2>/dev/null | tail -5
        return 1
    fi
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' out | head -1)
    where=""
    [ -f handover.pml.trail ] && where=$(violation)
    mark=none
    if [ -n "$where" ]; then
        mark=$(sed -n "${where#*:}s/.*\/\* \[\([a-z]*\)\].*/\1/p" "${where%%:*}")
    elif [ -f handover.pml.trail ]; then
        mark=standstill # spin's own complaint: an invalid end state, or a cycle
    fi
    case $expect in
    holds | finite)
        grep -q 'errors: 0' out && ! grep -Eq 'not completed|too small|out of memory' out &&
            [ "$mark" = none ] && verdict=ok
        ;;
    *) [ "$mark" = "$expect" ] && verdict=ok ;;
    esac
    case $mark in
    none) where="nothing found" ;;
    *) where="found [$mark] at ${where:-a standstill}" ;;
    esac
    printf '%-7s %-14s %9s states  %-32s %s\n' "$verdict" "$1" "${states:-0}" "$where" "$about"
    if [ "$verdict" != ok ]; then
        echo "        expected: $expect. Read it with: proof/run.sh --show $1"
        return 1
    fi
}

# show NAME FOLDER: the story of what was found.
show() {
    variant_load "$1"
    cd "$2" || die "cannot use $2"
    echo "$1: $about (expected: $expect)"
    search "$1" || die "the search failed: $(cat spin.out gcc.out out 2>/dev/null | tail -3)"
    if [ ! -f handover.pml.trail ]; then
        echo "Nothing was found: $(grep 'errors:' out)"
        return
    fi
    local where
    where=$(violation)
    sed '/^spin: /,$d' replay
    [ -n "$where" ] || die "spin found a standstill or a cycle; replay: $(tail -40 replay)"
    echo "and there $where is violated:"
    sed -n "${where#*:}s/^ */    /p" "${where%%:*}"
}

if [ "${1:-}" = --list ]; then
    awk -F'|' 'NF > 1 { printf "%s %-9s %-35s %s\n", $1, $2, $3, $4 }' <<<"$variants"
    exit 0
fi
for tool in spin gcc; do
    command -v $tool >/dev/null || die "$tool is missing; Debian, Ubuntu: apt-get install $tool"
done
if [ "${1:-}" = --check ]; then
    check "$2" "$3"
    exit
fi

folder=$(mktemp -d) || die "cannot make a temporary folder"
trap 'rm -rf "$folder"' EXIT
if [ "${1:-}" = --show ]; then
    [ $# = 2 ] || die "usage: proof/run.sh --show NAME"
    show "$2" "$folder"
    exit
fi

wanted=("$@")
[ $# -gt 0 ] || mapfile -t wanted < <(names)
for name in "${wanted[@]}"; do
    (variant_load "$name") || exit 2
done
printf '%s\n' "${wanted[@]}" |
    xargs -P "$jobs" -I{} bash "$proof/run.sh" --check {} "$folder" | tee "$folder/lines"
passed=$(grep -c '^ok ' "$folder/lines")
failed=$((${#wanted[@]} - passed)) # one that printed nothing has failed too
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
