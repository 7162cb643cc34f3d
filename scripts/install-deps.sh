#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what Baton is built, tested and measured with, on Debian 12 and Ubuntu 24.04. Does
# nothing, quickly, when all of it is there. As root, or by sudo. BATON_SKIP_DEPS=1 leaves the
# system alone (CMake then says what it misses).
#
# usage: scripts/install-deps.sh [--list]     --list prints the packages and installs nothing
set -euo pipefail

build=(cmake ninja-build make gcc g++ pkg-config libc6-dev)
libraries=(libevent-dev libjansson-dev libpcre2-dev libssl-dev libutf8proc-dev libxxhash-dev)
tests=(libcmocka-dev clang clang-format spin python3 python3-venv binutils util-linux)
plugins=(libibverbs-dev libucx-dev)
tools=(iperf3 libibverbs1) # libibverbs1: Mooncake's wheel, for --peers
packages=("${build[@]}" "${libraries[@]}" "${plugins[@]}" "${tests[@]}" "${tools[@]}")

say() {
    echo "install-deps: $*" >&2
}

# The sanitizers of clang are in a package that has clang's version in its name: that of the clang
# that is installed, or else of the one that apt would install.
clang_runtime() {
    local depends version
    depends=$(dpkg-query -W -f '${Depends}' clang 2>/dev/null || true)
    [ -n "$depends" ] || depends=$(apt-cache show clang 2>/dev/null | grep '^Depends:' || true)
    version=$(grep -oE -m 1 'clang-[0-9]+' <<<"$depends" | head -n 1)
    [ -n "$version" ] && echo "libclang-rt-${version#clang-}-dev"
}

missing_packages() {
    local installed package
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
    for package in "$@"; do
        grep -qxF "installed $package" <<<"$installed" || echo "$package"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "these packages are missing, and this is neither root nor is there sudo; as root, run:"
        say "  apt-get install ${missing[*]}"
        exit 1
    fi
}

unknown_system() {
    say "$1"
    say "this script knows Debian 12 and Ubuntu 24.04 (apt). Elsewhere install the equivalents of"
    say "  ${packages[*]} libclang-rt-dev"
    say "and then build with BATON_SKIP_DEPS=1"
    exit 1
}

main() {
    if [ "${1:-}" = --list ]; then
        printf '%s\n' "${packages[@]}" "$(clang_runtime || echo libclang-rt-dev)"
        exit 0
    fi
    if [ "${BATON_SKIP_DEPS:-0}" = 1 ]; then
        exit 0
    fi
    local name=this
    # shellcheck source=/dev/null
    [ -r /etc/os-release ] && name=$(. /etc/os-release && echo "${PRETTY_NAME:-$ID}")
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        unknown_system "$name is not a system with apt"
    fi

    local runtime
    runtime=$(clang_runtime || true)
    mapfile -t missing < <(missing_packages "${packages[@]}" ${runtime:+"$runtime"})
    [ ${#missing[@]} -eq 0 ] && exit 0

    say "$name: missing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -q
    runtime=$(clang_runtime || true)
    [ -n "$runtime" ] || unknown_system "$name: apt does not know a package clang"
    mapfile -t missing < <(missing_packages "${packages[@]}" "$runtime")
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        "${missing[@]}"

    mapfile -t missing < <(missing_packages "${packages[@]}" "$runtime")
    if [ ${#missing[@]} -ne 0 ]; then
        say "apt-get succeeded, and still missing: ${missing[*]}"
        exit 1
    fi
    say "all dependencies are installed"
}

missing=()
main "$@"
