# SPDX-License-Identifier: Apache-2.0
"""The interface that engines use: managers, senders, receivers, the bootstrap server.

Nothing here blocks except opening and closing a manager or a bootstrap server, and ``wait``,
which has a bound. The copies are made by the library's own threads.
"""

from __future__ import annotations

import ctypes
import enum
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from . import _abi
from ._buffer import Indices, c_string, indices, milliseconds, room_number, uint32
from ._handle import Handle
from ._library import lib
from .args import KVArgs, manager_plan
from .errors import TransferError, TryAgain, check, text_buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .pollset import PollSet

    Pages = npt.NDArray[np.integer[Any]] | Sequence[int]
    StatesOfRegions = Mapping[int | str, Pages] | Iterable[tuple[Any, ...]]


class KVPoll(enum.IntEnum):
    """Where a hand-over stands. It only moves up, or to Failed; Failed and Success are final."""

    Failed = 0
    Bootstrapping = 1  #: looking for the peer, or for the peer's grants
    WaitingForInput = 2  #: sender: all grants are in; receiver: all peers shook hands
    Transferring = 3
    Success = 4  #: every byte is in its place, and both sides know


_STATES = tuple(KVPoll)
_ESTATE = -8


@dataclass(frozen=True)
class Timeline:
    """What happened to one room, in nanoseconds since it was opened here (0: has not happened)."""

    state: KVPoll
    bootstrapped_ns: int
    granted_ns: int
    first_send_ns: int
    last_byte_ns: int
    ended_ns: int
    fenced_ns: int
    bytes: int
    operations: int
    peers: int
    packed: bool  #: went through staging
    backend: str  #: which carried it
    reason: str  #: why this backend, and why direct or packed


_Self = TypeVar("_Self", bound="_Closing")


class _Closing:
    """with-statement and close() for what owns a Handle."""

    _handle: Handle
    _finalizer: weakref.finalize[Any, Any]

    def _own(self, handle: Handle) -> None:
        self._handle = handle
        self._finalizer = weakref.finalize(self, handle.close)

    def close(self) -> None:
        """Closes the library's object; any number of times."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class KVManager(_Closing):
    """One per rank: registers the pools, owns the links to the peers. It has no role of its own:
    senders and receivers may be opened on the same manager.
    """

    def __init__(self, args: KVArgs) -> None:
        plan = manager_plan(args)
        pointer, text = c_void_p(), text_buffer()
        code = lib.baton_manager_open(
            ctypes.byref(plan.options), ctypes.byref(pointer), text, len(text)
        )
        check(code, "manager", text)
        # The memory is borrowed by the library until the manager is closed.
        self._own(Handle("manager", pointer, lib.baton_manager_close, plan.owners))
        self.args = args
        self._region_names = plan.region_names
        self._has_aux = plan.has_aux
        self._aux_region = plan.aux_region
        self._rooms: weakref.WeakSet[_Room] = weakref.WeakSet()
        self._counters = _abi.Counters(struct_size=ctypes.sizeof(_abi.Counters))

    @property
    def port(self) -> int:
        """Where this manager listens."""
        return int(lib.baton_manager_port(self._handle.get()))

    def fileno(self) -> int:
        """An eventfd, readable when a room changed state or got fenced; see clear_event()."""
        return int(lib.baton_manager_eventfd(self._handle.get()))

    def clear_event(self) -> None:
        """Makes fileno() wait for the next change. Clear first, then poll: no change is lost."""
        try:
            os.read(self.fileno(), 8)
        except BlockingIOError:
            pass

    def tick(self) -> None:
        """The owner's sign of life: call it once per scheduler step (polls do it too)."""
        lib.baton_manager_tick(self._handle.get())

    def counters(self) -> dict[str, int]:
        """What this manager has done so far, by name."""
        out = self._counters
        check(lib.baton_manager_counters(self._handle.get(), ctypes.byref(out)), "counters")
        return {name: int(getattr(out, name)) for name in _COUNTERS}

    def region_index(self, region: int | str) -> int:
        """The number of a state region, by its name."""
        if isinstance(region, int):
            return uint32(region, "region")
        try:
            return self._region_names.index(region)
        except ValueError:
            known = ", ".join(self._region_names)
            raise ValueError(f"region: no region {region!r}; there are {known}") from None

    def close(self) -> None:
        """Closes the senders and receivers too. May wait until the library's threads let go."""
        for room in list(self._rooms):
            room.close()
        super().close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"port {self.port}"
        return f"<baton.KVManager rank {self.args.engine_rank} {state}>"


_COUNTERS = [name for name, _ in _abi.Counters._fields_ if name != "struct_size"]  # type: ignore[misc]


class _Room(_Closing):
    """What a sender and a receiver have in common: one end of one room."""

    _kind: ClassVar[str]
    _native_poll: ClassVar[Any]

    def __init__(self, mgr: KVManager, room: int, opened: c_void_p) -> None:
        close = self._call("close")
        self._own(Handle(f"{self._kind} of room {room}", opened, close, [mgr._handle]))
        self._manager = mgr
        self._room = room
        self._sets: weakref.WeakSet[PollSet] = weakref.WeakSet()
        mgr._rooms.add(self)

    @classmethod
    def _call(cls, verb: str) -> Any:
        return getattr(lib, f"baton_{cls._kind}_{verb}")

    @property
    def room(self) -> int:
        return self._room

    @property
    def manager(self) -> KVManager:
        return self._manager

    def poll(self) -> KVPoll:
        """Where the hand-over stands. Costs well under a microsecond and never blocks."""
        try:
            state: KVPoll = _STATES[self._native_poll(self._handle.pointer)]
            return state
        except ctypes.ArgumentError:
            self._handle.get()  # says why
            raise

    def failure_exception(self) -> None:
        """Raises TransferError with the reason if the hand-over failed; else does nothing."""
        text = text_buffer()
        code = self._call("failure")(self._handle.get(), text, len(text))
        if code:
            raise TransferError(code, text.value.decode(errors="replace"), self._room)

    @property
    def fenced(self) -> bool:
        """True when nothing touches this room's pages any more. Only this, never Failed, makes
        the pages of a failed room reusable.
        """
        return bool(self._call("fenced")(self._handle.get()))

    def abort(self, reason: str = "aborted by the engine") -> bool:
        """Fails the room on both sides with this reason. Pages stay taken until ``fenced``.

        False when it comes too late: the room has ended, or this is the sender and its last
        byte was committed, after which the receiver decides.
        """
        code = self._call("abort")(self._handle.get(), c_string(reason, "reason"))
        if code == _ESTATE:
            return False
        check(code, f"abort of room {self._room}")
        return True

    def timeline(self) -> Timeline:
        """When what happened, and which backend carried how many bytes. TryAgain is raised while
        the library is still writing it, that is, until the room has ended.
        """
        out = _abi.Timeline(struct_size=ctypes.sizeof(_abi.Timeline))
        code = self._call("timeline")(self._handle.get(), ctypes.byref(out))
        if code == _abi.AGAIN:
            raise TryAgain(code, f"timeline of room {self._room}: the room has not ended yet")
        check(code, f"timeline of room {self._room}")
        values: dict[str, Any] = {name: getattr(out, name) for name in Timeline.__annotations__}
        values["state"] = KVPoll(out.state)
        values["packed"] = bool(out.packed)
        values["backend"] = out.backend.decode(errors="replace")
        values["reason"] = out.reason.decode(errors="replace")
        return Timeline(**values)

    def wait(self, timeout: float, until: KVPoll = KVPoll.Success) -> KVPoll:
        """Waits at most ``timeout`` seconds for ``until`` or an end; returns the state then."""
        from .pollset import PollSet

        deadline = time.monotonic() + timeout
        with PollSet(1) as waiting:
            waiting.add(0, self)
            state = self.poll()
            while KVPoll.Failed < state < until:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                waiting.wait(left)
                state = self.poll()
        return state

    def close(self) -> None:
        """Leaves its poll sets, aborts what has not ended, and frees the room."""
        for pollset in list(self._sets):
            if not pollset.closed:
                pollset.remove(self)
        super().close()

    def _aux(self, aux_index: int | None) -> tuple[int, int | None]:
        """(slot of the aux block, slot of the separate aux buffers); -1 and None: none.

        The nine basic fields of KVArgs cannot name aux memory, so an index without any is
        accepted and nothing is carried for it.
        """
        if aux_index is None:
            return -1, None
        slot = uint32(aux_index, "aux_index")
        if slot > 2**31 - 1:
            raise ValueError(f"aux_index: {slot} is not a slot")
        if self._manager._has_aux:
            return slot, None
        return -1, slot if self._manager._aux_region else None

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.poll().name
        return f"<baton.{type(self).__name__} room {self._room} {state}>"


class KVSender(_Room):
    """The prefill side of one room.

    ``dest_ranks`` are the decode ranks to wait for; none: as many as the grants say.
    """

    _kind = "sender"
    _native_poll = lib.baton_sender_poll

    def __init__(
        self,
        mgr: KVManager,
        bootstrap_addr: str | None,
        bootstrap_room: int,
        dest_ranks: Sequence[int] = (),
        *,
        layerwise: bool = False,
        deadline: float | None = None,
    ) -> None:
        room = room_number(bootstrap_room)
        ranks = [uint32(rank, "dest_ranks") for rank in dest_ranks]
        options = _abi.SenderOptions(struct_size=ctypes.sizeof(_abi.SenderOptions), room=room)
        options.bootstrap = c_string(bootstrap_addr, "bootstrap_addr")
        options.dest_ranks = (ctypes.c_uint32 * len(ranks))(*ranks)
        options.dest_rank_count = len(ranks)
        options.layerwise = bool(layerwise)
        options.deadline_ms = milliseconds(deadline, "deadline")
        pointer, text = c_void_p(), text_buffer()
        code = lib.baton_sender_open(
            mgr._handle.get(), ctypes.byref(options), ctypes.byref(pointer), text, len(text)
        )
        check(code, f"sender of room {room}", text)
        super().__init__(mgr, room, pointer)

    def init(
        self,
        num_kv_indices: int,
        aux_index: int | None = None,
        first_token: int = 0,
        tokens: int = 0,
    ) -> None:
        """Says how many pages will be sent in all. Once, before the first send.

        ``first_token`` is the position of the first page's first token, ``tokens`` the exact
        number (0: whole pages), ``aux_index`` the aux slot to send with the last chunk.
        """
        slot, separate = self._aux(aux_index)
        options = _abi.SenderInitOptions(struct_size=ctypes.sizeof(_abi.SenderInitOptions))
        options.pages = uint32(num_kv_indices, "num_kv_indices")
        options.first_token = uint32(first_token, "first_token")
        options.tokens = uint32(tokens, "tokens")
        options.aux_slot = slot
        code = lib.baton_sender_init(self._handle.get(), ctypes.byref(options))
        check(code, f"init of the sender of room {self._room}")
        if separate is not None:
            self.state(self._manager._aux_region, [separate])

    def send(self, kv_indices: Pages, is_last: bool = False) -> None:
        """Sends the next pages of the sequence. The last chunk is the one that reaches
        ``num_kv_indices`` (or says ``is_last``). The pages must not change until Success, or
        until ``fenced``.
        """
        pages = indices(kv_indices, "kv_indices")
        code = lib.baton_sender_send(self._handle.get(), pages.address, pages.length, is_last)
        if code:
            self._refused(code, "send")

    def state(self, region: int | str, pages: Pages, first_token: int = 0) -> None:
        """Names the pages (or the slot) of a state region, before the last send."""
        number = self._manager.region_index(region)
        listed = indices(pages, "pages")
        code = lib.baton_sender_state(
            self._handle.get(),
            number,
            listed.address,
            listed.length,
            uint32(first_token, "first_token"),
        )
        if code:
            self._refused(code, f"state of region {region!r}")

    def layer_ready(self, layer: int) -> None:
        """Layer-wise senders: layers 0..``layer`` of the pages named so far are computed."""
        code = lib.baton_sender_layer_ready(self._handle.get(), uint32(layer, "layer"))
        if code:
            self._refused(code, f"layer_ready({layer})")

    def prefix_len(self) -> int:
        """Tokens that every receiver already has (known once WaitingForInput)."""
        return int(lib.baton_sender_prefix(self._handle.get()))

    def written(self) -> int:
        """Bytes written so far; 0 where the peer reads by itself (cma)."""
        return int(lib.baton_sender_written(self._handle.get()))

    def _refused(self, code: int, what: str) -> None:
        self.failure_exception()  # a room that failed meanwhile explains itself better
        check(code, f"{what} in room {self._room}")


class KVReceiver(_Room):
    """The decode side of one room. May be opened before the sender's rank has registered: it
    then asks again, quietly, until ``match_timeout_ms`` or the deadline ends it.
    """

    _kind = "receiver"
    _native_poll = lib.baton_receiver_poll

    def __init__(
        self,
        mgr: KVManager,
        bootstrap_addr: str | None,
        bootstrap_room: int,
        *,
        prefill_dp_rank: int = -1,
        queue_position: int = 0,
        deadline: float | None = None,
    ) -> None:
        room = room_number(bootstrap_room)
        options = _abi.ReceiverOptions(struct_size=ctypes.sizeof(_abi.ReceiverOptions), room=room)
        options.bootstrap = c_string(bootstrap_addr, "bootstrap_addr")
        options.prefill_dp_rank = prefill_dp_rank
        options.queue_position = uint32(queue_position, "queue_position")
        options.deadline_ms = milliseconds(deadline, "deadline")
        pointer, text = c_void_p(), text_buffer()
        code = lib.baton_receiver_open(
            mgr._handle.get(), ctypes.byref(options), ctypes.byref(pointer), text, len(text)
        )
        check(code, f"receiver of room {room}", text)
        super().__init__(mgr, room, pointer)

    def init(
        self,
        kv_indices: Pages,
        aux_index: int | None = None,
        prefix_len: int = 0,
        states: StatesOfRegions | None = None,
        deadline: float | None = None,
    ) -> None:
        """Grants the pages to fill: they belong to the room until Success, or until ``fenced``.

        ``prefix_len`` tokens before the first page are here already. ``states`` are the pages
        of state regions, ``{region: pages}`` or a list of ``(region, pages[, first_token])``.
        ``deadline`` is in seconds from now; None leaves what the constructor said.
        """
        pages = indices(kv_indices, "kv_indices")
        slot, separate = self._aux(aux_index)
        listed = self._states(states)
        if separate is not None:
            own = indices([separate], "aux_index")
            listed.append((self._manager._aux_region, own, 0))
        options = _abi.ReceiverInitOptions(struct_size=ctypes.sizeof(_abi.ReceiverInitOptions))
        options.pages = pages.address
        options.page_count = pages.length
        options.prefix = uint32(prefix_len, "prefix_len")
        options.aux_slot = slot
        options.states = (_abi.StatePages * len(listed))(
            *(_abi.StatePages(region, first, of.address, of.length) for region, of, first in listed)
        )
        options.state_count = len(listed)
        options.deadline_ms = milliseconds(deadline, "deadline")
        code = lib.baton_receiver_init(self._handle.get(), ctypes.byref(options))
        if code:
            self.failure_exception()  # a room that failed meanwhile explains itself better
            check(code, f"init of the receiver of room {self._room}{_INIT_HINTS.get(code, '')}")

    def _states(self, states: StatesOfRegions | None) -> list[tuple[int, Indices, int]]:
        if not states:
            return []
        rows: Iterable[tuple[Any, ...]] = states.items() if isinstance(states, Mapping) else states
        listed = []
        for region, pages, *first in rows:
            number = self._manager.region_index(region)
            token = uint32(first[0], "first_token") if first else 0
            listed.append((number, indices(pages, f"pages of region {region!r}"), token))
        return listed


_INIT_HINTS = {
    -1: " (is every page inside the region, and the aux slot inside its block?)",
    -4: " (a page belongs to another room that is live or in quarantine, or is named twice)",
}


class KVBootstrapServer(_Closing):
    """Where ranks find each other: a small HTTP server. ``port`` 0 takes any free one."""

    def __init__(self, port: int = 0, host: str | None = None) -> None:
        pointer, text = c_void_p(), text_buffer()
        name = c_string(host, "host")
        code = lib.baton_bootstrap_open(
            name, uint32(port, "port"), ctypes.byref(pointer), text, len(text)
        )
        check(code, f"bootstrap server on port {port}", text)
        self._own(Handle("bootstrap server", pointer, lib.baton_bootstrap_close))
        self.port: int = lib.baton_bootstrap_port(pointer)  #: the one that was taken

    def stop(self) -> None:
        """Stops serving. Links that exist go on without it."""
        self.close()

    def __repr__(self) -> str:
        state = "stopped" if self.closed else f"port {self.port}"
        return f"<baton.KVBootstrapServer {state}>"
