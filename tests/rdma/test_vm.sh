#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the VMs themselves: what a command did is told rightly, however it ends, and RDMA works
# in every mode with every kernel. Without these, a green suite in a VM would mean little.
# usage: test_vm.sh [--quick]     quick: the essentials, with the distribution's kernel
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vm=$HERE/vm.sh
pair=$HERE/pair.sh

# ---- expectations ----------------------------------------------------------------------------

expect_status() { # STATUS COMMAND...: its stdout and stderr are in ./out and ./err
    local expected=$1 status
    shift
    "$@" >out 2>err
    status=$?
    [ $status = "$expected" ] && return 0
    echo "expected status $expected, got $status: $*"
    cat out err
    return 1
}

expect_text() { # FILE TEXT
    grep -qF -- "$2" "$1" && return 0
    echo "expected in $1: $2"
    cat "$1"
    return 1
}

# ---- without a VM ----------------------------------------------------------------------------

check_wrong_usage() {
    expect_status 64 "$vm" --kernel 6.1 &&
        expect_text err 'no command' &&
        expect_status 64 "$vm" --nonsense 1 true &&
        expect_text err '--nonsense' &&
        expect_status 64 "$vm" --limit soon true &&
        expect_status 64 "$vm" --net ring true &&
        expect_status 64 "$vm" --net virtio true &&
        expect_status 64 "$vm" --netem 'loss 2%; reboot' true &&
        expect_status 64 "$vm" --add /nowhere true &&
        expect_text err '/nowhere' &&
        expect_status 64 "$pair" --first true &&
        expect_status 64 "$HERE/run.sh" --suites /nowhere
}

# A dpkg-query that knows no package, and no permission to install: a reason, and 77.
check_missing_packages() {
    mkdir -p bin cache
    printf '#!/bin/sh\nexit 1\n' >bin/dpkg-query
    chmod +x bin/dpkg-query
    expect_status 77 env PATH="$PWD/bin:$PATH" BATON_SKIP_DEPS=1 BATON_CACHE="$PWD/cache" "$vm" true &&
        expect_text err 'skipped: these packages are missing' &&
        expect_text err busybox-static
}

check_missing_kernel() {
    expect_status 77 env BATON_SKIP_DEPS=1 "$vm" --kernel 9.99 true &&
        expect_text err 'skipped: apt has no kernel 9.99'
}

check_useless_cache() {
    expect_status 125 env BATON_CACHE=/proc/nowhere "$vm" true && expect_text err /proc/nowhere
}

# Several at once on one new cache: one builds, the others wait and use it.
check_cache_is_locked() {
    local first second
    mkdir -p cache/rdma-cache
    cp -a "$CACHE"/kernel-* cache/rdma-cache/ || return 1
    BATON_CACHE=$PWD/cache "$vm" --prepare >one 2>&1 &
    first=$!
    BATON_CACHE=$PWD/cache "$vm" --prepare >two 2>&1 &
    second=$!
    wait $first && wait $second || { cat one two && return 1; }
    [ "$(find cache/rdma-cache -name 'userland-*.cpio' | wc -l)" = 1 ] &&
        [ -z "$(find cache/rdma-cache -name '.*' -mindepth 1)" ]
}

# ---- how a command ends ------------------------------------------------------------------------

# Bytes as they are, both streams; a process that stays behind holds nothing up; a program comes with
# its libraries; files go in and out.
check_output_and_status() {
    mkdir -p files/folder back
    echo 'from the host' >files/folder/note
    printf 'one\r\ntwo\0three\nerror\nthe end' >wanted
    # shellcheck disable=SC2016 # for the VM's shell
    expect_status 7 "$vm" --cpus 1 --files files --add "$(command -v gpgv)=tool" --out back \
        --env "WORDS=it's \$HOME" --env OTHER=2 '
            printf "one\r\ntwo\0three\n"; echo error >&2; sleep 1000 &
            ./tool --version >/out/version && cp folder/note /out/note && pwd >/out/folder
            echo "$WORDS $OTHER" >/out/words; printf "the end" >/dev/stdout; exit 7' || return 1
    cmp wanted out || return 1
    cmp files/folder/note back/note &&
        expect_text back/version gpgv &&
        expect_text back/folder /work &&
        expect_text back/words "it's \$HOME 2" &&
        expect_text err 'vm: status 7'
}

check_not_found() {
    expect_status 127 "$vm" --cpus 1 --net none ./nothing at 'all there' && expect_text out ./nothing
}

check_segfault() {
    # shellcheck disable=SC2016 # for the VM's shell
    expect_status 139 "$vm" --cpus 1 --net none 'sh -c "kill -SEGV \$\$"; exit $?'
}

check_hang() { # TERM does not help
    expect_status 124 "$vm" --cpus 1 --limit 2 \
        'echo before; trap "" TERM; while :; do sleep 0.2; done' &&
        expect_text out before &&
        expect_text err 'the command was stopped at its limit of 2 s'
}

check_vm_limit() {
    expect_status 124 "$vm" --cpus 1 --vm-limit 1 true &&
        expect_text err 'the VM was stopped at its limit of 1 s'
}

check_panic() {
    expect_status 125 "$vm" --cpus 1 'echo before; sleep 0.5; echo c >/proc/sysrq-trigger' &&
        expect_text out before &&
        expect_text err 'sysrq triggered crash' &&
        expect_text err 'the VM died'
}

check_refused_setup() {
    expect_status 125 "$vm" --cpus 1 --net pair --netem nonsense true &&
        expect_text err 'did not become what was asked for: tc netem nonsense was refused'
}

# ---- RDMA --------------------------------------------------------------------------------------

# pingpong SERVER-DEVICE GID CLIENT-DEVICE GID ADDRESS, in the VM
# shellcheck disable=SC2016 # for the VM's shell
pingpong='pingpong() {
    ibv_rc_pingpong -d $1 -g $2 -n 20 >/tmp/server 2>&1 & server=$!
    until ibv_rc_pingpong -d $3 -g $4 -n 20 $5 >/tmp/client 2>&1; do
        kill -0 $server || { cat /tmp/server /tmp/client; return 1; }
        sleep 0.2
    done
    wait $server || { cat /tmp/server; return 1; }
    grep "20 iters" /tmp/client
}'

# shellcheck disable=SC2016 # for the VM's shell
check_dummy() { # KERNEL
    expect_status 0 "$vm" --kernel "$1" \
        "$pingpong; pingpong rxe0 \$RDMA_GID_INDEX rxe0 \$RDMA_GID_INDEX \$RDMA_ADDRESS" &&
        expect_text out '20 iters'
}

# The packets cross the wire and arrive in order; with losses the data still arrive; then it is cut.
# shellcheck disable=SC2016 # for the VM's shell
check_pair() { # KERNEL
    expect_status 0 "$vm" --kernel "$1" --net pair --netem 'delay 1ms' "$pingpong"'
        ib_write_bw -F -d rxe0 -x $RDMA_GID_INDEX -s 65536 -n 50 >/tmp/server 2>&1 &
        until ib_write_bw -F -d rxe1 -x $RDMA_GID_INDEX2 -s 65536 -n 50 $RDMA_ADDRESS; do sleep 0.3; done
        wait $! || { cat /tmp/server; exit 1; }
        sent=$(cat /sys/class/net/veth1/statistics/tx_packets)
        [ $sent -ge 800 ] || { echo "only $sent packets on the wire"; exit 1; }
        grep -x 0 /sys/class/infiniband/rxe0/ports/1/hw_counters/out_of_seq_request || exit 1
        wire netem delay 1ms loss 2%
        pingpong rxe0 $RDMA_GID_INDEX rxe1 $RDMA_GID_INDEX2 $RDMA_ADDRESS || exit 1
        wire cut
        tc qdisc show dev veth0 | grep "loss 100%" && wire heal || exit 1
        tc qdisc show dev veth1 | grep "delay 1ms" | grep -v loss'
}

# shellcheck disable=SC2016 # for the VM's shell
check_rails() { # KERNEL
    expect_status 0 "$vm" --kernel "$1" --net rails "$pingpong"'
        pingpong rxe0 $RDMA_GID_INDEX rxe0 $RDMA_GID_INDEX $RDMA_ADDRESS || exit 1
        wire down rxe0
        grep DOWN /sys/class/infiniband/rxe0/ports/1/state || exit 1
        pingpong rxe1 $RDMA_GID_INDEX2 rxe1 $RDMA_GID_INDEX2 $RDMA_ADDRESS2 || exit 1
        wire heal rxe0; sleep 0.5
        pingpong rxe0 $RDMA_GID_INDEX rxe0 $RDMA_GID_INDEX $RDMA_ADDRESS'
}

# shellcheck disable=SC2016 # for the VM's shell
check_two_vms() { # KERNEL
    expect_status 0 "$pair" --kernel "$1" --first 'ibv_rc_pingpong -d rxe0 -g $RDMA_GID_INDEX -n 20' \
        --second 'until ibv_rc_pingpong -d rxe0 -g $RDMA_GID_INDEX -n 20 $RDMA_PEER; do sleep 0.3; done' &&
        expect_text out 'first| 20 iters' &&
        expect_text out 'second| 20 iters'
}

check_one_of_two_dies() {
    expect_status 125 "$pair" --first 'reboot -f' --second 'echo here; exit 3' &&
        expect_text out 'second| here' &&
        expect_text err 'pair: first ended with 125 instead of 0' &&
        expect_text err 'pair: second ended with 3 instead of 0'
}

# ---- main ------------------------------------------------------------------------------------

run_check() { # CHECK [ARGUMENT]
    local folder=$SCRATCH/$1${2:+-$2} began=$SECONDS
    mkdir "$folder" && cd "$folder" || exit 1
    if "check_$1" "${@:2}" >log 2>&1; then
        echo "ok      $* ($((SECONDS - began)) s)"
    else
        echo "FAILED  $* ($((SECONDS - began)) s)"
        sed 's/^/    /' log
        touch "$SCRATCH/failed"
    fi
}

main() {
    local quick=0 check kernels=() checks=()
    [ "${1:-}" != --quick ] || quick=1
    CACHE=${BATON_CACHE:-$HERE/../../build}/rdma-cache
    "$vm" --prepare || exit
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/baton-test-vm.XXXXXX") || exit 1
    trap 'rm -rf "$SCRATCH"' EXIT
    checks=(output_and_status vm_limit wrong_usage missing_packages missing_kernel useless_cache)
    if [ $quick = 1 ]; then
        checks+=('dummy default')
    else
        checks+=(cache_is_locked not_found segfault hang panic refused_setup one_of_two_dies)
        for check in 6.1 6.12 default; do
            [ $check = default ] && [ ${#kernels[@]} -gt 0 ] && break
            ! "$vm" --kernel $check --prepare || kernels+=("$check")
        done
        for check in "${kernels[@]}"; do
            checks+=("dummy $check" "pair $check" "rails $check" "two_vms $check")
        done
    fi
    for check in "${checks[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
        # shellcheck disable=SC2086 # a check and its argument
        run_check $check &
    done
    wait
    [ ! -e "$SCRATCH/failed" ] || exit 1
    echo "test_vm: all ${#checks[@]} passed in $SECONDS s"
}

main "$@"
