#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make run` shows after the build: the default model behind a prefill worker, a decode worker and
# their router, one streamed answer, and an address to try. On a terminal it serves until Ctrl-C;
# otherwise it ends after the answer.
#
# usage: scripts/run.sh [OPTION of `baton up`]...     QUESTION="..." asks something else
set -euo pipefail
cd "$(dirname "$0")/.."
question=${QUESTION:-What is a relay race? Answer in two sentences.}

model=$(scripts/get-default-model.sh)
echo "> $question"
exec build/release/baton up "$model" --ask "$question" "$@"
