"""What a test needs of the frameworks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT

ROOT = Path(__file__).parents[1]
_PROGRAM = (
    "import pickle, sys; function, args = pickle.load(sys.stdin.buffer); "
    "print(pickle.dumps(function(*args)).hex())"
)


def need_torch_xla() -> None:
    """Skip the test where torch_xla is not installed.

    It is not imported here: it replaces layers of torch, for all tests of the process.
    """
    if find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed")


def in_own_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function of a test file gives in a process of its own, where it may import torch_xla.

    Raises:
        AssertionError: it raised; the message has what was printed.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        input=pickle.dumps((function, args)),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(bytes.fromhex(done.stdout.splitlines()[-1].decode()))
