#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make run` shows after the build: the default model, fetched if it is not there, behind a prefill
# worker, a decode worker and their router; one streamed answer, and an address to try. On a terminal it
# serves until Ctrl-C; otherwise it ends after the answer.
#
# usage: scripts/run.sh [OPTION of `baton up`]...     such as --ask "another question" --port 9000
set -euo pipefail
cd "$(dirname "$0")/.."
baton=build/release/baton

model=$(scripts/get-default-model.sh)
set -- --ask "Why is the sky blue? Answer in two sentences." "$@"
echo "\$ $baton up ${model/#$HOME/\~} $(printf '%q ' "$@")"
exec $baton up "$model" "$@"
