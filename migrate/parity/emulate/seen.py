"""What an emulation did, so that nothing is taken for emulated that was not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from migrate.parity.ground.settings import PRECISIONS, Precision


@dataclass
class Emulation:
    """What an emulation did; it fills as the model runs (under JAX: as it is traced).

    Attributes:
        precision: in which products were computed.
        emulated: operation → how often it was computed in passes.
        vector_unit: operation → how often it was left in float32, as a TPU computes it so
            (`passes.dot_on_vector_unit`).
        unhandled: operations that compute products of float32, or may (custom operators), and were run as
            they are. Where this is not empty the result is not what a TPU gives.

    Raises:
        ValueError: no such precision.
    """

    precision: Precision
    emulated: Counter[str] = field(default_factory=Counter)
    vector_unit: Counter[str] = field(default_factory=Counter)
    unhandled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"{self.precision!r} is not a precision: {', '.join(PRECISIONS)}")
