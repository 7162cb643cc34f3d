#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does a program that includes nothing but baton.h compile, strictly, in the given language?
# usage: header.sh COMPILER STANDARD SOURCE INCLUDE_FOLDER
set -euo pipefail
compiler=$1 standard=$2 source=$3 include=$4
case $compiler in
'' | *NOTFOUND)
    echo "skipped: no compiler for $standard here"
    exit 77
    ;;
esac
"$compiler" -std="$standard" -pedantic -Wall -Wextra -Werror -fsyntax-only -I"$include" "$source"
echo "$(basename "$source") compiles as $standard"
