# SPDX-License-Identifier: Apache-2.0
"""Objects that are closed, collected, forked or left open at the end: never a crash, never a hang,
and always an error that says what is wrong.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import baton
from driver import wait_for

FAKE = "2.2.2.2:8998"


def args() -> baton.KVArgs:
    return baton.KVArgs(kv_data_ptrs=[np.zeros((64, 256), np.uint8)])


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of its own, in which leaving the interpreter is part of the test."""
    package = str(Path(baton.__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": package,
        "BATON_LIBRARY": baton.library_path(),
    }
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", textwrap.dedent(text)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_closed_objects_say_so(address: str) -> None:
    manager = baton.KVManager(args())
    sender, receiver = (
        baton.KVSender(manager, address, 1),
        baton.KVReceiver(manager, FAKE, 2),
    )
    assert "room 1 Bootstrapping" in repr(sender)
    manager.close()  # with everything that hangs on it
    manager.close()
    sender.close()
    for call in (
        sender.poll,
        sender.failure_exception,
        sender.timeline,
        sender.written,
        lambda: sender.send([1]),
        lambda: sender.abort("x"),
    ):
        with pytest.raises(baton.BatonError, match="sender of room 1 is closed"):
            call()
    with pytest.raises(baton.BatonError, match="receiver of room 2 is closed"):
        receiver.init([1])
    for other in (manager.counters, manager.tick, manager.fileno, lambda: manager.port):
        with pytest.raises(baton.BatonError, match="manager is closed"):
            other()
    with pytest.raises(baton.BatonError, match="manager is closed"):
        baton.KVSender(manager, address, 3)
    assert "closed" in repr(manager) and "closed" in repr(sender)


def test_room_is_freed_when_collected(address: str) -> None:
    with baton.KVManager(args()) as manager:
        sender = baton.KVSender(manager, address, 1)
        assert manager.counters()["rooms_open"] == 1
        del sender
        gc.collect()
        wait_for(lambda: manager.counters()["rooms_open"] == 0)
        baton.KVSender(manager, address, 1).close()  # the number is free again


def test_sender_keeps_its_manager(address: str) -> None:
    def open_sender() -> baton.KVSender:
        return baton.KVSender(baton.KVManager(args()), address, 1)

    sender = open_sender()
    gc.collect()
    assert sender.poll() == baton.KVPoll.Bootstrapping
    assert sender.manager.counters()["rooms_open"] == 1


def test_cycles_are_collected_in_a_safe_order(address: str) -> None:
    for room in range(20):
        manager, pollset = baton.KVManager(args()), baton.PollSet(4)
        sender = baton.KVSender(manager, address, room)
        pollset.add(0, sender)
        manager.cycle = [sender, pollset, manager]  # type: ignore[attr-defined]
        handle = manager._handle
        del manager, pollset, sender
        gc.collect()
        assert handle.closed and handle._users == 0


def test_interpreter_ends_with_everything_open(address: str) -> None:
    ended = run_program(
        f"""
        import numpy as np, baton
        pool = baton.Pool(1 << 16)
        array = pool.as_array(np.uint8, (16, 4096))
        server = baton.KVBootstrapServer(0)
        manager = baton.KVManager(baton.KVArgs(kv_data_ptrs=[array]))
        sender = baton.KVSender(manager, "{address}", 1)
        receiver = baton.KVReceiver(manager, "{address}", 2)
        receiver.init([1, 2])
        pollset = baton.PollSet(2)
        pollset.add(0, sender); pollset.add(1, receiver)
        keep = [pollset, sender, receiver, manager]; keep.append(keep)
        print(len(pollset.poll()))
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2\n", "")


def test_child_of_a_fork_leaves_the_parents_objects_alone(address: str) -> None:
    ended = run_program(
        f"""
        import gc, os, sys, numpy as np, baton
        manager = baton.KVManager(baton.KVArgs(kv_data_ptrs=[np.zeros((16, 64), np.uint8)]))
        sender = baton.KVSender(manager, "{address}", 1)
        pollset = baton.PollSet(1)
        pollset.add(0, sender)
        child = os.fork()
        if child == 0:
            for call in (sender.poll, pollset.poll, manager.tick):
                try:
                    call()
                except baton.BatonError as error:
                    assert "forked" in str(error), error
                else:
                    sys.exit(1)
            del sender, pollset, manager
            gc.collect()
            sys.exit(0)  # with atexit and all
        assert os.waitpid(child, 0)[1] == 0
        print(sender.poll().name, pollset.poll().tolist())
        """
    )
    assert (ended.returncode, ended.stdout) == (0, "Bootstrapping [1]\n"), ended.stderr


def test_set_closed_by_another_thread_while_waiting(address: str) -> None:
    with baton.KVManager(args()) as manager:
        pollset = baton.PollSet(1)
        pollset.add(0, baton.KVSender(manager, address, 1))
        waiter = threading.Thread(target=lambda: pollset.wait(30))
        waiter.start()
        time.sleep(0.1)
        pollset.close()
        waiter.join(10)
        assert not waiter.is_alive()


def test_wait_lets_other_threads_run(address: str) -> None:
    with (
        baton.KVManager(args()) as manager,
        baton.KVSender(manager, address, 1) as sender,
    ):
        timer = threading.Timer(0.2, sender.abort, ["from another thread"])
        timer.start()
        assert sender.wait(20) == baton.KVPoll.Failed
        timer.join()
        with pytest.raises(baton.TransferError, match="room 1: .*from another thread"):
            sender.failure_exception()


def test_errors_survive_pickling() -> None:
    error = baton.TransferError(-10, "the peer went away", 7)
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.reason, again.room, str(again)) == (
        -10,
        "the peer went away",
        7,
        "room 7: the peer went away (BATON_EPEER)",
    )


def test_port_that_is_taken_is_told(server: baton.KVBootstrapServer) -> None:
    with pytest.raises(baton.BatonError, match=str(server.port)):
        baton.KVBootstrapServer(server.port, host="127.0.0.1")
    server.stop()
    server.stop()
    baton.KVBootstrapServer(server.port, host="127.0.0.1").stop()  # free again


def test_options_the_library_refuses_come_with_its_reason() -> None:
    pool = np.zeros((4, 64), np.uint8)
    with pytest.raises(baton.BatonError, match="nosuchbackend") as refused:
        baton.KVManager(baton.KVArgs(kv_data_ptrs=[pool], backends=["nosuchbackend"]))
    assert refused.value.code < 0 and refused.value.name.startswith("BATON_E")
    with pytest.raises(baton.BatonError):
        baton.KVManager(baton.KVArgs(kv_data_ptrs=[pool], tls_certificate="only-this.pem"))
    with pytest.raises(baton.BatonError):
        baton.KVManager(baton.KVArgs(kv_data_ptrs=[pool], engine_rank=4, tp_size=2))
