#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What long prompts do to streams that run: `baton serve` on two cores, with several chunk sizes, beside a
prefill and a decode worker that have a core each, with the router in front. The same two cores and the
same requests for all: some clients that read one answer after the other without a pause, and prompts that
arrive at random instants (Poisson, the same ones each time). `baton bench serve` plays both; it and the
router run on the two cores too.

Each set-up is measured in turn, --rounds times; the table has medians. An answer is good when its first
token and the time per further token are within the limits; goodput counts those of both kinds.
"""
import argparse
import contextlib
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time


class Program:
    """A worker or a router on some cores, until the end of the with block."""

    def __init__(self, cores, *command):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.log, text=True)
        self.bootstrap = None
        for line in self.process.stdout:
            if found := re.search(r"bootstrap server on port (\d+)", line):
                self.bootstrap = found[1]
            if found := re.search(r"listening on (http://[0-9.]+:\d+)", line):
                self.url = found[1]
                return
        self.log.seek(0)
        raise SystemExit(f"mixed_load: {' '.join(command)} did not start:\n"
                         + self.log.read().decode(errors="replace"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def serve(options, chunk):
    with Program(options.cores, options.baton, "serve", options.model, "--port", "0", "--threads", "2",
                 "--chunked-prefill-size", str(chunk)) as worker:
        yield worker.url


@contextlib.contextmanager
def disaggregated(options, chunk):
    first, second = options.cores.split(",")
    worker = (options.model, "--port", "0", "--threads", "1", "--chunked-prefill-size", str(chunk))
    with contextlib.ExitStack() as stack:
        prefill = stack.enter_context(Program(first, options.baton, "prefill", *worker,
                                              "--bootstrap-port", "0"))
        decode = stack.enter_context(Program(second, options.baton, "decode", *worker))
        router = stack.enter_context(Program(
            options.cores, options.baton, "router", "--port", "0", "--prefill", prefill.url,
            prefill.bootstrap, "--decode", decode.url))
        yield router.url


# ---- load --------------------------------------------------------------------------------------


def load(options, url, into, *more):
    """A `baton bench serve` that has begun; its figures will be in the file."""
    return subprocess.Popen(
        ["taskset", "-c", options.cores, options.baton, "bench", "serve", "--url", url, "--quiet",
         "--json", str(into), "--warmup", "1", "--slo-ttft", str(options.slo_ttft),
         "--slo-tpot", str(options.slo_tpot), *map(str, more)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def measure(options, url):
    """(of the streams, of the prompts, seconds): the streams go on until the last prompt is answered."""
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / name for name in ("streams", "prompts")]
        streams = load(options, url, files[0], "--concurrency", options.streams, "--requests", 100000,
                       "--input-tokens", options.stream_input, "--output-tokens", options.stream_output,
                       "--length-percent", 50, "--seed", 2)
        time.sleep(2)  # all of them run
        began = time.monotonic()
        prompts = load(options, url, files[1], "--rate", options.rate, "--requests", options.prompts,
                       "--input-tokens", options.prompt_input, "--output-tokens",
                       options.prompt_output, "--seed", 3)
        status = prompts.wait()
        seconds = time.monotonic() - began
        streams.send_signal(signal.SIGINT)
        if streams.wait() or status:
            raise SystemExit("mixed_load: the load could not be measured")
        figures = [json.loads(file.read_text()) for file in files]
    for name, one in zip(("streams", "prompts"), figures):
        if one["errors"]:
            raise SystemExit(f"mixed_load: {name}: {one['error_reasons']}")
    return *figures, seconds


# ---- table -------------------------------------------------------------------------------------

COLUMNS = {
    "itl p50": lambda streams, prompts, seconds: streams["itl_ms"]["p50"],
    "p99": lambda streams, prompts, seconds: streams["itl_ms"]["p99"],
    "max": lambda streams, prompts, seconds: streams["itl_ms"]["max"],
    "stream tokens/s": lambda streams, prompts, seconds:
        streams["itl_ms"]["count"] / streams["seconds"],
    "ttft p50": lambda streams, prompts, seconds: prompts["ttft_ms"]["p50"],
    "ttft p99": lambda streams, prompts, seconds: prompts["ttft_ms"]["p99"],
    "good prompts": lambda streams, prompts, seconds: prompts["good"] / prompts["requests"],
    "goodput/s": lambda streams, prompts, seconds:
        streams["goodput_per_second"] + prompts["goodput_per_second"],
}


def table(rows):
    print("\n| | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "---|" * len(COLUMNS))
    for name, rounds in rows.items():
        cells = [statistics.median(column(*one) for one in rounds) for column in COLUMNS.values()]
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |", flush=True)


def options_read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--baton", required=True)
    parser.add_argument("--cores", default="0,1", help="the two cores [0,1]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="+", default=[512, 256, 128, 64, 32],
                        help="of serve, tokens; prefill's is the first [512 256 128 64 32]")
    parser.add_argument("--streams", type=int, default=4, help="clients that read all the time [4]")
    parser.add_argument("--stream-input", type=int, default=64)
    parser.add_argument("--stream-output", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=14, help="how many long ones [14]")
    parser.add_argument("--rate", type=float, default=0.3, help="of long prompts, a second [0.3]")
    parser.add_argument("--prompt-input", type=int, default=1024)
    parser.add_argument("--prompt-output", type=int, default=16)
    parser.add_argument("--slo-ttft", type=int, default=5000, help="ms to the first token [5000]")
    parser.add_argument("--slo-tpot", type=int, default=30, help="ms per further token [30]")
    return parser.parse_args()


def main():
    options = options_read()
    setups = {f"serve, chunks of {chunk}": (serve, chunk) for chunk in options.chunks}
    setups[f"prefill and decode, chunks of {options.chunks[0]}"] = (disaggregated, options.chunks[0])
    rows = {name: [] for name in setups}
    for _ in range(options.rounds):
        for name, (start, chunk) in setups.items():
            with start(options, chunk) as url:
                rows[name].append(measure(options, url))
            print(f"{name}: p99 {COLUMNS['p99'](*rows[name][-1]):.1f} ms", file=sys.stderr, flush=True)
        table(rows)


main()
