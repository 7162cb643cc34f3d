# SPDX-License-Identifier: Apache-2.0
"""Poll sets: groups, reuse of the array, waiting, and members that are closed under way."""

from __future__ import annotations

import gc
import selectors
import time
from collections.abc import Iterator

import numpy as np
import pytest

import baton
from baton import KVPoll
from driver import wait_for

FAKE = "2.2.2.2:8998"


@pytest.fixture
def manager() -> Iterator[baton.KVManager]:
    with baton.KVManager(baton.KVArgs(kv_data_ptrs=[np.zeros((64, 256), np.uint8)])) as opened:
        yield opened


def finished(manager: baton.KVManager, room: int, page: int) -> baton.KVReceiver:
    receiver = baton.KVReceiver(manager, FAKE, room)
    receiver.init([page])
    assert receiver.wait(20) == KVPoll.Success
    return receiver


def test_empty_groups_are_success_and_the_array_is_reused() -> None:
    with baton.PollSet(5) as pollset:
        states = pollset.poll()
        assert states.tolist() == [4] * 5 and states.dtype == np.uint8
        assert pollset.poll() is states and pollset.wait(0) is states


def test_group_has_the_smallest_state_of_its_members(
    manager: baton.KVManager, address: str
) -> None:
    done, waiting = finished(manager, 1, 0), baton.KVSender(manager, address, 2)
    aborted = baton.KVSender(manager, address, 3)
    assert aborted.abort("enough") and aborted.wait(20) == KVPoll.Failed
    with baton.PollSet(4) as pollset:
        pollset.add(0, done)
        pollset.add(1, waiting)
        pollset.add(1, done)
        pollset.add(2, aborted)
        pollset.add(2, done)
        assert pollset.poll().tolist() == [4, 1, 0, 4]
        assert len(pollset) == 5
        pollset.clear(2)
        assert pollset.poll().tolist() == [4, 1, 4, 4]
        pollset.poll()
        assert pollset.changed == 0
        waiting.abort("enough")
        deadline = time.monotonic() + 10
        while pollset.wait(1.0)[1] and time.monotonic() < deadline:
            pass
        assert pollset.poll().tolist() == [4, 0, 4, 4]


def test_wait_returns_at_its_bound_and_at_a_change(manager: baton.KVManager, address: str) -> None:
    with baton.PollSet(1) as pollset, baton.KVSender(manager, address, 4) as sender:
        pollset.add(0, sender)
        pollset.poll()
        began = time.monotonic()
        assert pollset.wait(0.3).tolist() == [1] and pollset.changed == 0
        assert 0.25 < time.monotonic() - began < 5
        sender.abort("now")
        assert pollset.wait(10).tolist() == [0] and pollset.changed == 1


def test_closing_a_member_takes_it_out(manager: baton.KVManager, address: str) -> None:
    one, two = baton.KVSender(manager, address, 5), baton.KVSender(manager, address, 6)
    with baton.PollSet(2) as pollset:
        pollset.add(0, one)
        pollset.add(0, two)
        pollset.add(1, one)
        one.close()
        assert len(pollset) == 1
        assert pollset.poll().tolist() == [1, 4]
        two.close()
        assert pollset.poll().tolist() == [4, 4]


def test_set_keeps_its_members_and_a_closed_set_says_so(
    manager: baton.KVManager, address: str
) -> None:
    pollset = baton.PollSet(1)
    pollset.add(0, baton.KVSender(manager, address, 7))
    gc.collect()
    assert pollset.poll().tolist() == [1]
    pollset.close()
    for call in (pollset.poll, lambda: pollset.wait(0), lambda: pollset.clear(0)):
        with pytest.raises(baton.BatonError, match="poll set is closed"):
            call()
    gc.collect()  # and lets them go
    wait_for(lambda: manager.counters()["rooms_open"] == 0)


def test_bad_groups_and_members_are_refused(manager: baton.KVManager, address: str) -> None:
    with baton.PollSet(2) as pollset, baton.KVSender(manager, address, 8) as sender:
        for group in (2, -1):
            with pytest.raises(ValueError, match="not one of the 2"):
                pollset.add(group, sender)
        pollset.add(1, sender)
        with pytest.raises(ValueError, match="already"):
            pollset.add(1, sender)
        closed = baton.KVSender(manager, address, 9)
        closed.close()
        with pytest.raises(baton.BatonError, match="is closed"):
            pollset.add(0, closed)
    with pytest.raises(ValueError, match="make no sense"):
        baton.PollSet(0)


def test_eventfd_wakes_a_selector(manager: baton.KVManager) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(manager, selectors.EVENT_READ)
        manager.clear_event()
        assert selector.select(0.1) == []
        finished(manager, 10, 1)
        assert selector.select(10), "no event for a room that ended"
        manager.clear_event()
        manager.clear_event()  # nothing to clear: does not block

        def quiet() -> bool:  # the room's fence may come as an event of its own
            if not selector.select(0.1):
                return True
            manager.clear_event()
            return False

        wait_for(quiet)
