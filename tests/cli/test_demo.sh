#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `baton demo` and `baton bootstrap` do what they say. $BATON is the program.
set -eu
baton=${BATON:?the program under test}
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$scratch"' EXIT

"$baton" demo >"$scratch/demo" || { cat "$scratch/demo"; exit 1; }
[ "$(grep -c 'verified$' "$scratch/demo")" -eq 4 ] || { cat "$scratch/demo"; exit 1; }
grep -q "decode's room failed [0-9.]* ms later: \"..*\"" "$scratch/demo"
grep -q "all 1024 pages were decode's own again" "$scratch/demo"
[ "$(grep -c '^tcp ' "$scratch/demo")" -eq 2 ]
echo "demo: four verified hand-overs and one kill"

"$baton" bootstrap --host 127.0.0.1 --port 0 >"$scratch/server" &
server=$!
tries=0
until grep -q '^bootstrap server on 127.0.0.1 port [1-9]' "$scratch/server"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "the bootstrap server does not start"; exit 1; }
    sleep 0.1
done
port=$(sed 's/.*port //' "$scratch/server")
python3 - "$port" <<'PYTHON'
import sys
import urllib.request
with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=10) as answer:
    assert answer.status == 200, answer.status
PYTHON
if "$baton" bootstrap --host 127.0.0.1 --port "$port" 2>"$scratch/taken"; then
    echo "a second server took port $port"
    exit 1
fi
grep -q "$port" "$scratch/taken" || { echo "the port is not named:"; cat "$scratch/taken"; exit 1; }
kill -TERM "$server"
wait "$server"
server=
echo "bootstrap: health, a taken port, a clean end"
