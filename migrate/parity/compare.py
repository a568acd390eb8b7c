"""`migrate parity`: compare two models with one truth and give one verdict."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.align.weight_map import WeightMap
from migrate.parity.align.weight_pairs import paired_weights
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import LayerAlignment, Pair
from migrate.parity.ground.options import ParityOptions
from migrate.parity.ground.requests import TORCH
from migrate.parity.ground.results import Explanation, Parity, ParityCheck, Section
from migrate.parity.ground.settings import TRUTH
from migrate.parity.inputs.set import attended
from migrate.parity.judge.judge import Breach, Judged, LayerJudgement, judgement
from migrate.parity.judge.measure import own_errors
from migrate.parity.judge.outputs import compare_outputs
from migrate.parity.judge.profiles import Profile, limits_as_text, profile_for
from migrate.parity.judge.verdict import conclude
from migrate.parity.run.captures import Captures, capture_all
from migrate.parity.run.closer import Closer, look_closer
from migrate.parity.run.load import load_both
from migrate.parity.run.prepare import Prepared, prepare
from migrate.parity.run.recorded import compare_recorded
from migrate.parity.run.runs import Captured
from migrate.parity.run.sections import compare_sections
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide
from migrate.parity.sides.start import workplace
from migrate.parity.sides.target import Target
from migrate.parity.tasks.party import Parties, Party, same_outputs
from migrate.progress import Progress


def compare(a: Target, b: Target, options: ParityOptions, progress: Progress) -> Parity:
    """Compare two targets of a user, each in a process of its own.

    Raises:
        ParityError, ConversionError: the comparison cannot be made.
    """
    options.rules(truth="A")  # unreadable options are reported before anything is loaded
    if "dump" in (a.kind, b.kind):
        return compare_recorded(a, b, options, progress)
    with workplace(options.keep) as work, contextlib.ExitStack() as stack:
        progress("loading both models")
        first, second, said = load_both(a, b, options, work, stack)
        parity = compare_sides(first, second, options, work, progress)
        return dataclasses.replace(parity, notes=(*said, *parity.notes))


def compare_sides(
    a: ComparedSide, b: ComparedSide, options: ParityOptions, work: Path, progress: Progress
) -> Parity:
    """Compare two loaded models.

    Args:
        a, b: the sides, started.
        options: what to compare and how.
        work: an empty folder.
        progress: called with the step that begins.

    Raises:
        ParityError, ConversionError: the comparison cannot be made.
    """
    clock = _StepClock()
    ready = prepare(a, b, options, work, progress)
    clock.lap("inputs and weights")
    captures = capture_all(a, b, ready, options, work, progress)
    clock.lap("running")
    facts = captures.a.dump.facts, captures.b.dump.facts
    profile = profile_for(*facts, options.profile, strict=options.strict)
    sides = _judged(captures.a), _judged(captures.b), _judged(captures.e)
    padding = attended(ready.inputs)
    judged = judgement(
        captures.truth,
        *sides,
        profile,
        padding=padding,
        progress=lambda done, total: progress("comparing the layers", done, total, "layer"),
    )
    clock.lap("comparing the layers")
    outputs = compare_outputs(captures.truth, *sides, profile, padding=padding)
    parties = _parties(a, b, ready, captures, options, profile, judged, work)
    # The rest needs an output that both sides have.
    sections = (
        tuple(compare_sections(a, b, ready, parties, options, progress)) if outputs.worst else ()
    )
    sections = (*_in_another_dtype(captures), *sections)
    clock.lap("comparing the rest")
    explanation = Explanation()
    histograms = outputs.histograms
    if judged.breaches:
        progress("looking for the cause")
        closer = look_closer(a, b, captures, ready, judged.breaches[0], work)
        explanation = _causes(a if ready.truth_of_a else b, judged, closer)
        places = [(breach.layer, breach.place) for breach in judged.foremost]
        tensors = _judged(closer.a), _judged(closer.b)
        histograms = (*own_errors(closer.truth, *tensors, places, padding), *histograms)
    clock.lap("looking for the cause")
    outcome = conclude(judged, outputs, sections, explanation.causes)
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
        causes=explanation.causes,
        verdict=outcome.verdict,
        sentence=outcome.sentence,
        seconds=clock.laps(captures.seconds),
        histograms=histograms,
        notes=(*_notes(captures, judged, ready), *explanation.notes),
    )


def _in_another_dtype(captures: Captures) -> Iterator[Section]:
    """A failed section for each side whose layers mostly run in a wider dtype than was asked for.

    Such a side is nearer to float64 than a correct run, whatever is wrong with it in 16 bits.
    """
    for name, captured in (("A", captures.a), ("B", captures.b)):
        asked = captured.settings.dtype
        outputs = [
            next((ref.dtype for ref in call.outputs if ref.dtype.startswith(_FLOATS)), asked)
            for call in captured.dump.calls
        ]
        share = sum(dtype == asked for dtype in outputs) / max(1, len(outputs))
        if asked == "bfloat16" and share < _MOSTLY:
            others = ", ".join(sorted({dtype for dtype in outputs if dtype != asked}))
            title = f"{name} in {asked} (most of its layers ran in {others})"
            source = "a side in another dtype matches nothing in this dtype"
            check = ParityCheck(
                f"share of {name}'s calls in {asked}",
                None,
                share,
                _MOSTLY,
                passed=False,
                source=source,
                at_least=True,
            )
            yield Section(title, (check,))


def _judged(captured: Captured) -> Judged:
    return Judged(captured.dump, captured.local, captured.alignment)


def _parties(
    a: ComparedSide,
    b: ComparedSide,
    ready: Prepared,
    captures: Captures,
    options: ParityOptions,
    profile: Profile,
    judged: LayerJudgement,
    work: Path,
) -> Parties:
    source = a if ready.truth_of_a else b
    own = ready.weights_a if ready.truth_of_a else ready.weights_b

    def party(name: str, side: ComparedSide, captured: Captured, weights: WeightMap) -> Party:
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


def _causes(source: ComparedSide, judged: LayerJudgement, closer: Closer) -> Explanation:
    """Explain why the foremost layer diverges by itself; without a torch side there is no explanation."""
    if source.kind not in TORCH:
        return Explanation()
    breach = judged.breaches[0]
    captured = closer.a if breach.side == "A" else closer.b
    seen = _seen(closer.truth, captured.alignment, breach)
    if seen is None:
        return Explanation()
    pair, number, between = seen
    return source.ask(
        protocol.Explain(
            breach.side,
            captured.alignment,
            closer.truth.folder,
            captured.dump.folder,
            None if captured.local is None else captured.local.folder,
            layer=pair.truth,
            side_layer=pair.layer,
            number=number,
            inputs=closer.inputs,
            relative_l2=breach.finding.errors.relative_l2,
            breached_locally=not between,
        )
    )


def _seen(truth: Dump, alignment: LayerAlignment, breach: Breach) -> tuple[Pair, int, bool] | None:
    """Locate the breach on the side: the pair, the truth's call, and whether an argument shows it."""
    pairs = {pair.truth: pair for pair in alignment.pairs}
    place = breach.place
    if place.layer in pairs:
        return pairs[place.layer], place.number, place.what == "argument"
    # The side has no such layer: the breach shows in the arguments of the next layer.
    outputs = {
        (ref.file, ref.key)
        for call in truth.of(place.layer)
        if call.number == place.number
        for ref in call.outputs
    }
    for call in truth.calls:
        if call.layer in pairs and any((ref.file, ref.key) in outputs for ref in call.arguments):
            return pairs[call.layer], call.number, True
    return None


def _notes(captures: Captures, judged: LayerJudgement, ready: Prepared) -> tuple[str, ...]:
    said = {"A": captures.a, "B": captures.b}
    return (
        *(
            f"{name}: {note}"
            for name, captured in said.items()
            for note in captured.dump.facts.notes
        ),
        *(
            f"{name}: {note}"
            for name, captured in said.items()
            for note in captured.alignment.notes
        ),
        *(f"truth: {note}" for note in captures.truth.facts.notes),
        *judged.notes,
        *ready.weights_a.notes,
        *ready.weights_b.notes,
    )


_FLOATS = ("float", "bfloat")
# Share of its calls that a side runs in the dtype that was asked for, at least.
_MOSTLY = 0.5
# Names of the parties in the report, by their names in the program.
_PARTIES = {"truth": "the reference", "a": "A", "b": "B"}


@dataclass
class _StepClock:
    """Seconds spent on each step."""

    def __post_init__(self) -> None:
        self._laps: list[tuple[str, float]] = []
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps.append((name, now - self._last))
        self._last = now

    def laps(self, passes: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        plain = [(f"plain passes of {_PARTIES.get(name, name)}", s) for name, s in passes.items()]
        return (*self._laps, *plain)
