# SPDX-License-Identifier: Apache-2.0
"""Finds and loads libbaton.so, once, when the package is imported.

Looked for in this order: the file that $BATON_LIBRARY names (and then nowhere else), the
package's own folder (a wheel may carry the library), the build folders of the source tree that
this package lies in, and last what the system's loader finds (an installed libbaton0).
"""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

from ._abi import Functions

SONAME = "libbaton.so.0"
_PACKAGE = Path(__file__).resolve().parent
_PRESETS = ("release", "debug", "asan")


def candidates() -> list[str]:
    """File names to try, most wanted first."""
    chosen = os.environ.get("BATON_LIBRARY")
    if chosen:
        return [chosen]
    files = [_PACKAGE / "libbaton.so", _PACKAGE / SONAME]
    tree = _PACKAGE.parent.parent
    if (tree / "include" / "baton.h").is_file():
        files += [tree / "build" / preset / "libbaton.so" for preset in _PRESETS]
    names = [str(file) for file in files if file.is_file()]
    found = ctypes.util.find_library("baton")
    return names + [name for name in (SONAME, found) if name]


def load() -> Functions:
    """The first candidate that loads and has every function of this binding."""
    failures: list[str] = []
    for name in candidates():
        try:
            return Functions(name)
        except OSError as error:
            failures.append(f"  {name}: {error}")
        except AttributeError as error:
            failures.append(f"  {name}: not a libbaton of this version: {error}")
    raise ImportError(_advice(failures))


def _advice(failures: list[str]) -> str:
    tried = "\n".join(failures) or "  nothing: no such file in any of the usual places"
    return (
        "baton: the library libbaton.so was not found, or could not be loaded. "
        "`make` in the source tree builds it (into build/release), `make install` installs it, "
        "and BATON_LIBRARY=/path/to/libbaton.so names one to use. Tried:\n" + tried
    )


lib = load()
