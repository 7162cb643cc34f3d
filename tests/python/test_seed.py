# SPDX-License-Identifier: Apache-2.0
"""The interface that engines know, exactly as published: nine fields, raw pointers to memory that
Baton did not allocate, a manager without a role. Two processes (seed_program.py), no helpers.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import baton

PROGRAM = Path(__file__).with_name("seed_program.py")


def test_the_nine_fields_by_keyword_and_by_attribute() -> None:
    fields = {
        "engine_rank": 1,
        "num_receivers": 2,
        "kv_data_ptrs": [4096],
        "kv_data_lens": [8192],
        "kv_item_lens": [64],
        "ib_device": "mlx5_0",
        "max_inflight": 16,
        "max_sge": 4,
        "verbose": False,
    }
    by_attribute = baton.KVArgs()
    for name, value in fields.items():
        setattr(by_attribute, name, value)
    assert by_attribute == baton.KVArgs(**fields)  # type: ignore[arg-type]
    assert list(inspect.signature(baton.KVArgs).parameters)[:9] == list(fields)


def test_the_signatures() -> None:
    def names(function: object) -> list[str]:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]

    assert names(baton.KVManager) == ["args"]
    assert names(baton.KVSender)[:4] == [
        "mgr",
        "bootstrap_addr",
        "bootstrap_room",
        "dest_ranks",
    ]
    assert names(baton.KVSender.init)[1] == "num_kv_indices"
    assert names(baton.KVSender.send)[1] == "kv_indices"
    assert names(baton.KVReceiver)[:3] == ["mgr", "bootstrap_addr", "bootstrap_room"]
    assert names(baton.KVReceiver.init)[1:3] == ["kv_indices", "aux_index"]
    assert names(baton.KVBootstrapServer)[0] == "port"
    assert [(state.name, int(state)) for state in baton.KVPoll] == [
        ("Failed", 0),
        ("Bootstrapping", 1),
        ("WaitingForInput", 2),
        ("Transferring", 3),
        ("Success", 4),
    ]


def test_two_processes_hand_pages_over(server: baton.KVBootstrapServer) -> None:
    package = str(Path(baton.__file__).resolve().parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": package,
        "BATON_LIBRARY": baton.library_path(),
    }
    processes = {
        role: subprocess.Popen(
            [sys.executable, str(PROGRAM), role, str(server.port)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in ("decode", "prefill")
    }
    for role, process in processes.items():
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, f"{role}: {errors}"
        assert output.strip() == f"{role} Success"
        assert errors == ""
