"""Results of the comparison of a port on meshes of devices with one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# A mesh sums in another order: its error may be so many times that of one device.
FACTOR = 4.0
# Rounding of float32, relative to the array: errors of an array below four of them are equal.
FLOOR = 4 * 2.0**-24


@dataclass(frozen=True)
class MeshRun:
    """Outputs and gradients on a mesh, compared with those on one device.

    Attributes:
        mesh: "fsdp=4 tensor=2".
        output: error of the worst output against float64, divided by the allowed error.
        gradient: the same of the worst gradient.
        worst: path of the worst gradient.
        collectives: kind → how many of them the compiled forward and gradients have.
        bytes: bytes of weights on one device, divided by those of the whole model.
        error: why it was not compared; "" otherwise.
        skipped: why it was not tried; "" otherwise.
    """

    mesh: str
    output: float = 0.0
    gradient: float = 0.0
    worst: str = ""
    collectives: Mapping[str, int] = field(default_factory=dict)
    bytes: float = 1.0
    error: str = ""
    skipped: str = ""

    @property
    def matches(self) -> bool:
        """Whether nothing differs by more than the order of sums explains."""
        return bool(self.skipped) or (not self.error and max(self.output, self.gradient) <= 1.0)

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        if self.skipped:
            return f"not tried: {self.skipped}"
        if self.error:
            return f"could not be compared: {self.error}"
        return "equal" if self.matches else f"differs ({self.worst})"
