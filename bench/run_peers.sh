#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs NIXL and Mooncake on the pages of `baton bench transfer` and prints one JSON object per line.
# Their wheels go into a virtual environment of their own, made on the first call:
#   BATON_PEERS_VENV   where it is (default: ~/.cache/baton/peers-venv)
#
# usage: run_peers.sh --item-bytes N --pages N [--layers N] [--iterations N]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv=${BATON_PEERS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/peers-venv}

if [ ! -f "$venv/baton-peers-installed" ]; then
    echo "peers: installing NIXL and Mooncake into $venv (once)" >&2
    python3 -m venv "$venv" >&2
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
        nixl-cu12 numpy mooncake-transfer-engine-non-cuda >&2
    touch "$venv/baton-peers-installed"
fi

# A call that is stopped takes the script that it runs with it.
child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null; exit 143' TERM INT

run() {
    echo "peers: $*" >&2
    PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" "$here/$@" &
    child=$!
    wait "$child" || echo "peers: $1 ended with status $?" >&2
    child=
}

run nixl_host.py --transport tcp "$@"
run nixl_host.py --transport posix,cma,tcp "$@"
run mooncake_host.py --transport tcp "$@"
