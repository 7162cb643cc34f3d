# SPDX-License-Identifier: Apache-2.0
"""Memory that a prefill process on the same host can write into directly (the shm backend)."""

from __future__ import annotations

import ctypes
import math
import weakref
from ctypes import c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._handle import Handle
from ._library import lib
from .errors import check, text_buffer

if TYPE_CHECKING:
    import numpy.typing as npt

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    """``nbytes`` of zeroed, page-aligned, populated memory.

    A pool can be given wherever a pointer is. Its memory goes back to the system when ``close()``
    was called (or the pool was collected) *and* no array over it and no manager that registered
    it is left, so neither can be pulled away from under the other.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ValueError(f"nbytes: a pool of {nbytes} bytes makes no sense")
        pointer, text = c_void_p(), text_buffer()
        code = lib.baton_pool_alloc(nbytes, ctypes.byref(pointer), text, len(text))
        check(code, f"a pool of {nbytes} bytes", text)
        self._handle = Handle("pool", pointer, lib.baton_pool_free)
        self._finalizer = weakref.finalize(self, self._handle.close)
        self.nbytes = nbytes
        self.address: int = lib.baton_pool_address(pointer)
        _pools.add(self)

    def _array(self) -> ctypes.Array[ctypes.c_uint8]:
        """The memory as an object that keeps it: every view hangs on one of these."""
        self._handle.get()
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        self._handle.acquire()
        # Not at exit: whoever still has a view then may still use it; the system frees it anyway.
        weakref.finalize(memory, self._handle.release).atexit = False
        return memory

    def memoryview(self) -> memoryview:
        """All of it as writable bytes."""
        return memoryview(self._array()).cast("B")

    def as_array(
        self,
        dtype: npt.DTypeLike = "uint8",
        shape: int | tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> npt.NDArray[Any]:
        """A numpy array over the memory, from ``offset`` on; without ``shape`` over all of it."""
        import numpy

        kind = numpy.dtype(dtype)
        room = self.nbytes - offset
        extents = (room // kind.itemsize,) if shape is None else shape
        if isinstance(extents, int):
            extents = (extents,)
        count = math.prod(extents)
        if offset < 0 or count * kind.itemsize > room:
            raise ValueError(
                f"shape: {extents} of {kind} at {offset} does not fit in {self.nbytes} bytes"
            )
        flat = numpy.frombuffer(self.memoryview(), dtype=kind, count=count, offset=offset)
        return flat.reshape(extents)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self._handle.get()
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def close(self) -> None:
        """Gives the memory back, once nothing uses it any more."""
        self._finalizer()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle.closed else f"at {self.address:#x}"
        return f"<baton.Pool {self.nbytes} bytes {state}>"


def pool_at(address: int) -> Handle | None:
    """The handle of the pool that ``address`` lies in: raw pointers keep their pool too."""
    for pool in list(_pools):
        if pool.address <= address < pool.address + pool.nbytes and not pool._handle.closed:
            return pool._handle
    return None
