# SPDX-License-Identifier: Apache-2.0
"""The test's end of a worker process: ``worker.send("s", [1, 2])`` runs Side.send over there.

Calls are lines of JSON over the process's stdin and stdout. Every answer is waited for with a
bound, so that a hand-over that hangs is a failed test and not a stuck suite.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baton

ANSWER_SECONDS = 60.0


def wait_for(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """For what the library's threads do in their own time."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.002)


class RemoteError(Exception):
    """The worker's call raised: ``kind``, ``code`` and ``reason`` of what it raised."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['kind']}: {error['text']}")
        self.kind: str = error["kind"]
        self.code: int | None = error["code"]
        self.reason: str = error["reason"]


class Worker:
    def __init__(self, name: str, stderr: Path) -> None:
        self.name = name
        self._stderr = stderr
        package = Path(baton.__file__).resolve().parents[1]
        environment = {
            **os.environ,
            "PYTHONPATH": str(package),
            "PYTHONUNBUFFERED": "1",
        }
        environment["BATON_LIBRARY"] = baton.library_path()
        with stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._killed = False

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *args, **named: self._call(method, args, named)

    def _call(self, method: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        assert self.process.stdin and self.process.stdout
        line = json.dumps({"method": method, "args": args, "named": named})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        assert ready, f"{self.name}: no answer to {method}{args} in {ANSWER_SECONDS} s"
        answer = self.process.stdout.readline()
        assert answer, f"{self.name} ended in {method}: {self.stderr()}"
        reply = json.loads(answer)
        if "error" in reply:
            raise RemoteError(reply["error"])
        return reply["result"]

    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def kill(self) -> None:
        """kill -9."""
        self._killed = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> str:
        """Ends the worker as a program ends, by itself; what was wrong with that, or ""."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            code = self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.name} did not end:\n{self.stderr()}"
        finally:
            self.process.stdout.close()
        if code and not self._killed:
            return f"{self.name} ended with {code}:\n{self.stderr()}"
        return ""
