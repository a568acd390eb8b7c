"""Passes of a Flax model until its layers are told apart: asked in the process that holds it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.planning import planned
from converters.request import PlanOptions
from migrate.parity.dump.dump import Dump
from migrate.parity.fitting.below.search import Below
from migrate.parity.fitting.follow import Follower, Pass
from migrate.parity.fitting.heads import said
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.sources import EXACT, Source, Sources
from migrate.parity.fitting.trying import Choices, EnoughSeen, Trials, better
from migrate.parity.ground.fitting import Array as Placed
from migrate.parity.ground.fitting import Difference, Found, Piece
from migrate.parity.ground.settings import Settings
from migrate.parity.inputs.set import InputSet

Array = np.ndarray[Any, Any]
# Passes with the model's own values where torch's show a difference: one more if it finds other weights.
_AGAIN = 2


def find(
    runner: Any, settings: Settings, inputs: InputSet, truth: Path, state: Path, rules: Path
) -> Found:
    """Which arrays of torch's each array of this model is made of.

    Args:
        runner: of the Flax model (`sides.jax.runner.JaxRunner`).
        settings: how it runs: float64, images as it takes them.
        inputs: of which the first is run.
        truth: torch's dump of it in float64.
        state: torch's weights.
        rules: the mapping file that says what each key is in Flax's usual names.
    """
    plan = planned(state, PlanOptions(mapping=rules))
    sources = Sources(Dump(truth), plan.plan, plan.checkpoint.read)
    runner.prepare(settings, inputs)
    drawn = _drawn(runner.weights)
    if runner.kind == "jax":
        return Below(runner, settings, inputs[0], sources, drawn).found()
    found = _Search(runner, settings, inputs[0], sources, drawn).found()
    if not found.unplaced and not found.unused:
        return found
    other = Below(runner, settings, inputs[0], sources, drawn).found()
    return other if _says_more(other, found) else found


def _says_more(one: Found, other: Found) -> bool:
    """Whether a way to look finds places for more."""
    lacking = [len(its.unplaced) + len(its.unused) for its in (one, other)]
    return lacking[0] < lacking[1]


@dataclass
class _Search:
    """The passes of one model."""

    runner: Any
    settings: Settings
    inputs: Mapping[str, Array]
    sources: Sources
    drawn: Mapping[str, Array]

    def __post_init__(self) -> None:
        self._trials = Trials()
        self._spare: Sequence[Source] = ()

    def found(self) -> Found:
        """The best pass."""
        best = self._run({}, None)
        left = self._left(best)
        if left and any(name not in best.made for name in self.drawn):
            self._spare = left
            again = self._run({}, None)
            if better(again, best) or len(again.made) > len(best.made):
                best = again
            else:
                self._spare = ()
        best = self._undivided(best)
        best = self._trials.best(self._run, best)
        return self._result(best)

    def _undivided(self, found: Pass) -> Pass:
        """A pass with the weights that were found and values of the model's own, if its outputs are torch's.

        What float32 rounds in it is kept: the outputs are then compared once more without that.
        Then nothing is to be told: the one has inside of a layer what the other has behind it (a factor),
        reads weights where no layer is seen to, or calls a layer on something that torch does not give it.
        """
        tried = found
        for _ in range(_AGAIN if found.parted else 0):
            again = self._run(found.choices, None, weights=self._assembled(tried), inject=False)
            for name, its in tried.made.items():
                if len(again.made.get(name, ())) != len(its):
                    again.made[name] = its
            again.stacked = {**tried.stacked, **again.stacked}
            if again.layers and all(one.layer or one.rounding for one in again.differences):
                parted = {one.layer for one in found.differences}
                again.unsure |= dict.fromkeys(one for one in again.made if parted & _layers_of(one))
                exact = all(one.layer for one in again.differences)
                again.differences = [one for one in again.differences if one.rounding and not exact]
                return again
            if again.made == tried.made:
                break
            tried = again
        return found

    def _assembled(self, found: Pass) -> Mapping[str, Array]:
        """The weights that a pass found; of what it found none for the drawn ones."""
        made = dict(self.drawn)
        for name, its in found.made.items():
            arrays = [self.sources.array(one.source, one.layout) for one in its]
            axis = found.stacked.get(name)
            whole = arrays[0] if axis is None else np.stack(arrays, axis)
            if whole.shape == made[name].shape:
                made[name] = whole
        return made

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
        found = follower.found
        found.choices = dict(choices)
        try:
            found.outputs = self.runner.follow(self.settings, self.inputs, weights, follower)
        except EnoughSeen:
            return found
        refs = self.sources.dump.outputs[0]
        truth = {ref.path: self.sources.values(ref) for ref in refs}
        apart = compare_outputs(truth, found.outputs).apart
        if apart is None or apart > EXACT:
            away = math.inf if apart is None else apart
            found.differences.append(Difference("", "", "", follower.after, False, away))
        return found

    def _left(self, found: Pass) -> list[Source]:
        """Arrays of torch's layers that became none of Flax's, the parts of layers left out."""
        taken = {one.source.path for its in found.made.values() for one in its}
        taken |= {path.partition("#")[0] for path in taken}
        taken |= self._shared(taken)
        units = {call.unit.name: call.unit for call in self.sources.calls}
        whole = [unit for unit in units.values() if unit.part is None and not unit.hidden]
        return [one for unit in whole for one in unit.sources if one.path not in taken]

    def _shared(self, taken: Collection[str]) -> set[str]:
        """Arrays whose tensors torch shares with those of these."""
        leaves, owners = self.sources.leaves, self.sources.owners

        def tensors(path: str) -> frozenset[str]:
            return frozenset(owners.get(one.key, one.key) for one in leaves[path].pieces)

        kept = {tensors(path) for path in taken if path in leaves and "#" not in path}
        return {path for path in leaves if "#" not in path and tensors(path) in kept}

    def _result(self, found: Pass) -> Found:
        arrays = tuple(
            Placed(
                name,
                tuple(Piece(one.source.path, str(one.layout)) for one in its),
                found.stacked.get(name),
            )
            for name, its in found.made.items()
        )
        taken = {piece.source for one in arrays for piece in one.pieces}
        parts = {path.partition("#")[0]: path for path in taken if "#" in path}
        shared = self._shared(taken)
        unused = [
            path
            for path in self.sources.leaves
            if "#" not in path and path not in taken and path not in parts
            if path not in shared
        ]
        cut = [whole for whole, path in parts.items() if not _complete(path, taken)]
        places = dict(found.unmatched)
        unplaced = [
            f"{name} {array.shape}{_called(places, name)}"
            for name, array in self.drawn.items()
            if name not in found.made
        ]
        return Found(
            arrays,
            tuple(unplaced),
            (*unused, *cut),
            tuple(found.differences),
            tuple(found.unseen),
            self._trials.passes,
            tuple(found.unsure),
            found.layers,
            bool(found.differences) and self.runner.in_float32(self.settings, self.inputs),
            self._trials.untried,
            heads=said(found.choices),
        )


def _called(places: Mapping[str, str], name: str) -> str:
    """Where the layer of an array is called, if it was seen to have no partner."""
    found = next((places[one] for one in sorted(_layers_of(name)) if one in places), "")
    return f" ({found})" if found else ""


def _layers_of(name: str) -> set[str]:
    """What the layer of an array may be called: in linen a collection stands before it."""
    layer = ".".join(name.split("/")[:-1])
    return {layer, layer.partition(".")[2]}


def _complete(path: str, taken: set[str]) -> bool:
    whole, _, part = path.partition("#")
    if part == "plain":
        return True
    count = int(part.partition("/")[2])
    return all(f"{whole}#{index}/{count}" in taken for index in range(count))


def _drawn(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Random values in the place of a model's own: no two arrays and no two slices of one are equal."""
    random = np.random.default_rng(0)
    return {
        name: _one(random, array.shape, positive=name.endswith("/var"))
        for name, array in weights.items()
    }


def _one(random: np.random.Generator, shape: tuple[int, ...], *, positive: bool) -> Array:
    drawn = random.random(shape)
    return drawn + 0.1 if positive else 0.2 * drawn - 0.1
