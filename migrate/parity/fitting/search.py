"""Search for the torch arrays that each array of a Flax model is made of.

It runs in the process of the model. Passes follow until all arrays are matched, or a pass finds no more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint import open_checkpoint
from converters.planning import planned
from converters.request import PlanOptions
from migrate.parity.align.tensors import distance
from migrate.parity.dump.dump import Dump
from migrate.parity.fitting.below.search import Below
from migrate.parity.fitting.follow import Follower, Pass
from migrate.parity.fitting.heads import said
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.sources import EXACT, SourceArray, TorchSources
from migrate.parity.fitting.trying import Choices, EnoughSeen, Trials, better
from migrate.parity.ground.fitting import (
    SINGLE,
    ComputedArray,
    FittingResult,
    ModelDifference,
    Piece,
)
from migrate.parity.ground.fitting import FlaxArray as Placed
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet

Array = np.ndarray[Any, Any]
# Passes with the model's own values where torch's show a difference; another follows if weights change.
_AGAIN = 2


def find(
    runner: Any,
    settings: SideSettings,
    inputs: InputSet,
    truth: Path,
    state: Path,
    rules: Path,
    computed: Path | None = None,
) -> FittingResult:
    """Find the torch arrays that each array of this model is made of.

    Args:
        runner: runner of the Flax model (`sides.jax.runner.JaxRunner`).
        settings: settings of the run: float64, images in the model's layout.
        inputs: inputs, of which the first is run.
        truth: torch's dump of that input in float64.
        state: torch's weights.
        rules: the mapping file with the usual Flax name of each key.
        computed: torch's buffers that no checkpoint holds; None: there are none.
    """
    plan = planned(state, PlanOptions(mapping=rules))
    sources = TorchSources(Dump(truth), plan.plan, plan.checkpoint.read)
    runner.prepare(settings, inputs)
    both, fixed = _computed(runner, settings, inputs[0], computed)
    drawn = _drawn({name: array for name, array in runner.weights.items() if name not in fixed})
    search = runner, settings, inputs[0], sources, drawn, fixed
    if runner.kind == "jax":
        return replace(Below(*search).found(), computed=both)
    findings = _LayerSearch(*search).found()
    if findings.unplaced or findings.unused:
        other = Below(*search).found()
        findings = other if _places_more(other, findings) else findings
    return replace(findings, computed=both)


def _computed(
    runner: Any, settings: SideSettings, inputs: Mapping[str, Array], file: Path | None
) -> tuple[tuple[ComputedArray, ...], dict[str, Array]]:
    """Find the arrays of the Flax model that it computes as torch computes buffers that it does not save.

    Returns:
        These arrays, and torch's values by their names.
    """
    if file is None or runner.kind == "jax":
        return (), {}
    stored = open_checkpoint(file)
    buffers = {key: stored.read(key) for key in stored.infos}
    both, fixed = [], {}
    for name, own in runner.computed(settings, inputs).items():
        for key, buffer in buffers.items():
            if own.shape == buffer.shape and distance(own, buffer) <= SINGLE:
                both.append(ComputedArray(name, key))
                fixed[name] = buffer
                break
    return tuple(both), fixed


def _places_more(findings: FittingResult, other: FittingResult) -> bool:
    """Whether a method of search finds places for more arrays."""
    lacking = [len(its.unplaced) + len(its.unused) for its in (findings, other)]
    return lacking[0] < lacking[1]


@dataclass
class _LayerSearch:
    """Passes of one model."""

    runner: Any
    settings: SideSettings
    inputs: Mapping[str, Array]
    sources: TorchSources
    drawn: Mapping[str, Array]
    fixed: Mapping[str, Array]

    def __post_init__(self) -> None:
        self._trials = Trials()
        self._spare: Sequence[SourceArray] = ()

    def found(self) -> FittingResult:
        """Return the findings of the best pass."""
        best = self._run({}, None)
        left = self._left(best)
        if left and any(name not in best.pieces for name in self.drawn):
            self._spare = left
            again = self._run({}, None)
            if better(again, best) or len(again.pieces) > len(best.pieces):
                best = again
            else:
                self._spare = ()
        best = self._undivided(best)
        best = self._trials.best(self._run, best)
        return self._result(best)

    def _undivided(self, best: Pass) -> Pass:
        """Run a pass on the model's own values with the matched weights; keep it if its outputs equal
        torch's.

        Differences from float32 rounding remain in it: the outputs are then compared once more without them.
        Such a pass has nothing to report. One model has a factor inside a layer, and the other after it; or
        it reads weights outside layers, or calls a layer on a value that torch's layers do not receive.
        """
        tried = best
        for _ in range(_AGAIN if best.parted else 0):
            again = self._run(best.choices, None, weights=self._assembled(tried), inject=False)
            for name, its in tried.pieces.items():
                if len(again.pieces.get(name, ())) != len(its):
                    again.pieces[name] = its
            again.stacked = {**tried.stacked, **again.stacked}
            if again.layers and all(
                difference.layer or difference.rounding for difference in again.differences
            ):
                parted = {difference.layer for difference in best.differences}
                again.unsure |= dict.fromkeys(
                    name for name in again.pieces if parted & _layers_of(name)
                )
                exact = all(difference.layer for difference in again.differences)
                again.differences = [
                    difference
                    for difference in again.differences
                    if difference.rounding and not exact
                ]
                return again
            if again.pieces == tried.pieces:
                break
            tried = again
        return best

    def _assembled(self, best: Pass) -> Mapping[str, Array]:
        """Weights that a pass matched; drawn values for the others."""
        weights = dict(self.drawn)
        for name, its in best.pieces.items():
            arrays = [self.sources.array(piece.source, piece.layout) for piece in its]
            axis = best.stacked.get(name)
            whole = arrays[0] if axis is None else np.stack(arrays, axis)
            if whole.shape == weights[name].shape:
                weights[name] = whole
        return weights

    def _run(
        self,
        choices: Choices,
        limit: int | None,
        *,
        weights: Mapping[str, Array] | None = None,
        inject: bool = True,
    ) -> Pass:
        self._trials.passes += 1
        weights = self.drawn if weights is None else weights
        follower = Follower(
            self.sources,
            weights,
            linen=self.runner.kind == "linen",
            choices=choices,
            spare=self._spare,
            limit=limit,
            inject=inject,
        )
        record = follower.found
        record.choices = dict(choices)
        try:
            arrays = {**weights, **self.fixed}
            record.outputs = self.runner.follow(self.settings, self.inputs, arrays, follower)
        except EnoughSeen:
            return record
        refs = self.sources.dump.outputs[0]
        truth = {ref.path: self.sources.values(ref) for ref in refs}
        apart = compare_outputs(truth, record.outputs).apart
        if apart is None or apart > EXACT:
            away = math.inf if apart is None else apart
            record.differences.append(ModelDifference("", "", "", follower.after, False, away))
        return record

    def _left(self, best: Pass) -> list[SourceArray]:
        """Arrays of torch's layers that no array of Flax's uses; parts of layers are left out."""
        taken = {piece.source.path for its in best.pieces.values() for piece in its}
        taken |= {path.partition("#")[0] for path in taken}
        taken |= self._shared(taken)
        units = {call.unit.name: call.unit for call in self.sources.calls}
        whole = [unit for unit in units.values() if unit.part is None and not unit.hidden]
        return [source for unit in whole for source in unit.sources if source.path not in taken]

    def _shared(self, taken: Collection[str]) -> set[str]:
        """Arrays whose tensors torch shares with tensors of these arrays."""
        leaves, owners = self.sources.leaves, self.sources.owners

        def tensors(path: str) -> frozenset[str]:
            return frozenset(owners.get(piece.key, piece.key) for piece in leaves[path].pieces)

        kept = {tensors(path) for path in taken if path in leaves and "#" not in path}
        return {path for path in leaves if "#" not in path and tensors(path) in kept}

    def _result(self, best: Pass) -> FittingResult:
        arrays = tuple(
            Placed(
                name,
                tuple(Piece(piece.source.path, str(piece.layout)) for piece in its),
                best.stacked.get(name),
            )
            for name, its in best.pieces.items()
        )
        taken = {piece.source for array in arrays for piece in array.pieces}
        parts = {path.partition("#")[0]: path for path in taken if "#" in path}
        shared = self._shared(taken)
        unused = [
            path
            for path in self.sources.leaves
            if "#" not in path and path not in taken and path not in parts
            if path not in shared
        ]
        cut = [whole for whole, path in parts.items() if not _complete(path, taken)]
        places = dict(best.unmatched)
        unplaced = [
            f"{name} {array.shape}{_called(places, name)}"
            for name, array in self.drawn.items()
            if name not in best.pieces
        ]
        return FittingResult(
            arrays,
            tuple(unplaced),
            (*unused, *cut),
            tuple(best.differences),
            tuple(best.unseen),
            self._trials.passes,
            tuple(best.unsure),
            best.layers,
            bool(best.differences) and self.runner.in_float32(self.settings, self.inputs),
            self._trials.untried,
            heads=said(best.choices),
        )


def _called(places: Mapping[str, str], name: str) -> str:
    """Location of the call of an array's layer, if the layer has no partner."""
    location = next((places[layer] for layer in sorted(_layers_of(name)) if layer in places), "")
    return f" ({location})" if location else ""


def _layers_of(name: str) -> set[str]:
    """Possible names of an array's layer: linen puts a collection first."""
    layer = ".".join(name.split("/")[:-1])
    return {layer, layer.partition(".")[2]}


def _complete(path: str, taken: set[str]) -> bool:
    whole, _, part = path.partition("#")
    if part == "plain":
        return True
    count = int(part.partition("/")[2])
    return all(f"{whole}#{index}/{count}" in taken for index in range(count))


def _drawn(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Random values instead of a model's own: no two arrays or slices of an array are equal."""
    random = np.random.default_rng(0)
    return {
        name: _one(random, array.shape, positive=name.endswith("/var"))
        for name, array in weights.items()
    }


def _one(random: np.random.Generator, shape: tuple[int, ...], *, positive: bool) -> Array:
    drawn = random.random(shape)
    return drawn + 0.1 if positive else 0.2 * drawn - 0.1
