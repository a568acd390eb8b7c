"""The page of `migrate prove`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from migrate.counts import many
from migrate.prove.compare.gates import (
    BFLOAT16_LOSS_GATE,
    GRADIENT_GATE,
    LOSS_GATE,
    MARGIN,
    PARAMETER_GATE,
    Gates,
)
from migrate.prove.compare.verdict import ProofVerdict
from migrate.report.html.banner import Banner, State, sentence
from migrate.report.html.page import write_page
from migrate.report.html.plots import FIRST, SECOND, WRONG, plot

if TYPE_CHECKING:
    from migrate.prove.compare.compare import StepComparison, WeightComparison
    from migrate.prove.proof import Proof
    from migrate.prove.resume import ResumeProof

# The headline of each verdict, its state, and what to do next.
_VERDICTS: dict[ProofVerdict, tuple[str, State, str]] = {
    ProofVerdict.MATCH: (
        "Match",
        "fine",
        "check that the training step fits on your TPU: `migrate fit {script} --tpu v5e-8{args}`.",
    ),
    ProofVerdict.DIFFERS: (
        "Different",
        "wrong",
        "compare the named lines of both scripts, correct the rewrite, and prove it again with "
        "`--rewritten FILE`.",
    ),
    ProofVerdict.VACUOUS: (
        "Nothing to compare",
        "open",
        "run the script with arguments with which it trains, and prove it again.",
    ),
    ProofVerdict.NOT_FINITE: (
        "Not finite",
        "open",
        "find out why the original gives NaN or infinity, or stop before that step with `--steps`.",
    ),
    ProofVerdict.NOISE: (
        "Hidden by rounding noise",
        "open",
        "compare fewer steps with `--steps`, or the first steps after a checkpoint.",
    ),
    ProofVerdict.NO_STEPS: (
        "No training steps",
        "open",
        "check that both scripts reach `optimizer.step()` with these arguments.",
    ),
    ProofVerdict.STEP_COUNT: (
        "Different numbers of steps",
        "wrong",
        "make both sides take the same number of steps, or compare the first ones with `--steps`.",
    ),
    ProofVerdict.RANK_COUNT: (
        "Different numbers of ranks",
        "wrong",
        "check how each script starts its ranks, and set `--replicas` or `--start`.",
    ),
    ProofVerdict.CANNOT_RESUME: (
        "Cannot resume",
        "wrong",
        "correct how the script loads the checkpoint, and prove it again.",
    ),
    ProofVerdict.UNENDED: (
        "No step boundary",
        "wrong",
        "put the body of the training loop in `with torch_xla.step():`.",
    ),
    ProofVerdict.PARTED: (
        "Replicas diverge",
        "wrong",
        "give all replicas batches of the same shape, run the same computation on every replica, and print "
        "or save the result on one.",
    ),
}


@dataclass(frozen=True)
class StepRow:
    """A step of one rank, with the limits of its differences; None where there is no limit."""

    step: StepComparison
    loss_limit: float | None
    gradient_limit: float | None

    @property
    def loss_failed(self) -> bool:
        """Whether the loss is above its limit."""
        return _is_above(self.step.loss_difference, self.loss_limit)

    @property
    def gradient_failed(self) -> bool:
        """Whether the gradient norm is above its limit."""
        return _is_above(self.step.gradient_difference, self.gradient_limit)


def write_prove_page(
    proof: Proof | ResumeProof, script: Path, path: Path, args: Sequence[str] = ()
) -> None:
    """Write the page of the proof of `script` with `args` to `path`, replacing the file if it exists.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    directions = getattr(proof, "directions", None)
    if directions is None:
        parts = [_part("", cast("Proof", proof), script, args)]
    else:
        parts = [
            _part(direction.name, direction.proof, script, args, direction.sides)
            for direction in directions
        ]
    write_page(
        "prove.html.j2",
        path,
        parts[0]["banner"] if directions is None else _resume_banner(parts),
        title=f"migrate prove {script}",
        parts=parts,
        remark=_remark,
    )


def _banner(proof: Proof, script: Path, args: Sequence[str]) -> Banner:
    verdict, state, next_step = _VERDICTS[proof.verdict]
    shown = f" -- {shlex.join(args)}" if args else ""
    return Banner(
        state,
        verdict,
        sentence(proof.message),
        sentence(next_step.format(script=script, args=shown)),
    )


def _resume_banner(parts: Sequence[dict[str, Any]]) -> Banner:
    """Return the banner of a proof of resuming: the first direction that is not equal decides."""
    failed = [part for part in parts if part["banner"].state != "fine"]
    if not failed:
        finding = "The checkpoint continues on the other side, in both directions."
        return Banner("fine", "Equal", finding, parts[0]["banner"].next_step)
    banner: Banner = failed[0]["banner"]
    finding = f"{sentence(failed[0]['name'])[:-1]}: {banner.finding}"
    return Banner(banner.state, banner.verdict, finding, banner.next_step)


def _part(
    name: str,
    proof: Proof,
    script: Path,
    args: Sequence[str],
    sides: tuple[str, str] = ("original", "rewrite"),
) -> dict[str, Any]:
    gates = Gates(proof.floor, proof.bfloat16)
    optimizers = sorted({step.optimizer for step in proof.steps})
    return {
        "name": name,
        "sides": sides,
        "proof": proof,
        "banner": _banner(proof, script, args),
        "limits": list(_limits(proof)),
        "optimizers": len(optimizers),
        "clipped": any(
            side.clipped_from for step in proof.steps for side in (step.original, step.rewritten)
        ),
        "steps": [_row(step, gates) for step in proof.steps],
        "weights": sorted(proof.weights, key=lambda weight: -weight.difference),
        "remarks": any(map(_remark, proof.weights)),
        "differences": [
            drawn
            for optimizer in optimizers
            for drawn in _difference_plots(name, proof, gates, optimizer, len(optimizers) > 1)
        ],
        "losses": [
            drawn
            for optimizer in optimizers
            for drawn in _loss_plots(name, proof, optimizer, len(optimizers) > 1, sides)
        ],
    }


def _row(step: StepComparison, gates: Gates) -> StepRow:
    """Return the row of a step; from the first step on whose noise is too large nothing has a limit."""
    if gates.blind(step.optimizer, step.step):
        return StepRow(step, None, None)
    loss, norm = step.loss_difference, step.gradient_difference
    return StepRow(
        step,
        None if loss is None else gates.loss(step.optimizer, step.step),
        None if norm is None else gates.gradient(step.optimizer, step.step),
    )


def _limits(proof: Proof) -> Iterator[tuple[str, str]]:
    """Yield what the differences are held to, in words."""
    if not proof.steps:
        return
    loss = BFLOAT16_LOSS_GATE if proof.bfloat16 else LOSS_GATE
    noise = f", or {MARGIN:g} times the noise of the original" if proof.floor else ""
    yield "Limit of losses", f"relative difference {loss:g}{noise}"
    yield "Limit of gradient norms", f"relative difference {GRADIENT_GATE:g}{noise}"
    if proof.weights:
        yield "Limit of weights", f"relative L2 difference {PARAMETER_GATE:g} · √steps{noise}"


def _remark(weight: WeightComparison) -> str:
    """Return why a weight has no limit, or how many of its elements were left out."""
    left_out, elements = weight.left_out
    if weight.noise:
        return "no limit: its gradients are rounding noise"
    if weight.none_left:
        return "no limit: rounding moves all its elements"
    if weight.gate is None:
        return "no limit: the original differs from itself by as much"
    if left_out:
        return f"{left_out:,} of {elements:,} elements left out: rounding moves them"
    return ""


_Difference = tuple[int, float, float]  # step, difference, limit (NaN for none)


def _difference_plots(
    name: str, proof: Proof, gates: Gates, optimizer: int, several: bool
) -> Iterator[tuple[str, str]]:
    """Yield title and plot of what was compared at each step: the largest difference of all ranks."""
    losses: dict[int, _Difference] = {}
    norms: dict[int, _Difference] = {}
    for step in proof.steps:
        if step.optimizer != optimizer:
            continue
        row = _row(step, gates)
        _keep_larger(losses, step.step, step.loss_difference, row.loss_limit)
        _keep_larger(norms, step.step, step.gradient_difference, row.gradient_limit)
    whose = f" of optimizer {optimizer}" if several else ""
    for what, color, points in (("Loss", FIRST, losses), ("Gradient norm", SECOND, norms)):
        if points:
            title = f"{what}{whose}"
            yield title, _difference_plot(f"{name} {title}".strip(), color, list(points.values()))


def _keep_larger(
    points: dict[int, _Difference], step: int, difference: float | None, limit: float | None
) -> None:
    if difference is None:
        return
    before = points.get(step)
    # A difference that is not a number is the largest there is.
    value = math.inf if math.isnan(difference) else difference
    if before is None or value > before[1]:
        points[step] = (step, value, math.nan if limit is None else limit)


def _difference_plot(title: str, color: str, points: Sequence[_Difference]) -> str:
    """Plot differences and limits on a logarithmic axis; zeros and infinities lie at its edges."""
    above = sum(_is_above(difference, limit) for _, difference, limit in points)
    drawable = [point for point in points if 0 < point[1] < math.inf]
    largest = max(difference for _, difference, _ in points)
    description = (
        f"{title}: the largest relative difference is {largest:.1e}; {many(above, 'step')} of "
        f"{len(points)} above the limit."
    )
    with plot("step", "relative difference", description) as drawing:
        axes = drawing.axes
        axes.set_yscale("log")
        axes.plot(
            [step for step, _, _ in points],
            [limit for _, _, limit in points],
            "--",
            color=WRONG,
            linewidth=1.2,
            label="limit",
            drawstyle="steps-mid",
        )
        axes.plot(
            [step for step, _, _ in drawable],
            [difference for _, difference, _ in drawable],
            ".-",
            color=color,
            linewidth=0.8,
            label="difference",
        )
        high = [point for point in drawable if _is_above(point[1], point[2])]
        if high:
            axes.plot(
                [step for step, _, _ in high],
                [difference for _, difference, _ in high],
                "o",
                color=WRONG,
                markersize=5,
                label="above the limit",
            )
        values = [value for point in points for value in point[1:]]
        positive = [value for value in values if 0 < value < math.inf] or [LOSS_GATE]
        axes.set_ylim(min(positive) / 10, max(positive) * 10)
        zeros = [step for step, difference, _ in points if difference == 0]
        infinite = [step for step, difference, _ in points if difference == math.inf]
        edges = (
            (zeros, 0.03, "v", color, "no difference"),
            (infinite, 0.97, "x", WRONG, "not finite"),
        )
        for steps, height, marker, edge_color, label in edges:
            if steps:
                axes.plot(
                    steps,
                    [height] * len(steps),
                    marker,
                    color=edge_color,
                    mfc="none",
                    markersize=5,
                    transform=axes.get_xaxis_transform(),
                    label=label,
                )
        axes.locator_params(axis="x", integer=True)
    return drawing.svg


def _loss_plots(
    name: str, proof: Proof, optimizer: int, several: bool, sides: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield title and plot of both sides' losses: the first as a line, the second as points on it."""
    first = min(step.rank for step in proof.steps)
    steps = [step for step in proof.steps if (step.rank, step.optimizer) == (first, optimizer)]
    original = [_finite(step.original.loss) for step in steps]
    rewritten = [_finite(step.rewritten.loss) for step in steps]
    if not any(math.isfinite(loss) for loss in (*original, *rewritten)):
        return
    title = f"Loss on rank {first}" + (f", optimizer {optimizer}" if several else "")
    description = f"{name} {title}: {sides[0]} and {sides[1]}, step by step.".strip()
    numbers = [step.step for step in steps]
    with plot("step", "loss", description) as drawing:
        drawing.axes.plot(numbers, original, color=FIRST, label=sides[0])
        drawing.axes.plot(numbers, rewritten, ".", color=SECOND, label=sides[1])
        drawing.axes.locator_params(axis="x", integer=True)
    yield title, drawing.svg


def _is_above(difference: float | None, limit: float | None) -> bool:
    if difference is None or limit is None or math.isnan(limit):
        return False
    return not difference <= limit


def _finite(value: float | None) -> float:
    """Return a value that a plot can show: NaN leaves a gap."""
    return value if value is not None and math.isfinite(value) else math.nan
