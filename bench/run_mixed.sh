#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Streams that run all the time while long prompts arrive: `baton serve` on two cores beside prefill and
# decode with a core each. mixed_load.py measures; it needs Python 3 and nothing else.
#
# usage: bench/run_mixed.sh [OPTION]...      mixed_load.py --help tells them
# BATON names the program to measure (default: build/release/baton), MODEL a model (default: the default one).
set -euo pipefail
cd "$(dirname "$0")/.."
model=${MODEL:-$(scripts/get-default-model.sh)}
exec python3 -B bench/mixed_load.py "$model" --baton "${BATON:-build/release/baton}" "$@"
