#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of Baton and llama.cpp, in turn, on the same machine in one run: medians over the
rounds, the ratio, and what the processor itself can do (baton bench engine measures it).

llama.cpp reads its best format, Q4_0 (it repacks it for the matrix instructions), with flash
attention, which is its faster way here; Baton reads the default Q4_1 file. run_llama.sh runs this.

On a machine that others use too, --shared compares one thread each by the processor's time, which
does not depend on what else runs; how well two threads work together is then left out.

usage: llama_speed.py MODEL.Q4_1.gguf MODEL.Q4_0.gguf --baton PROGRAM --llama FOLDER [--rounds N]
       [--shared]
"""
import argparse
import json
import os
import resource
import statistics
import subprocess

ROWS = [("prompt of 512", "prompt", 2.0), ("8 prompts of 128", "prompts", None),
        ("generation, 1 stream", "generation", 1.5), ("generation, 8 streams", "streams", 2.0)]


def lines_of(*command):
    run = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    return run.stdout


def llama_round(folder, model, threads):
    bench = json.loads(lines_of(f"{folder}/llama-bench", "-m", model, "-p", "512", "-n", "128", "-t",
                                str(threads), "-r", "1", "-fa", "1", "-o", "json"))
    rates = {"prompt" if row["n_prompt"] else "generation": row["avg_ts"] for row in bench}
    batched = lines_of(f"{folder}/llama-batched-bench", "-m", model, "-npp", "128", "-ntg", "128",
                       "-npl", "8", "-t", str(threads), "-tb", str(threads), "-c", "4096", "-fa", "1",
                       "--output-format", "jsonl")
    row = next(json.loads(line) for line in batched.splitlines() if line.startswith("{"))
    return rates | {"prompts": row["speed_pp"], "streams": row["speed_tg"]}


def cpu_seconds(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    lines_of(*command)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def llama_round_shared(folder, model):
    """More work minus less work: what is left is the work alone."""
    def bench(prompt, generate, times):
        return cpu_seconds(f"{folder}/llama-bench", "-m", model, "-p", str(prompt), "-n",
                           str(generate), "-t", "1", "-r", str(times), "-fa", "1")

    def batched(prompt, generate):
        return cpu_seconds(f"{folder}/llama-batched-bench", "-m", model, "-npp", str(prompt), "-ntg",
                           str(generate), "-npl", "8", "-t", "1", "-tb", "1", "-c", "4096", "-fa", "1")

    return {"prompt": 2 * 512 / (bench(512, 0, 3) - bench(512, 0, 1)),
            "generation": 2 * 128 / (bench(0, 128, 3) - bench(0, 128, 1)),
            "prompts": 8 * 128 / (batched(129, 1) - batched(1, 1)),
            "streams": 8 * 128 / (batched(128, 129) - batched(128, 1))}


def baton_round(program, model, threads, shared):
    return json.loads(lines_of(program, "bench", "engine", model, "--threads", str(threads),
                               "--repetitions", "1", "--json", *(["--cpu-time", "--no-limits"] if shared else [])))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("best")
    parser.add_argument("--baton", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--json", help="write all rounds there")
    arguments = parser.parse_args()
    ours, theirs = [], []
    if arguments.shared:
        arguments.threads = 1
    for _ in range(arguments.rounds):
        theirs.append(llama_round_shared(arguments.llama, arguments.best) if arguments.shared else
                      llama_round(arguments.llama, arguments.best, arguments.threads))
        ours.append(baton_round(arguments.baton, arguments.model, arguments.threads,
                                arguments.shared))
    median = {name: statistics.median(row[name] for row in ours)
              for name in ours[0] if isinstance(ours[0][name], (int, float))}
    print(f"{arguments.threads} threads, {arguments.rounds} rounds in turn, medians (best), tokens "
          f"{'a second of processor time' if arguments.shared else 'a second'}; "
          f"kernels {ours[0]['kernels']}")
    print(f"{'':24s}{'baton Q4_1':>18s}{'llama.cpp Q4_0':>18s}{'ratio':>7s}{'of bests':>9s}"
          f"{'wanted':>8s}" + ("" if arguments.shared else f"{'limit':>8s}{'share':>7s}"))
    for title, name, wanted in ROWS:
        mine, his = ([row[key] for row in rows] for rows, key in ((ours, f"{name}_rate"),
                                                                  (theirs, name)))
        limit = median.get("generation_limit" if name == "generation" else "prompt_limit")
        print(f"{title:24s}{statistics.median(mine):10.0f} ({max(mine):5.0f})"
              f"{statistics.median(his):10.0f} ({max(his):5.0f})"
              f"{statistics.median(mine) / statistics.median(his):7.2f}{max(mine) / max(his):9.2f}"
              f"{f'{wanted:.1f}' if wanted else '':>8s}"
              + (f"{limit:8.0f}{100 * statistics.median(mine) / limit:6.0f}%" if limit else ""))
    if not arguments.shared:  # they are measured by the clock
        print(f"limits: integer matrix products {median['integer_gops_each']:.0f} GOP/s a core, "
              f"reading memory {median['read_gbps_one']:.1f} GB/s one core, "
              f"{median['read_gbps_all']:.1f} together")
    print(f"baton: opened in {median['open_seconds']:.2f} s, first token after "
          f"{median['first_token_seconds']:.2f} s, resident without the pool "
          f"{median['resident_bytes'] / median['weights_bytes']:.2f} of the weights")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"baton": ours, "llama.cpp": theirs}, file, indent=1)


main()
