# SPDX-License-Identifier: Apache-2.0
"""Polls many rooms with one call into one reused array: a scheduler step costs microseconds,
whether it watches one request or thousands.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import c_void_p
from typing import TYPE_CHECKING

from ._handle import Handle
from ._library import lib
from .errors import check
from .transfer import KVReceiver, KVSender, _Closing, _Room

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SLICE_MS = 200  # how long a wait may keep Ctrl-C waiting


class PollSet(_Closing):
    """``capacity`` groups of senders and receivers. A group has the smallest state of its
    members (the ranks of one request, say); a group without members polls as Success.
    """

    def __init__(self, capacity: int) -> None:
        if capacity <= 0:
            raise ValueError(f"capacity: {capacity} groups make no sense")
        pointer = c_void_p()
        check(lib.baton_pollset_open(capacity, ctypes.byref(pointer)), "poll set")
        self._own(Handle("poll set", pointer, lib.baton_pollset_close))
        self._members: dict[int, list[_Room]] = {}
        self._memory = (ctypes.c_uint8 * capacity)()
        self._where = c_void_p(ctypes.addressof(self._memory))
        self._capacity = ctypes.c_uint32(capacity)
        self._states = _as_array(self._memory)
        self.changed = 0  #: how many groups the last poll or wait found changed

    @property
    def capacity(self) -> int:
        return self._capacity.value

    def add(self, group: int, member: KVSender | KVReceiver | _Room) -> None:
        """Puts a sender or receiver into a group. The set keeps it open until it is removed."""
        members = self._members.setdefault(group, [])
        if member in members:
            raise ValueError(f"group {group} has this {member._kind} already")
        self._insert(group, member)
        members.append(member)
        self._handle.keep(member._handle, (group, id(member)))
        member._sets.add(self)

    def _insert(self, group: int, member: _Room) -> None:
        if not 0 <= group < self.capacity:
            raise ValueError(f"group: {group} is not one of the {self.capacity} of this set")
        put = lib.baton_pollset_add_sender
        if isinstance(member, KVReceiver):
            put = lib.baton_pollset_add_receiver
        check(put(self._handle.get(), group, member._handle.get()), f"add to group {group}")

    def clear(self, group: int) -> None:
        """Removes all members of a group."""
        check(lib.baton_pollset_clear(self._handle.get(), group), f"clear of group {group}")
        for member in self._members.pop(group, ()):
            self._forget(group, member)

    def remove(self, member: KVSender | KVReceiver | _Room) -> None:
        """Removes one member from every group it is in (close() of the member does it too)."""
        for group, members in list(self._members.items()):
            if member in members:
                rest = [other for other in members if other is not member]
                self.clear(group)
                for other in rest:
                    self.add(group, other)

    def _forget(self, group: int, member: _Room) -> None:
        self._handle.drop((group, id(member)))
        if not any(member in members for members in self._members.values()):
            member._sets.discard(self)

    def poll(self) -> npt.NDArray[np.uint8]:
        """One state per group (KVPoll's numbers), always in the same array: read it before the
        next call. A numpy array; without numpy a memoryview.
        """
        try:
            self.changed = _poll_many(self._handle.pointer, self._where, self._capacity)
        except ctypes.ArgumentError:
            self._handle.get()  # says why
            raise
        return self._states

    def wait(self, timeout: float) -> npt.NDArray[np.uint8]:
        """Like poll, but waits until a group changed or ``timeout`` seconds are over."""
        deadline = time.monotonic() + timeout
        pointer = self._handle.get()
        self._handle.acquire()  # a close by another thread takes effect when we are out
        try:
            while True:
                left = max(0, round((deadline - time.monotonic()) * 1000))
                changed = _wait(pointer, self._where, self._capacity, min(left, _SLICE_MS))
                if changed < 0:
                    check(changed, "wait on a poll set")
                if changed or left <= _SLICE_MS or self._handle.closed:
                    self.changed = changed
                    return self._states
        finally:
            self._handle.release()

    def __len__(self) -> int:
        return sum(len(members) for members in self._members.values())

    def close(self) -> None:
        """Lets go of all members."""
        for members in self._members.values():
            for member in members:
                member._sets.discard(self)
        self._members.clear()
        super().close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self)} members"
        return f"<baton.PollSet of {self.capacity} groups, {state}>"


_poll_many = lib.baton_poll_many
_wait = lib.baton_pollset_wait


def _as_array(memory: ctypes.Array[ctypes.c_uint8]) -> npt.NDArray[np.uint8]:
    view = memoryview(memory).cast("B")
    try:
        import numpy
    except ImportError:
        return view  # type: ignore[return-value]
    return numpy.frombuffer(view, dtype=numpy.uint8)
