#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A first answer: the default model is fetched if it is not there, asked a question, and what it says
# is streamed to the terminal. Ends with what to try next. `make run` builds first and calls this.
#
# usage: scripts/run.sh [QUESTION]
set -euo pipefail
cd "$(dirname "$0")/.."
baton=build/release/baton
question=${1:-Why is the sky blue? Answer in two sentences.}

model=$(scripts/get-default-model.sh)
echo "\$ $baton run ${model/#$HOME/\~} \"$question\" --stats"
echo
$baton run "$model" "$question" --stats --max-new-tokens 200
cat <<END

Next, behind a port (OpenAI's and SGLang's APIs; docs/api.md):

  $baton serve ${model/#$HOME/\~} --port 30000
  curl -N localhost:30000/v1/chat/completions -d \\
    '{"messages": [{"role": "user", "content": "Hello!"}], "stream": true}'

$baton demo shows the hand-over of a KV cache between two processes.
END
