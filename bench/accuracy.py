#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far Baton's and llama.cpp's next-token distributions are from float32 arithmetic on the
dequantised weights of the same GGUF file (tests/engine/golden/reference.py, numpy): the mean
Kullback-Leibler divergence over the positions of a text, and the greedy tokens after 20 prompts.
With a file of the same weights in F32 llama.cpp also computes without rounding activations to 8 bits:
the greedy tokens are compared with both.

bench/run_llama.sh accuracy runs this with everything that it needs. By hand:

usage: accuracy.py MODEL.gguf [--float-model MODEL.F32.gguf] --baton PROGRAM --llama FOLDER
       FOLDER has llama.cpp's libllama.so; the package llama_cpp (ctypes) must be importable
"""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

golden = pathlib.Path(__file__).resolve().parent.parent / "tests" / "engine" / "golden"
sys.path.insert(0, str(golden))
from reference import Reference  # noqa: E402


class Llama:
    """llama.cpp with its own defaults, by its C interface."""

    def __init__(self, folder, model, context, threads):
        os.environ["LLAMA_CPP_LIB_PATH"] = folder
        from llama_cpp import llama_cpp as lib
        self.lib = lib
        quiet = lib.llama_log_callback(lambda level, text, data: None)
        self.quiet = quiet  # must live as long as the library
        lib.llama_log_set(quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_threads = params.n_threads_batch = threads
        self.context = lib.llama_init_from_model(self.model, params)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.vocab_size = lib.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text):
        raw = text.encode()
        out = (self.lib.llama_token * (len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, False)
        return list(out[:count])

    def logits(self, tokens, position=0, last_only=False):
        lib = self.lib
        if position == 0:
            lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = not last_only or i == len(tokens) - 1
        if lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        rows = range(len(tokens)) if not last_only else [len(tokens) - 1]
        out = np.stack([np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, i),
                                              (self.vocab_size,)).copy() for i in rows])
        lib.llama_batch_free(batch)
        return out

    def greedy(self, tokens, count):
        out, new, position = [], tokens, 0
        for _ in range(count):
            best = int(self.logits(new, position, last_only=True)[0].argmax())
            position += len(new)
            out.append(best)
            new = [best]
        return out


def baton_logits(program, model, tokens, vocab_size):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/logits"
        subprocess.run([program, "bench", "logits", model, "--output", path], check=True, text=True,
                       input=" ".join(map(str, tokens)) + "\n")
        return np.fromfile(path, dtype=np.float32).reshape(len(tokens), vocab_size)


def baton_greedy(program, model, prompts, count):
    lines = "".join(" ".join(map(str, tokens)) + "\n" for tokens in prompts)
    run = subprocess.run([program, "bench", "logits", model, "--generate", str(count)], check=True,
                         text=True, input=lines, stdout=subprocess.PIPE)
    return [list(map(int, line.split())) for line in run.stdout.splitlines()]


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(expected, found):
    """Kullback-Leibler, in nats, of each position."""
    p, q = log_softmax(expected), log_softmax(found)
    return (np.exp(p) * (p - q)).sum(axis=-1)


def describe(name, expected, found):
    each = divergence(expected, found)
    flips = int((expected.argmax(-1) != found.argmax(-1)).sum())
    rms = float(np.sqrt(np.mean((found - expected - (found - expected).mean(-1, keepdims=True)) ** 2)))
    print(f"{name:13s} mean KL {each.mean():.6f} (+- {each.std() / len(each) ** 0.5:.6f})  median "
          f"{np.median(each):.6f}  99 % {np.quantile(each, 0.99):.5f}  rms logit error {rms:.4f}  "
          f"other best token at {flips} of {len(each)}")
    return {"mean_kl": float(each.mean()), "median_kl": float(np.median(each)), "rms": rms,
            "flips": flips}


def compare_text(arguments, reference, llamas, result):
    llama = llamas["llama.cpp"]
    tokens = llama.tokens((golden / "text.txt").read_text())
    expected = reference.logits(tokens)
    print(f"text: {len(tokens)} positions")
    result["positions"] = len(tokens)
    ours = baton_logits(arguments.baton, arguments.model, tokens, expected.shape[1])
    result["baton"] = describe("baton", expected, ours)
    for name, peer in llamas.items():
        result[name] = describe(name, expected, peer.logits(tokens))
    paired = divergence(expected, ours).mean() / result["llama.cpp"]["mean_kl"]
    print(f"baton / llama.cpp: {paired:.3f} (wanted: at most 1)")


def compare_prompts(arguments, reference, prompts, ours, name, llama, result):
    """Up to the first difference: after it the two continue different texts."""
    differences = []
    for number, (prompt, mine) in enumerate(zip(prompts, ours)):
        theirs = llama.greedy(prompt, arguments.generate)
        if mine == theirs:
            continue
        at = next(i for i in range(arguments.generate) if mine[i] != theirs[i])
        logits = reference.logits(prompt + mine[:at])[-1]
        best = np.sort(logits)[-2:]
        differences.append({"prompt": number + 1, "token": at, "baton": mine[at], name:
                            theirs[at], "float32": int(logits.argmax()),
                            "gap": float(best[1] - best[0])})
        print(f"prompt {number + 1}, token {at}: baton {mine[at]}, {name} {theirs[at]}, float32 "
              f"{int(logits.argmax())}, gap of its two best {best[1] - best[0]:.4f}")
    print(f"greedy, {name}: {len(prompts) - len(differences)} of {len(prompts)} prompts have the same "
          f"{arguments.generate} tokens; differences with a gap of 0.1 or more: "
          f"{sum(d['gap'] >= 0.1 for d in differences)}")
    result[f"greedy, {name}"] = {"prompts": len(prompts), "tokens": arguments.generate,
                                 "differences": differences}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--float-model")
    parser.add_argument("--baton", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    arguments = parser.parse_args()
    reference = Reference(arguments.model)
    llamas = {"llama.cpp": Llama(arguments.llama, arguments.model, 2048, arguments.threads)}
    if arguments.float_model:
        llamas["llama.cpp F32"] = Llama(arguments.llama, arguments.float_model, 2048,
                                        arguments.threads)
    result = {"model": os.path.basename(arguments.model)}
    compare_text(arguments, reference, llamas, result)
    prompts = [llamas["llama.cpp"].tokens(line)
               for line in (golden / "prompts.txt").read_text().splitlines()]
    ours = baton_greedy(arguments.baton, arguments.model, prompts, arguments.generate)
    for name, llama in llamas.items():
        compare_prompts(arguments, reference, prompts, ours, name, llama, result)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")


main()
