#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Python of our own in build/venv with what the Python tests import. The system's packages stay
# as they are. Made once; made again when the list below or the system's Python changes.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=(numpy pytest openai)
wished=(sglang-router==0.3.2) # its tests are skipped where there is no wheel for this machine
venv=build/venv
stamp="$(python3 --version) ${wanted[*]} ${wished[*]}"

[ -x $venv/bin/python ] && [ "$(cat $venv/stamp 2>/dev/null)" = "$stamp" ] && exit 0
rm -rf $venv
mkdir -p build
python3 -m venv $venv
if ! $venv/bin/python -m pip install --quiet --disable-pip-version-check "${wanted[@]}"; then
    # Without a way to PyPI the distribution's packages do as well.
    rm -rf $venv
    python3 -m venv --system-site-packages $venv
    if ! $venv/bin/python -c "import numpy, pytest"; then
        rm -rf $venv
        echo "python-venv: pip could not install ${wanted[*]} (see above)." >&2
        echo "python-venv: give pip a way to PyPI, or apt-get install python3-numpy python3-pytest" >&2
        exit 1
    fi
    echo "python-venv: without openai: the tests of the worker's API cannot run" >&2
    exit 0 # no stamp: tried again next time
fi
$venv/bin/python -m pip install --quiet --disable-pip-version-check "${wished[@]}" ||
    echo "python-venv: without ${wished[*]}: its tests are skipped" >&2
echo "$stamp" >$venv/stamp
