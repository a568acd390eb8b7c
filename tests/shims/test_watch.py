"""A replica's end: nothing of the watch is left in C++ when Python ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xla

ROOT = Path(__file__).parents[2]
# What is registered first runs last. A thread that is in the store's client while Python ends aborts the
# process: "terminate called without an active exception", in some of many runs.
PROGRAM = """
import atexit, threading
import torch.distributed as dist
from shims._simulated import watch

def last():
    print([thread.name for thread in threading.enumerate()])

atexit.register(last)
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def connect():
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

watches = [watch.Watch(connect, rank, 4) for rank in range(4)]
"""


def test_no_thread_of_the_watch_outlives_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "['MainThread']\n"), done.stderr
