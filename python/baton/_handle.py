# SPDX-License-Identifier: Apache-2.0
"""Who closes what, and when.

A C object must be closed once, after everything that uses it: senders before their manager, a
manager before the pools it registered, members before their poll set forgets them. Python gives
no such order: the garbage collector finalises a cycle in any order, and a view of a pool may
outlive the pool's ``close()``. So every C object is held by a Handle that counts its users, and
a close that comes too early is kept until the last user is gone.

A child of fork() has the memory but not the library's threads: there every handle is dead, and
nothing is closed.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from ctypes import c_void_p
from typing import Any

from .errors import BatonError

_ESTATE = -8
_lock = threading.RLock()  # re-entrant: a finaliser may run while this thread holds it
_live: weakref.WeakSet[Handle] = weakref.WeakSet()


class _Dead:
    """Stands where a pointer was: ctypes refuses to pass it, so no call can use what is gone."""

    def __init__(self, why: str) -> None:
        self.why = why


_CLOSED = _Dead("is closed")
_FORKED = _Dead("belongs to the process that forked this one; open a new one here")


class Handle:
    """One C object: its pointer, how to close it, what it uses, and who uses it."""

    __slots__ = ("pointer", "what", "_close", "_parents", "_users", "_closing", "__weakref__")

    def __init__(
        self,
        what: str,
        pointer: c_void_p,
        close: Callable[[Any], None],
        parents: Iterable[Any] = (),
    ) -> None:
        self.pointer: Any = pointer
        self.what = what
        self._close = close
        self._parents: dict[Any, Any] = {}  # Handles, and memory that must stay where it is
        self._users = 0
        self._closing = False
        for parent in parents:
            self.keep(parent)
        _live.add(self)

    def keep(self, parent: Any, key: Any = None) -> None:
        """Holds ``parent`` (a Handle or any object) until this one is closed, or drop(key)."""
        if isinstance(parent, Handle):
            parent.acquire()
        self._parents[id(parent) if key is None else key] = parent

    def drop(self, key: Any) -> None:
        """Lets go of what keep() holds under ``key``."""
        parent = self._parents.pop(key, None)
        if isinstance(parent, Handle):
            parent.release()

    def get(self) -> Any:
        """The pointer, or an error that says why there is none."""
        if isinstance(self.pointer, _Dead):
            raise BatonError(_ESTATE, f"this {self.what} {self.pointer.why}")
        if self._closing:
            raise BatonError(_ESTATE, f"this {self.what} is closed")
        return self.pointer

    @property
    def closed(self) -> bool:
        return self._closing or isinstance(self.pointer, _Dead)

    def acquire(self) -> None:
        """One more user: close() waits for it."""
        with _lock:
            self._users += 1

    def release(self) -> None:
        """One user fewer; the last one closes what was to be closed."""
        with _lock:
            self._users -= 1
            due = self._closing and self._users == 0
        if due:
            self._finish()

    def close(self) -> None:
        """Closes now, or with the last user. Any number of times."""
        with _lock:
            if self._closing:
                return
            self._closing = True
            due = self._users == 0
        if due:
            self._finish()

    def _finish(self) -> None:
        with _lock:
            pointer, self.pointer = self.pointer, _CLOSED
            parents, self._parents = self._parents, {}
        if not isinstance(pointer, _Dead):
            self._close(pointer)
        for parent in parents.values():
            if isinstance(parent, Handle):
                parent.release()


def _forget_after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    for handle in list(_live):
        handle.pointer = _FORKED


os.register_at_fork(after_in_child=_forget_after_fork)
