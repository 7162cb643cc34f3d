#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that `make test` promises, one stage after the other, each with a bound, and a table
# at the end. A stage that fails does not hide the next one: all run, then the whole fails.
#
#   release  every test that is not labelled slow (SLOW=1: those too)
#   asan     unit and conformance with AddressSanitizer and UndefinedBehaviorSanitizer
#   tsan     unit and conformance with ThreadSanitizer
#   python   the Python interface, with the library of the release build
#   system   the release build's worker, serving the default model: its API, faults, its end
#   fleet    prefill and decode workers at length: 200 prompts for each fleet, every fault; only
#            when it is named (make test-fleet)
#   proof    the model of the protocol, checked by spin
#
# usage: scripts/test.sh [STAGE ...]     all of them when none is named
# EVERY=1: every C test under the sanitizers, not only those (make asan, make tsan).
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(release asan tsan python system proof)

build() { # preset
    scripts/build.sh "$1"
}

test_release() {
    local without=(-LE '^slow$')
    [ "${SLOW:-0}" = 1 ] && without=()
    build release
    timeout 1000 ctest --preset release -j "$jobs" "${without[@]}"
}

# Of a sanitizer's build only what its chosen tests run: half the time is the compiler's.
chosen=(-L '^(unit|conformance)$' -LE '^slow$')
build_chosen() { # preset
    local name layer unit program programs=()
    CONFIGURE_ONLY=1 scripts/build.sh "$1"
    while read -r name; do
        IFS=. read -r layer unit _ <<<"$name"
        program=test_${layer}_$unit
        [ "$layer" = fuzz ] && program=fuzz_$unit
        programs+=("$program")
    done < <(ctest --preset "$1" -N "${chosen[@]}" | sed -n 's/^ *Test *#[0-9]*: //p')
    cmake --build --preset "$1" -j "$jobs" --target "${programs[@]}"
}

sanitize() { # preset: builds and runs its tests, the chosen ones or all
    if [ "${EVERY:-0}" = 1 ]; then
        build "$1"
        timeout 3600 ctest --preset "$1" -j "$jobs"
    else
        build_chosen "$1"
        timeout 600 ctest --preset "$1" -j "$jobs" "${chosen[@]}"
    fi
}

# LeakSanitizer walks the whole address space on 64-bit ARM, some 15 seconds for every process that
# exits. There a few tests are searched for leaks, one of each part that allocates much; EVERY=1
# searches all that are labelled leak.
test_asan() {
    local leaks=1 few=(-R '^(transfer\.(bootstrap|wire)|net\.http_(server|client)|sched\.scheduler|server\.conversation|model\.tokenizer|kv\.prefix_cache)$')
    [ "$(uname -m)" != aarch64 ] || leaks=0
    [ "${EVERY:-0}" = 1 ] && few=()
    ASAN_OPTIONS=detect_leaks=$leaks sanitize asan
    [ $leaks = 1 ] ||
        timeout 900 ctest --preset asan -j "$jobs" -L '^leak$' "${chosen[@]}" "${few[@]}"
}

test_tsan() {
    sanitize tsan
}

test_python() {
    build release
    scripts/python-venv.sh
    export BATON_ABI_TABLE=$PWD/build/release/tests/transfer/abi_table
    PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 \
        timeout 300 build/venv/bin/python -m pytest tests/python -q -p no:cacheprovider
}

# Where PyPI cannot be reached there is neither the default model nor the openai client.
test_system() {
    local got=0
    build release
    scripts/python-venv.sh
    scripts/get-default-model.sh >/dev/null || got=$?
    if [ $got = 69 ] || ! build/venv/bin/python -c "import openai"; then
        echo "system: SKIPPED, PyPI cannot be reached and the default model or openai is not here"
        return 0
    fi
    [ $got = 0 ] || return $got
    PYTHONDONTWRITEBYTECODE=1 timeout 900 \
        build/venv/bin/python -m pytest tests/system -q -p no:cacheprovider
}

test_fleet() {
    build release
    scripts/python-venv.sh
    scripts/get-default-model.sh >/dev/null
    BATON_FLEET=${FLEET:-200} PYTHONDONTWRITEBYTECODE=1 timeout 7200 build/venv/bin/python -m pytest \
        tests/system/test_disaggregated.py tests/system/test_faults.py \
        tests/system/test_sglang_router.py -q -p no:cacheprovider
}

test_proof() {
    timeout 600 proof/run.sh
}

failed=0
table=()
for stage in "${stages[@]}"; do
    echo
    echo "=== $stage ==="
    began=$SECONDS
    verdict=passed
    # In a shell of its own, so that set -e ends the stage at its first failure.
    bash -euo pipefail -c "$(declare -p chosen; declare -f build build_chosen sanitize test_release \
        test_asan test_tsan test_python test_system test_fleet test_proof); jobs=$jobs; test_$stage" ||
        verdict="FAILED ($?)"
    [ "$verdict" = passed ] || failed=1
    table+=("$(printf '%-8s %-12s %4d s' "$stage" "$verdict" $((SECONDS - began)))")
done

echo
echo "=== make test ==="
printf '%s\n' "${table[@]}"
if [ $failed -ne 0 ]; then
    echo "make test: FAILED"
    exit 1
fi
echo "make test: all passed in $SECONDS s"
