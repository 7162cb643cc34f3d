#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""libbaton.so exports exactly what baton.h declares with BATON_API.

A declared function that is not exported breaks a caller at link time; an exported one that is
not declared becomes an ABI that nobody meant to keep.

usage: exports.py CC NM HEADER LIBRARY
"""
import re
import subprocess
import sys

DECLARED = re.compile(r'__attribute__\s*\(\(visibility\("default"\)\)\)\s+[^(;{]*?\b(\w+)\s*\(')


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared(cc, header):
    return set(DECLARED.findall(run(cc, "-E", "-P", "-x", "c", header)))


def exported(nm, library):
    """name -> version of every defined dynamic symbol; the version nodes (type A) are not one."""
    symbols = {}
    for line in run(nm, "--dynamic", "--defined-only", library).splitlines():
        _, kind, name = line.split()[-3:]
        if kind != "A":
            name, _, version = name.partition("@@")
            symbols[name] = version
    return symbols


def main():
    cc, nm, header, library = sys.argv[1:]
    wanted = declared(cc, header)
    found = exported(nm, library)
    assert "baton_version" in wanted and len(wanted) > 20, f"cannot read {header}: {wanted}"
    bad = 0
    for name in sorted(wanted - found.keys()):
        print(f"{name}: declared BATON_API in baton.h, not exported by the library")
        bad += 1
    for name in sorted(found.keys() - wanted):
        print(f"{name}: exported by the library, not declared BATON_API in baton.h")
        bad += 1
    for name in sorted(wanted & found.keys()):
        if not re.fullmatch(r"BATON_\d+\.\d+", found[name]):
            print(f"{name}: exported without a version of libbaton.map")
            bad += 1
    print(f"{len(wanted)} declared, {len(found)} exported, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
