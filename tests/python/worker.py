# SPDX-License-Identifier: Apache-2.0
"""A worker process for the tests: a manager over a small pool, and rooms by name.

Run by driver.py; each line on stdin names a method of Side and its arguments, each line on stdout
is the answer. The end of stdin ends the program without closing anything by hand: leaving the
interpreter with everything open is part of what is tested.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

import baton

AUX = np.dtype([("first_token", "<i4"), ("cached", "<i4"), ("logprobs", "<f4", (4,))], align=True)


class Side:
    """One rank: ``layers`` pools of ``pages`` pages of ``item`` bytes."""

    def open(
        self,
        memory: str = "numpy",
        pages: int = 32,
        item: int = 4096,
        layers: int = 4,
        aux: str = "",
        slots: int = 0,
        **args: Any,
    ) -> int:
        if memory == "pool":
            self.pool = baton.Pool(layers * pages * item)
            self.pages = self.pool.as_array("uint8", (layers, pages, item))
        else:
            self.pages = np.zeros((layers, pages, item), np.uint8)
        options = baton.KVArgs(**args)
        options.kv_data_ptrs = list(self.pages)
        if aux == "block":
            self.aux = np.zeros(8, AUX)
            options.aux = self.aux
        elif aux == "separate":
            self.tokens, self.scores = (
                np.zeros((8, 16), np.int32),
                np.zeros((8, 4), np.float32),
            )
            options.aux_data_ptrs = [self.tokens, self.scores]
        if slots:
            self.state = np.zeros((slots, 256), np.uint8)
            layout = baton.Layout.opaque([self.state])
            options.states = [baton.Region("mamba", baton.RegionKind.SLOT, layout)]
        self.manager = baton.KVManager(options)
        self.rooms: dict[str, Any] = {}
        return self.manager.port

    # ---- memory ----

    def fill(self, seed: int) -> None:
        self.pages[:] = np.random.default_rng(seed).integers(1, 256, self.pages.shape, np.uint8)

    def digests(self, pages: list[int]) -> list[str]:
        return [hashlib.sha256(self.pages[:, page].tobytes()).hexdigest() for page in pages]

    def touched(self) -> list[int]:
        """Pages in which any byte is not 0."""
        return [int(page) for page in np.flatnonzero(self.pages.any(axis=(0, 2)))]

    def set_aux(self, slot: int, first_token: int, cached: int, logprobs: list[float]) -> None:
        self.aux[slot] = (first_token, cached, logprobs)

    def get_aux(self, slot: int) -> list[Any]:
        first_token, cached, logprobs = self.aux[slot]
        return [int(first_token), int(cached), [float(value) for value in logprobs]]

    def set_separate_aux(self, slot: int, tokens: int, score: float) -> None:
        self.tokens[slot], self.scores[slot] = tokens, score

    def get_separate_aux(self, slot: int) -> list[Any]:
        return [self.tokens[slot].tolist(), self.scores[slot].tolist()]

    def set_state(self, slot: int, value: int) -> None:
        self.state[slot] = value

    def get_states(self) -> list[list[int]]:
        return [sorted(set(slot.tolist())) for slot in self.state]

    # ---- rooms ----

    def sender(self, name: str, address: str, room: int, ranks: list[int], **named: Any) -> None:
        self.rooms[name] = baton.KVSender(self.manager, address, room, ranks, **named)

    def receiver(self, name: str, address: str, room: int, **named: Any) -> None:
        self.rooms[name] = baton.KVReceiver(self.manager, address, room, **named)

    def init(self, name: str, pages: Any, *args: Any, **named: Any) -> None:
        if isinstance(pages, list):
            pages = np.array(pages, np.int32)
        self.rooms[name].init(pages, *args, **named)

    def send(self, name: str, pages: list[int]) -> None:
        self.rooms[name].send(np.array(pages, np.int32))

    def name_state(self, name: str, region: str, pages: list[int]) -> None:
        self.rooms[name].state(region, pages)

    def layer_ready(self, name: str, layer: int) -> None:
        self.rooms[name].layer_ready(layer)

    def poll(self, name: str) -> str:
        return str(self.rooms[name].poll().name)

    def wait(self, name: str, until: str = "Success", timeout: float = 20.0) -> str:
        return str(self.rooms[name].wait(timeout, baton.KVPoll[until]).name)

    def wait_all(self, names: list[str], timeout: float = 30.0) -> list[str]:
        """By a poll set: the states of all, once all have ended."""
        with baton.PollSet(len(names)) as waiting:
            for group, name in enumerate(names):
                waiting.add(group, self.rooms[name])
            end = time.monotonic() + timeout
            states = waiting.poll()
            while not np.isin(states, (0, 4)).all() and time.monotonic() < end:
                states = waiting.wait(max(0.0, end - time.monotonic()))
            return [baton.KVPoll(int(state)).name for state in states]

    def failure(self, name: str) -> dict[str, Any] | None:
        try:
            self.rooms[name].failure_exception()
        except baton.TransferError as error:
            return {"code": error.code, "reason": error.reason, "text": str(error)}
        return None

    def wait_fenced(self, name: str, timeout: float = 20.0) -> bool:
        end = time.monotonic() + timeout
        while not self.rooms[name].fenced and time.monotonic() < end:
            time.sleep(0.002)
        return bool(self.rooms[name].fenced)

    def abort(self, name: str, reason: str) -> bool:
        return bool(self.rooms[name].abort(reason))

    def close(self, name: str) -> None:
        self.rooms.pop(name).close()

    def written(self, name: str) -> int:
        return self.rooms[name].written()

    def timeline(self, name: str) -> dict[str, Any]:
        return asdict(self.rooms[name].timeline())

    def counters(self) -> dict[str, int]:
        return self.manager.counters()


def answer(side: Side, line: str) -> dict[str, Any]:
    call = json.loads(line)
    try:
        return {"result": getattr(side, call["method"])(*call["args"], **call["named"])}
    except Exception as error:  # whatever it is, the test wants to see it
        return {
            "error": {
                "kind": type(error).__name__,
                "text": str(error),
                "code": getattr(error, "code", None),
                "reason": getattr(error, "reason", str(error)),
            }
        }


def main() -> None:
    side = Side()
    for line in sys.stdin:
        print(json.dumps(answer(side, line)), flush=True)


main()
