"""`migrate parity`: two sides, one truth, one verdict."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from migrate.parity.captures import Captured, Captures, capture_all
from migrate.parity.errors import ParityError
from migrate.parity.explain import explain
from migrate.parity.inputs import InputSet
from migrate.parity.judge import Judged, Judgement, judgement
from migrate.parity.options import Options, SideOptions
from migrate.parity.outputs import compare_outputs
from migrate.parity.prepare import TORCH, Prepared, prepare
from migrate.parity.profiles import Profile, choose_profile, find_profile, limits_as_text
from migrate.parity.results import Cause, Parity
from migrate.parity.sections import compare_sections
from migrate.parity.sides.process import SideProcess, Turns
from migrate.parity.sides.settings import TRUTH
from migrate.parity.sides.side import Side
from migrate.parity.sides.target import Target
from migrate.parity.tasks.party import Parties, Party, same_outputs
from migrate.parity.verdict import conclude, first_parting
from migrate.parity.weight_pairs import paired_weights
from migrate.parity.weights import WeightMap

Progress = Callable[[str], None]


def compare(a: Target, b: Target, options: Options, progress: Progress) -> Parity:
    """Compare what a user names, each side in a process of its own.

    Raises:
        ParityError, ConversionError: the comparison cannot be made.
    """
    with workplace(options.keep) as work, contextlib.ExitStack() as stack:
        progress("loading both models")
        sides = started({"A": (a, options.a), "B": (b, options.b)}, options, work, stack)
        return compare_sides(*sides, options, work, progress)


def compare_sides(a: Side, b: Side, options: Options, work: Path, progress: Progress) -> Parity:
    """Compare two models that are loaded.

    Args:
        a, b: the sides, started.
        options: what is asked.
        work: an empty folder.
        progress: told what is being done.

    Raises:
        ParityError, ConversionError: the comparison cannot be made.
    """
    clock = _Clock()
    ready = prepare(a, b, options, work, progress)
    clock.lap("inputs and weights")
    captures = capture_all(a, b, ready, options, work, progress)
    clock.lap("running")
    profile = _profile(captures, options)
    progress("comparing the layers")
    sides = [_judged(one) for one in (captures.a, captures.b, captures.e)]
    padding = attended(ready.inputs)
    judged = judgement(captures.truth, *sides, profile, padding=padding)
    clock.lap("comparing the layers")
    outputs = compare_outputs(captures.truth, *sides, profile, padding=padding)
    parties = _parties(a, b, ready, captures, options, profile, judged, work)
    sections = tuple(compare_sections(parties, options, progress))
    clock.lap("comparing the rest")
    causes = _causes(a if ready.truth_of_a else b, judged, captures, work, progress)
    clock.lap("looking for the cause")
    outcome = conclude(judged, outputs, sections, causes)
    return Parity(
        a=captures.a.dump.facts,
        b=captures.b.dump.facts,
        truth=captures.truth.facts,
        profile=profile.name,
        limits=limits_as_text(profile),
        inputs=ready.inputs.described,
        floor=outputs.floor,
        layers=judged.layers,
        sections=(outputs.section, *sections),
        first=outcome.first,
        causes=causes,
        verdict=outcome.verdict,
        sentence=outcome.sentence,
        seconds=clock.laps(captures.seconds),
        histograms=outputs.histograms,
        notes=_notes(captures, judged, ready),
    )


def attended(inputs: InputSet) -> dict[int, np.ndarray[Any, Any]]:
    """Input → positions [batch, length] that are no padding, where an `attention_mask` says so."""
    if "attention_mask" not in inputs.names:
        return {}
    masks = {number: inputs[number]["attention_mask"] for number in range(inputs.count)}
    return {number: mask != 0 for number, mask in masks.items() if mask.ndim == 2}


def record(target: Target, options: Options, progress: Progress) -> Path:
    """Record what one side computes, for a comparison elsewhere.

    Returns:
        The folder of its dump.

    Raises:
        ParityError: it cannot be run.
    """
    assert options.keep is not None
    with workplace(options.keep) as work, contextlib.ExitStack() as stack:
        progress("loading the model")
        (side,) = started({"A": (target, options.a)}, options, work, stack)
        return record_side(side, options, work, progress)


def started(
    targets: dict[str, tuple[Target, SideOptions]],
    options: Options,
    work: Path,
    stack: contextlib.ExitStack,
) -> list[Side]:
    """The processes of the sides, started side by side; the stack ends them.

    Raises:
        ParityError: a model cannot be loaded.
    """
    turns = Turns()
    sides = [
        SideProcess(
            label,
            target,
            work,
            turns,
            python=how.python,
            timeout=options.timeout,
            seed=options.seed,
            environment=_environment(how),
        )
        for label, (target, how) in targets.items()
    ]
    for side in sides:
        stack.callback(side.rest)
    if turns.shared:
        for side in sides:
            side.start()
    else:
        with ThreadPoolExecutor(len(sides)) as pool:
            for loading in [pool.submit(side.start) for side in sides]:
                loading.result()
    return list(sides)


def _environment(how: SideOptions) -> dict[str, str]:
    """Torch_xla takes excess precision from XLA's flags only; JAX from each compilation."""
    if how.settings.excess_precision:
        return {}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_allow_excess_precision=false"
    return {"XLA_FLAGS": flags.strip()}


@contextlib.contextmanager
def workplace(keep: Path | None) -> Iterator[Path]:
    """A folder for everything that is passed: temporary, or the one to keep.

    Raises:
        ParityError: the one to keep is there already.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="migrate-parity-") as name:
            yield Path(name)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise ParityError(f"{keep}: is there already", "name a new folder with --keep")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep


def _profile(captures: Captures, options: Options) -> Profile:
    if options.profile is not None:
        return find_profile(options.profile, strict=options.strict)
    facts = captures.a.dump.facts, captures.b.dump.facts
    return choose_profile(*facts, strict=options.strict)


def _judged(captured: Captured) -> Judged:
    return Judged(captured.dump, captured.local, captured.alignment)


def _parties(
    a: Side,
    b: Side,
    ready: Prepared,
    captures: Captures,
    options: Options,
    profile: Profile,
    judged: Judgement,
    work: Path,
) -> Parties:
    source = a if ready.truth_of_a else b
    own = ready.weights_a if ready.truth_of_a else ready.weights_b

    def party(name: str, side: Side, captured: Captured, weights: WeightMap) -> Party:
        outputs = captured.alignment.outputs
        pairs = paired_weights(weights)
        return Party(name, side, captured.settings, captured.dump, outputs, pairs)

    return Parties(
        a=party("A", a, captures.a, ready.weights_a),
        b=party("B", b, captures.b, ready.weights_b),
        truth=Party(
            "T", source, TRUTH, captures.truth, same_outputs(captures.truth), paired_weights(own)
        ),
        emulated=party("E", source, captures.e, own),
        inputs=ready.inputs,
        work=work,
        depth=max((layer.depth for layer in judged.layers), default=0) + 1,
        profile=profile,
        seed=options.seed,
    )


def _causes(
    source: Side, judged: Judgement, captures: Captures, work: Path, progress: Progress
) -> tuple[Cause, ...]:
    """Why the first layer parts that parts by itself; nobody can say where no side is torch's."""
    found = first_parting(judged)
    if found is None or source.kind not in TORCH:
        return ()
    progress("looking for the cause")
    layer, breach = found
    captured = captures.a if breach.side == "A" else captures.b
    side = layer.a if breach.side == "A" else layer.b
    assert side is not None
    return explain(
        source,
        breach.side,
        captured.alignment,
        captures.truth.folder,
        captured.dump.folder,
        None if captured.local is None else captured.local.folder,
        layer=layer.name,
        side_layer=side.name,
        number=breach.place.number if breach.place.what == "output" else 0,
        relative_l2=breach.finding.errors.relative_l2,
        breached_locally=True,
        work=work,
    )


def _notes(captures: Captures, judged: Judgement, ready: Prepared) -> tuple[str, ...]:
    said = {"A": captures.a, "B": captures.b}
    return (
        *(f"{name}: {note}" for name, one in said.items() for note in one.dump.facts.notes),
        *(f"{name}: {note}" for name, one in said.items() for note in one.alignment.notes),
        *(f"truth: {note}" for note in captures.truth.facts.notes),
        *judged.notes,
        *ready.weights_a.notes,
        *ready.weights_b.notes,
    )


@dataclass
class _Clock:
    """What was spent on what."""

    def __post_init__(self) -> None:
        self._laps: list[tuple[str, float]] = []
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps.append((name, now - self._last))
        self._last = now

    def laps(self, passes: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        plain = [(f"plain passes of {name}", seconds) for name, seconds in passes.items()]
        return (*self._laps, *plain)
