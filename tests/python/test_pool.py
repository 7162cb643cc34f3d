# SPDX-License-Identifier: Apache-2.0
"""Pools: memory that a peer on this host maps, and arrays over it that keep it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import baton
from driver import Worker

SOURCE, TARGET = [9, 3, 4, 5, 30], [1, 0, 20, 22, 5]


@pytest.mark.parametrize("prefill_memory", ["numpy", "pool"])
def test_pool_of_the_receiver_is_written_through_shm(
    start: Callable[..., Worker], address: str, prefill_memory: str
) -> None:
    prefill, decode = (
        start("prefill", memory=prefill_memory),
        start("decode", memory="pool"),
    )
    prefill.fill(1)
    decode.receiver("r", address, 17)
    decode.init("r", TARGET)
    prefill.sender("s", address, 17, [])
    prefill.init("s", len(SOURCE))
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert prefill.timeline("s")["backend"] == "shm"
    assert prefill.written("s") == prefill.timeline("s")["bytes"]
    assert decode.timeline("r")["backend"] == "shm"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)
    assert decode.touched() == sorted(TARGET)


def test_array_covers_the_memory() -> None:
    with baton.Pool(4096) as pool:
        whole = pool.as_array()
        assert whole.shape == (4096,) and whole.dtype == np.uint8
        assert whole.ctypes.data == pool.address and not whole.any()
        part = pool.as_array(np.float32, (2, 8), offset=64)
        part[:] = 1.5
        assert whole[64:128].view(np.float32).tolist() == [1.5] * 16
        assert not whole[:64].any() and not whole[128:].any()
        pool.memoryview()[0] = 7
        assert whole[0] == 7
        with pytest.raises(ValueError, match="does not fit"):
            pool.as_array(np.float64, 513)
        with pytest.raises(ValueError, match="does not fit"):
            pool.as_array(np.uint8, 1, offset=4096)


def test_array_keeps_the_memory_after_close() -> None:
    pool = baton.Pool(1 << 20)
    array = pool.as_array(np.int64)
    handle = weakref.ref(pool._handle)
    pool.close()
    pool.close()
    with pytest.raises(baton.BatonError, match="pool is closed"):
        pool.as_array()
    array[:] = np.arange(array.size)
    assert int(array.sum()) == array.size * (array.size - 1) // 2
    del pool
    gc.collect()
    array[-1] = 5  # still mapped
    assert handle() is not None
    del array
    gc.collect()
    assert handle() is None  # freed with its last view


def test_manager_keeps_the_pool_even_by_raw_address() -> None:
    pool = baton.Pool(1 << 16)
    args = baton.KVArgs(kv_data_ptrs=[pool.address], kv_data_lens=[1 << 16], kv_item_lens=[4096])
    with baton.KVManager(args):
        pool.close()
        assert pool._handle._users == 1
    assert pool._handle._users == 0


def test_pool_without_size_is_refused() -> None:
    for size in (0, -1):
        with pytest.raises(ValueError, match="makes no sense"):
            baton.Pool(size)
