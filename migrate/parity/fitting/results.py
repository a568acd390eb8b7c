"""The verdict of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from converters.mapping import Plan
from migrate.parity.ground.fitting import Difference


@dataclass(frozen=True)
class Fit:
    """Torch's weights in a Flax model that exists.

    Attributes:
        plan: every key of torch's and its place.
        differences: where the models part.
        apart: relative L2 of the outputs, the largest of all inputs; None: they cannot be compared.
        inputs: on how many.
        layers: how many layers of Flax's were found in torch's.
        passes: how many of the Flax model were run to find them.
        rounding: whether all that differs is what float32 rounds, in which the Flax model keeps numbers.
        idle: arrays that look like others and have no influence on the outputs: nothing says which they are.
        notes: what else to know.
        altered: what the weights have in the target that torch's have not, in words.
    """

    plan: Plan
    differences: tuple[Difference, ...]
    apart: float | None
    inputs: int
    layers: int
    passes: int
    rounding: bool = False
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether both models gave the same."""
        return not self.differences and not self.idle and self.apart is not None

    @property
    def sentence(self) -> str:
        """The verdict."""
        inputs = f"{self.inputs} input{'s' if self.inputs > 1 else ''}"
        if self.proven:
            altered = f", with {' and '.join(self.altered)}" if self.altered else ""
            return f"fitted and proven: outputs agree to {self.apart:.0e} on {inputs}{altered}"
        if self.rounding and not self.idle:
            return (
                f"fitted, not proven: outputs agree to {self.apart:.0e} on {inputs}, and no further can be "
                f"seen, as the target keeps numbers in float32 (first: {self.differences[0]})"
            )
        if self.idle and not self.differences:
            idle = ", ".join(self.idle[:3])
            return f"fitted, not proven: {idle} could be another: the outputs do not depend on it"
        return f"fitted; the models differ: first difference {self._first}"

    @property
    def _first(self) -> str:
        if not self.differences:
            return "in outputs that cannot be compared"
        first = str(
            next((one for one in self.differences if not one.rounding), self.differences[0])
        )
        return first if first.startswith("before") else f"in what it gives: {first}"
