#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A short campaign of every fuzz target. It starts from fuzz/corpus/<target>, keeps what it learns
# in build/fuzz/corpus/<target>, and leaves a breaking input in build/fuzz/broken/: add that one to
# fuzz/corpus once the bug is fixed.
# usage: FUZZ_SECONDS=60 scripts/fuzz.sh [TARGET ...]     all of them when none is named
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
scripts/build.sh fuzz
mkdir -p build/fuzz/broken

programs=()
for program in build/fuzz/fuzz/fuzz_*; do
    [ -f "$program" ] && [ -x "$program" ] && programs+=("$program")
done
[ ${#programs[@]} -gt 0 ] || { echo "no fuzz targets were built" >&2; exit 1; }

failed=0
for program in "${programs[@]}"; do
    target=${program##*/fuzz_}
    [ $# -eq 0 ] || [[ " $* " == *" $target "* ]] || continue
    echo "=== fuzz $target, $seconds s ==="
    mkdir -p "build/fuzz/corpus/$target"
    seeds=()
    [ -d "fuzz/corpus/$target" ] && seeds=("fuzz/corpus/$target")
    if ! "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="build/fuzz/broken/$target-" \
        "build/fuzz/corpus/$target" "${seeds[@]}"; then
        echo "fuzz $target: FAILED; the input is in build/fuzz/broken/" >&2
        failed=1
    fi
done
[ $failed -eq 0 ] || exit 1
echo "fuzz: ${#programs[@]} targets, nothing broke"
