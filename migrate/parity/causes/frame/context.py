"""Facts about a layer that diverges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import LayerAlignment


@dataclass(frozen=True)
class Context:
    """Layer of a side that diverges from the truth.

    Attributes:
        layer: the layer's name in the truth; "" is the model itself.
        number: the number of the truth's call of the layer.
        truth: dump of the truth.
        local: the side's dump with each layer fed with the truth's inputs; None: there is no such dump.
        accumulated: the side's dump of an ordinary run.
        alignment: alignment of the side with the truth.
        side_layer: the layer's name at the side.
        settings, truth_settings: `dump.Layer.settings` of the side's layer and of the truth's.
        dtype: dtype in which the side computes.
        relative_l2: relative L2 between the side and the truth.
        breached_locally: whether the local error is the breach; if not, its inputs are compared first.
        side: name of the side in messages, "A" or "B".
        inputs: numbers of the inputs to compare, the input that shows the breach most first; the side's
            dumps may lack others. None: the first two.
    """

    layer: str
    number: int
    truth: Dump
    local: Dump | None
    accumulated: Dump
    alignment: LayerAlignment
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
        """Relative L2 below which a variant equals the side: four times the side's noise.

        - float32: 4e-6 (its own noise is 1e-7 to 1e-6, by the length of the sums);
        - bfloat16, and float32 with matmuls of one bf16 pass: 1e-2 (noise 2.4e-3);
        - three bf16 passes: 6e-5 (noise 1.3e-5).
        """
        if self.dtype == "float32":
            return {"default": 1e-2, "high": 6e-5}.get(self.accumulated.facts.precision, 4e-6)
        return {"bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}.get(self.dtype, 1e-2)
