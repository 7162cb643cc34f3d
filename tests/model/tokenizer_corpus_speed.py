#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast Hugging Face's `tokenizers` encodes a megabyte, to be read beside our own figure.

usage: tokenizer_corpus_speed.py text OUT                  writes the megabyte: prose, code, every script
       tokenizer_corpus_speed.py encode TEXT FOLDER        with its tokenizer.json, one thread; prints a line
"""
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def mixed_text(size=1 << 20):
    """English and code out of Python's own library, and other scripts; in paragraphs, mixed."""
    import argparse
    import pydoc_data.topics
    import typing

    import tokenizer_corpus

    prose = "\n".join(pydoc_data.topics.topics.values()).split("\n\n")
    code = "".join(pathlib.Path(module.__file__).read_text() for module in (typing, argparse)).split("\n\n")
    scripts = [line.decode("utf-8", "ignore") for line in tokenizer_corpus.texts()]
    parts, length, i = [], 0, 0
    while length < size:
        for source, share in ((prose, 4), (code, 2), (scripts, 1)):
            for k in range(share):
                parts.append(source[(i * share + k) % len(source)])
                length += len(parts[-1].encode()) + 2
        i += 1
    return "\n\n".join(parts).encode()[:size].decode("utf-8", "ignore")


def resident_mb():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def encode(path, folder):
    import tokenizers

    text = pathlib.Path(path).read_bytes().decode()
    before = resident_mb()
    tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
    memory = resident_mb() - before
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        count = len(tokenizer.encode(text, add_special_tokens=False).ids)
        best = min(best, time.perf_counter() - start)
    print(f"{pathlib.Path(folder).name:<28} tokenizers {tokenizers.__version__}: {count} tokens in {best * 1e3:.0f} ms, "
          f"{count / best / 1e6:.2f} M tokens/s, memory {memory:.1f} MB")


if __name__ == "__main__":
    if sys.argv[1] == "text":
        pathlib.Path(sys.argv[2]).write_bytes(mixed_text().encode())
    else:
        encode(sys.argv[2], sys.argv[3])
