#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds one preset into build/<preset>. WERROR=1 makes warnings errors; JOBS
# bounds the compilers; further arguments go to cmake's configuration.
# usage: scripts/build.sh PRESET [-DNAME=VALUE ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
werror=OFF
[ "${WERROR:-0}" = 1 ] && werror=ON
cmake --preset "$preset" -DBATON_WERROR=$werror "$@" >/dev/null
[ "${CONFIGURE_ONLY:-0}" = 1 ] && exit 0
cmake --build --preset "$preset" -j "${JOBS:-$(nproc)}"
