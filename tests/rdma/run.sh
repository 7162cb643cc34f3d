#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The RDMA tests: runs the suites of suites.sh in VMs with Soft-RoCE devices (vm.sh), and ends with a
# table. quick is part of `make test`; full is `make test-rdma`.
usage() {
    cat <<'USAGE'
usage: run.sh [quick|full] [--build DIR] [--suites FILE] [--only PATTERN] [--list]
  quick           the suites marked so, in a minute
  full            all of them, and the tests of the VMs themselves
  --build DIR     where the programs were built          [build/release]
  --suites FILE   another table                          [suites.sh beside this script]
  --only PATTERN  suites whose name matches, such as 'conformance*'
  --list          what would run

exit status: 0 all passed, 1 not, 77 no VM can run here, 64 wrong usage. A suite that cannot run
  inside its VM, because a program is missing or skips itself, has failed.
  Everything that a suite printed is kept in DIR/rdma-logs.
USAGE
}

set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)

say() {
    echo "rdma: $*"
}

wrong() {
    echo "rdma: $* (run.sh --help)" >&2
    exit 64
}

parse_options() {
    LEVEL=quick BUILD=$ROOT/build/release SUITES=$HERE/suites.sh ONLY='*' LIST=0
    while [ $# -gt 0 ]; do
        case $1 in
        quick | full) LEVEL=$1 ;;
        --build) BUILD=${2:-} && shift ;;
        --suites) SUITES=${2:-} && shift ;;
        --only) ONLY=${2:-} && shift ;;
        --list) LIST=1 ;;
        --help) usage && exit 0 ;;
        *) wrong "$1 is no option" ;;
        esac
        [ $# -gt 0 ] || wrong "the last option needs a value"
        shift
    done
    [ -d "$BUILD" ] || wrong "there is no build in $BUILD"
    [ -r "$SUITES" ] || wrong "there is no table $SUITES"
}

# ---- the table -------------------------------------------------------------------------------

# One element each per suite and kernel. second is empty for a suite in one VM.
name=() kernel=() mode=() seconds=() first=() second=() verdict=() took=()

wanted() { # NAME LEVEL
    [ "$2" = quick ] || [ "$LEVEL" = full ] || return 1
    # shellcheck disable=SC2053 # a pattern
    [[ $1 == $ONLY ]]
}

add() { # NAME LEVEL KERNELS MODE SECONDS FIRST SECOND
    local series
    wanted "$1" "$2" || return 0
    [ "$3" != all ] || set -- "$1" "$2" "${KERNELS[*]}" "${@:4}"
    for series in $3; do
        [[ " - ${KERNELS[*]} " == *" $series "* ]] || continue # `-`: without a VM
        name+=("$1") kernel+=("$series") mode+=("$4") seconds+=("$5") first+=("$6") second+=("$7")
        verdict+=('') took+=(0)
    done
}

suite() { # see suites.sh
    [ $# -eq 6 ] || wrong "suites: a suite has six words: $*"
    add "$@" ''
}

two() { # see suites.sh
    [ $# -eq 7 ] || wrong "suites: two VMs have seven words: $*"
    add "$@"
}

host() { # see suites.sh
    [ $# -eq 4 ] || wrong "suites: a host's suite has four words: $*"
    add "$1" "$2" - host "$3" "$4" ''
}

# Sets KERNELS to the series that can be had here: Debian has both, another system has its own.
find_kernels() {
    local series reason
    KERNELS=()
    for series in 6.1 6.12; do
        [ "$LEVEL" = full ] || break
        if reason=$("$HERE/vm.sh" --kernel $series --prepare 2>&1); then
            KERNELS+=("$series")
        else
            say "no suite runs with kernel $series: ${reason##*skipped: }"
        fi
    done
    [ ${#KERNELS[@]} -eq 0 ] || return 0
    reason=$("$HERE/vm.sh" --prepare 2>&1) || {
        echo "rdma: skipped: ${reason##*skipped: }"
        exit 77
    }
    KERNELS=(default)
}

# ---- files -----------------------------------------------------------------------------------

# The working folder of every VM.
stage_files() {
    local file
    FILES=$SCRATCH/files
    mkdir -p "$FILES/py"
    for file in "$BUILD"/{baton,libbaton.so*,libbaton_*.so} "$BUILD"/tests/transfer/test_transfer_* \
        "$BUILD"/tests/rdma/test_rdma_*; do
        [ ! -f "$file" ] || cp -a "$file" "$FILES/"
    done
    cp -r "$ROOT/python/baton" "$ROOT/tests/python/seed_program.py" "$HERE/same_answers.py" \
        "$ROOT"/tests/system/{fleet,random_folder,worker}.py "$ROOT/tests/model/golden/tokenizer_bytes.json" \
        "$FILES/py/"
    for file in baton libbaton.so libbaton_verbs.so libbaton_ucx.so test_transfer_conformance \
        test_rdma_node; do
        [ -e "$FILES/$file" ] || say "$BUILD has no $file: what needs it will fail"
    done
}

# The Python suites want numpy; build/venv, where vm.sh looks for it, may not be there yet.
prepare_python_tests() {
    [[ "${first[*]} ${second[*]}" == *python3* ]] || return 0
    [ -z "${BATON_PYTHON:-}" ] && [ "${BATON_SKIP_DEPS:-0}" != 1 ] || return 0
    "$ROOT/scripts/python-venv.sh" || say "there is no numpy: the Python suites will fail"
}

# ---- one VM, several suites --------------------------------------------------------------------

vm_options() { # INDEX...: sets OPTIONS
    local i
    OPTIONS=(--kernel "${kernel[$1]}" --files "$FILES" --env BATON_LIBRARY=/work/libbaton.so
        --env PYTHONPATH=/work/py)
    [[ ${mode[$1]} != *' '* ]] || OPTIONS+=(--netem "${mode[$1]#* }")
    for i in "$@"; do
        [[ "${first[i]} ${second[i]}" != *python3* ]] || OPTIONS+=(--python)
    done
}

log_of() { # INDEX
    echo "$LOGS/${name[$1]}-${kernel[$1]}-$(tr -c 'a-z0-9\n' _ <<<"${mode[$1]}").log"
}

judge() { # INDEX STATUS SECONDS
    took[$1]=$3
    case $2 in
    0) verdict[$1]=passed ;;
    77) verdict[$1]="FAILED (skipped itself)" ;;
    124) verdict[$1]="FAILED (ran longer than ${seconds[$1]} s)" ;;
    125) verdict[$1]="FAILED (the VM died)" ;;
    127) verdict[$1]="FAILED (a program is missing)" ;;
    never) verdict[$1]="FAILED (the VM was gone before)" ;;
    *) verdict[$1]="FAILED ($2)" ;;
    esac
    printf '%-24s %-8s %-24s %s, %d s\n' "${name[$1]}" "${kernel[$1]}" "${mode[$1]}" \
        "${verdict[$1]}" "$3"
    [ "$2" != 0 ] && [ "$2" != never ] || return 0
    tail -n 30 "$(log_of "$1")" | sed 's/^/    /'
    say "all of it: $(log_of "$1")"
}

# What became of a suite: status and seconds, out of what its VM printed.
outcome() { # INDEX OUTPUT VM-STATUS SECONDS
    if grep -q "^@suite $1 ended" "$2"; then
        sed -n "s/^@suite $1 ended //p" "$2"
    elif [ "$1" = "$FIRST" ] || grep -q "^@suite $1 begins" "$2"; then
        echo "$(($3 ? $3 : 125)) $4"
    else
        echo never 0
    fi
}

run_group() { # INDEX...
    local i limit=0 began=$SECONDS output=$SCRATCH/output status suites=()
    FIRST=$1
    rm -rf "$FILES/.suites"
    mkdir "$FILES/.suites"
    for i in "$@"; do
        printf '%s\n' "${first[i]}" >"$FILES/.suites/$i"
        limit=$((limit + seconds[i] + 6))
        suites+=("$i:${seconds[i]}")
    done
    vm_options "$@"
    "$HERE/vm.sh" "${OPTIONS[@]}" --net "${mode[$1]%% *}" --limit $limit \
        run-suites "${suites[@]}" >"$output" 2>"$SCRATCH/words"
    status=$?
    for i in "$@"; do
        { sed -n "/^@suite $i begins/,/^@suite $i ended/p" "$output" && cat "$SCRATCH/words"; } |
            grep -v '^@suite' >"$(log_of "$i")"
        # shellcheck disable=SC2046 # two words
        judge "$i" $(outcome "$i" "$output" $status $((SECONDS - began)))
    done
}

run_two() { # INDEX
    local began=$SECONDS
    vm_options "$1"
    # A machine that is to die in mid-transfer says so in its command.
    [[ ${first[$1]} != *'reboot -f'* ]] || OPTIONS+=(--expect-first 125)
    "$HERE/pair.sh" "${OPTIONS[@]}" --limit "${seconds[$1]}" --first "${first[$1]}" \
        --second "${second[$1]}" >"$(log_of "$1")" 2>&1
    judge "$1" $? $((SECONDS - began))
}

run_host() { # INDEX
    local began=$SECONDS
    (cd "$HERE" && timeout -k 5 "${seconds[$1]}" bash -c "${first[$1]}") >"$(log_of "$1")" 2>&1
    judge "$1" $? $((SECONDS - began))
}

# Suites that want the same VM share it, wherever they are in the table.
run_all() {
    local i j group
    for i in "${!name[@]}"; do
        if [ "${mode[i]}" = host ]; then
            run_host "$i"
        elif [ -n "${second[i]}" ]; then
            run_two "$i"
        elif [ -z "${verdict[i]}" ]; then
            group=()
            for ((j = i; j < ${#name[@]}; j++)); do
                [ -n "${second[j]}" ] || [ "${kernel[j]} ${mode[j]}" != "${kernel[i]} ${mode[i]}" ] ||
                    group+=("$j")
            done
            run_group "${group[@]}"
        fi
    done
}

# ---- main ------------------------------------------------------------------------------------

list() {
    local i
    for i in "${!name[@]}"; do
        printf '%-24s %-8s %-24s %s%s\n' "${name[i]}" "${kernel[i]}" "${mode[i]}" "${first[i]}" \
            "${second[i]:+  <->  ${second[i]}}"
    done
}

summary() {
    local i failed=0
    echo
    printf '%-24s %-8s %-24s %7s  %s\n' suite kernel mode seconds verdict
    for i in "${!name[@]}"; do
        printf '%-24s %-8s %-24s %7d  %s\n' "${name[i]}" "${kernel[i]}" "${mode[i]}" "${took[i]}" \
            "${verdict[i]}"
        [ "${verdict[i]}" = passed ] || failed=$((failed + 1))
    done
    say "$LEVEL: $((${#name[@]} - failed)) of ${#name[@]} suites passed in $SECONDS s"
    [ $failed -eq 0 ]
}

main() {
    parse_options "$@"
    SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/baton-rdma.XXXXXX") || exit 1
    trap 'rm -rf "$SCRATCH"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    find_kernels
    # shellcheck source=tests/rdma/suites.sh
    . "$SUITES"
    [ ${#name[@]} -gt 0 ] || wrong "no suite is named $ONLY"
    [ $LIST = 0 ] || { list && exit 0; }
    LOGS=$BUILD/rdma-logs
    mkdir -p "$LOGS" || exit 1
    prepare_python_tests
    stage_files
    run_all
    summary
}

main "$@"
