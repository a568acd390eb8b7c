"""What each operator of a traced model is in JAX: one function an operator, by family."""

from converters.graph.ops.registry import (
    CannotLowerError,
    Lowering,
    Result,
    Sample,
    Size,
    Tensor,
    lowerings,
    op,
    sample,
)

__all__ = [
    "CannotLowerError",
    "Lowering",
    "Result",
    "Sample",
    "Size",
    "Tensor",
    "lowerings",
    "op",
    "sample",
]
