# SPDX-License-Identifier: Apache-2.0
"""What the peers' scripts share: the work, the pages, the two processes and the one line of JSON.

The work is that of `baton bench transfer`: L layers, each a pool of N pages of B bytes, all pages
of a prefill process copied into a decode process, in random order on both sides. Every script runs
the same number of rounds after one warm-up, takes the median, and checks the bytes afterwards.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable

import numpy

ROLE_TIMEOUT_S = 150


@dataclass(frozen=True)
class Work:
    item_bytes: int
    pages: int
    layers: int
    iterations: int
    transport: str
    seed: int = 7

    @property
    def total_bytes(self) -> int:
        return self.item_bytes * self.pages * self.layers


class Failed(Exception):
    """The peer said no; its words."""


def order(work: Work, side: int) -> list[int]:
    """Page of each position of the sequence; the two sides have different ones."""
    pages = list(range(work.pages))
    random.Random(work.seed * 2 + side).shuffle(pages)
    return pages


def pattern(work: Work, layer: int) -> numpy.ndarray:
    """One row of bytes per position of the sequence: no two positions or layers look alike."""
    generator = numpy.random.default_rng([work.seed, layer])
    return generator.integers(0, 256, (work.pages, work.item_bytes), dtype=numpy.uint8)


def pools_filled(work: Work) -> list[numpy.ndarray]:
    """Prefill's pools: position p of the sequence lies in page order[p]."""
    pools = []
    for layer in range(work.layers):
        pool = numpy.empty((work.pages, work.item_bytes), dtype=numpy.uint8)
        pool[order(work, 0)] = pattern(work, layer)
        pools.append(pool)
    return pools


def pools_empty(work: Work) -> list[numpy.ndarray]:
    """Decode's pools, touched, so that no page fault is measured."""
    return [
        numpy.full((work.pages, work.item_bytes), 0xA5, dtype=numpy.uint8)
        for _ in range(work.layers)
    ]


def pools_right(work: Work, pools: list[numpy.ndarray]) -> bool:
    where = order(work, 1)
    return all(
        numpy.array_equal(pool[where], pattern(work, layer)) for layer, pool in enumerate(pools)
    )


def addresses(bases: list[int], pages: list[int], item_bytes: int) -> list[int]:
    return [base + page * item_bytes for base in bases for page in pages]


def measure(work: Work, once: Callable[[], None]) -> list[float]:
    """Seconds of each round, the warm-up left out."""
    seconds = []
    for _ in range(work.iterations + 1):
        begin = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def run(peer: str, decode: Callable[..., bool], prefill: Callable[..., list[float]]) -> None:
    """Parses the command line, runs both processes and prints one JSON object.

    decode(work, connection) answers prefill's questions and returns whether the bytes are right;
    prefill(work, connection) returns the seconds of each round.
    """
    parser = argparse.ArgumentParser(description=f"{peer} on the pages of `baton bench transfer`")
    parser.add_argument("--item-bytes", type=int, required=True)
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--transport", default="tcp")
    arguments = parser.parse_args()
    work = Work(**vars(arguments))
    context = multiprocessing.get_context("spawn")
    data, data_peer = context.Pipe()
    result, result_child = context.Pipe(duplex=False)
    children = [
        context.Process(target=_role, args=(decode, work, data, result_child), daemon=True),
        context.Process(target=_role, args=(prefill, work, data_peer, result_child), daemon=True),
    ]
    for child in children:
        child.start()
    for end in (data, data_peer, result_child):
        end.close()
    _report(peer, work, _answers(result))
    sys.stdout.flush()
    for child in children:
        child.join(5)
        if child.is_alive():
            child.kill()


def _role(role: Callable[..., Any], work: Work, connection: Any, result: Any) -> None:
    try:
        result.send((role.__name__, role(work, connection)))
    except Exception as error:  # whatever a peer does wrong is a line in the table, not a traceback
        result.send(("error", f"{type(error).__name__}: {error}"))


def _answers(result: Any) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    until = time.monotonic() + ROLE_TIMEOUT_S
    while len(answers) < 2 and "error" not in answers:
        if not result.poll(max(0.0, until - time.monotonic())):
            answers["error"] = f"no result within {ROLE_TIMEOUT_S} s"
            break
        try:
            name, value = result.recv()
        except EOFError:
            answers["error"] = "a process ended without a result"
            break
        answers[name] = value
    return answers


def _report(peer: str, work: Work, answers: dict[str, Any]) -> None:
    line: dict[str, Any] = {
        "peer": peer,
        "transport": work.transport,
        "item_bytes": work.item_bytes,
        "pages": work.pages,
        "layers": work.layers,
        "bytes": work.total_bytes,
        "operations": work.pages * work.layers,
    }
    if "error" in answers:
        line.update(error=str(answers["error"])[:200], verified=False)
    else:
        seconds = statistics.median(answers["prefill"])
        line.update(
            seconds=seconds,
            best_seconds=min(answers["prefill"]),
            gbps=work.total_bytes / seconds / 1e9,
            verified=bool(answers["decode"]),
        )
    print(json.dumps(line), flush=True)
