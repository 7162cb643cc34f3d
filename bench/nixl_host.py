# SPDX-License-Identifier: Apache-2.0
"""NIXL over UCX, host memory to host memory, on the pages of `baton bench transfer`.

--transport is UCX_TLS: "tcp", or "posix,cma,tcp" for the fastest that UCX has on one host.
Measured is what an engine pays for each request: making the transfer from prepared descriptors,
posting it and seeing it complete. Building the descriptor lists is left out, in NIXL's favour.
"""

from __future__ import annotations

import os
from typing import Any

import peer_pages
from peer_pages import Failed, Work


def _agent(name: str, work: Work, pools: list[Any]) -> Any:
    os.environ["UCX_TLS"] = work.transport
    os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    regions = [(pool.ctypes.data, pool.nbytes, 0, "") for pool in pools]
    agent.register_memory(agent.get_reg_descs(regions, "DRAM"))
    return agent


def _descriptors(agent: Any, work: Work, bases: list[int], pages: list[int]) -> Any:
    places = peer_pages.addresses(bases, pages, work.item_bytes)
    return agent.get_xfer_descs([(place, work.item_bytes, 0) for place in places], "DRAM")


def decode(work: Work, connection: Any) -> bool:
    pools = peer_pages.pools_empty(work)
    agent = _agent("decode", work, pools)
    connection.send((agent.get_agent_metadata(), [pool.ctypes.data for pool in pools]))
    connection.recv()
    return peer_pages.pools_right(work, pools)


def prefill(work: Work, connection: Any) -> list[float]:
    pools = peer_pages.pools_filled(work)
    agent = _agent("prefill", work, pools)
    metadata, bases = connection.recv()
    peer = agent.add_remote_agent(metadata)
    own = [pool.ctypes.data for pool in pools]
    local = _descriptors(agent, work, own, peer_pages.order(work, 0))
    remote = _descriptors(agent, work, bases, peer_pages.order(work, 1))

    def once() -> None:
        handle = agent.initialize_xfer("WRITE", local, remote, peer, b"landed")
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        if state != "DONE":
            raise Failed(f"the transfer ended as {state}")

    seconds = peer_pages.measure(work, once)
    connection.send("check")
    return seconds


if __name__ == "__main__":
    peer_pages.run("nixl", decode, prefill)
