"""A process that has talked over gloo ends when its threads have let go, however it came to talk."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shims import activate
from shims._shared import gloo_threads
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]
# Stands for a thread of gloo that comes late: it wants to run while the program ends. What is registered
# first runs last.
PROGRAM = """
import atexit, hashlib, os, threading
late = threading.Thread(target=hashlib.sha256, args=(bytes(1 << 24),), daemon=True)
atexit.register(lambda: print("late" if late.is_alive() else "let go"))
import torch
import torch.distributed as dist
{group}
late.start()
"""
LAUNCHED = """
import shims
os.environ["MIGRATE_BACKEND"] = "cpu"
def main(rank):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
shims.launch(main)
"""
JOINED = """
import shims
os.environ["MIGRATE_BACKEND"] = "cpu"
shims.init_distributed()
"""
WRITTEN_FOR_CUDA = 'dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)'
SIMULATED = """
from shims._simulated.collectives import Collectives
from shims._simulated.watch import Watch
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
Collectives(store, 0, 1, Watch(lambda: store, 0, 1))
"""
OF_TORCH_TPU = """
import datetime, types
from shims._simulated_tpu import collectives
options = types.SimpleNamespace(
    store=dist.HashStore(), group_rank=0, group_size=1, timeout=datetime.timedelta(minutes=1)
)
kept = collectives.create_group(options)
"""


def _end_of(group: str, backend: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(group=group)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **(activate.environment(backend) if backend else {}),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Gloo prints a line of its own.
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("group", "backend"),
    [
        (LAUNCHED, ""),
        (JOINED, ""),
        (WRITTEN_FOR_CUDA, "cpu"),
        pytest.param(SIMULATED, "", marks=pytest.mark.xla),
        (OF_TORCH_TPU, ""),
    ],
    ids=["launched", "joined", "written for CUDA", "simulated", "of torch_tpu"],
)
@pytest.mark.long_cases("simulated", "launched", "written for CUDA")
def test_the_end_waits_for_a_thread_that_is_late(group: str, backend: str) -> None:
    assert _end_of(group, backend) == "let go"


def test_a_thread_that_waits_for_others_is_not_waited_for() -> None:
    release = threading.Event()
    idle = threading.Thread(target=release.wait)
    late = threading.Thread(target=hashlib.sha256, args=(bytes(1 << 24),))
    idle.start()
    late.start()
    gloo_threads.let_go(LIMIT)
    assert not late.is_alive()
    assert idle.is_alive()
    release.set()
    idle.join()
