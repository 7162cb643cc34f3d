# SPDX-License-Identifier: Apache-2.0
"""The binding's structures, constants and functions against what the C compiler says they are."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import baton
from baton import _abi, layout, transfer

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "baton.h"
SOURCE = ROOT / "tests" / "transfer" / "abi_table.c"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What abi_table prints: the one that the build made, or one compiled here."""
    program = built_table()
    if program is None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        assert compiler, "no C compiler, and no abi_table in the build folder"
        program = tmp_path_factory.mktemp("abi") / "abi_table"
        command = [compiler, "-std=gnu17", f"-I{HEADER.parent}", str(SOURCE), "-o", str(program)]
        subprocess.run(command, check=True)
    return json.loads(subprocess.run([program], check=True, capture_output=True).stdout)


def built_table() -> Path | None:
    """The program beside the library that is tested, unless the sources are newer than it."""
    newest = max(HEADER.stat().st_mtime, SOURCE.stat().st_mtime)
    folder = Path(baton.library_path()).resolve().parent
    if not (folder / "CMakeCache.txt").is_file():
        return None
    for file in folder.glob("**/abi_table"):
        if file.is_file() and os.access(file, os.X_OK) and file.stat().st_mtime >= newest:
            return file
    return None


def header_text() -> str:
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def test_every_struct_of_the_header_is_in_both_tables(table: Any) -> None:
    declared = set(re.findall(r"typedef struct (\w+) \{", header_text()))
    assert declared == set(table["structs"])
    assert declared == set(_abi.STRUCTURES)


@pytest.mark.parametrize("name", sorted(_abi.STRUCTURES))
def test_struct_has_the_same_bytes(table: Any, name: str) -> None:
    structure, expected = _abi.STRUCTURES[name], table["structs"][name]
    fields = {
        row[0]: [getattr(structure, row[0]).offset, getattr(structure, row[0]).size]
        for row in structure._fields_
    }
    assert fields == expected["fields"]
    assert ctypes.sizeof(structure) == expected["size"]


def test_constants_have_the_same_values(table: Any) -> None:
    constants = table["constants"]
    errors = {name: value for name, value in constants.items() if re.match(r"BATON_E[A-Z]", name)}
    assert {name: code for code, name in _abi.ERRORS.items()} == errors
    assert constants["BATON_OK"] == _abi.OK and constants["BATON_AGAIN"] == _abi.AGAIN
    enums = (
        ("BATON_DTYPE_", layout.DType),
        ("BATON_MEMORY_", layout.Memory),
        ("BATON_ORDER_", layout.Order),
        ("BATON_REGION_", layout.RegionKind),
    )
    for prefix, enum in enums:
        names = {n[len(prefix) :]: v for n, v in constants.items() if n.startswith(prefix)}
        assert {member.name: int(member) for member in enum} == names
    states = {
        "BATON_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", member.name).upper(): int(member)
        for member in transfer.KVPoll
    }
    assert states == {name: constants[name] for name in states}


def test_every_function_of_the_header_is_bound_with_its_arity() -> None:
    declared = {}
    prototype = re.compile(r"^BATON_API [^;]*?(baton_\w+)\(([^;]*)\);", re.M)
    for name, arguments in prototype.findall(header_text()):
        declared[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
    bound = {name: len(row[1]) for name, row in {**_abi.QUICK, **_abi.SLOW}.items()}
    assert bound == declared
    assert not set(_abi.QUICK) & set(_abi.SLOW)


def test_strings_of_the_library() -> None:
    from baton._library import lib

    for code, name in _abi.ERRORS.items():
        assert lib.baton_error_name(code).decode() == name
        assert lib.baton_error_text(code)
