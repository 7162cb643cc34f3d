# SPDX-License-Identifier: Apache-2.0
"""Torch tensors as pools, page lists and (by DLPack) plain memory, where torch is installed."""

from __future__ import annotations

import pytest

import baton
from baton import _buffer

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_tensor_is_memory() -> None:
    pool = torch.zeros((8, 4, 16), dtype=torch.bfloat16)
    found = _buffer.describe(pool, "pool")
    assert (found.address, found.nbytes, found.items) == (
        pool.data_ptr(),
        8 * 4 * 16 * 2,
        8,
    )
    with pytest.raises(ValueError, match="not contiguous"):
        _buffer.describe(pool.transpose(0, 1), "pool")
    assert baton.DType.of(pool.dtype) is baton.DType.BF16


def test_tensor_is_a_page_list() -> None:
    for kind in (torch.int32, torch.int64):
        assert list(_buffer.indices(torch.tensor([3, 1], dtype=kind), "pages").owner) == [3, 1]
    with pytest.raises(TypeError):
        _buffer.indices(torch.tensor([1.5]), "pages")


def test_pages_move_between_tensors(address: str) -> None:
    source, target = torch.rand((16, 256)), torch.zeros((16, 256))
    with (
        baton.KVManager(baton.KVArgs(kv_data_ptrs=[source])) as prefill,
        baton.KVManager(baton.KVArgs(kv_data_ptrs=[target])) as decode,
    ):
        receiver = baton.KVReceiver(decode, address, 1)
        receiver.init(torch.tensor([7, 2]))
        sender = baton.KVSender(prefill, address, 1)
        sender.init(2)
        sender.send(torch.tensor([1, 15], dtype=torch.int32))
        assert receiver.wait(20) == sender.wait(20) == baton.KVPoll.Success
    assert torch.equal(target[[7, 2]], source[[1, 15]])
