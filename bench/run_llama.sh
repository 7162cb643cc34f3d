#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Baton and llama.cpp side by side on this machine: speed, and how far both are from float32.
# llama.cpp comes out of the PyPI source package llama-cpp-python and is built once, for this
# processor, into a cache outside the tree:
#   BATON_LLAMA   where it is (default: ~/.cache/baton/llama)
#
# usage: run_llama.sh speed [OPTION]...      llama_speed.py --help tells the options
#        run_llama.sh accuracy [OPTION]...   accuracy.py --help tells them
#        run_llama.sh build                  only gets and builds
# BATON names the program to measure (default: build/release/baton).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
version=0.3.36
cache=${BATON_LLAMA:-${XDG_CACHE_HOME:-$HOME/.cache}/baton/llama}
source=$cache/llama_cpp_python-$version
programs="llama-bench llama-batched-bench llama-quantize"
export PYTHONDONTWRITEBYTECODE=1

say() {
    echo "run_llama: $*" >&2
}

python_ready() {
    [ -f "$cache/venv/installed" ] && return
    say "installing numpy, gguf and what llama_cpp imports, by pip (once)"
    python3 -m venv "$cache/venv"
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check \
        numpy gguf typing_extensions jinja2 diskcache >&2
    touch "$cache/venv/installed"
}

source_ready() {
    [ -d "$source" ] && return
    say "downloading llama-cpp-python $version by pip (once)"
    "$cache/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
        --no-binary llama-cpp-python --dest "$cache" "llama-cpp-python==$version" >&2
    tar -xzf "$source.tar.gz" -C "$cache"
}

programs_ready() {
    [ -f "$cache/build/built" ] && return
    say "building llama.cpp for this processor (once; minutes)"
    # Without them gcc 12 drops the stores to what LDTILECFG reads, and AMX faults.
    local flags="-fno-tree-dse -fno-dse"
    cmake -S "$source/vendor/llama.cpp" -B "$cache/build" -G Ninja -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_SERVER=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF >"$cache/cmake.log"
    # shellcheck disable=SC2086
    ninja -C "$cache/build" $programs >"$cache/ninja.log" || {
        tail "$cache/ninja.log" >&2
        exit 1
    }
    touch "$cache/build/built"
}

what=${1:-}
case $what in speed | accuracy | build) shift ;; *)
    say "usage: run_llama.sh speed|accuracy|build [OPTION]..."
    exit 1
    ;;
esac
baton=${BATON:-$root/build/release/baton}
if [ "$what" != build ] && [ ! -x "$baton" ]; then
    say "$baton is not there: make builds it, or BATON names another"
    exit 1
fi
mkdir -p "$cache"
python_ready
source_ready
programs_ready
[ "$what" != build ] || exit 0
model=$("$root/scripts/get-default-model.sh")
name=$(basename "$model" .Q4_1.gguf)

# The default model's values in another type, made once.
requantised() {
    local out=$cache/$name.$1.gguf
    [ -f "$out" ] || {
        say "writing $out (once)"
        "$cache/build/bin/llama-quantize" --allow-requantize "$model" "$out.new" "$1" \
            >"$cache/quantize.log" 2>&1 || { tail "$cache/quantize.log" >&2 && exit 1; }
        mv "$out.new" "$out"
    }
    echo "$out"
}

if [ "$what" = accuracy ]; then
    floats=$(requantised F32)
    PYTHONPATH=$source exec "$cache/venv/bin/python" "$here/accuracy.py" "$model" \
        --float-model "$floats" --baton "$baton" --llama "$cache/build/bin" "$@"
fi
best=$(requantised Q4_0)
exec "$cache/venv/bin/python" "$here/llama_speed.py" "$model" "$best" --baton "$baton" \
    --llama "$cache/build/bin" "$@"
