"""What is known of a layer that parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import Alignment


@dataclass(frozen=True)
class Context:
    """A layer of a side that parts from the truth.

    Attributes:
        layer: its name in the truth; "" the model itself.
        number: the truth's call of it.
        truth: the dump of the truth.
        local: the side's, each layer fed with the truth's inputs; None: there is none.
        accumulated: the side's as it runs.
        alignment: of the side with the truth.
        side_layer: the layer's name at the side.
        settings, truth_settings: `dump.Layer.settings` of the side's layer and of the truth's.
        dtype: in which the side computes.
        relative_l2: how far it parts.
        breached_locally: whether by its local error; if not, what it was given is looked at first.
        side: the word for it in sentences, "A" or "B".
        inputs: which of the inputs are looked at, the one that shows it most first; the side's dumps have
            others perhaps not. None: the first two.
    """

    layer: str
    number: int
    truth: Dump
    local: Dump | None
    accumulated: Dump
    alignment: Alignment
    side_layer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    truth_settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    relative_l2: float = 0.0
    breached_locally: bool = True
    side: str = "B"
    inputs: tuple[int, ...] | None = None

    @property
    def one_pass(self) -> bool:
        """Whether the side multiplies matrices in one pass of bfloat16, as a TPU does by default."""
        return self.dtype == "float32" and self.accumulated.facts.precision == "default"

    @property
    def noise(self) -> float:
        """Relative L2 below which a variant gives what the side gives: four times the side's noise.

        float32 has 4e-6 (its own noise is 1e-7 to 1e-6, by the length of the sums), bfloat16, and float32
        whose matmuls are one bf16 pass, 1e-2 (2.4e-3), three passes 6e-5 (1.3e-5).
        """
        if self.dtype == "float32":
            return {"default": 1e-2, "high": 6e-5}.get(self.accumulated.facts.precision, 4e-6)
        return {"bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}.get(self.dtype, 1e-2)
