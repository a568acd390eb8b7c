"""Verdict of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from converters.mapping import Plan
from migrate.parity.ground.fitting import ModelDifference

Array = np.ndarray[Any, Any]
PROVEN = "fitted and proven"
DIFFER = "the models differ"


@dataclass(frozen=True)
class Fit:
    """Torch's weights in an existing Flax model.

    Attributes:
        plan: plan with every torch key and its place.
        differences: divergences of the models.
        apart: relative L2 of the outputs, the largest of all inputs; None: they cannot be compared.
        inputs: number of inputs.
        layers: number of layers of Flax's matched with torch's.
        passes: number of passes of the Flax model to match them.
        rounding: whether float32 rounding explains all differences, because the Flax model keeps numbers in
            float32.
        idle: arrays that look like others and do not influence the outputs; nothing identifies them.
        notes: further notes.
        computed: arrays of the target that no checkpoint holds, as both models compute them; path → value.
        altered: changes of the target's weights against torch's, in words.
    """

    plan: Plan
    differences: tuple[ModelDifference, ...]
    apart: float | None
    inputs: int
    layers: int
    passes: int
    rounding: bool = False
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    computed: Mapping[str, Array] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Whether both models returned the same outputs."""
        return not self.differences and not self.idle and self.apart is not None

    @property
    def sentence(self) -> str:
        """Verdict in one sentence."""
        inputs = f"{self.inputs} input{'s' if self.inputs > 1 else ''}"
        if self.proven:
            altered = f", with {' and '.join(self.altered)}" if self.altered else ""
            return f"{PROVEN}: outputs agree to {self.apart:.0e} on {inputs}{altered}"
        if self.rounding and not self.idle:
            return (
                f"fitted, not proven: outputs agree to {self.apart:.0e} on {inputs}, and no further can be "
                f"seen, as the target keeps numbers in float32 (first: {self.differences[0]})"
            )
        if self.idle and not self.differences:
            idle = ", ".join(self.idle[:3])
            return f"fitted, not proven: {idle} could be another: the outputs do not depend on it"
        return f"fitted; {DIFFER}: first difference {self._first}"

    @property
    def _first(self) -> str:
        if not self.differences:
            return "in outputs that cannot be compared"
        first = str(
            next(
                (difference for difference in self.differences if not difference.rounding),
                self.differences[0],
            )
        )
        return first if first.startswith("before") else f"in what it gives: {first}"
