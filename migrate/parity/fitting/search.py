"""Passes of a Flax model until its layers are told apart: asked in the process that holds it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.planning import planned
from migrate.parity.dump.dump import Dump
from migrate.parity.fitting.follow import Choices, EnoughSeen, Follower, Pass
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.sources import EXACT, Source, Sources
from migrate.parity.ground.fitting import Array as Placed
from migrate.parity.ground.fitting import Difference, Found, Piece
from migrate.parity.ground.settings import Settings
from migrate.parity.inputs.set import InputSet

Array = np.ndarray[Any, Any]
# Orders of layers that look alike that are tried: enough for query, key and value of two kinds of block.
_MOST = 48


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
    plan = planned(state, {"mapping": rules})
    sources = Sources(Dump(truth), plan.plan, plan.checkpoint.read)
    runner.prepare(settings, inputs)
    return _Search(runner, settings, inputs[0], sources).found()


@dataclass
class _Search:
    """The passes of one model."""

    runner: Any
    settings: Settings
    inputs: Mapping[str, Array]
    sources: Sources

    def __post_init__(self) -> None:
        self._drawn = _drawn(self.runner.weights)
        self._passes, self._untried = 0, False
        self._spare: Sequence[Source] = ()

    def found(self) -> Found:
        """The best pass."""
        best = self._run({}, None)
        left = self._left(best)
        if left and any(name not in best.made for name in self._drawn):
            self._spare = left
            again = self._run({}, None)
            if _better(again, best) or len(again.made) > len(best.made):
                best = again
            else:
                self._spare = ()
        best = self._tried(best)
        return self._result(best)

    def _tried(self, best: Pass) -> Pass:
        """Other orders of layers that look alike, where the model parts after them."""
        while _real(best):
            one = self._later(best)
            if one is None:
                return best
            best = one
        return best

    def _later(self, best: Pass) -> Pass | None:
        """A pass that parts later; None: none that was tried does."""
        queue = deque(_others(best))
        tried: set[frozenset[Any]] = set()
        while queue:
            choices = queue.popleft()
            if frozenset(choices.items()) in tried:
                continue
            tried.add(frozenset(choices.items()))
            if self._passes >= _MOST:
                self._untried = True
                return None
            one = self._run(choices, 1)  # no further than to its first difference
            if _better(one, best):
                return self._run(choices, None)
            queue.extend(_others(one))  # what is open only after that choice
        return None

    def _run(self, choices: Choices, limit: int | None) -> Pass:
        self._passes += 1
        follower = Follower(
            self.sources,
            self._drawn,
            linen=self.runner.kind == "linen",
            choices=choices,
            spare=self._spare,
            limit=limit,
        )
        found = follower.found
        found.choices = dict(choices)
        try:
            found.outputs = self.runner.follow(self.settings, self.inputs, self._drawn, follower)
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
        units = {call.unit.name: call.unit for call in self.sources.calls}
        whole = [unit for unit in units.values() if unit.part is None and not unit.hidden]
        return [one for unit in whole for one in unit.sources if one.path not in taken]

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
        unused = [
            path
            for path in self.sources.leaves
            if "#" not in path and path not in taken and path not in parts
        ]
        cut = [whole for whole, path in parts.items() if not _complete(path, taken)]
        places = dict(found.unmatched)
        unplaced = [
            f"{name} {array.shape}{_called(places, name)}"
            for name, array in self._drawn.items()
            if name not in found.made
        ]
        return Found(
            arrays,
            tuple(unplaced),
            (*unused, *cut),
            tuple(found.differences),
            tuple(found.unseen),
            self._passes,
            tuple(found.unsure),
            found.layers,
            bool(found.differences) and self.runner.in_float32(self.settings, self.inputs),
            self._untried,
        )


def _called(places: Mapping[str, str], name: str) -> str:
    """Where the layer of an array is called, if it was seen to have no partner."""
    layer = ".".join(name.split("/")[:-1])
    found = places.get(layer) or places.get(layer.partition(".")[2])
    return f" ({found})" if found else ""


def _complete(path: str, taken: set[str]) -> bool:
    whole, _, part = path.partition("#")
    if part == "plain":
        return True
    count = int(part.partition("/")[2])
    return all(f"{whole}#{index}/{count}" in taken for index in range(count))


def _better(one: Pass, other: Pass) -> bool:
    """Whether it parts later, or not at all."""
    return _real(other) and (not _real(one) or one.agreed > other.agreed)


def _real(found: Pass) -> bool:
    """Whether it parts by more than roundings."""
    return any(not one.rounding for one in found.differences)


def _others(found: Pass) -> Iterator[Choices]:
    """The same choices and one more, among what was open before the first difference; the last first."""
    counts = {one.pattern: one.count for one in found.open if not one.before}
    for key in reversed(counts):
        if key not in found.choices:
            yield from (found.choices | {key: rank} for rank in range(1, counts[key]))


def _drawn(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Random values in the place of a model's own: no two arrays and no two slices of one are equal."""
    random = np.random.default_rng(0)
    return {
        name: _one(random, array.shape, positive=name.endswith("/var"))
        for name, array in weights.items()
    }


def _one(random: np.random.Generator, shape: tuple[int, ...], *, positive: bool) -> Array:
    drawn = np.asarray(random.normal(size=shape))
    return np.asarray(np.abs(drawn) + 0.1 if positive else 0.1 * drawn)
