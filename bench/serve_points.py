#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A few figures of one `baton serve`, medians of --rounds: from its start to the first token of an answer;
memory; the same prompt a second time; four answers to one prompt beside four to different ones; and
tokens a second through HTTP beside those of the engine alone.

usage: serve_points.py MODEL --baton PROGRAM [--rounds N]
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import time

THOUSAND, ANSWER = 1000, 32


class Worker:
    def __init__(self, baton, model, *options):
        self.began = time.monotonic()
        self.process = subprocess.Popen([baton, "serve", model, "--port", "0", *options],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if found := re.search(r"listening on http://([0-9.]+:\d+)", line):
                self.address = found[1]
                return
        raise SystemExit("serve_points: the worker did not start")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request(method, path, json.dumps(body) if body else None)
        reply = connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise SystemExit(f"serve_points: {path} answers {reply.status}: {text!r}")
        return json.loads(text)

    def first_token(self, body):
        """Seconds until it; the last event."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        began = time.monotonic()
        connection.request("POST", "/generate", json.dumps({**body, "stream": True}))
        reply = connection.getresponse()
        first, last = None, None
        for line in reply:
            if line.startswith(b"data: {"):
                first = first or time.monotonic() - began
                last = json.loads(line[6:])
        return first, last

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return {name: int(kilobytes) * 1024 for name, kilobytes in
                    re.findall(r"(VmRSS|RssShmem):\s+(\d+) kB", status.read())}

    def close(self):
        self.process.terminate()
        self.process.wait()


def prompt(seed, tokens, answer=ANSWER, **sampling):
    draw = random.Random(seed)
    return {"input_ids": [draw.randrange(1000, 40000) for _ in range(tokens)],
            "sampling_params": {"max_new_tokens": answer, "ignore_eos": True, "temperature": 0,
                                **sampling}}


def at_once(worker, bodies):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        list(pool.map(lambda body: worker.request("POST", "/generate", body), bodies))
    return time.monotonic() - began


def start(options):
    seconds = []
    for _ in range(options.rounds):
        worker = Worker(options.baton, options.model)
        while True:
            connection = http.client.HTTPConnection(worker.address)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                break
            time.sleep(0.005)
        worker.first_token(prompt(1, 16, 1))
        seconds.append(time.monotonic() - worker.began)
        worker.close()
    print(f"start to the first token: {statistics.median(seconds):.2f} s")


def memory(options, worker):
    file = os.path.getsize(options.model)
    resident = worker.memory()
    print(f"resident: {resident['VmRSS'] / 1e6:.0f} MB, of it {resident['RssShmem'] / 1e6:.0f} MB pool in use; "
          f"without the pool {(resident['VmRSS'] - resident['RssShmem']) / file:.2f} of the file "
          f"({file / 1e6:.0f} MB)")


def twice(options, worker):
    rows = []
    for seed in range(options.rounds):
        body = prompt(100 + seed, THOUSAND, 1)
        first, _ = worker.first_token(body)
        second, last = worker.first_token(body)
        rows.append((first, second, last["meta_info"]["cached_tokens"]))
    first, second, cached = (statistics.median(column) for column in zip(*rows))
    print(f"a prompt of {THOUSAND}: first token after {first * 1e3:.1f} ms, the second time after "
          f"{second * 1e3:.1f} ms with {cached} tokens cached: {first / second:.1f} times")


def four(options, worker):
    shared, apart = [], []
    for seed in range(options.rounds):
        shared.append(at_once(worker, [prompt(200 + seed, THOUSAND, n=4, temperature=0.8)]))
        apart.append(at_once(worker, [prompt(1000 + seed * 4 + i, THOUSAND, temperature=0.8)
                                      for i in range(4)]))
    one, four = statistics.median(shared), statistics.median(apart)
    print(f"4 answers of {ANSWER} tokens: to one prompt of {THOUSAND} (n=4) {one:.2f} s, to 4 different "
          f"ones {four:.2f} s: {four / one:.2f} times")


def throughput(options, worker):
    through, alone = [], []
    for seed in range(options.rounds):
        load = json.loads(subprocess.run(
            [options.baton, "bench", "serve", "--url", f"http://{worker.address}", "--concurrency", "8",
             "--requests", "64", "--input-tokens", "128", "--output-tokens", "128", "--quiet", "--json",
             "-", "--seed", str(seed + 1)], check=True, stdout=subprocess.PIPE).stdout)
        gap = load["itl_ms"]["p50"]
        through.append((8e3 / gap, load["generated_tokens_per_second"]))
    worker.close()
    for _ in range(options.rounds):
        engine = json.loads(subprocess.run(
            [options.baton, "bench", "engine", options.model, "--json", "--no-limits", "--streams", "8"],
            check=True, stdout=subprocess.PIPE).stdout)
        alone.append(engine["streams_rate"])
    steady, whole = (statistics.median(column) for column in zip(*through))
    engine = statistics.median(alone)
    print(f"8 streams: {steady:.0f} tokens/s through HTTP between tokens (with prompts {whole:.0f}), the "
          f"engine alone {engine:.0f}: {steady / engine:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--baton", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    start(options)
    worker = Worker(options.baton, options.model)
    twice(options, worker)
    four(options, worker)
    memory(options, worker)
    throughput(options, worker)


main()
