#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `baton bench`, small: every backend that works here, both layouts, unequal ranks. Bytes must be
# verified and the fields there; no time is asserted. $BATON is the program.
set -eu
baton=${BATON:?the program under test}
# Looking for leaks takes seconds for each of many processes; test_demo.sh does it for the same ones.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cat >"$scratch/check.py" <<'PYTHON'
"""check.py EXPECTED_ROWS [FIELD=VALUE ...] reads JSON lines and judges them."""
import json
import sys

NEEDED = ("backend item_bytes pages layers src_tp dst_tp bytes seconds gbps operations verified "
          "p50_us p99_us limit_gbps ratio control_share").split()
rows = [json.loads(line) for line in sys.stdin if line.strip()]
assert len(rows) == int(sys.argv[1]), f"{len(rows)} rows instead of {sys.argv[1]}: {rows}"
for row in rows:
    for name in NEEDED:
        assert name in row, f"no {name} in {row}"
    assert row["verified"] is True and row["wrong_bytes"] == 0, row
    assert row["bytes"] == row["item_bytes"] * row["pages"] * row["layers"], row
    assert abs(row["gbps"] * row["seconds"] * 1e9 / row["bytes"] - 1) < 1e-3, row
    assert 0 < row["best_seconds"] <= row["seconds"], row
    assert 0 <= row["control_share"] <= 1, row
    assert row["operations"] > 0, row
    for wanted in sys.argv[2:]:
        name, value = wanted.split("=")
        assert str(row[name]) == value, f"{name} is {row[name]}, not {value}"
PYTHON
check() { python3 "$scratch/check.py" "$@"; }

backends=$("$baton" info --json | python3 -c '
import json, sys
usable = [b["name"] for b in json.load(sys.stdin)["backends"] if b["available"]]
print(" ".join(name for name in ("shm", "cma", "tcp") if name in usable))')
small="--quiet --json --total-bytes 2M --iterations 2 --rooms 5"

for backend in $backends; do
    echo "$backend: two sizes, both layouts"
    "$baton" bench transfer $small --backend "$backend" --item-bytes 1536,24K \
        --layout per-layer,page-major | check 4 "backend=$backend" src_tp=1 dst_tp=1
    for tp in "4 1" "1 4" "4 2"; do
        set -- $tp
        echo "$backend: $1 -> $2 ranks"
        "$baton" bench transfer $small --backend "$backend" --src-tp "$1" --dst-tp "$2" |
            check 1 "backend=$backend" "src_tp=$1" "dst_tp=$2" layers=4
    done
done

echo "orders of a page"
"$baton" bench transfer $small --backend tcp --src-tp 2 --dst-tp 1 --layout head,layer,paired \
    --scatter prefill | check 3 src_tp=2
"$baton" bench order --plan-only --model Llama-3-8B --json >"$scratch/order"
python3 - "$scratch/order" <<'PYTHON'
import json, sys
rows = {}
for row in map(json.loads, open(sys.argv[1])):
    key = row["source"], row["destination"], row["pages"], row["src_tp"], row["dst_tp"]
    rows[key] = row
    page = row["requests_per_page"] * row["bytes_per_request"]
    assert abs(page / 2097152 - 1) < 1e-6, row  # nothing is lost and nothing is sent twice
def runs(order, *rest):
    return rows[(order, order, "scattered", *rest)]["runs_per_page"]
for order in "layer", "head", "paired":
    assert 0.9 < runs(order, 1, 1) <= 1, order
assert runs("layer", 2, 1) == 2 * 64 and runs("paired", 2, 1) == 2 * 32 and runs("head", 2, 1) == 2
PYTHON
"$baton" bench order --attention-only --model SmolLM2-135M --pool-bytes 24M --rounds 1 --json |
    python3 -c '
import json, sys
rows = [json.loads(line) for line in sys.stdin]
assert len(rows) == 12, rows
for row in rows:
    for name in ("layer_ratio", "head_ratio", "paired_ratio", "per_layer_seconds"):
        assert row[name] > 0, row'

echo "odd numbers: 3 pages of 13 bytes, one layer, two threads"
"$baton" bench transfer --quiet --json --item-bytes 13 --pages 3 --layers 1 --iterations 1 \
    --rooms 3 --threads 2 --backend tcp | check 1 bytes=39

echo "the table"
"$baton" bench transfer --quiet --total-bytes 1M --item-bytes 4K --iterations 1 --rooms 2 \
    --backend tcp >"$scratch/table"
grep -Eq '^tcp +per-layer +4096 +64 +4 +1->1 .* verified$' "$scratch/table"

echo "poll"
"$baton" bench poll --rooms 16 --json | python3 -c '
import json, sys
row = json.load(sys.stdin)
assert row["rooms"] == 16 and row["poll_ns"] > 0 and row["poll_many_ns"] > 0, row'

echo "death"
"$baton" bench death --pool-bytes 16M --rooms 4 --times 1 --json \
    --backend "$(echo $backends | tr ' ' ,)" >"$scratch/death"
[ "$(wc -l <"$scratch/death")" -eq "$(($(echo $backends | wc -w) * 2))" ]
python3 - "$scratch/death" <<'PYTHON'
import json, sys
for row in map(json.loads, open(sys.argv[1])):
    assert 0 < row["failed_ms"] <= row["fenced_ms"] < 20000, row
PYTHON
echo passed
