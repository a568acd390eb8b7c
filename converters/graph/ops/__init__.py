"""JAX lowerings of a traced model's operators: one function per operator, by family."""

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
