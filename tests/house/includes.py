#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Includes point down only.

Reads every #include line under src/ and fails where a layer names one that src/layers.txt does
not let it see. Before it judges the tree it proves that it can fail: on trees made for the
purpose it must find each kind of violation, and find none where there is none.

usage: includes.py ROOT
"""
import pathlib
import re
import sys
import tempfile

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp", ".inc"}


def read_layers(root):
    layers = {}
    for number, line in enumerate((root / "src/layers.txt").read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, below = line.partition(":")
        unknown = [layer for layer in below.split() if layer not in layers]
        if unknown:
            sys.exit(f"src/layers.txt:{number}: {name} names {unknown[0]}, which is not below it")
        layers[name] = set(below.split())
    return layers


def resolve(root, file, quote, path):
    """Where the compiler would find the file, with -Iinclude -Isrc; None: outside the tree."""
    folders = [file.parent] if quote == '"' else []
    for folder in folders + [root / "include", root / "src"]:
        found = (folder / path).resolve()
        if found.is_file() and found.is_relative_to(root):
            return found
    return None


def violations(root):
    root = root.resolve()
    src = root / "src"
    layers = read_layers(root)
    found = []
    for file in sorted(src.rglob("*")):
        if file.suffix not in SUFFIXES:
            continue
        layer = file.relative_to(src).parts[0]
        if layer not in layers:
            found.append(f"{file.relative_to(root)}: {layer} is no layer of src/layers.txt")
            continue
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            where = f"{file.relative_to(root)}:{number}"
            target = resolve(root, file, *match.groups())
            if target is None:
                if match[1] == '"':
                    found.append(f'{where}: "{match[2]}" is not in this tree; use <> if it is a library\'s')
                continue
            if target.is_relative_to(root / "include"):
                continue
            if not target.is_relative_to(src):
                found.append(f"{where}: {layer} includes {target.relative_to(root)}, outside src/ and include/")
                continue
            other = target.relative_to(src).parts[0]
            if other != layer and other not in layers[layer]:
                found.append(f"{where}: {layer} may not see {other} ({match[2]}); src/layers.txt says what it may")
    return found


def prove_that_it_can_fail(root):
    table = (root / "src/layers.txt").read_text()
    cases = [
        # file, its include line, how many violations
        ("src/transfer/good.c", '#include "net/a.h"', 0),
        ("src/transfer/good.c", '#include "own.h"', 0),
        ("src/transfer/backends/good.c", '#include "../own.h"', 0),
        ("src/base/good.c", '#include "baton.h"', 0),
        ("src/base/good.c", "#include <stdio.h>", 0),
        ("src/base/bad.c", '#include "net/a.h"', 1),
        ("src/net/bad.h", '  #  include "transfer/own.h"', 1),
        ("src/transfer/bad.c", '#include "kv/a.h"', 1),
        ("src/transfer/bad.c", "#include <kv/a.h>", 1),
        ("src/transfer/bad.c", '#include "../kv/a.h"', 1),
        ("src/kv/bad.c", '#include "transfer/own.h"', 1),
        ("src/base/bad.c", '#include "missing.h"', 1),
        ("src/base/bad.c", '#include "../../tests/a.h"', 1),
        ("src/novelty/bad.c", "", 1),
    ]
    for name, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            headers = ("include/baton.h", "src/net/a.h", "src/kv/a.h", "src/transfer/own.h", "tests/a.h")
            for header in headers + (name,):
                (tree / header).parent.mkdir(parents=True, exist_ok=True)
                (tree / header).write_text("")
            (tree / "src/layers.txt").write_text(table)
            (tree / name).write_text(line + "\n")
            found = violations(tree)
            if len(found) != expected:
                sys.exit(f"the check itself is broken: {name} with {line!r} gave {found}, expected {expected}")
    return len(cases)


def main():
    root = pathlib.Path(sys.argv[1])
    proofs = prove_that_it_can_fail(root)
    found = violations(root)
    for line in found:
        print(line)
    print(f"{len(found)} forbidden includes; the check itself passed {proofs} cases")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
