"""Passes of a traced function until its parameters are told apart: asked in the process that holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.layout import affine, chain
from converters.target.elements import Elements
from migrate.parity.fitting.below.flow import Assigned, Flow
from migrate.parity.fitting.below.weights import Weights
from migrate.parity.fitting.heads import said
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.sources import EXACT, Sources
from migrate.parity.fitting.trying import Choices, EnoughSeen, Trials
from migrate.parity.ground.fitting import Difference, Found, Made, Portion
from migrate.parity.ground.settings import Settings
from migrate.parity.sides.jax.wide import Evaluation

Array = np.ndarray[Any, Any]


@dataclass
class Below:
    """The passes of one function.

    Args:
        runner: of the JAX model (`sides.jax.runner.JaxRunner`).
        settings: how it runs: float64.
        inputs: what it runs on.
        sources: torch's side.
        drawn: values for parameters that torch has not.
    """

    runner: Any
    settings: Settings
    inputs: Mapping[str, Array]
    sources: Sources
    drawn: Mapping[str, Array]

    def __post_init__(self) -> None:
        self._weights = Weights(self.sources)
        self._infos = {
            name: TensorInfo(array.shape, array.dtype.name) for name, array in self.drawn.items()
        }
        self._trials = Trials()

    def found(self) -> Found:
        """The best pass."""
        return self._result(self._undivided(self._trials.best(self._run, self._run({}, None))))

    def _run(self, choices: Choices, limit: int | None) -> Assigned:
        self._trials.passes += 1
        flow = Flow(self._weights, self._infos, self.drawn, choices, limit)
        found = flow.found
        found.choices = dict(choices)
        parameters = {name: flow.unknown(name) for name in self._infos}
        try:
            found.outputs = self.runner.evaluated(self.settings, self.inputs, flow, parameters)
        except EnoughSeen:
            return found
        flow.finish()
        away = self._apart(found.outputs)
        if away > EXACT:
            found.differences.append(Difference("", "", "", flow.after, False, away))
        return found

    def _undivided(self, found: Assigned) -> Assigned:
        """The same without its differences where the outputs are torch's all the same.

        The function computes something more then, of which torch gives nothing.
        """
        if not found.parted or found.unplaced:
            return found
        numbers = Elements(self._infos)
        values = {
            name: self._weights.at(found.origin[at], found.factor[at], found.offset[at])
            for name in self._infos
            for at in (numbers.of(name),)
        }
        self._trials.passes += 1
        outputs = self.runner.evaluated(self.settings, self.inputs, Evaluation(), values)
        last = Difference("", "", "", "", False, self._apart(outputs))
        if last.rounding:
            found.unsure |= dict.fromkeys(one.layer for one in found.differences if one.layer)
            found.differences[:] = [last] if last.distance > EXACT else []
        return found

    def _apart(self, outputs: Mapping[str, Array]) -> float:
        """How far the outputs are from torch's."""
        truth = {ref.path: self.sources.values(ref) for ref in self.sources.dump.outputs[0]}
        apart = compare_outputs(truth, outputs).apart
        return math.inf if apart is None else apart

    def _result(self, found: Assigned) -> Found:
        numbers = Elements(self._infos)
        made: list[Made] = []
        unplaced = [
            f"{name} {self._infos[name].shape}{f' ({place})' if place else ''}"
            for name, place in found.unplaced.items()
        ]
        for name in self._infos:
            if name in found.unplaced:
                continue
            one = self._made(name, numbers.of(name), found)
            if one is None:
                keys = self._weights.elements.names(found.origin[numbers.of(name)])
                unplaced.append(f"{name}: made of {', '.join(keys[:3])} as no mapping can say it")
            else:
                made.append(one)
        used = np.zeros(self._weights.elements.count, bool)
        used[found.origin[found.origin >= 0]] = True
        unused = [
            path
            for path in self.sources.leaves
            if "#" not in path and not self._weights.used(path, used)
        ]
        return Found(
            (),
            tuple(unplaced),
            tuple(unused),
            tuple(found.differences),
            (),
            self._trials.passes,
            tuple(found.unsure),
            found.layers,
            bool(found.differences) and self.runner.in_float32(self.settings, self.inputs),
            self._trials.untried,
            tuple(made),
            said(found.choices),
        )

    def _made(self, name: str, at: Array, found: Assigned) -> Made | None:
        leaf = self._weights.elements.leaf(name, found.origin[at])
        if leaf is None:
            return None
        pieces = []
        shapes = [one.shape(self._weights.elements.infos[one.key].shape) for one in leaf.pieces]
        numbers = [leaf.join.split(its[at], shapes) for its in (found.factor, found.offset)]
        for one, factor, offset in zip(leaf.pieces, *(its or () for its in numbers), strict=True):
            if np.ptp(factor) or np.ptp(offset):
                return None
            folded = affine(float(factor.flat[0]), float(offset.flat[0]))
            part = str(one.part) if one.part is not None else ""
            pieces.append(Portion(one.key, part, str(chain((one.layout, folded)))))
        return Made(name, tuple(pieces), str(leaf.join))
