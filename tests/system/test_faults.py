# SPDX-License-Identifier: Apache-2.0
"""What happens when a part of a fleet dies, stops, leaves or lies. After each of it: who is left
serves, every request has ended with the right tokens or a reason, and all pages are back. The bounds are
for what hangs; how long things take is printed (pytest -s)."""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import socket
import time

import pytest

from conftest import at_length
from fleet import Leg, greedy, new_room, outcome, prompt_of
from worker import wait_until

LONG = greedy(500, 4)  # seconds of prefill
SHORT = greedy(40, 4)
STRICT = ("--no-fallback",)
DELAY = "faulty:tcp:delay_us=400000"  # half a second for each batch of pages


@pytest.fixture(scope="module")
def right(worker):
    """What one worker says: right(body)."""
    known = {}

    def ask(body):
        key = repr(body)
        if key not in known:
            reply = worker.post("/generate", body)
            assert reply.status == 200, reply.body
            known[key] = outcome(reply)
        return known[key]

    return ask


def error_of(reply, status=None):
    """The reason of a reply that is an error; it must be one."""
    assert not isinstance(reply, Exception), repr(reply)
    assert reply.status >= 400, reply.body
    assert status is None or reply.status == status, (reply.status, reply.body)
    return reply.error()["message"]


def is_right(reply, expected):
    assert not isinstance(reply, Exception), repr(reply)
    assert reply.status == 200, reply.body
    assert outcome(reply) == expected


def metric_is(worker, name, least=1):
    wait_until(lambda: worker.metric(name) >= least, what=name)


def told(name, since, leg):
    print(f"\n    {name}: {1000 * (leg.ended - since):.0f} ms", end="")


def serves(pair, right, body=SHORT):
    """A new request takes the whole way and all pages come back."""
    before = pair.decode.metric("baton:handovers_total")
    assert pair.ask("/generate", **body) == right(body)
    assert pair.decode.metric("baton:handovers_total") == before + 1
    pair.wait_clean()


# ---- prefill dies --------------------------------------------------------------------------------

def test_prefill_is_not_there(fleet, right):
    pair = fleet()
    pair.kill(pair.prefill)
    began = time.monotonic()
    leg = Leg(pair.decode, "/generate", {**SHORT, **pair.bootstrap()})
    is_right(leg.wait(), right(SHORT))
    told("computed at decode", began, leg)
    assert pair.decode.metric("baton:recomputed_total") == 1
    pair.wait_clean()
    pair.start_prefill()
    serves(pair, right)
    assert pair.decode.metric("baton:recomputed_total") == 1


@at_length
@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_prefill_dies_while_it_computes(fleet, right, backend):
    pair = fleet("--transfer-backend", backend, decode=STRICT)
    _, decode = pair.legs(LONG)
    metric_is(pair.decode, "sglang:num_decode_transfer_queue_reqs")
    killed = pair.kill(pair.prefill)
    reason = error_of(decode.wait())
    told("error at decode", killed, decode)
    assert "hand-over" in reason
    pair.wait_clean()
    pair.start_prefill()
    serves(pair, right)


@pytest.mark.parametrize("backend", ["shm", pytest.param("tcp", marks=at_length)])
def test_prefill_dies_while_it_sends(fleet, right, backend):
    """It kills itself after so many bytes, in its third chunk or at its end; decode computes what is missing:
    all but the chunks that landed, or everything if it was not soon told that nobody writes any more."""
    pair = fleet(prefill=("--transfer-backend", f"faulty:{backend}:die_after=4000000",
                          "--chunked-prefill-size", "64"))
    body = greedy(200, 4)
    _, decode = pair.legs(body)
    pair.prefill.wait()
    is_right(decode.wait(), right(body))
    assert pair.decode.metric("baton:recomputed_total") == 1
    assert pair.decode.metric("baton:kept_tokens_total") in (0, 64, 128, 192)
    pair.wait_clean()
    pair.prefill_options = pair.prefill_options[:-4]
    pair.start_prefill()
    serves(pair, right)


def test_prefill_dies_after_its_last_chunk(fleet, right):
    pair = fleet(prefill=("--transfer-backend", DELAY), decode=("--transfer-backend", "tcp"))
    _, decode = pair.legs(SHORT)
    metric_is(pair.prefill, "sglang:num_prefill_inflight_queue_reqs")
    killed = pair.kill(pair.prefill)
    is_right(decode.wait(), right(SHORT))
    told("computed at decode", killed, decode)
    pair.wait_clean()
    pair.start_prefill()
    serves(pair, right)


# ---- decode dies ---------------------------------------------------------------------------------

def test_decode_is_not_there(fleet, right):
    """Whoever sent the request sees that and leaves the other leg, which holds nothing then."""
    pair = fleet()
    pair.kill(pair.decode)
    leg = Leg(pair.prefill, "/generate", {**SHORT, **pair.bootstrap()})
    metric_is(pair.prefill, "baton:handovers_total")
    leg.leave()
    pair.wait_clean()
    pair.start_decode()
    serves(pair, right)


def decode_dies(pair, right, prefill):
    killed = pair.kill(pair.decode)
    reason = error_of(prefill.wait())
    told("error at prefill", killed, prefill)
    assert "hand-over" in reason
    pair.wait_clean()
    pair.start_decode()
    serves(pair, right)


@at_length
def test_decode_dies_while_prefill_computes(fleet, right):
    pair = fleet()
    prefill, _ = pair.legs(LONG)
    metric_is(pair.decode, "sglang:num_decode_transfer_queue_reqs")
    decode_dies(pair, right, prefill)


def test_decode_dies_while_prefill_is_in_a_long_step(fleet, right):
    """The step is seconds long, and is not waited for."""
    pair = fleet(prefill=("--chunked-prefill-size", "4096"))
    prefill, _ = pair.legs(greedy(1200, 4))
    metric_is(pair.decode, "sglang:num_decode_transfer_queue_reqs")
    decode_dies(pair, right, prefill)


@at_length
def test_one_of_two_in_a_long_step_is_gone(fleet, right):
    """If they are in one step, and it is not nearly over, it is computed again without the one that left;
    the other one's layers were on their way already."""
    pair = fleet(prefill=("--chunked-prefill-size", "4096"))
    serves(pair, right)
    _, first = pair.legs(greedy(600, 2, seed=3))
    bodies = [greedy(1500, 4, seed=seed) for seed in (1, 2)]
    gone, stays = (pair.legs(body) for body in bodies)
    assert first.wait().status == 200
    time.sleep(0.2)  # both are being computed, as a rule in one step
    gone[1].leave()
    error_of(gone[0].wait())
    is_right(stays[1].wait(60), right(bodies[1]))
    assert stays[0].wait().status == 200, stays[0].reply.body
    pair.wait_clean()
    serves(pair, right)


@pytest.mark.parametrize("backend", [pytest.param("shm", marks=at_length), "tcp"])
def test_decode_dies_while_pages_are_sent(fleet, right, backend):
    delay = DELAY.replace("tcp", backend)
    pair = fleet(prefill=("--transfer-backend", delay), decode=("--transfer-backend", backend))
    prefill, _ = pair.legs(SHORT)
    metric_is(pair.prefill, "sglang:num_prefill_inflight_queue_reqs")
    decode_dies(pair, right, prefill)


@at_length
def test_decode_dies_while_it_generates(fleet, right):
    """The prefill leg has its answer already; nothing is left there."""
    pair = fleet()
    prefill, decode = pair.legs(greedy(40, 400))
    assert prefill.wait().status == 200
    metric_is(pair.decode, "sglang:num_running_reqs")
    pair.kill(pair.decode)
    assert isinstance(decode.wait(), Exception)
    pair.wait_clean()
    pair.start_decode()
    serves(pair, right)


# ---- one of them is about to go -----------------------------------------------------------------

@pytest.mark.parametrize("goes", ["prefill", "decode"])
def test_worker_is_shutting_down(fleet, right, goes):
    """It refuses, and says so in the room: the other leg does not wait for it."""
    pair = fleet(prefill=("--chunked-prefill-size", "64"), decode=STRICT)
    last = pair.legs(greedy(300, 40))
    going = getattr(pair, goes)
    metric_is(going, "baton:handovers_total")
    going.signal()
    wait_until(lambda: going.get("/health").status == 503, what="refusals")
    legs = dict(zip(("prefill", "decode"), pair.legs(SHORT)))
    began = time.monotonic()
    assert "shutting down" in error_of(legs.pop(goes).wait(), 503)
    for leg in legs.values():
        assert "shutting down" in error_of(leg.wait())
        told(f"told by {goes}", began, leg)
    for leg in last:  # what it had begun it finishes
        assert leg.wait().status == 200
    assert going.wait() == 0
    pair.start_prefill() if goes == "prefill" else pair.start_decode()
    serves(pair, right)


# ---- one of them is silent -----------------------------------------------------------------------

@at_length
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL], ids=["continues", "dies"])
def test_prefill_stops_while_it_sends(fleet, right, end):
    """It may write into decode's memory when it goes on (shm): the pages stay out of use until then,
    and the prompt is computed in others."""
    pair = fleet(prefill=("--transfer-backend", "faulty:shm:stop_after=200000",
                          "--chunked-prefill-size", "64"))
    body = greedy(200, 4)
    began = time.monotonic()
    prefill, decode = pair.legs(body)
    is_right(decode.wait(60), right(body))
    told("computed at decode", began, decode)
    held = pair.decode.metrics()
    assert held["baton:limbo_rooms"] == 1
    assert held['baton:pages{state="quarantined"}'] >= 200 // 16
    # Without the hand-over, decode serves on, and the pages stay where they are: for half a minute.
    other = greedy(30, 4)
    while time.monotonic() < began + 30:
        is_right(pair.decode.post("/generate", other), right(other))
        now = pair.decode.metrics()
        assert now['baton:pages{state="quarantined"}'] == held['baton:pages{state="quarantined"}']
        time.sleep(1)
    pair.prefill.signal(end)
    if end == signal.SIGKILL:
        pair.prefill.wait()
        assert isinstance(prefill.wait(), Exception)
        pair.prefill_options = pair.prefill_options[:-4]
        pair.start_prefill()
    else:
        error_of(prefill.wait())
    pair.wait_clean()
    serves(pair, right)


@at_length
def test_decode_stops_for_a_while(fleet, right):
    pair = fleet(prefill=("--transfer-backend", DELAY), decode=("--transfer-backend", "tcp"))
    prefill, decode = pair.legs(SHORT)
    metric_is(pair.prefill, "sglang:num_prefill_inflight_queue_reqs")
    pair.decode.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    error_of(prefill.wait(60))
    told("error at prefill", stopped, prefill)
    while time.monotonic() < stopped + 30:  # prefill takes other requests meanwhile
        assert pair.prefill.get("/health").status == 200
        time.sleep(1)
    pair.decode.signal(signal.SIGCONT)
    is_right(decode.wait(), right(SHORT))  # computed there
    pair.wait_clean()
    serves(pair, right)


# ---- clients leave -------------------------------------------------------------------------------

STAGES = {  # where it is seen that a request is there
    "computing": (LONG, (), "decode", "sglang:num_decode_transfer_queue_reqs"),
    "sending": (SHORT, ("--transfer-backend", DELAY), "prefill",
                "sglang:num_prefill_inflight_queue_reqs"),
    "generating": (greedy(40, 400), (), "decode", "sglang:num_running_reqs"),
}


@pytest.mark.parametrize("stage", [pytest.param("computing", marks=at_length), "sending",
                                   pytest.param("generating", marks=at_length)])
def test_clients_leave(fleet, right, stage):
    """Both legs, then each by itself. Who stays has an end."""
    body, options, where, name = STAGES[stage]
    pair = fleet("--transfer-backend", "tcp", prefill=options)
    for who in ("both", "prefill", "decode"):
        prefill, decode = pair.legs(body)
        metric_is(getattr(pair, where), name)
        if who in ("both", "prefill"):
            prefill.leave()
        if who in ("both", "decode"):
            decode.leave()
        left = time.monotonic()
        if who == "prefill" and stage != "generating":
            is_right(decode.wait(), right(body))  # computed at decode
        elif who == "decode" and stage != "generating":
            error_of(prefill.wait())
            told(f"error at prefill, {stage}", left, prefill)
        elif who == "prefill":
            decode.leave()
        pair.wait_clean()
    serves(pair, right)


def test_clients_leave_before_anything_happens(fleet, right):
    pair = fleet()
    stay = []
    for _ in range(5):
        for leg in pair.legs(SHORT):
            leg.leave()
        for leaves, stays in ((0, 1), (1, 0)):
            legs = pair.legs(SHORT)
            legs[leaves].leave()
            stay.append(legs[stays])
    for prefill, decode in zip(stay[1::2], stay[0::2]):
        is_right(decode.wait(60), right(SHORT))
        error_of(prefill.wait(60))
    pair.wait_clean()
    serves(pair, right)


def test_client_leaves_while_its_prompt_is_read(fleet, right):
    """A body that is large enough for a thread of its own: nobody waits for the room in vain."""
    pair = fleet(prefill=("--chunked-prefill-size", "64"))
    prefill, decode = pair.legs(greedy(3000, 4))
    decode.leave()
    assert "within" not in error_of(prefill.wait())
    pair.wait_clean()
    serves(pair, right)


def test_client_leaves_while_a_room_is_asked_for(fleet, right):
    """Decode first: prefill may have begun when its answer is not wanted any more."""
    pair = fleet(decode_first=True)
    pair.prefill.signal(signal.SIGSTOP)  # so that it takes its time to answer
    leg = Leg(pair.decode, "/generate", LONG)
    time.sleep(0.5)  # decode has asked by now
    leg.leave()
    wait_until(lambda: pair.decode.metric("baton:clients_left_total") == 1, what="it leaves")
    pair.prefill.signal(signal.SIGCONT)
    metric_is(pair.prefill, "baton:handovers_total")
    pair.wait_clean()
    assert "the client left" in pair.prefill.errors()
    is_right(pair.decode.post("/generate", SHORT), right(SHORT))
    pair.wait_clean()


# ---- too much, too long --------------------------------------------------------------------------

@pytest.mark.parametrize("count, tokens", [(100, 512), pytest.param(500, 2400, marks=at_length)])
def test_decode_has_few_pages(fleet, right, count, tokens):
    """100 requests at once where a handful fits, 500 where 50 do: all wait for their turn, none is
    wrong."""
    pair = fleet(decode=("--max-total-tokens", str(tokens), "--num-reserved-decode-tokens", "16"))
    bodies = [greedy(10 + i % 40, 1 + i % 6, seed=i % 7) for i in range(count)]
    expected = [right(body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        got = list(pool.map(lambda body: pair.pair("/generate", body), bodies))
    for (prefill, decode), one in zip(got, expected):
        is_right(decode, one)
        assert prefill.status == 200
    assert pair.decode.metric("sglang:num_transfer_failed_reqs_total") == 0
    pair.wait_clean()


@at_length
def test_decode_is_full_for_a_minute(fleet, right):
    """One after the other takes all of decode's pages (with a cache they would share them); who waits for
    them and has no priority waits, or leaves."""
    pair = fleet(decode=("--max-total-tokens", "1024", "--num-reserved-decode-tokens", "16",
                         "--disable-radix-cache"))
    large, patient = {**greedy(900, 80), "priority": 1}, greedy(150, 4)
    expected = right(large)  # before: who waits must not find a moment without a holder
    holders = [pair.legs(large)]
    metric_is(pair.decode, "sglang:num_decode_transfer_queue_reqs")
    waiting = pair.legs(patient)
    began = time.monotonic()
    while time.monotonic() < began + 60:
        holders.append(pair.legs(large))
        gone = pair.legs(patient)
        metric_is(pair.decode, "sglang:num_decode_prealloc_queue_reqs", 2)
        for leg in gone:  # while it waits for pages
            leg.leave()
        is_right(holders[-2][1].wait(120), expected)
    assert waiting[1].thread.is_alive()
    is_right(holders[-1][1].wait(120), expected)
    is_right(waiting[1].wait(120), right(patient))
    assert waiting[0].wait().status == 200
    print(f"\n    {len(holders)} after one another", end="")
    pair.wait_clean()
    serves(pair, right)


@at_length
def test_prefill_has_few_pages(fleet, right):
    pair = fleet(prefill=("--max-total-tokens", "512"))
    bodies = [greedy(20 + i % 60, 2, seed=i % 7) for i in range(40)]
    expected = [right(body) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        got = list(pool.map(lambda body: pair.pair("/generate", body), bodies))
    for (prefill, decode), one in zip(got, expected):
        is_right(decode, one)
        assert prefill.status == 200
    pair.wait_clean()


@pytest.mark.parametrize("small", [pytest.param("prefill", marks=at_length), "decode"])
def test_prompt_is_too_long_for_one_side(fleet, right, small):
    """The side with room must not wait for the other: it is told."""
    few = ("--max-total-tokens", "64")
    pair = fleet(prefill=few if small == "prefill" else (),
                 decode=(*STRICT, *(few if small == "decode" else ())))
    body = greedy(100, 2)
    began = time.monotonic()
    prefill, decode = pair.legs(body)
    refused, other = (prefill, decode) if small == "prefill" else (decode, prefill)
    assert "tokens" in error_of(refused.wait(), 400)
    reason = error_of(other.wait(), 400)  # it is the request's fault there, too
    told(f"told by {small}", began, other)
    assert "hand-over" in reason and "refused" in reason and "tokens" in reason
    if other is decode:  # an answer may be out before it is counted
        metric_is(pair.decode, "baton:handovers_total")
    serves(pair, right, greedy(30, 2))


def test_prefill_refuses_a_prompt_that_decode_asks_for(fleet, right):
    """Decode first without fallback: the client hears what prefill said."""
    pair = fleet(prefill=("--max-total-tokens", "64"), decode=STRICT, decode_first=True)
    reason = error_of(pair.decode.post("/generate", greedy(100, 2)), 400)
    assert "tokens; the KV cache of this worker holds 64" in reason
    is_right(pair.decode.post("/generate", greedy(30, 2)), right(greedy(30, 2)))
    pair.kill(pair.prefill)
    error_of(pair.decode.post("/generate", greedy(100, 2)), 503)
    pair.wait_clean()


# ---- rooms ---------------------------------------------------------------------------------------

def test_room_in_use(fleet, right):
    pair = fleet()
    room = new_room()
    first = pair.legs(LONG, room=room)
    metric_is(pair.decode, "sglang:num_decode_transfer_queue_reqs")
    for leg in pair.legs(SHORT, room=room):
        assert str(room) in error_of(leg.wait(), 409)
    prefill, decode = (leg.wait() for leg in first)
    assert prefill.status == 200
    is_right(decode, right(LONG))
    pair.wait_clean()
    # It is free again.
    assert pair.ask("/generate", room=room, **SHORT) == right(SHORT)
    pair.wait_clean()


@at_length
def test_room_that_one_side_knows(fleet, right):
    pair = fleet(decode=STRICT)
    began = time.monotonic()
    alone = [Leg(worker, "/generate", {**SHORT, **pair.bootstrap()})
             for worker in (pair.prefill, pair.decode)]
    for leg, role in zip(alone, ("prefill", "decode")):
        assert "room" in error_of(leg.wait())
        told(f"alone at {role}", began, leg)
    pair.wait_clean()
    serves(pair, right)


def test_bootstrap_that_is_not_allowed(fleet, right):
    pair = fleet(decode=("--allow-bootstrap", "127.0.0.1/32"))
    for host in ("8.8.8.8", "127.0.0.2", "example.com", "no such host", "[::1]:1"):
        began = time.monotonic()
        leg = Leg(pair.decode, "/generate", {**SHORT, **pair.bootstrap(),
                                             "bootstrap_host": host})
        assert "bootstrap" in error_of(leg.wait(), 400)
        told(host, began, leg)
    serves(pair, right)


@at_length
def test_localhost_is_allowed(fleet, right):
    pair = fleet(decode=STRICT)
    legs = [Leg(worker, "/generate", {**SHORT, **pair.bootstrap(room), "bootstrap_host": "localhost"})
            for room in [new_room()] for worker in (pair.prefill, pair.decode)]
    assert legs[0].wait().status == 200
    is_right(legs[1].wait(), right(SHORT))
    pair.wait_clean()


def test_request_without_room(fleet, right):
    pair = fleet()
    assert "bootstrap_room" in error_of(pair.prefill.post("/generate", SHORT), 400)
    is_right(pair.decode.post("/generate", SHORT), right(SHORT))
    for wrong in ({"bootstrap_room": "7"}, {"bootstrap_room": -1}, {"bootstrap_room": 1.5},
                  {"bootstrap_room": [1, 2]}, {"bootstrap_port": 70000}, {"bootstrap_port": "x"},
                  {"bootstrap_host": ""}, {"bootstrap_host": 5}):
        error_of(pair.decode.post("/generate", {**SHORT, **pair.bootstrap(), **wrong}), 400)
    pair.wait_clean()


# ---- strangers -----------------------------------------------------------------------------------

def test_another_model(fleet, right, model, tmp_path):
    """The same shape with other weights: refused by name, nothing is generated from it."""
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    with open(other, "r+b") as file:
        file.seek(-64, os.SEEK_END)
        byte = file.read(1)
        file.seek(-64, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    pair = fleet(decode=STRICT, decode_model=str(other))
    prefill, decode = pair.legs(SHORT)
    for leg in (decode, prefill):
        reason = error_of(leg.wait())
        assert "fingerprint" in reason and "within" not in reason  # it was told, not left to wait
    pair.wait_clean()


def listening(worker):
    """The TCP ports on which a process listens."""
    sockets = set()
    for entry in pathlib.Path(f"/proc/{worker.process.pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{worker.process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def test_garbage_on_every_port(fleet, right):
    pair = fleet()
    serves(pair, right)
    ports = [(worker, port) for worker in (pair.prefill, pair.decode)
             for port in listening(worker)]
    assert len(ports) >= 5  # two of HTTP, two of links, the bootstrap server's
    for garbage in (b"\0" * 4096, b"\xff" * 4096, os.urandom(20000), b"GET / HTTP/1.1\r\n\r\n",
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x"):
        for worker, port in ports:
            with socket.create_connection(("127.0.0.1", port), 10) as stranger:
                try:
                    stranger.sendall(garbage)
                except OSError:
                    pass  # it had heard enough
    serves(pair, right)


@at_length
@pytest.mark.parametrize("fault", ["loss=30", "truncate=30"])
def test_bytes_get_lost(fleet, right, fault):
    """A medium that says that all is well: the sums over the pages do not."""
    pair = fleet("--verify-transfer", prefill=("--transfer-backend", f"faulty:shm:{fault}"))
    body = greedy(200, 4)
    is_right(pair.legs(body)[1].wait(), right(body))
    assert pair.decode.metric("baton:recomputed_total") == 1
    pair.wait_clean()
