"""Differences that a proof finds where the two sides diverge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from migrate.prove.compare.compare import StepComparison
from migrate.prove.compare.gates import Gates
from migrate.prove.recording.records import RankRecord

Ranks = Mapping[int, RankRecord]
Kind = Literal[
    "names",
    "gradient count",
    "learning rate",
    "optimizer",
    "accumulation",
    "dtypes",
    "draws",
    "ranks apart",
    "gradient norm",
    "parameters",
    "buffers",
    "loss",
    "order",
    "printed",
]


@dataclass(frozen=True)
class Difference:
    """First divergence of the two sides.

    Attributes:
        kind: what differs.
        step: the optimizer step, from 1; for final weights and printed lines, the last step.
        rank: the rank; None if it concerns all.
        message: one line for the user.
        size: distance of the sides, relative to the original; None if it is no number.
    """

    kind: Kind
    step: int
    rank: int | None
    message: str
    size: float | None = None


@dataclass(frozen=True)
class StepCase:
    """Step of all ranks, with the records of both sides.

    Attributes:
        original: ranks of the original.
        ours: ranks of the rewrite.
        ranks: comparison of the step on each rank.
        gates: gates of the differences.
    """

    original: Ranks
    ours: Ranks
    ranks: list[StepComparison]
    gates: Gates


def at_step(kind: Kind, step: StepComparison, what: str, size: float | None = None) -> Difference:
    """Create a difference at a step of a rank."""
    return Difference(kind, step.step, step.rank, f"{where(step)}, rank {step.rank}: {what}", size)


def where(step: StepComparison) -> str:
    """Name of the step in words."""
    return f"step {step.step}" + (f" of optimizer {step.optimizer}" if step.optimizer else "")


def lines(step: StepComparison, what: str) -> str:
    """Locations in the two scripts, in parentheses; "" if neither is known.

    Args:
        step: comparison of a step on a rank.
        what: a key of `recording.details.Details.lines`.
    """
    mine = step.rewritten.details.lines.get(what)
    theirs = step.original.details.lines.get(what)
    places = [mine] if mine else []
    if theirs:
        places.append(f"{theirs} in the original")
    return f" ({what}: {', '.join(places)})" if places else ""


def listed(names: list[str]) -> str:
    """First of many names."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
