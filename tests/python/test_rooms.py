# SPDX-License-Identifier: Apache-2.0
"""Hand-overs between two worker processes: in either order, in chunks, with aux and state, and
the ways in which they fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import baton
from driver import RemoteError, Worker

Start = Callable[..., Worker]
SOURCE, TARGET = [9, 3, 4, 5, 30], [1, 0, 20, 22, 5]

EINVAL, EBUSY, EEXIST, EPEER, EABORTED = -1, -4, -5, -10, -14


def test_pages_land_where_they_were_granted_and_nowhere_else(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(1)
    decode.receiver("r", address, 17)
    decode.init("r", TARGET)
    prefill.sender("s", address, 17, [])
    prefill.init("s", len(SOURCE))
    prefill.send("s", SOURCE)
    assert prefill.wait("s") == decode.wait("r") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)
    assert decode.touched() == sorted(TARGET)
    assert prefill.failure("s") is None and decode.failure("r") is None
    assert prefill.timeline("s")["backend"] in (
        "cma",
        "tcp",
    )  # numpy's memory, not a pool's
    assert prefill.timeline("s")["bytes"] == len(SOURCE) * 4 * 4096
    assert decode.counters()["rooms_succeeded"] == 1


def test_receiver_comes_before_the_rank_and_waits_quietly(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(2)
    decode.receiver("r", address, 18)
    decode.init("r", TARGET)
    assert decode.wait("r", timeout=1.0) == "Bootstrapping"
    prefill.sender("s", address, 18, [0])
    prefill.init("s", len(SOURCE))
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)
    assert decode.stderr() == "" and prefill.stderr() == ""


def test_receiver_comes_before_the_bootstrap_server(start: Start) -> None:
    with baton.KVBootstrapServer(0, host="127.0.0.1") as early:
        port = early.port
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(3)
    decode.receiver("r", f"127.0.0.1:{port}", 19)
    decode.init("r", TARGET)
    assert decode.wait("r", timeout=0.5) == "Bootstrapping"
    with baton.KVBootstrapServer(port, host="127.0.0.1"):
        prefill.sender("s", f"127.0.0.1:{port}", 19, [])
        prefill.init("s", len(SOURCE))
        prefill.send("s", SOURCE)
        assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)


def test_sender_comes_first_and_sends_before_the_grant(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(4)
    prefill.sender("s", address, 20, [])
    prefill.init("s", len(SOURCE))
    prefill.send("s", SOURCE)
    assert prefill.wait("s", timeout=0.5) == "Bootstrapping"
    decode.receiver("r", address, 20)
    decode.init("r", TARGET)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)


def test_chunks_end_with_the_one_that_reaches_the_count(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(5)
    decode.receiver("r", address, 21)
    decode.init("r", TARGET)
    prefill.sender("s", address, 21, [])
    prefill.init("s", len(SOURCE))
    assert prefill.wait("s", until="WaitingForInput") == "WaitingForInput"
    prefill.send("s", SOURCE[:2])
    prefill.send("s", SOURCE[2:3])
    assert prefill.wait("s", timeout=0.3) == "Transferring"
    assert decode.poll("r") in ("WaitingForInput", "Transferring")
    prefill.send("s", SOURCE[3:])
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)
    with pytest.raises(RemoteError) as refused:
        prefill.send("s", [1])
    assert refused.value.kind == "BatonError"


def test_layerwise_sender_releases_layers(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(6)
    decode.receiver("r", address, 22)
    decode.init("r", TARGET)
    prefill.sender("s", address, 22, [], layerwise=True)
    prefill.init("s", len(SOURCE))
    prefill.send("s", SOURCE)
    prefill.layer_ready("s", 1)
    assert decode.wait("r", timeout=0.5) != "Success"
    prefill.layer_ready("s", 3)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.digests(TARGET) == prefill.digests(SOURCE)


def test_largest_room_and_room_zero(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(7)
    for room, target in ((2**63 - 1, [4]), (0, [6])):
        decode.receiver("r", address, room)
        decode.init("r", target)
        prefill.sender("s", address, room, [])
        prefill.init("s", 1)
        prefill.send("s", [2])
        assert decode.wait("r") == prefill.wait("s") == "Success"
        assert decode.digests(target) == prefill.digests([2])
        decode.close("r")
        prefill.close("s")
    for room in (2**63, -1):
        with pytest.raises(RemoteError, match="not between 0 and"):
            prefill.sender("bad", address, room, [])
        with pytest.raises(RemoteError, match="not between 0 and"):
            decode.receiver("bad", address, room)


def test_room_that_is_open_is_refused(start: Start, address: str) -> None:
    prefill = start("prefill")
    prefill.sender("s", address, 23, [])
    with pytest.raises(RemoteError) as refused:
        prefill.sender("again", address, 23, [])
    assert refused.value.code == EEXIST
    assert "23" in refused.value.reason


def test_aux_block_arrives_by_field(start: Start, address: str) -> None:
    prefill, decode = start("prefill", aux="block"), start("decode", aux="block")
    prefill.fill(8)
    prefill.set_aux(3, 1234, 77, [-0.5, -1.25, -2.0, -4.0])
    decode.receiver("r", address, 24)
    decode.init("r", TARGET, 5)
    prefill.sender("s", address, 24, [])
    prefill.init("s", len(SOURCE), 3)
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.get_aux(5) == [1234, 77, [-0.5, -1.25, -2.0, -4.0]]
    assert decode.get_aux(4) == [0, 0, [0.0] * 4]
    assert decode.digests(TARGET) == prefill.digests(SOURCE)


def test_separate_aux_buffers_arrive(start: Start, address: str) -> None:
    prefill, decode = start("prefill", aux="separate"), start("decode", aux="separate")
    prefill.fill(9)
    prefill.set_separate_aux(2, 4321, -3.5)
    decode.receiver("r", address, 25)
    decode.init("r", TARGET, 6)
    prefill.sender("s", address, 25, [])
    prefill.init("s", len(SOURCE), 2)
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.get_separate_aux(6) == [[4321] * 16, [-3.5] * 4]
    assert decode.get_separate_aux(2) == [[0] * 16, [0.0] * 4]


def test_state_slot_goes_with_the_pages(start: Start, address: str) -> None:
    prefill, decode = start("prefill", slots=4), start("decode", slots=4)
    prefill.fill(10)
    prefill.set_state(1, 99)
    decode.receiver("r", address, 26)
    decode.init("r", TARGET, states={"mamba": [3]})
    prefill.sender("s", address, 26, [])
    prefill.init("s", len(SOURCE))
    prefill.name_state("s", "mamba", [1])
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.get_states() == [[0], [0], [0], [99]]
    with pytest.raises(RemoteError, match="no region 'window'; there are kv, mamba"):
        prefill.name_state("s", "window", [1])


def test_full_hit_carries_only_aux(start: Start, address: str) -> None:
    prefill, decode = start("prefill", aux="block"), start("decode", aux="block")
    prefill.fill(11)
    prefill.set_aux(0, 7, 5, [0.0] * 4)
    decode.receiver("r", address, 27)
    decode.init("r", [], 1, prefix_len=len(SOURCE))  # opaque pages count as one token each
    prefill.sender("s", address, 27, [])
    prefill.init("s", len(SOURCE), 0)
    prefill.send("s", SOURCE)
    assert decode.wait("r") == prefill.wait("s") == "Success"
    assert decode.get_aux(1)[0] == 7
    assert decode.touched() == []


def test_abort_of_the_sender_reaches_the_receiver(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    decode.receiver("r", address, 28)
    decode.init("r", TARGET)
    prefill.sender("s", address, 28, [])
    prefill.init("s", len(SOURCE))
    assert prefill.wait("s", until="WaitingForInput") == "WaitingForInput"
    assert prefill.abort("s", "the prompt was too long for this worker")
    assert decode.wait("r") == prefill.wait("s") == "Failed"
    for failure in (decode.failure("r"), prefill.failure("s")):
        assert failure["code"] == EABORTED
        assert "the prompt was too long for this worker" in failure["reason"]
        assert failure["text"].startswith("room 28: ")
    assert decode.wait_fenced("r")
    decode.close("r")
    decode.receiver("next", address, 29)
    decode.init("next", TARGET)  # the pages are ours again


def test_abort_of_the_receiver_reaches_the_sender(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    decode.receiver("r", address, 30)
    decode.init("r", TARGET)
    prefill.sender("s", address, 30, [])
    prefill.init("s", len(SOURCE))
    assert prefill.wait("s", until="WaitingForInput") == "WaitingForInput"
    with pytest.raises(RemoteError, match="the room has not ended yet"):
        decode.timeline("r")
    assert decode.abort("r", "the client went away")
    assert prefill.wait("s") == decode.wait("r") == "Failed"
    assert not decode.abort("r", "too late") and not prefill.abort("s", "too late")
    assert "the client went away" in prefill.failure("s")["reason"]
    assert decode.wait_fenced("r") and prefill.wait_fenced("s")
    prefill.send("s", SOURCE)  # the engine did not know yet: no harm
    assert prefill.poll("s") == "Failed" and decode.touched() == []


def test_pages_of_a_live_room_are_not_granted_twice(start: Start, address: str) -> None:
    decode = start("decode")
    decode.receiver("a", address, 31)
    decode.init("a", TARGET)
    decode.receiver("b", address, 32)
    with pytest.raises(RemoteError) as refused:
        decode.init("b", TARGET[:1])
    assert refused.value.code == EBUSY
    assert "belongs to another room" in refused.value.reason


def test_pages_outside_the_region_are_refused(start: Start, address: str) -> None:
    decode = start("decode", pages=8)
    for room, page in ((33, 8), (34, -1)):
        decode.receiver(f"r{room}", address, room)
        with pytest.raises(RemoteError) as refused:
            decode.init(f"r{room}", [0, page])
        assert refused.value.code == EINVAL
        assert "inside the region" in refused.value.reason


def test_killed_sender_fails_the_receiver_with_a_reason(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    decode.receiver("r", address, 35)
    decode.init("r", TARGET)
    prefill.sender("s", address, 35, [])
    prefill.init("s", len(SOURCE))
    assert prefill.wait("s", until="WaitingForInput") == "WaitingForInput"
    prefill.send("s", SOURCE[:1])
    began = time.monotonic()
    prefill.kill()
    assert decode.wait("r") == "Failed"
    assert time.monotonic() - began < 10
    failure = decode.failure("r")
    assert failure["code"] == EPEER and failure["reason"]
    assert decode.wait_fenced("r")


def test_killed_receiver_fails_the_sender_and_a_new_one_works(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    prefill.fill(12)
    decode.receiver("r", address, 36)
    decode.init("r", TARGET)
    prefill.sender("s", address, 36, [])
    prefill.init("s", len(SOURCE))
    assert prefill.wait("s", until="WaitingForInput") == "WaitingForInput"
    decode.kill()
    assert prefill.wait("s") == "Failed"
    failure = prefill.failure("s")
    assert failure["code"] == EPEER and failure["reason"]
    reborn = start("decode-again")
    reborn.receiver("r", address, 37)
    reborn.init("r", TARGET)
    prefill.sender("s2", address, 37, [])
    prefill.init("s2", len(SOURCE))
    prefill.send("s2", SOURCE)
    assert reborn.wait("r") == prefill.wait("s2") == "Success"
    assert reborn.digests(TARGET) == prefill.digests(SOURCE)


def test_room_that_only_one_side_knows_ends(start: Start, address: str) -> None:
    prefill = start("prefill", match_timeout_ms=500)
    prefill.sender("s", address, 38, [])
    prefill.init("s", 1)
    assert prefill.wait("s") == "Failed"
    assert prefill.failure("s")["reason"]


def test_deadline_of_the_receiver_ends_the_room(start: Start, address: str) -> None:
    prefill, decode = start("prefill"), start("decode")
    decode.receiver("r", address, 39)
    decode.init("r", TARGET, deadline=1.0)
    prefill.sender("s", address, 39, [])
    prefill.init("s", len(SOURCE))
    assert decode.wait("r") == "Failed"
    assert decode.failure("r")["code"] == -9
    assert prefill.wait("s") == "Failed"


def test_fake_host_answers_without_a_peer(start: Start) -> None:
    decode = start("decode")
    decode.receiver("r", "2.2.2.2:8998", 40)
    decode.init("r", TARGET)
    assert decode.wait("r") == "Success"
    assert decode.timeline("r")["backend"] == "fake"


def test_other_model_is_refused_with_both_fingerprints(start: Start, address: str) -> None:
    prefill, decode = (
        start("prefill", fingerprint="aaa"),
        start("decode", fingerprint="bbb"),
    )
    decode.receiver("r", address, 41)
    decode.init("r", TARGET)
    prefill.sender("s", address, 41, [])
    prefill.init("s", len(SOURCE))
    assert decode.wait("r") == "Failed"
    reason = decode.failure("r")["reason"]
    assert "aaa" in reason and "bbb" in reason


def test_many_rooms_by_poll_set(start: Start, address: str) -> None:
    prefill, decode = (
        start("prefill", pages=256, item=512),
        start("decode", pages=256, item=512),
    )
    prefill.fill(13)
    names = [f"{room}" for room in range(100, 228)]
    for index, name in enumerate(names):
        decode.receiver(name, address, int(name))
        decode.init(name, [2 * index, 2 * index + 1])
        prefill.sender(name, address, int(name), [])
        prefill.init(name, 2)
        prefill.send(name, [255 - 2 * index, 254 - 2 * index])
    assert decode.wait_all(names) == prefill.wait_all(names) == ["Success"] * len(names)
    assert decode.digests(list(range(256))) == prefill.digests(list(range(255, -1, -1)))
