# SPDX-License-Identifier: Apache-2.0
"""Exceptions: each carries the library's code and a reason that a person can act on."""

from __future__ import annotations

import ctypes

from . import _abi
from ._library import lib

_TEXT_BYTES = 1024


class BatonError(Exception):
    """A call was refused. ``code`` is the library's number, ``name`` its name, ``reason`` why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    @property
    def name(self) -> str:
        """For example ``BATON_EEXIST``."""
        if self.code == _abi.AGAIN:
            return "BATON_AGAIN"
        return _abi.ERRORS.get(self.code, f"error {self.code}")

    def __str__(self) -> str:
        return f"{self.reason} ({self.name})"


class TryAgain(BatonError):
    """Not now: nothing was done, call again later."""


class TransferError(BatonError):
    """A hand-over failed. ``reason`` is what both sides were told."""

    def __init__(self, code: int, reason: str, room: int | None = None) -> None:
        super().__init__(code, reason)
        self.args = (code, reason, room)  # so that it survives pickling between processes
        self.room = room

    def __str__(self) -> str:
        where = "" if self.room is None else f"room {self.room}: "
        return where + super().__str__()


def error_text(code: int) -> str:
    """The library's own words for a code, ``peer lost`` for example."""
    text: bytes | None = lib.baton_error_text(code)
    return text.decode(errors="replace") if text else f"error {code}"


def text_buffer() -> ctypes.Array[ctypes.c_char]:
    """Where the library writes a reason."""
    return ctypes.create_string_buffer(_TEXT_BYTES)


def check(code: int, what: str, text: ctypes.Array[ctypes.c_char] | None = None) -> None:
    """Raises unless ``code`` is 0. ``what`` names the call, ``text`` holds the library's reason."""
    if code == _abi.OK:
        return
    reason = text.value.decode(errors="replace") if text is not None else ""
    message = f"{what}: {reason or error_text(code)}"
    if code == _abi.AGAIN:
        raise TryAgain(code, f"{what}: not now, call again later")
    raise BatonError(code, message)
