"""The page of `migrate prove`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migrate.prove.compare.gates import Gates
from migrate.report.html.page import write_page
from migrate.report.html.plots import BLUE, GREY, RED, plot

if TYPE_CHECKING:
    from migrate.prove.compare.compare import StepComparison
    from migrate.prove.proof import Proof
    from migrate.prove.resume import ResumeProof

# Weights in the table, the farthest apart first.
_WEIGHTS = 20


def write_prove_page(proof: Proof | ResumeProof, script: Path, path: Path) -> None:
    """Write the page of the proof of `script` to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    directions = getattr(proof, "directions", None)
    write_page(
        "prove.html.j2",
        path,
        title=f"migrate prove {script}",
        parts=[_part("", proof)]
        if directions is None
        else [_part(one.name, one.proof) for one in directions],
    )


def _part(name: str, proof: Any) -> dict[str, Any]:
    first = min((step.rank for step in proof.steps), default=0)
    shown = [step for step in proof.steps if step.rank == first and step.optimizer == 0]
    return {
        "name": name,
        "proof": proof,
        "rank": first,
        "steps": shown,
        "weights": sorted(proof.weights, key=lambda weight: -weight.difference)[:_WEIGHTS],
        "losses": _curves(shown, "loss", lambda step: (step.original.loss, step.rewritten.loss)),
        "norms": _curves(
            shown,
            "gradient norm",
            lambda step: (step.original.gradient_norm, step.rewritten.gradient_norm),
        ),
        "differences": _differences(shown, Gates(proof.floor, proof.bfloat16)),
    }


_Pair = tuple[float | None, float | None]


def _curves(
    steps: Sequence[StepComparison], what: str, pair: Callable[[StepComparison], _Pair]
) -> str:
    """Plot a value of both sides: the original's as a line, the rewrite's as points on it."""
    if not steps:
        return ""
    numbers = [step.step for step in steps]
    original, rewritten = zip(*(map(_number, pair(step)) for step in steps), strict=True)
    with plot("step", what) as drawn:
        drawn.axes.plot(numbers, original, color=BLUE, label="original")
        drawn.axes.plot(numbers, rewritten, ".", color=RED, label="rewrite")
    return drawn.svg


def _differences(steps: Sequence[StepComparison], gates: Gates) -> str:
    """Plot the relative differences of losses and gradient norms; what is zero has no point."""
    if not steps:
        return ""
    with plot("step", "relative difference") as drawn:
        for label, colour, values in (
            ("loss", BLUE, [step.loss_difference for step in steps]),
            ("gradient norm", RED, [step.gradient_difference for step in steps]),
        ):
            found = [
                (step.step, value)
                for step, value in zip(steps, values, strict=True)
                if value and math.isfinite(value)
            ]
            drawn.axes.plot(
                [step for step, _ in found],
                [value for _, value in found],
                ".-",
                color=colour,
                label=label,
                linewidth=0.8,
            )
        # Losses and gradient norms have one limit.
        limits = [gates.loss(step.optimizer, step.step) for step in steps]
        if len(set(limits)) == 1:
            drawn.axes.axhline(limits[0], color=GREY, linewidth=0.8, linestyle="--", label="limit")
        else:
            numbers = [step.step for step in steps]
            drawn.axes.plot(
                numbers,
                limits,
                "--",
                color=GREY,
                linewidth=0.8,
                label="limit",
                drawstyle="steps-mid",
            )
        drawn.axes.set_yscale("log")
    return drawn.svg


def _number(value: float | None) -> float:
    return math.nan if value is None else value
