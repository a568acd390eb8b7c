"""Operators that no source of a Flax model can stand for, each with its reason."""

from __future__ import annotations

from converters.graph.ops.registry import refuse

_RANDOM = """
    rand.default rand.generator rand.names rand_like.default randn.default randn.generator randn_like.default
    randint.default randint.low randint_like.default randint_like.low_dtype randperm.default
    multinomial.default bernoulli.default bernoulli.p normal.Tensor_Tensor normal.Tensor_float
    normal.float_Tensor normal.float_float normal_functional.default uniform.default poisson.default
    exponential.default geometric.default cauchy.default log_normal.default random.default
    rrelu_with_noise.default rrelu_with_noise_functional.default
"""
refuse(
    *(f"aten.{name}" for name in _RANDOM.split()),
    reason="it draws random numbers: a port takes them as an input, or draws them with a key of its own",
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
    "aten.data_ptr.default",
    reason="it speaks of how a tensor lies in memory, of which JAX has no notion",
)
