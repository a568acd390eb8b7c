"""Operators without an equivalent in the source of a Flax model, each with its reason."""

from __future__ import annotations

from converters.graph.ops.registry import refuse

_RANDOM = """
    rand.names poisson.default geometric.default cauchy.default random.default random.from random.to
    rrelu_with_noise.default rrelu_with_noise_functional.default
"""
refuse(
    *(f"aten.{name}" for name in _RANDOM.split()),
    reason="it draws random numbers of a kind that has no lowering: make what it draws an input",
)
refuse(
    "aten.item.default",
    "aten._local_scalar_dense.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
    "aten.allclose.default",
    reason="it reads a tensor's value in Python, which a traced value does not have: make it an argument",
)
refuse(
    "aten.nonzero.default",
    "aten.nonzero_numpy.default",
    "aten.argwhere.default",
    "aten.masked_select.default",
    "aten._unique2.default",
    "aten.unique_dim.default",
    "aten.unique_consecutive.default",
    "aten.unique_dim_consecutive.default",
    "aten.bincount.default",
    "aten.repeat_interleave.Tensor",
    reason="how much it gives depends on the values of its input: JAX needs to know the shape",
)
refuse(
    "aten.as_strided.default",
    "aten.as_strided_scatter.default",
    "aten.set_.source_Tensor",
    "aten.stride.int",
    "aten.storage_offset.default",
    reason="it speaks of how a tensor lies in memory, of which JAX has no notion",
)
_COLLECTIVES = """
    _c10d_functional.all_reduce _c10d_functional.all_gather_into_tensor
    _c10d_functional.reduce_scatter_tensor _c10d_functional.broadcast _c10d_functional.all_to_all_single
    _c10d_functional_autograd.all_gather_into_tensor
    _c10d_functional_autograd.reduce_scatter_tensor _c10d_functional_autograd.all_to_all_single
"""
refuse(
    *(f"{name}.default" for name in _COLLECTIVES.split()),
    reason="it is a collective of several ranks: record the model in a process group of one rank",
)
