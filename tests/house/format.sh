#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Is all C laid out as .clang-format says? `make format` puts it right. clang-format's output
# changes from release to release, so that only one release can judge: Debian 12's.
# usage: format.sh ROOT [--fix]
set -euo pipefail
cd "$1"
wanted=14

tool=$(command -v clang-format-$wanted || command -v clang-format || true)
if [ -z "$tool" ]; then
    echo "skipped: clang-format is not installed"
    exit 77
fi
version=$("$tool" --version | sed -E 's/.*version ([0-9]+).*/\1/')
if [ "$version" != "$wanted" ]; then
    echo "skipped: the layout is judged by clang-format $wanted, here is $version"
    exit 77
fi

folders=()
for folder in src include tests fuzz bench; do
    [ -d "$folder" ] && folders+=("$folder")
done
mapfile -t files < <(find "${folders[@]}" -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' | sort)
if [ "${2:-}" = --fix ]; then
    "$tool" -i --style=file "${files[@]}"
    echo "${#files[@]} files laid out"
    exit 0
fi
# One process for many files, and only then one by one for the names: starting it is most of the work.
bad=0
if ! "$tool" --dry-run --Werror --style=file "${files[@]}" >/dev/null 2>&1; then
    for file in "${files[@]}"; do
        "$tool" --dry-run --Werror --style=file "$file" >/dev/null 2>&1 && continue
        echo "$file"
        bad=$((bad + 1))
    done
fi
echo "$bad of ${#files[@]} files are not laid out as .clang-format says; make format does it"
[ $bad -eq 0 ]
