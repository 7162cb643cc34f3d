# SPDX-License-Identifier: Apache-2.0
"""Layouts said from Python: other orders and other tensor-parallel sizes on the two sides, held
against numpy's own idea of where each head of each token is.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import baton
from baton import KVArgs, KVManager, KVPoll, KVReceiver, KVSender, Layout, Order

PAGES, LAYERS, HEADS, TOKENS, DIM = 12, 3, 4, 4, 8
SOURCE, TARGET = [5, 2, 9, 10], [1, 11, 0, 7]

# Where each order puts (page, layer, k|v, head, token, dim): the axes of the memory, by name.
AXES = {
    Order.LAYER_MAJOR: "plkhtd",
    Order.HEAD_MAJOR: "phlktd",
    Order.PER_LAYER: "klphtd",  # all K bases, then all V bases
    Order.TOKEN_MAJOR: "klpthd",
}
SIZES = {"p": PAGES, "l": LAYERS, "k": 2, "h": HEADS, "t": TOKENS, "d": DIM}


class Rank:
    """One rank of a group: a pool in the given order, its manager, and the pool in plain order."""

    def __init__(self, order: Order, tp_size: int, rank: int, backends: str) -> None:
        heads = HEADS // tp_size
        sizes = {**SIZES, "h": heads}
        self.memory = np.zeros([sizes[axis] for axis in AXES[order]], np.float16)
        self.plain = np.einsum(f"{AXES[order]}->plkhtd", self.memory)  # a view
        self.heads = slice(rank * heads, (rank + 1) * heads)
        bases: list[Any] = [self.memory]
        if order in (Order.PER_LAYER, Order.TOKEN_MAJOR):
            bases = [layer for side in self.memory for layer in side]
        layout = Layout(
            bases,
            tokens_per_page=TOKENS,
            layers=LAYERS,
            heads=heads,
            head_bytes=DIM * 2,
            dtype=np.float16,
            order=order,
            first_head=rank * heads,
            total_heads=HEADS,
        )
        args = KVArgs(engine_rank=rank, tp_size=tp_size, kv_layout=layout, backends=backends)
        self.manager = KVManager(args)


@pytest.mark.parametrize("backends", ["loopback", "tcp"])
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 1), (2, 1), (1, 2), (4, 2)])
@pytest.mark.parametrize(
    ("prefill_order", "decode_order"),
    [
        (Order.LAYER_MAJOR, Order.LAYER_MAJOR),
        (Order.TOKEN_MAJOR, Order.HEAD_MAJOR),
        (Order.HEAD_MAJOR, Order.PER_LAYER),
    ],
)
def test_heads_arrive_in_their_place(
    address: str,
    prefill_order: Order,
    decode_order: Order,
    prefill_tp: int,
    decode_tp: int,
    backends: str,
) -> None:
    with ExitStack() as stack:
        prefill = [Rank(prefill_order, prefill_tp, rank, backends) for rank in range(prefill_tp)]
        decode = [Rank(decode_order, decode_tp, rank, backends) for rank in range(decode_tp)]
        for rank in prefill + decode:
            stack.callback(rank.manager.close)
        shape = [SIZES[axis] for axis in "plkhtd"]
        whole = np.random.default_rng(1).random(shape).astype(np.float16) + 1
        for rank in prefill:
            rank.plain[:] = whole[:, :, :, rank.heads]
        receivers = [KVReceiver(rank.manager, address, 77) for rank in decode]
        for receiver in receivers:
            receiver.init(TARGET)
        senders = [KVSender(rank.manager, address, 77) for rank in prefill]
        for sender in senders:
            sender.init(len(SOURCE))
            sender.send(SOURCE[:1])
            sender.send(SOURCE[1:])
        for end in (*senders, *receivers):
            state = end.wait(20)
            end.failure_exception()
            assert state == KVPoll.Success
        expected = np.zeros_like(whole)
        expected[TARGET] = whole[SOURCE]
        for rank in decode:
            assert (rank.plain == expected[:, :, :, rank.heads]).all()


def test_prefix_and_partial_page(address: str) -> None:
    """The receiver has the first page already, and the last page is half full."""
    with ExitStack() as stack:
        prefill, decode = (Rank(Order.LAYER_MAJOR, 1, 0, "tcp") for _ in range(2))
        stack.callback(prefill.manager.close)
        stack.callback(decode.manager.close)
        prefill.plain[:] = np.random.default_rng(2).random(prefill.plain.shape) + 1
        receiver = KVReceiver(decode.manager, address, 78)
        receiver.init(TARGET[1:], prefix_len=TOKENS)
        sender = KVSender(prefill.manager, address, 78)
        sender.init(len(SOURCE), tokens=3 * TOKENS + 2)
        assert sender.wait(20, until=KVPoll.WaitingForInput) == KVPoll.WaitingForInput
        assert sender.prefix_len() == TOKENS
        sender.send(SOURCE)
        assert sender.wait(20) == receiver.wait(20) == KVPoll.Success
        expected = np.zeros_like(prefill.plain)
        expected[TARGET[1:]] = prefill.plain[SOURCE[1:]]
        expected[TARGET[3], :, :, :, 2:] = decode.plain[TARGET[3], :, :, :, 2:]  # nobody's business
        assert (decode.plain == expected).all()


def test_layouts_that_do_not_fit_are_refused_with_a_reason(address: str) -> None:
    with ExitStack() as stack:
        prefill = Rank(Order.LAYER_MAJOR, 1, 0, "tcp")
        opaque = KVManager(KVArgs(kv_data_ptrs=[np.zeros((PAGES, 64), np.uint8)], backends="tcp"))
        stack.callback(prefill.manager.close)
        stack.callback(opaque.close)
        receiver = KVReceiver(opaque, address, 79)
        receiver.init([1])
        sender = KVSender(prefill.manager, address, 79)
        sender.init(1)
        assert receiver.wait(20) == KVPoll.Failed
        with pytest.raises(baton.TransferError) as failure:
            receiver.failure_exception()
        assert failure.value.reason
