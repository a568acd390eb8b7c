"""Passes of a traced function until its parameters are identified; run in the process of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.layout import affine, chain
from converters.target.elements import Elements
from migrate.parity.fitting.below.flow import Assigned, ParameterFlow
from migrate.parity.fitting.below.weights import NumberedWeights
from migrate.parity.fitting.heads import said
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.sources import EXACT, TorchSources
from migrate.parity.fitting.trying import Choices, EnoughSeen, Trials
from migrate.parity.ground.fitting import AssembledArray, FittingResult, ModelDifference, Portion
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.jax.wide import Evaluation

Array = np.ndarray[Any, Any]


@dataclass
class Below:
    """Passes of one function.

    Args:
        runner: runner of the JAX model (`sides.jax.runner.JaxRunner`).
        settings: settings of the run: float64.
        inputs: inputs of the run.
        sources: torch's layers and weights.
        drawn: values for parameters that torch does not have.
        fixed: arrays that both models compute.
    """

    runner: Any
    settings: SideSettings
    inputs: Mapping[str, Array]
    sources: TorchSources
    drawn: Mapping[str, Array]
    fixed: Mapping[str, Array]

    def __post_init__(self) -> None:
        self._weights = NumberedWeights(self.sources)
        self._infos = {
            name: TensorInfo(array.shape, array.dtype.name) for name, array in self.drawn.items()
        }
        self._trials = Trials()

    def found(self) -> FittingResult:
        """Return the findings of the best pass."""
        return self._result(self._undivided(self._trials.best(self._run, self._run({}, None))))

    def _run(self, choices: Choices, limit: int | None) -> Assigned:
        self._trials.passes += 1
        flow = ParameterFlow(self._weights, self._infos, self.drawn, choices, limit)
        assigned = flow.found
        assigned.choices = dict(choices)
        parameters = {name: flow.unknown(name) for name in self._infos} | dict(self.fixed)
        try:
            assigned.outputs = self.runner.evaluated(self.settings, self.inputs, flow, parameters)
        except EnoughSeen:
            return assigned
        flow.finish()
        away = self._distance_of_outputs(assigned.outputs)
        if away > EXACT:
            assigned.differences.append(ModelDifference("", "", "", flow.after, False, away))
        return assigned

    def _undivided(self, assigned: Assigned) -> Assigned:
        """Drop the differences of a pass whose outputs equal torch's.

        Such a function computes something more, for which torch has no output.
        """
        if not assigned.parted or assigned.unplaced:
            return assigned
        numbers = Elements(self._infos)
        values = {
            name: self._weights.at(assigned.origin[at], assigned.factor[at], assigned.offset[at])
            for name in self._infos
            for at in (numbers.of(name),)
        } | dict(self.fixed)
        self._trials.passes += 1
        outputs = self.runner.evaluated(self.settings, self.inputs, Evaluation(), values)
        last = ModelDifference("", "", "", "", False, self._distance_of_outputs(outputs))
        if last.rounding:
            assigned.unsure |= dict.fromkeys(
                difference.layer for difference in assigned.differences if difference.layer
            )
            assigned.differences[:] = [last] if last.distance > EXACT else []
        return assigned

    def _distance_of_outputs(self, outputs: Mapping[str, Array]) -> float:
        """Distance of the outputs from torch's."""
        truth = {ref.path: self.sources.values(ref) for ref in self.sources.dump.outputs[0]}
        apart = compare_outputs(truth, outputs).apart
        return math.inf if apart is None else apart

    def _result(self, assigned: Assigned) -> FittingResult:
        numbers = Elements(self._infos)
        assembled: list[AssembledArray] = []
        unplaced = [
            f"{name} {self._infos[name].shape}{f' ({place})' if place else ''}"
            for name, place in assigned.unplaced.items()
        ]
        for name in self._infos:
            if name in assigned.unplaced:
                continue
            array = self._made(name, numbers.of(name), assigned)
            if array is None:
                keys = self._weights.elements.names(assigned.origin[numbers.of(name)])
                unplaced.append(f"{name}: made of {', '.join(keys[:3])} as no mapping can say it")
            else:
                assembled.append(array)
        used = np.zeros(self._weights.elements.count, bool)
        used[assigned.origin[assigned.origin >= 0]] = True
        unused = [
            path
            for path in self.sources.leaves
            if "#" not in path and not self._weights.used(path, used)
        ]
        return FittingResult(
            (),
            tuple(unplaced),
            tuple(unused),
            tuple(assigned.differences),
            (),
            self._trials.passes,
            tuple(assigned.unsure),
            assigned.layers,
            bool(assigned.differences) and self.runner.in_float32(self.settings, self.inputs),
            self._trials.untried,
            tuple(assembled),
            said(assigned.choices),
        )

    def _made(self, name: str, at: Array, assigned: Assigned) -> AssembledArray | None:
        leaf = self._weights.elements.leaf(name, assigned.origin[at])
        if leaf is None:
            return None
        pieces = []
        shapes = [
            piece.shape(self._weights.elements.infos[piece.key].shape) for piece in leaf.pieces
        ]
        numbers = [leaf.join.split(its[at], shapes) for its in (assigned.factor, assigned.offset)]
        for piece, factor, offset in zip(leaf.pieces, *(its or () for its in numbers), strict=True):
            if np.ptp(factor) or np.ptp(offset):
                return None
            folded = affine(float(factor.flat[0]), float(offset.flat[0]))
            part = str(piece.part) if piece.part is not None else ""
            pieces.append(Portion(piece.key, part, str(chain((piece.layout, folded)))))
        return AssembledArray(name, tuple(pieces), str(leaf.join))
