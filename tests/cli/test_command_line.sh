#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a person meets first: help, the man page, mistakes, and `baton info`. $BATON is the program.
set -eu
baton=${BATON:?the program under test}
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0" # seconds for each of many short processes
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
checks=0

# expect STATUS PATTERN COMMAND...: the exit status, and a line of its output
expect() {
    wanted=$1 pattern=$2
    shift 2
    status=0
    "$@" >"$scratch/out" 2>&1 || status=$?
    checks=$((checks + 1))
    if [ "$status" -ne "$wanted" ] || ! grep -Eq -e "$pattern" "$scratch/out"; then
        echo "FAILED: $*"
        echo "  wanted status $wanted and /$pattern/, got status $status and:"
        sed 's/^/  | /' "$scratch/out"
        exit 1
    fi
}

expect 2 '^usage: baton COMMAND' "$baton"
expect 0 '^usage: baton COMMAND' "$baton" --help
expect 0 '^  bench transfer +bandwidth' "$baton" help
expect 0 '^baton [0-9]+\.[0-9]+\.[0-9]+$' "$baton" version
expect 0 '^baton [0-9]+\.[0-9]+\.[0-9]+$' "$baton" --version
expect 0 '^  --item-bytes N,\.\.$' "$baton" bench transfer --help
expect 0 '^  --item-bytes N,\.\.$' "$baton" help bench transfer
expect 0 '^  --port N$' "$baton" bootstrap --help

expect 2 'unknown command "benhc"; did you mean bench\?' "$baton" benhc
expect 2 'unknown command "tranfer"; did you mean transfer\?' "$baton" bench tranfer
expect 2 'which one\?; there are: transfer poll death order' "$baton" bench
expect 2 'unknown command "quantum" \("baton help" lists them\)' "$baton" quantum
expect 2 'unknown option --bakend; did you mean --backend\?' "$baton" bench transfer --bakend shm
expect 2 'option --pages needs a value' "$baton" bench transfer --pages
expect 2 '"page" is not one of per-layer\|page-major' "$baton" bench transfer --layout page
expect 2 'use 1, 2, 4 or 8' "$baton" bench transfer --src-tp 3
expect 2 'must be a multiple of 512' "$baton" bench transfer --dst-tp 2 --item-bytes 1000
expect 1 'backend quantum cannot be used here: it is not built in' \
    "$baton" bench transfer --backend quantum
expect 2 '"extra" is one too many' "$baton" info extra
expect 2 'not meant to be called by hand' "$baton" role prefill

# Each visible command is in the list and in the man page, each option in both.
"$baton" man >"$scratch/man"
"$baton" help | sed -n 's/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p' >"$scratch/commands"
[ "$(wc -l <"$scratch/commands")" -ge 9 ]
while read -r command; do
    grep -q "^\.SS \"baton $command" "$scratch/man" || { echo "no man page for $command"; exit 1; }
    "$baton" help $command | sed -n 's/^  --\([a-z-]*\).*/\1/p' | grep -v '^help$' |
        while read -r option; do
            roff=$(echo "$option" | sed 's/-/\\\\-/g')
            grep -q "^\.B \\\\-\\\\-$roff" "$scratch/man" ||
                { echo "no man page for $command --$option"; exit 1; }
        done
    checks=$((checks + 1))
done <"$scratch/commands"
if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww "$scratch/man" >/dev/null 2>"$scratch/groff"
    [ ! -s "$scratch/groff" ] || { echo "groff complains:"; cat "$scratch/groff"; exit 1; }
fi

expect 0 '^  tcp +works here' "$baton" info
expect 0 '^  cuda_ipc +not built in' "$baton" info
expect 0 '^RDMA devices$' "$baton" info
# A folder without the plugin: said, and no reason to fail.
mkdir "$scratch/empty"
cp "$baton" "$scratch/empty/baton"
expect 0 '^  none +libbaton_verbs.so is not installed' env BATON_PLUGINS="$scratch/empty" "$scratch/empty/baton" info
expect 0 '^ +because libbaton_verbs.so is not installed .*looks\)$' env BATON_PLUGINS="$scratch/empty" "$scratch/empty/baton" info
expect 2 'option --peer-dp-rank: "x" is no number|--peer-dp-rank' "$baton" info --peer-dp-rank x
expect 1 'bootstrap address .nowhere. is not host:port' "$baton" info --peer nowhere
"$baton" info --json | python3 -c '
import json, sys
info = json.loads(sys.stdin.read())
backends = {b["name"]: b for b in info["backends"]}
assert backends["tcp"]["available"] and backends["tcp"]["built_in"], backends["tcp"]
assert "shm" in backends and "cma" in backends, backends
assert info["cores"] > 0 and info["memory_bytes"] > 0, info
rdma = info["rdma"]
assert rdma["ports"] or rdma["problem"], rdma
for port in rdma["ports"]:
    assert port["why"], port
    assert {"device", "port", "state", "link_layer", "mtu", "speed_mbps", "rails", "gids"} <= set(port)
for b in backends.values():
    assert b["available"] or b["why"], f"{b} is not available and does not say why"
'
echo "$checks checks passed"
