# SPDX-License-Identifier: Apache-2.0
"""``python -m baton``: which library was loaded, what it can do here, and what a poll costs."""

from __future__ import annotations

import time

from . import KVArgs, KVManager, KVSender, PollSet, Pool, backends, library_path, version

ROOMS = 256
ROUNDS = 2000


def cheapest_us(call: object, rounds: int = ROUNDS) -> tuple[float, float]:
    """(smallest, median) microseconds of one call."""
    assert callable(call)
    times = []
    for _ in range(rounds):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    times.sort()
    return times[0] / 1000, times[len(times) // 2] / 1000


def main() -> None:
    print(f"libbaton {version()} from {library_path()}")
    for backend in backends():
        state = "yes" if backend.available else f"no: {backend.why}"
        print(f"  {backend.name:<9} {backend.about} ({state})")
    pool = Pool(4096)
    args = KVArgs(kv_data_ptrs=[pool], kv_data_lens=[4096], kv_item_lens=[64])
    with KVManager(args) as manager, PollSet(ROOMS) as pollset:
        # Nobody answers at this address; the rooms stay in Bootstrapping while we measure.
        senders = [KVSender(manager, "127.0.0.1:9", room + 1) for room in range(ROOMS)]
        for group, sender in enumerate(senders):
            pollset.add(group, sender)
        for name, call in (
            (f"poll of {ROOMS} rooms", pollset.poll),
            ("poll of 1", senders[0].poll),
        ):
            least, median = cheapest_us(call)
            print(f"  {name}: {median:.2f} us median, {least:.2f} us at best")


main()
