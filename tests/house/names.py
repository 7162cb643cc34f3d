#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Base names are unique, and no source file is forgotten.

A name such as plan.c means one file in the whole tree (its header beside it aside), so that log
lines, stack traces and people can use it alone. And since CMake lists files by name, a .c file
that no CMakeLists.txt names would silently be neither built nor tested.

usage: names.py ROOT
"""
import collections
import pathlib
import re
import sys
import tempfile

SUFFIXES = {".c", ".h", ".cu", ".cuh", ".cpp"}


def source_files(root):
    for top in ("include", "src", "tests", "fuzz"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in SUFFIXES:
                yield file.relative_to(root)


def clashes(root):
    folders = collections.defaultdict(set)
    for file in source_files(root):
        folders[file.stem].add(file.parent)
    return [
        f"{stem} is in {' and in '.join(sorted(map(str, where)))}; rename one"
        for stem, where in sorted(folders.items())
        if len(where) > 1
    ]


def listed_in(root, file):
    """Is the file named by the nearest CMakeLists.txt above it?"""
    for folder in file.parents:
        lists = root / folder / "CMakeLists.txt"
        if lists.is_file():
            text = re.sub(r"#.*", "", lists.read_text())
            name = re.escape(str(file.relative_to(folder)))
            unit = re.fullmatch(r"test_(.+)\.c", file.name)
            fuzzer = re.fullmatch(r"fuzz_(.+)\.c", file.name)
            patterns = [rf"(?:(?<![\w/.])|(?<=}}/)){name}(?![\w.])"]
            if unit:
                patterns.append(rf"baton_add_test\(\s*[a-z]+\.{unit[1]}\b")
            if fuzzer:
                patterns.append(rf"baton_add_fuzzer\(\s*{fuzzer[1]}\b")
            return any(re.search(pattern, text) for pattern in patterns)
    return False


def forgotten(root):
    skipped = {pathlib.Path("fuzz/replay_main.c")}  # added by baton_add_fuzzer itself
    return [
        f"{file} is in no CMakeLists.txt; add it to the one of its folder"
        for file in source_files(root)
        if file.suffix in {".c", ".cu", ".cpp"} and file not in skipped and not listed_in(root, file)
    ]


def prove_that_it_can_fail():
    def count(check, files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return len(check(pathlib.Path(folder)))

    pair = {"src/net/a.c": "", "src/net/a.h": "", "src/base/b.c": ""}
    assert count(clashes, pair) == 0
    assert count(clashes, {**pair, "src/base/a.c": ""}) == 1
    assert count(clashes, {**pair, "tests/net/a.h": ""}) == 1
    lists = {"src/net/CMakeLists.txt": "baton_add_layer(net SOURCES\n  a.c\n  # old.c\n  sub/c.c\n)\n"}
    assert count(forgotten, {**lists, "src/net/a.c": "", "src/net/sub/c.c": ""}) == 0
    assert count(forgotten, {**lists, "src/net/old.c": ""}) == 1
    assert count(forgotten, {**lists, "src/net/c.c": ""}) == 1
    assert count(forgotten, {"src/kv/a.c": ""}) == 1
    tests = {"tests/net/CMakeLists.txt": "baton_add_test(net.tls)\n"}
    assert count(forgotten, {**tests, "tests/net/test_tls.c": ""}) == 0
    assert count(forgotten, {**tests, "tests/net/test_tl.c": ""}) == 1


def main():
    root = pathlib.Path(sys.argv[1])
    prove_that_it_can_fail()
    found = clashes(root) + forgotten(root)
    for line in found:
        print(line)
    print(f"{sum(1 for _ in source_files(root))} source files, {len(found)} complaints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
