"""Numbers of processes that a script fixes for `mp.spawn`, which a launch does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.multiprocessing as mp


def worker(rank, size):
    print(rank, size)


def run(size):
    mp.spawn(worker, args=(size,), nprocs=size)


if __name__ == "__main__":
    CALLS
"""


def reported(calls: str) -> list[str]:
    text = SCRIPT.replace("CALLS", calls.replace("; ", "\n    "))
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [one.message for one in done.findings if "asked for" in one.message]


@pytest.mark.parametrize(
    ("calls", "asked"),
    [
        ("run(1); run(2)", "1 and 2 processes"),
        ("run(2); run(4)", "2 and 4 processes"),
        ("run(1)", "1 process asked"),
        ("mp.spawn(worker, args=(1,), nprocs=1)", "1 process asked"),
    ],
)
def test_one_process_and_launches_of_different_sizes_are_reported(calls: str, asked: str) -> None:
    (message,) = reported(calls)
    assert asked in message
    assert ("debug_single_process=True" in message) is asked.startswith("1")


@pytest.mark.parametrize("calls", ["run(4)", "run(torch.cuda.device_count())", "run(2); run(2)"])
def test_one_number_of_gpus_is_every_chip(calls: str) -> None:
    assert reported(calls) == []
