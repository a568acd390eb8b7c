"""Record of an emulation, which lists every operation that was not emulated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from migrate.parity.ground.settings import PRECISIONS, Precision


@dataclass
class Emulation:
    """Record of an emulation; it fills as the model runs (in JAX: as the model is traced).

    Attributes:
        precision: precision of the products.
        emulated: operation → how often it was computed in passes.
        vector_unit: operation → how often it was left in float32, because a TPU also computes it so
            (`passes.dot_on_vector_unit`).
        unhandled: operations that compute products of float32, or may do so (custom operators), and ran
            unchanged. If there are any, the result is not what a TPU computes.

    Raises:
        ValueError: the precision is unknown.
    """

    precision: Precision
    emulated: Counter[str] = field(default_factory=Counter)
    vector_unit: Counter[str] = field(default_factory=Counter)
    unhandled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"{self.precision!r} is not a precision: {', '.join(PRECISIONS)}")
