"""Barriers under a test of the rank: a rendezvous only where the other replicas come to one too."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def run(body: str) -> tuple[int, int]:
    """Return how many rendezvous a function with `body` gets, and how many barriers are reported."""
    script = "import torch.distributed as dist\n\n\ndef f(rank, args):\n" + textwrap.indent(
        body, "    "
    )
    done = rewrite_source(parse(f"{script}\n".encode(), Path("script.py")))
    reported = sum(note.rule == "barrier" for note in done.findings)
    return done.data.decode().count("xm.rendezvous("), reported


OTHERS = "if {}:\n    dist.barrier()\nload()\n"
FIRST = "if {}:\n    dist.barrier()\n"


@pytest.mark.parametrize(
    ("others", "first"),
    [
        ("rank != 0", "rank == 0"),
        ("rank > 0", "not rank"),
        ("rank", "rank == 0"),
        ("args.local_rank not in [-1, 0]", "args.local_rank == 0"),
        ("args.distributed and rank != 0", "args.distributed and rank == 0"),
        ("not is_main_process()", "is_main_process()"),
        ("dist.get_rank() != 0", "dist.get_rank() == 0"),
    ],
)
def test_two_halves_meet(others: str, first: str) -> None:
    assert run(OTHERS.format(others) + FIRST.format(first)) == (2, 0)


def test_both_branches_come_to_a_barrier() -> None:
    assert run("if rank == 0:\n    load()\n    dist.barrier()\nelse:\n    dist.barrier()") == (2, 0)


def test_replicas_that_leave_early_come_to_the_other_half() -> None:
    script = "if rank != 0:\n    dist.barrier()\n    return\nload()\ndist.barrier()"
    assert run(script) == (2, 0)


def test_two_pairs_meet_and_a_third_half_does_not() -> None:
    pair = OTHERS.format("rank != 0") + FIRST.format("rank == 0")
    assert run(pair + pair) == (4, 0)
    assert run(pair + FIRST.format("rank == 0")) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [
        FIRST.format("rank == 0") * 2,
        FIRST.format("rank == 1") + FIRST.format("rank == 0"),
        OTHERS.format("rank % 2 == 1") + FIRST.format("rank == 0"),
        "if rank == 0 and args.save:\n    dist.barrier()\nelse:\n    load()",
    ],
)
def test_what_does_not_meet_is_reported(body: str) -> None:
    rendezvous, reported = run(body)
    assert rendezvous == 0
    assert reported
