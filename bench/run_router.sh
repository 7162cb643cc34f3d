#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The router beside sglang-router: requests a second of one core, and latency. One core for the router
# under test; another for nginx, which plays the prefill and the decode worker, and for wrk. POST
# /generate with 500-byte bodies, small answers, pair flow, round robin.
#
# Needs nginx and wrk (Debian: apt-get install nginx-light wrk; $NGINX and $WRK can name them).
# sglang-router comes from PyPI into a virtual environment ($BATON_ROUTER_VENV); without it only ours is
# measured.
#
# usage: bench/run_router.sh [SECONDS per measurement, 5] [CONNECTIONS ..., 1 16 64]
set -euo pipefail
cd "$(dirname "$0")/.."
baton=${BATON:-build/release/baton}
nginx=${NGINX:-nginx}
wrk=${WRK:-wrk}
venv=${BATON_ROUTER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/router-venv}
seconds=${1:-5}
connections=("${@:2}")
[ ${#connections[@]} -gt 0 ] || connections=(1 16 64)
prefill=18100 decode=18101 port=18102
work=$(mktemp -d)
children=()
trap '[ ${#children[@]} = 0 ] || kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

answer='{"text":" hello","meta_info":{"id":"1","finish_reason":{"type":"length","length":1},"prompt_tokens":3,"completion_tokens":1}}'
cat >"$work/nginx.conf" <<END
daemon off;
master_process off;
pid $work/nginx.pid;
error_log /dev/null;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 100000000;
    client_body_temp_path $work/body;
    proxy_temp_path $work/proxy;
    fastcgi_temp_path $work/fastcgi;
    uwsgi_temp_path $work/uwsgi;
    scgi_temp_path $work/scgi;
    default_type application/json;
    server {
        listen 127.0.0.1:$prefill;
        listen 127.0.0.1:$decode;
        location = /health { return 200 ""; }
        location = /generate { return 200 '$answer'; }
        location / { return 404 "{}"; }
    }
}
END
{
    printf 'wrk.method = "POST"\nwrk.path = "/generate"\nwrk.headers["Content-Type"] = "application/json"\n'
    printf "wrk.body = '{\"text\": \"%s\", \"sampling_params\": {\"max_new_tokens\": 1}}'\n" \
        "$(printf 'word %.0s' {1..88})"
} >"$work/post.lua"

start() { # core command...: runs it there until the end
    local core=$1
    shift
    taskset -c "$core" "$@" >"$work/log" 2>&1 &
    children+=($!)
}

await() { # url
    for _ in $(seq 300); do
        curl -sf -o /dev/null "$1" && return
        sleep 0.1
    done
    echo "run_router: $1 does not answer:" >&2
    cat "$work/log" >&2
    exit 1
}

measure() { # name port
    local count row
    for count in "${connections[@]}"; do
        taskset -c 1 "$wrk" -t 1 -c "$count" -d 1 -s "$work/post.lua" "http://127.0.0.1:$2" >/dev/null
        row=$(taskset -c 1 "$wrk" -t 1 -c "$count" -d "$seconds" -s "$work/post.lua" --latency \
            "http://127.0.0.1:$2")
        printf '%-28s %5d %12s %10s %10s  %s\n' "$1" "$count" \
            "$(awk '/Requests\/sec/ { print $2 }' <<<"$row")" \
            "$(awk '$1 == "50%" { print $2 }' <<<"$row")" "$(awk '$1 == "99%" { print $2 }' <<<"$row")" \
            "$(grep -oE 'Non-2xx.*|Socket errors.*' <<<"$row" || true)"
    done
}

stop_last() {
    kill "${children[-1]}"
    wait "${children[-1]}" 2>/dev/null || true
    unset 'children[-1]'
}

start 1 "$nginx" -c "$work/nginx.conf" -p "$work"
await "http://127.0.0.1:$decode/health"
printf '%-28s %5s %12s %10s %10s\n' "" conns "requests/s" p50 p99
measure "upstream alone" $decode

start 0 "$baton" router --port $port --prefill http://127.0.0.1:$prefill 8998 \
    --decode http://127.0.0.1:$decode --policy round_robin
await "http://127.0.0.1:$port/readiness"
measure "baton router" $port
stop_last

if [ ! -x "$venv/bin/python" ]; then
    echo "run_router: installing sglang-router into $venv (once)" >&2
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check \
        sglang-router==0.3.2 >&2 || { echo "run_router: without sglang-router" >&2; exit 0; }
fi
start 0 "$venv/bin/python" -m sglang_router.launch_router --pd-disaggregation --policy round_robin \
    --prefill http://127.0.0.1:$prefill 8998 --decode http://127.0.0.1:$decode \
    --host 127.0.0.1 --port $port --log-level error
await "http://127.0.0.1:$port/readiness"
measure "sglang-router 0.3.2" $port
stop_last
