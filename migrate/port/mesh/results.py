"""Results of the comparison of a port on meshes of devices with one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# A mesh sums in another order: its error may be so many times that of one device.
FACTOR = 4.0
# Rounding of float32, relative to the array: errors of an array below four of them are equal.
FLOOR = 4 * 2.0**-24
# An array with a larger error in float32 is compared in float64, whose rounding is 2^-29 times as large. What
# differs there by more than this part of the same limit is not rounding.
WIDE = 2.0**-10


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
        wide: the largest of these errors with the mesh in float64, divided by the same allowed error; None if
            float32 decides.
    """

    mesh: str
    output: float = 0.0
    gradient: float = 0.0
    worst: str = ""
    collectives: Mapping[str, int] = field(default_factory=dict)
    bytes: float = 1.0
    error: str = ""
    skipped: str = ""
    wide: float | None = None

    @property
    def matches(self) -> bool:
        """Whether nothing differs by more than the order of sums explains."""
        if self.skipped or self.error:
            return bool(self.skipped)
        return max(self.output, self.gradient) <= 1.0 or self.is_rounding

    @property
    def is_rounding(self) -> bool:
        """Whether what differs in float32 is equal in float64."""
        return self.wide is not None and self.wide <= WIDE

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        if self.skipped:
            return f"not tried: {self.skipped}"
        if self.error:
            return f"could not be compared: {self.error}"
        if self.is_rounding:
            return "match, as float64 decides"
        return "match" if self.matches else f"differs ({self.worst})"
