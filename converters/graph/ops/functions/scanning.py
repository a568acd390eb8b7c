"""Layers that repeat, as one layer that is compiled once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flax import linen as nn


def scan_layers(
    step: Callable[[Any, Any], Any], layers: Sequence[nn.Module], length: int, carry: Any
) -> Any:
    """Apply the layers `length` times, compiled once; their weights are stacked along axis 0."""
    first, *others = layers

    def body(first: nn.Module, carry: Any, others: Any) -> tuple[Any, None]:
        return step([first, *others], carry), None

    scan = nn.scan(
        body,
        variable_axes={"params": 0, "batch_stats": 0, "buffers": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=nn.broadcast,
        length=length,
    )
    return scan(first, carry, others)[0]
