"""What each operator of a traced model is in JAX: one function an operator, by family."""

from converters.graph.ops.registry import Lowering, Result, Sample, Tensor, lowerings, op, sample

__all__ = ["Lowering", "Result", "Sample", "Tensor", "lowerings", "op", "sample"]
