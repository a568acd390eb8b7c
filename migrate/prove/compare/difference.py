"""What a proof finds where the two sides part."""

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
    """The first place where the two sides part.

    Attributes:
        kind: what differs.
        step: the optimizer step, from 1; for final weights and what is printed the last one.
        rank: the rank, None if it concerns all.
        message: one line for the user.
        size: how far the sides are apart, relative to the original; None where that is no number.
    """

    kind: Kind
    step: int
    rank: int | None
    message: str
    size: float | None = None


@dataclass(frozen=True)
class Case:
    """One step of all ranks, with all that is known of both sides.

    Attributes:
        original: the ranks of the original.
        ours: those of the rewrite.
        ranks: the step, of each rank.
        gates: what differences are held to.
    """

    original: Ranks
    ours: Ranks
    ranks: list[StepComparison]
    gates: Gates


def at_step(kind: Kind, step: StepComparison, what: str, size: float | None = None) -> Difference:
    """A difference at a step of a rank."""
    return Difference(kind, step.step, step.rank, f"{where(step)}, rank {step.rank}: {what}", size)


def where(step: StepComparison) -> str:
    """The step in words."""
    return f"step {step.step}" + (f" of optimizer {step.optimizer}" if step.optimizer else "")


def lines(step: StepComparison, what: str) -> str:
    """Where the two scripts do it, in parentheses; "" if neither is known.

    Args:
        step: of one rank.
        what: a key of `recording.details.Details.lines`.
    """
    mine = step.rewritten.details.lines.get(what)
    theirs = step.original.details.lines.get(what)
    places = [mine] if mine else []
    if theirs:
        places.append(f"{theirs} in the original")
    return f" ({what}: {', '.join(places)})" if places else ""


def listed(names: list[str]) -> str:
    """The first of many names."""
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
