# SPDX-License-Identifier: Apache-2.0
"""Mooncake's Transfer Engine over TCP, host to host, on the pages of `baton bench transfer`.

The engine prints to standard output, so it is sent to standard error while it works: one JSON
object is all that this script may print.
"""

from __future__ import annotations

import os
from typing import Any

import peer_pages
from peer_pages import Failed, Work


def _engine(work: Work, pools: list[Any]) -> Any:
    os.dup2(2, 1)
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", work.transport, "") != 0:
        raise Failed("the engine did not start")
    for pool in pools:
        if engine.register_memory(pool.ctypes.data, pool.nbytes) != 0:
            raise Failed("memory could not be registered")
    return engine


def decode(work: Work, connection: Any) -> bool:
    pools = peer_pages.pools_empty(work)
    engine = _engine(work, pools)
    connection.send((engine.get_rpc_port(), [pool.ctypes.data for pool in pools]))
    connection.recv()
    return peer_pages.pools_right(work, pools)


def prefill(work: Work, connection: Any) -> list[float]:
    pools = peer_pages.pools_filled(work)
    engine = _engine(work, pools)
    port, bases = connection.recv()
    own = [pool.ctypes.data for pool in pools]
    source = peer_pages.addresses(own, peer_pages.order(work, 0), work.item_bytes)
    target = peer_pages.addresses(bases, peer_pages.order(work, 1), work.item_bytes)
    lengths = [work.item_bytes] * len(source)

    def once() -> None:
        code = engine.batch_transfer_sync_write(f"127.0.0.1:{port}", source, target, lengths)
        if code != 0:
            raise Failed(f"batch_transfer_sync_write returned {code}")

    seconds = peer_pages.measure(work, once)
    connection.send("check")
    return seconds


if __name__ == "__main__":
    peer_pages.run("mooncake", decode, prefill)
