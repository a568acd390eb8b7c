"""Captures for a comparison: ordinary runs of all sides, and runs of each layer on the truth's inputs."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.align.align import load_alignment_file
from migrate.parity.align.weight_map import WeightMap
from migrate.parity.dump.dump import Dump
from migrate.parity.dump.joined import joined
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.settings import TRUTH, Precision, SideSettings
from migrate.parity.judge.profiles import find_profile
from migrate.parity.run.prepare import Prepared
from migrate.parity.run.runs import FIRST, Captured, Groups, SideRun, part_of
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide
from migrate.progress import Progress

# From the coarsest to the finest: the emulation uses the precision of the coarser side.
_PRECISIONS: tuple[Precision, ...] = ("default", "high", "highest")
_PROFILES: dict[str, Precision] = {"tpu-default": "default", "f32-high": "high"}


@dataclass(frozen=True)
class Captures:
    """Captures of the truth, both sides and the emulation.

    Attributes:
        truth: dump in float64.
        a, b, e: the sides, and the truth's model in the precision that the coarser side declares.
        seconds: seconds of the ordinary passes, by their owner.
    """

    truth: Dump
    a: Captured
    b: Captured
    e: Captured
    seconds: Mapping[str, float]


def capture_all(
    a: ComparedSide,
    b: ComparedSide,
    ready: Prepared,
    options: ParityOptions,
    work: Path,
    progress: Progress,
) -> Captures:
    """Run both sides, the truth and the emulation.

    Raises:
        ParityError: a side cannot run.
    """
    source = a if ready.truth_of_a else b
    layers, measured = options.layers, options.layers and options.keep is None
    explicit = None if options.align is None else load_alignment_file(options.align)
    rules = options.rules(truth="A" if ready.truth_of_a else "B")

    def run(name: str, side: ComparedSide, settings: SideSettings, weights: WeightMap) -> SideRun:
        aligned, paired = (explicit, rules) if side is not source else (None, None)
        inputs = ready.inputs
        return SideRun(
            name, side, settings, weights, aligned, paired, inputs, work, layers, measured
        )

    runs = {"a": run("a", a, ready.a, ready.weights_a), "b": run("b", b, ready.b, ready.weights_b)}
    # A torch side on the CPU with this precision is the emulation itself.
    same, emulated = "a" if ready.truth_of_a else "b", emulation(ready.a, ready.b, options.profile)
    if source.kind != "torch" or _plain(runs[same].settings) != emulated:
        runs["e"] = run("e", source, emulated, runs[same].weights)
    truths: list[Dump] = []
    seconds = 0.0
    # Sides that share a device restart for each group: all inputs then run in one group.
    together = not measured or a.takes_turns or b.takes_turns
    groups = Groups(ready.inputs.count, together=together)
    doing = "running both sides and the float64 reference"
    done, total = 0, ready.inputs.count * (1 + len(runs))
    for numbers in groups:
        part = part_of(numbers, ready.inputs.count)
        progress(doing, done, total, "run")
        folder = work / "truth" / part
        if truths:
            truths[-1].forget_layers(into=folder)
        seconds += source.ask(
            protocol.Capture(TRUTH, ready.inputs, folder, layers=layers, numbers=numbers)
        )
        truths.append(Dump(folder))
        groups.fit(folder / "tensors")
        for side_run in runs.values():
            done += len(numbers)
            progress(doing, done, total, "run")
            side_run.take(truths[-1], numbers)
        done += len(numbers)
    if measured:
        truths[-1].forget_layers()
        shutil.rmtree(work / FIRST, ignore_errors=True)
    captured = {name: side_run.captured() for name, side_run in runs.items()}
    plain = {"truth": seconds} | {name: side_run.seconds for name, side_run in runs.items()}
    return Captures(
        joined(truths), captured["a"], captured["b"], captured.get("e", captured[same]), plain
    )


def emulation(a: SideSettings, b: SideSettings, profile: str | None = None) -> SideSettings:
    """Return settings of the truth's model on the CPU, in the precision that the sides must meet.

    Args:
        a, b: settings of the sides: the coarser precision is emulated.
        profile: profile that the user names: its precision is emulated instead.
    """
    if profile is not None:
        named = find_profile(profile)
        if named.dtype != "float32":
            return SideSettings(dtype=named.dtype, device="cpu")
        return SideSettings(precision=_PROFILES.get(named.name, "highest"), device="cpu")
    halves = [settings.dtype for settings in (a, b) if settings.dtype in ("bfloat16", "float16")]
    if halves:
        return SideSettings(dtype=halves[-1], device="cpu")
    coarser = min(a.precision, b.precision, key=_PRECISIONS.index)
    return SideSettings(precision=coarser, device="cpu")


def _plain(settings: SideSettings) -> SideSettings:
    """Settings without options that do not change the results of a torch model on the CPU."""
    if settings.device not in ("", "cpu") or settings.compiled or settings.batch is not None:
        return settings
    return dataclasses.replace(
        SideSettings(), dtype=settings.dtype, precision=settings.precision, device="cpu"
    )
