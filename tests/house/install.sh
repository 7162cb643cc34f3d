#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What somebody who installs Baton gets: the library under its SONAME, one header, a pkg-config
# file with which a program compiles, links and runs.
# usage: install.sh CMAKE BUILD_FOLDER COMPILER EXAMPLE VERSION
set -euo pipefail
cmake=$1 build=$2 compiler=$3 example=$4 version=$5

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
DESTDIR=$root "$cmake" --install "$build" >"$root/log" || { cat "$root/log"; exit 1; }

pc=$(find "$root" -name baton.pc)
headers=$(find "$root" -name '*.h' -printf '%f\n')
[ "$headers" = baton.h ] || { echo "installed headers: $headers; only baton.h is public"; exit 1; }

export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR=$root
PKG_CONFIG_PATH=$(dirname "$pc")
library=$(dirname "$PKG_CONFIG_PATH")
[ "$(pkg-config --modversion baton)" = "$version" ] || { echo "baton.pc is not $version"; exit 1; }

read -ra flags <<<"$(pkg-config --cflags --libs baton)"
"$compiler" -std=c11 -Wall -Werror "$example" -o "$root/example" "${flags[@]}"
readelf -d "$root/example" | grep -q 'NEEDED.*\[libbaton\.so\.0\]' ||
    { echo "the example does not ask for libbaton.so.0"; readelf -d "$root/example"; exit 1; }
said=$(LD_LIBRARY_PATH=$library "$root/example")
[ "$said" = "$version" ] || { echo "the installed library says $said, not $version"; exit 1; }
echo "installed, found by pkg-config, linked as libbaton.so.0, runs as $version"
