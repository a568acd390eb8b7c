"""JAX products in passes: `dot_general`, `ragged_dot_general` and `conv_general_dilated`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from migrate.parity.emulate.jax_split import JaxSplit
from migrate.parity.emulate.passes import convolution_on_vector_unit, dot_on_vector_unit, in_passes
from migrate.parity.ground.settings import PRECISIONS, Precision

PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})

_SPLIT = JaxSplit()
# What the TPU's compiler makes of these algorithms; it rejects the others.
_ALGORITHMS: dict[Any, Precision] = {
    lax.DotAlgorithmPreset.BF16_BF16_F32: "default",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: "high",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: "highest",
}
_ENUM: dict[Any, Precision] = {
    lax.Precision.DEFAULT: "default",
    lax.Precision.HIGH: "high",
    lax.Precision.HIGHEST: "highest",
}


def precision_of(written: Any, otherwise: Precision) -> Precision | None:
    """Return the precision written in an equation, or `otherwise` if there is none.

    Args:
        written: the parameter `precision` of the equation.

    Returns:
        None for an algorithm that a TPU does not have (TF32, float32 in one pass).
    """
    if written is None:
        return otherwise
    if isinstance(written, tuple):
        both = [precision_of(operand_precision, otherwise) for operand_precision in written]
        return max((precision for precision in both if precision), key=PRECISIONS.index)
    if isinstance(written, lax.Precision):
        return _ENUM[written]
    return _ALGORITHMS.get(written)


def is_float32(a: Any, b: Any) -> bool:
    """Whether a TPU splits the operands: float32, at least one of them."""
    dtypes = {a.dtype, b.dtype}
    narrow = {jnp.dtype("float32"), jnp.dtype("bfloat16"), jnp.dtype("float16")}
    return jnp.dtype("float32") in dtypes and dtypes <= narrow


def on_vector_unit(name: str, a: Any, b: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether the TPU's compiler turns the product into a multiply and a sum (`passes`)."""
    numbers = parameters.get("dimension_numbers")
    if name == "dot_general" and numbers is not None:
        (contracted, other), (batch, other_batch) = numbers
        m = _free(a.shape, contracted, batch)
        n = _free(b.shape, other, other_batch)
        return dot_on_vector_unit(m, n, math.prod(a.shape[axis] for axis in contracted))
    if name == "conv_general_dilated" and numbers is not None:
        outputs, inputs, *window = numbers.rhs_spec
        groups = parameters["feature_group_count"] * parameters["batch_group_count"]
        sizes = [b.shape[axis] for axis in window]
        plain = all(
            factor == 1 for factor in (*parameters["window_strides"], *parameters["lhs_dilation"])
        ) and not any(sum(parameters["padding"], ()))
        return convolution_on_vector_unit(sizes, b.shape[inputs], b.shape[outputs] // groups, plain)
    return False


def _free(shape: tuple[int, ...], contracted: Any, batch: Any) -> int:
    taken = {*contracted, *batch}
    return math.prod(size for axis, size in enumerate(shape) if axis not in taken)


def product(
    primitive: Any,
    parameters: Mapping[str, Any],
    operands: tuple[Any, ...],
    precision: Precision,
    emulate: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Any:
    """Compute the product of an equation in passes.

    Its gradients are the products that JAX derives from it, emulated in turn. Differentiating the emulated
    product thus equals emulating the gradient.

    Args:
        operands: the two factors, then further operands of the equation (sizes of groups).
        emulate: runs the products of a function in passes.
    """
    a, b, *others = operands
    # These products of bfloat16 values are exact on any device.
    exact = dict(parameters, precision=lax.Precision.HIGHEST)
    exact["preferred_element_type"] = jnp.float32

    def multiply(a: Any, b: Any) -> Any:
        return primitive.bind(a, b, *others, **exact)

    def as_written(a: Any, b: Any) -> Any:
        return primitive.bind(a, b, *others, **parameters)

    @jax.custom_vjp
    def passes(a: Any, b: Any) -> Any:
        dtype = jax.eval_shape(as_written, a, b).dtype
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        return in_passes(multiply, a, b, precision, _SPLIT).astype(dtype)

    def forward(a: Any, b: Any) -> Any:
        return passes(a, b), (a, b)

    def backward(kept: Any, cotangent: Any) -> Any:
        a, b = kept

        def of_a(cotangent: Any) -> Any:
            return jax.linear_transpose(lambda a: as_written(a, b), a)(cotangent)[0]

        def of_b(cotangent: Any) -> Any:
            return jax.linear_transpose(lambda b: as_written(a, b), b)(cotangent)[0]

        return emulate(of_a)(cotangent), emulate(of_b)(cotangent)

    passes.defvjp(forward, backward)
    return passes(a, b)
