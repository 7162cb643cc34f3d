# SPDX-License-Identifier: Apache-2.0
"""What the loaded library is and can do here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from . import _abi
from ._library import lib
from .errors import check

_ENOTFOUND = -6


@dataclass(frozen=True)
class Backend:
    """One way to move bytes; ``why`` says why it is not available here."""

    name: str
    available: bool
    about: str
    why: str


def version() -> str:
    """Of the library that is loaded, "0.1.0" for example."""
    text: bytes = lib.baton_version()
    return text.decode()


def library_path() -> str:
    """Which file was loaded."""
    return lib.path


def backends() -> list[Backend]:
    """In the order of preference."""
    found: list[Backend] = []
    out = _abi.BackendInfo(struct_size=ctypes.sizeof(_abi.BackendInfo))
    while True:
        code = lib.baton_backend_info_get(len(found), ctypes.byref(out))
        if code == _ENOTFOUND:
            return found
        check(code, "backends")
        texts = (out.name.decode(), bool(out.available), out.about.decode(), out.why.decode())
        found.append(Backend(*texts))


def log_level(level: int) -> None:
    """Least level logged to stderr: 0 error, 1 warning (default), 2 info, 3 debug."""
    lib.baton_log_level(level)
