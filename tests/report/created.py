"""Results of `migrate prove`, `run` and `fit` written by hand, for the tests of their pages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from migrate.compiler.arrays import HloArray
from migrate.fit.lines import LineCost, StepBound
from migrate.fit.memory import LiveArray, Memory
from migrate.fit.products import product_named
from migrate.fit.verdict import FitReport, FitVerdict, SliceResult
from migrate.fit.waste import Waste
from migrate.fit.work import Collective
from migrate.observe import report as observe
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution, Interval
from migrate.observe.report import Observed
from migrate.prove.compare import verdict as prove
from migrate.prove.compare.compare import StepComparison, WeightComparison
from migrate.prove.proof import Proof
from migrate.prove.recording.records import StepRecord
from migrate.prove.resume import FORWARD, REVERSE, Direction, ResumeProof

RANKS, STEPS = 4, 12


def step_record(
    step: int, loss: float, norm: float, clipped_from: tuple[float, ...] = (), optimizer: int = 0
) -> StepRecord:
    return StepRecord(
        step=step,
        optimizer=optimizer,
        losses=(loss,),
        gradient_norm=norm,
        clipped_from=clipped_from,
        parameters=2,
        with_gradient=2,
        in_modules=2,
        learning_rates=(0.1,),
        checksum=(1.0, 2.0),
        dropout=0.0,
    )


def proof(
    difference: Callable[[int, int], float],
    verdict: prove.ProofVerdict = prove.ProofVerdict.MATCH,
    *,
    optimizers: int = 1,
) -> Proof:
    """A proof of a script that clips gradients to norm 1: after clipping all norms are nearly 1."""
    steps = []
    for step in range(1, STEPS + 1):
        for optimizer in range(optimizers):
            for rank in range(RANKS):
                far = difference(step, rank)
                loss, norm = 8 / step, 1 - 1e-6 / step
                original, rewrite = (
                    step_record(step, loss * factor, norm, (3.0 * factor,), optimizer)
                    for factor in (1.0, 1.0 + far)
                )
                steps.append(StepComparison(step, optimizer, rank, original, rewrite, far, far / 2))
    weights = (
        WeightComparison("net.0.weight", 1, 3e-7, gate=3e-5),
        WeightComparison("net.0.bias", 3, 0.4, noise=True),
        WeightComparison("net.1.weight", 2, 4e-8, gate=3e-5, left_out=(3, 1200)),
    )
    return Proof(
        verdict=verdict,
        message="12 steps on each of 4 ranks and 2 final weights agree",
        replicas=RANKS,
        steps=tuple(steps),
        weights=weights,
        difference=None,
        notes=("dropout with p=0.1 was switched off on both sides",),
        original_seconds=1.5,
        rewritten_seconds=2.5,
    )


def _small(step: int, rank: int) -> float:
    return 0.0 if step == 3 else 1e-7 * (1 + rank) / step


def _growing(step: int, rank: int) -> float:
    return math.inf if (step, rank) == (STEPS, 1) else 1e-4 if step > 6 else 1e-7


def _without_steps(verdict: prove.ProofVerdict, message: str) -> Proof:
    return dataclasses.replace(
        proof(_small, verdict), message=message, steps=(), weights=(), notes=()
    )


PROOFS: dict[str, Callable[[], Proof | ResumeProof]] = {
    "equal": lambda: proof(_small, optimizers=2),
    "differs": lambda: dataclasses.replace(
        proof(_growing, prove.ProofVerdict.DIFFERS),
        message="step 7, rank 0: loss 1.1429, in the original 1.1428 (loss: <train>.py:31)",
    ),
    "no steps": lambda: _without_steps(
        prove.ProofVerdict.NO_STEPS, "no optimizer step was recorded in the rewrite"
    ),
    "resume": lambda: ResumeProof(
        Path("last.pt"),
        (
            Direction(FORWARD, proof(_small)),
            Direction(
                REVERSE,
                _without_steps(
                    prove.ProofVerdict.CANNOT_RESUME, "the original ended with an error"
                ),
            ),
        ),
    ),
}

_FRAME = DumpFrame("main", "train.py", 31)
_LINE = observe.ObservedLine("train.py", 31, "with torch_xla.step():")
_LONG = observe.ObservedLine(
    "project/training/loop.py", 131, "history.append(criterion(model(batch), labels).item())"
)


def _interval(rank: int, number: int) -> Interval:
    compiles = number in (1, 5)
    causes = (ExecutionCause.SYNC, ExecutionCause.READ, ExecutionCause.SIMULATION)
    return Interval(
        rank=rank,
        number=number,
        line=_FRAME,
        seconds=1.25 if compiles else 0.02,
        compile_seconds=1.0 if compiles else 0.0,
        compiles=int(compiles),
        execute_seconds=0.01,
        sent=5000,
        received=16,
        optimizer_steps=1,
        fallbacks={},
        executions=tuple(Execution("a1", cause, _FRAME, compiles) for cause in causes),
    )


def _loop() -> observe.Loop:
    return observe.Loop(_LINE, STEPS, STEPS, 2, 2, 2.0, 2.5, 0.02, 2.0, 1.0)


def _observed() -> Observed:
    return Observed(
        ranks=RANKS,
        loops=(_loop(),),
        reads=(),
        recompilations=(),
        fallbacks=(),
        divergences=(),
        unended=(),
        simulated=True,
        steps=tuple(
            _interval(rank, number) for number in range(1, STEPS + 1) for rank in range(RANKS)
        ),
    )


def _slow() -> Observed:
    change = "the shape of an input: f32[8,4] → f32[12,4] (functional.py:3885)"
    return dataclasses.replace(
        _observed(),
        reads=(observe.ObservedRead(_LONG, ExecutionCause.READ, 48, 1.0, tuple(range(RANKS))),),
        recompilations=(observe.Recompilation(5, _LINE, (change, change), (0, 2)),),
        fallbacks=(observe.Fallback("aten::nonzero", 3, (_LINE, _LONG)),),
        alone=(
            observe.Divergence(4, (0, 1), (_LINE, None), (), True),
            observe.Divergence(6, (0, 3), (_LINE, _LONG), (change,)),
        ),
    )


def _broken() -> Observed:
    return dataclasses.replace(
        _slow(),
        divergences=(observe.Divergence(3, (0, 2), (_LINE, _LONG), ("1 more: aten::mul",)),),
        unended=(observe.Unended(_LONG, 40, (0, 1)),),
        untrained=(observe.Untrained(None, "AdamW", 12, 12, (0, 1, 2, 3)),),
    )


RUNS: dict[str, Callable[[], Observed]] = {
    "steady": _observed,
    "slow": _slow,
    "broken": _broken,
    "nothing": lambda: dataclasses.replace(_observed(), ranks=0, loops=(), steps=()),
}


def _verdict(name: str, fraction: float) -> FitVerdict:
    product = product_named(name)
    available = int(product.generation.hbm)
    array = HloArray("f32", (8192, 4096), (1, 0), (8, 128))
    held = (
        LiveArray(array, "argument", "state/mu/blocks_11/attention/query/kernel", "", 1),
        LiveArray(
            array, "temporary", "dot_general", "project/models/attention.py:131", phase="forward"
        ),
    )
    peak = int(fraction * available)
    too_big = fraction > 1
    return FitVerdict(
        product,
        "too big" if too_big else "fits",
        why="it takes more HBM than there is" if too_big else "",
        remedy="--try bf16,remat says which change makes it fit" if too_big else "",
        needed=peak,
        available=available,
        memory=Memory(peak // 2, 0, peak, held, (peak // 2, peak, peak // 3), "loss.py:3", 0),
        trains=True,
        roles=(("input", "x"), ("optimizer state", "mu")),
        collectives=(Collective("all-reduce", 10**6, 8, 2, False, "train.py:31"),),
        bound=None if too_big else StepBound(0.02, 0.03, 0.01),
        lines=(
            LineCost("project/models/attention.py:131", 0.6, 2e12, 10**9),
            LineCost("", 0.1, 0.0, 10),
        ),
        waste=(Waste("padding", "net.py:3", "12 % of a tile are padding", "use 128 columns", 0.1),),
        counted_once=("net.py:9",),
        compiler="libtpu 0.0.42.1 for TPU v5 lite",
        seconds=3.0,
    )


FITS: dict[str, Callable[[], FitReport]] = {
    "fits": lambda: FitReport(
        "train.py", True, (_verdict("v5e-1", 0.1), _verdict("v5e-8", 0.95)), ("dropout is off",)
    ),
    "too big": lambda: FitReport(
        "net.py:Net",
        True,
        (_verdict("v5e-8", 4.2), _verdict("v6e-8", 0.8)),
        tried=(
            SliceResult("bf16", (_verdict("v5e-8", 0.9),)),
            SliceResult("remat: nothing to compute again", ()),
        ),
    ),
}
