"""Recorded dumps as sides: runs on another machine, or before a change."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from migrate.parity.align.align import align, load_alignment_file
from migrate.parity.align.weight_map import WeightMap, load_file, same_names
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.options import ParityOptions, SideOptions
from migrate.parity.ground.outputs import OutputRules
from migrate.parity.ground.requests import TORCH
from migrate.parity.ground.results import Parity
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet, attended, read_inputs
from migrate.parity.judge.judge import Judged, judgement
from migrate.parity.judge.outputs import compare_outputs
from migrate.parity.judge.profiles import limits_as_text, profile_for
from migrate.parity.judge.verdict import conclude
from migrate.parity.run.prepare import inputs_for
from migrate.parity.sides import protocol
from migrate.parity.sides.capture import INPUTS
from migrate.parity.sides.side import ComparedSide
from migrate.parity.sides.start import started, workplace
from migrate.parity.sides.target import Target
from migrate.progress import Progress

_WEIGHTS = "weights.safetensors"


def record(target: Target, options: ParityOptions, progress: Progress) -> Path:
    """Record the tensors of a side, with its inputs and weights, for a later comparison.

    Returns:
        The folder of the dump: `options.keep`.

    Raises:
        ParityError: the side cannot run.
    """
    with workplace(options.keep) as folder, contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(workplace(None)))
        progress("loading the model")
        (side,) = started({"A": (target, options.a)}, options, work, stack)
        inputs = inputs_for(side, side, options, work / INPUTS)
        settings = _settings(options.a)
        _load(side, options.a, settings, inputs, work)
        side.ask(protocol.SaveWeights(folder / _WEIGHTS))
        progress("running the model")
        side.ask(protocol.Capture(settings, inputs, folder, layers=options.layers))
        return folder


def compare_recorded(a: Target, b: Target, options: ParityOptions, progress: Progress) -> Parity:
    """Compare a dump with a model, or with another dump.

    A model on the other side is also the truth, in float64. Its weights are the given ones (`--weights-a`,
    `--weights-b`), else those beside the dump, if both are torch's or both Flax's. Of two dumps, B is
    measured against A. Only the tensors in the dump are compared: no layer can be fed with the truth's
    inputs.

    Raises:
        ParityError: the dump is incomplete, or the model does not run on its inputs.
    """
    with workplace(options.keep) as work, contextlib.ExitStack() as stack:
        dumps = {
            name: Dump(Path(target.spec))
            for name, target in (("A", a), ("B", b))
            if target.kind == "dump"
        }
        _require_same_inputs(list(dumps.values()))
        inputs = inputs_of(next(iter(dumps.values())))
        truth: Dump | None = None
        source = "A"
        weights = WeightMap({})
        if len(dumps) == 1:
            name, target, how = ("B", b, options.b) if "A" in dumps else ("A", a, options.a)
            source = name
            progress("loading the model")
            (side,) = started({name: (target, how)}, options, work, stack)
            settings = _settings(how)
            _load(side, how, settings, inputs, work, next(iter(dumps.values())))
            progress("running the model, and its float64 reference")
            side.ask(protocol.Capture(TRUTH, inputs, work / "truth"))
            side.ask(protocol.Capture(settings, inputs, work / name))
            dumps[name], truth = Dump(work / name), Dump(work / "truth")
            side.ask(protocol.SaveWeights(work / _WEIGHTS))
            weights = same_names(work / _WEIGHTS)
        return _compared(dumps, truth, weights, inputs, options, source)


def _compared(
    dumps: Mapping[str, Dump],
    truth: Dump | None,
    weights: WeightMap,
    inputs: InputSet,
    options: ParityOptions,
    source: str,
) -> Parity:
    explicit = None if options.align is None else load_alignment_file(options.align)
    measured = dumps["A"] if truth is None else truth
    rules: dict[str, OutputRules | None] = dict.fromkeys("AB", options.rules(truth=source))
    if truth is not None:
        rules[source] = None
    judged = {
        name: Judged(
            dump,
            None,
            align(measured, dump, weights.names, explicit, rules[name], tied=weights.tied),
        )
        for name, dump in dumps.items()
        if dump is not measured
    }
    facts = dumps["A"].facts, dumps["B"].facts
    profile = profile_for(*facts, options.profile, strict=options.strict)
    sides = measured, judged.get("A"), judged["B"], None, profile
    padding = attended(inputs)
    layers = judgement(*sides, padding=padding)
    outputs = compare_outputs(*sides, padding=padding)
    outcome = conclude(layers, outputs, truth=truth is not None)
    return Parity(
        a=facts[0],
        b=facts[1],
        truth=None if truth is None else truth.facts,
        profile=profile.name,
        limits=limits_as_text(profile),
        inputs=inputs.described,
        floor=outputs.floor,
        layers=layers.layers,
        sections=(outputs.section,),
        first=outcome.first,
        causes=(),
        verdict=outcome.verdict,
        sentence=outcome.sentence,
        histograms=outputs.histograms,
        notes=(*layers.notes, *(note for side in judged.values() for note in side.alignment.notes)),
    )


def inputs_of(dump: Dump) -> InputSet:
    """Return the inputs of a dump.

    Raises:
        InputsError: there are none beside the dump.
    """
    try:
        return read_inputs(dump.folder / INPUTS)
    except (OSError, ValueError, KeyError):
        raise InputsError(
            f"{dump.folder}: its inputs are missing", "record it with migrate parity A --keep"
        ) from None


def _require_same_inputs(dumps: list[Dump]) -> None:
    if len(dumps) < 2:
        return
    first_inputs, other = map(inputs_of, dumps)
    same = first_inputs.count == other.count and first_inputs.names == other.names
    for number in range(first_inputs.count if same else 0):
        first, second = first_inputs[number], other[number]
        same = same and all(
            np.array_equal(first[name], second[name]) for name in first_inputs.names
        )
    if not same:
        raise InputsError(
            "the two dumps have different inputs", "record both with the same --inputs"
        )


def _settings(how: SideOptions) -> SideSettings:
    return dataclasses.replace(how.settings, transposed=how.channels_last or ())


def _load(
    side: ComparedSide,
    how: SideOptions,
    settings: SideSettings,
    inputs: InputSet,
    work: Path,
    recorded: Dump | None = None,
) -> None:
    """Load the weights of a model: those that the user names, else those beside the dump."""
    side.ask(protocol.Prepare(settings, inputs))
    if how.weights is not None:
        load_file(side, how.weights, work)
    elif recorded is not None:
        beside = recorded.folder / _WEIGHTS
        if (recorded.facts.framework in TORCH) != (side.kind in TORCH) or not beside.exists():
            raise ParityError(
                f"{recorded.folder}: the model lacks the weights of the recording",
                "pass them as --weights-a or --weights-b",
            )
        side.ask(protocol.LoadWeights(beside))
