# SPDX-License-Identifier: Apache-2.0
"""Prefill or decode with the published interface and nothing else. Run by test_seed.py."""

import sys
import time

import numpy as np

from baton import KVArgs, KVManager, KVPoll, KVReceiver, KVSender

LAYERS, PAGES, PAGE_BYTES = 4, 64, 6144
ROOM = 123456789


def pools_of(seed: int | None) -> list[np.ndarray]:
    if seed is None:
        return [np.zeros((PAGES, PAGE_BYTES), np.uint8) for _ in range(LAYERS)]
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (PAGES, PAGE_BYTES), np.uint8) for _ in range(LAYERS)]


def manager_of(pools: list[np.ndarray]) -> KVManager:
    args = KVArgs()
    args.engine_rank = 0
    args.num_receivers = 1
    args.kv_data_ptrs = [pool.ctypes.data for pool in pools]
    args.kv_data_lens = [pool.nbytes for pool in pools]
    args.kv_item_lens = [PAGE_BYTES] * LAYERS
    args.ib_device = ""
    args.max_inflight = 16
    args.max_sge = 4
    args.verbose = False
    return KVManager(args)


def run_until_done(room: KVSender | KVReceiver) -> None:
    end = time.monotonic() + 30
    while room.poll() not in (KVPoll.Success, KVPoll.Failed) and time.monotonic() < end:
        time.sleep(0.0005)
    room.failure_exception()


def prefill(address: str) -> KVPoll:
    pools = pools_of(7)  # raw pointers keep nothing alive, this does
    sender = KVSender(manager_of(pools), address, ROOM, [0])
    sender.init(5)
    sender.send(np.array([9, 3], np.int32))
    sender.send(np.array([40, 41, 63], np.int32))  # reaches 5: the last chunk
    run_until_done(sender)
    return sender.poll()


def decode(address: str) -> KVPoll:
    pools = pools_of(None)
    receiver = KVReceiver(manager_of(pools), address, ROOM)
    receiver.init(np.array([1, 0, 20, 22, 5], np.int32), None)
    run_until_done(receiver)
    for mine, theirs in zip(pools, pools_of(7)):
        assert (mine[[1, 0, 20, 22, 5]] == theirs[[9, 3, 40, 41, 63]]).all()
        assert not np.delete(mine, [1, 0, 20, 22, 5], axis=0).any()
    return receiver.poll()


role, port = sys.argv[1:]
state = {"prefill": prefill, "decode": decode}[role](f"127.0.0.1:{port}")
print(role, state.name)
