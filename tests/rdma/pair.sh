#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs two VMs of vm.sh, joined by a wire, with a command in each. Neither command starts before the
# other VM answers. What they print comes out line by line, each behind the name of its VM.
usage() {
    cat <<'USAGE'
usage: pair.sh --first COMMAND --second COMMAND [--out DIR]
               [--expect-first STATUS] [--expect-second STATUS] [OPTION of vm.sh ...]
  first is 10.77.0.1, second is 10.77.0.2; each finds the other in RDMA_PEER. Every other option
  goes to both VMs (one CPU each unless --cpus says otherwise). Files of --out come back into
  DIR/first and DIR/second.

  A test in which one machine dies expects 125 of it (`reboot -f` ends a VM at once).

exit status: 0 when both ended as expected (0, without --expect); else that of the first one that
  did not, or 1 when it ended with an unexpected 0; 77 and 64 as in vm.sh.
USAGE
}

set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

wrong() {
    echo "pair: $* (pair.sh --help)" >&2
    exit 64
}

parse_options() {
    declare -gA COMMAND EXPECTED=([first]=0 [second]=0)
    OPTIONS=(--cpus 1) OUT=
    while [ $# -gt 0 ]; do
        [ "$1" != --help ] || { usage && exit 0; }
        [ "$1" != --python ] || { OPTIONS+=("$1") && shift && continue; }
        [ $# -ge 2 ] || wrong "$1 needs a value"
        case $1 in
        --first | --second) COMMAND[${1#--}]=$2 ;;
        --expect-first | --expect-second) EXPECTED[${1#--expect-}]=$2 ;;
        --out) OUT=$2 ;;
        --net | --link | --host | --name) wrong "$1 is decided here" ;;
        --*) OPTIONS+=("$1" "$2") ;;
        *) wrong "$1 is no option" ;;
        esac
        shift 2
    done
    [ -n "${COMMAND[first]:-}" ] && [ -n "${COMMAND[second]:-}" ] ||
        wrong "a command is needed for both VMs, --first and --second"
}

# Sets MACHINE[NAME] and READER[NAME], processes to wait for.
start() { # NAME HOST
    local out=()
    [ -z "$OUT" ] || out=(--out "$OUT/$1")
    mkfifo "$SCRATCH/$1"
    sed -u "s/^/$1| /" <"$SCRATCH/$1" &
    READER[$1]=$!
    setpriv --pdeathsig TERM "$HERE/vm.sh" "${OPTIONS[@]}" "${out[@]}" --name "$1" \
        --net virtio --link "$SCRATCH/wire" --host "$2" "${COMMAND[$1]}" >"$SCRATCH/$1" &
    MACHINE[$1]=$!
}

clean_up() {
    local status=$? process
    for process in "${MACHINE[@]}"; do kill "$process" 2>/dev/null; done
    wait
    rm -rf "$SCRATCH"
    exit "$status"
}

main() {
    local name status verdict=0
    declare -gA MACHINE=() READER=()
    parse_options "$@"
    "$HERE/vm.sh" "${OPTIONS[@]}" --prepare || exit
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/baton-pair.XXXXXX") || exit 125
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    start first 1
    start second 2
    for name in first second; do
        wait "${MACHINE[$name]}"
        status=$?
        unset "MACHINE[$name]"
        wait "${READER[$name]}"
        [ "$status" != "${EXPECTED[$name]}" ] || continue
        echo "pair: $name ended with $status instead of ${EXPECTED[$name]}" >&2
        [ $verdict != 0 ] || verdict=$((status ? status : 1))
    done
    exit $verdict
}

main "$@"
