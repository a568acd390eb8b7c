"""Terminal view and JSON of `migrate prove`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.report.text.plain import plain_value
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.prove.compare.compare import StepComparison
    from migrate.prove.proof import Proof
    from migrate.prove.resume import ResumeProof

_CLIPPED = 1e-3  # a gradient that clipping makes smaller by less was not clipped
SHOWN_FIRST, SHOWN_LAST = 3, 2  # steps in the table; all of them are compared and are in the JSON


def proof_summary(
    proof: Proof, sides: tuple[str, str] = ("original", "rewrite")
) -> Iterator[RenderableType]:
    """Yield the losses and gradient norms of some steps, the final weights, and the verdict.

    Args:
        proof: the proof.
        sides: names of the two runs.
    """
    numbers = sorted({step.step for step in proof.steps})
    shown = _shown(numbers, proof.difference.step if proof.difference else None)
    if numbers:
        yield _steps_table([step for step in proof.steps if step.step in shown], sides)
        if len(shown) < len(numbers):
            yield f"[dim]{len(numbers)} steps compared, {len(shown)} shown (--json has them all)[/dim]"
    if proof.weights:
        # Weights without a gate differ by noise, and the notes name them.
        judged = [weight for weight in proof.weights if weight.gate is not None] or proof.weights
        worst = max(judged, key=lambda weight: weight.difference)
        yield (
            f"final weights: {len(judged)} compared on every rank, largest difference "
            f"{escape(_model_said(worst.name))} on rank {worst.rank}: {worst.difference:.1e} relative L2"
        )
    for note in proof.notes:
        yield f"note: {escape(note)}"
    compiled = " (compilation included)" if sides[1] == "rewrite" else ""
    seconds = (
        f"{proof.rewritten_seconds:.1f} s{compiled}" if proof.rewritten_seconds else "not ended"
    )
    yield (
        f"{sides[0]} {proof.original_seconds:.1f} s, {sides[1]} {seconds}, "
        f"{proof.replicas} ranks on each side"
    )
    color = "green" if proof.equal else "red"
    verdict = proof.verdict.value
    # "match in 3 of 8 steps" says the verdict itself.
    said = proof.message.removeprefix(f"{verdict} in ")
    rest = f": {said}" if said == proof.message else f" in {said}"
    yield f"[bold {color}]{verdict}[/bold {color}]{escape(rest)}"


def _model_said(name: str) -> str:
    """Return the name of a parameter; of a further model, `model1.head.bias`, with what `model1` is."""
    match = re.match(r"(model(\d+))\.", name)
    if match is None:
        return name
    ordinal = "the second model" if match[2] == "1" else f"model number {int(match[2]) + 1}"
    return f"{name} ({match[1]}: {ordinal} that the script made)"


def resume_summary(proof: ResumeProof) -> Iterator[RenderableType]:
    """Yield both directions of a proof of resuming, each with its verdict."""
    for direction in proof.directions:
        yield f"[bold]{escape(direction.name)}[/bold] ({escape(str(proof.checkpoint))})"
        yield from proof_summary(direction.proof, direction.sides)


def resume_as_json(proof: ResumeProof) -> dict[str, Any]:
    """Return everything that was compared in both directions as plain values."""
    return {
        "equal": proof.equal,
        "checkpoint": str(proof.checkpoint),
        "directions": [
            {"name": direction.name, **proof_as_json(direction.proof)}
            for direction in proof.directions
        ],
    }


def _shown(numbers: Sequence[int], first_difference: int | None) -> set[int]:
    shown = {*numbers[:SHOWN_FIRST], *numbers[-SHOWN_LAST:]}
    if first_difference is not None:
        shown.update({first_difference, first_difference + 1} & set(numbers))
    return shown


def _steps_table(steps: Sequence[StepComparison], sides: tuple[str, str]) -> RenderableType:
    several = len({step.optimizer for step in steps}) > 1
    clipped = any(step.clipped for step in steps)
    table = plain_table(
        "step",
        *(["optimizer"] if several else []),
        "rank",
        f"loss: {sides[0]}",
        sides[1],
        "difference",
        f"gradient norm{' before clipping' if clipped else ''}: {sides[0]}",
        sides[1],
        "difference",
    )
    for step in steps:
        norms = list(map(_number, step.norms))
        if _is_after_clipping(step):
            norms = [f"{norm} after clipping" for norm in norms]
        table.add_row(
            str(step.step),
            *([str(step.optimizer)] if several else []),
            str(step.rank),
            _number(step.original.loss),
            _number(step.rewritten.loss),
            _difference(step.loss_difference),
            *norms,
            _difference(step.norm_difference),
        )
    return table


def _is_after_clipping(step: StepComparison) -> bool:
    """Whether the norms that differ most are those that clipping had made smaller."""
    before, after = step.original.clipped_from, step.original.gradient_norm
    if not before or after is None or step.norms[0] != after:
        return False
    return after < (1 - _CLIPPED) * before[0]


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.7g}"


def _difference(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def proof_as_json(proof: Proof) -> dict[str, Any]:
    """Return everything that was compared as plain values; what is not finite becomes a string."""
    plain = plain_value(dataclasses.asdict(proof))
    assert isinstance(plain, dict)
    return {"equal": proof.equal, "within_noise": _within_noise(proof), **plain}


def _within_noise(proof: Proof) -> dict[str, float] | None:
    """Return the noise used as tolerance. Smaller faults are not detected."""
    from migrate.prove.compare.gates import MARGIN, judged_noise

    if not proof.equal or proof.floor is None:
        return None
    values, weights = judged_noise(proof.floor)
    return {"times": MARGIN, "losses_and_gradient_norms": values, "weights": weights}
