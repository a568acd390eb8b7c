"""A replica's end: nothing of the watch is left in C++ when Python ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

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


# A replica that waits in a collective asks the others where they are; what they compute with must not live
# longer for it: it would be an output of their next graph, which then is not the others'.
ASKED = """
import gc, threading, weakref
import torch.distributed as dist
from shims._simulated import calls, watch

gc.disable()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def connect():
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

class Tensor:
    pass

def step(look):
    noise = Tensor()
    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    return weakref.ref(noise)

first = watch.Watch(connect, 0, 1)
print(step(lambda: first._state(1))())
print(step(calls._waiting_location)())
"""


def test_what_a_replica_computes_with_lives_no_longer_because_another_asked() -> None:
    assert _run(ASKED).splitlines() == ["None", "None"]


@pytest.mark.long
def test_no_thread_of_the_watch_outlives_the_program() -> None:
    assert _run(PROGRAM) == "['MainThread']\n"


def _run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
