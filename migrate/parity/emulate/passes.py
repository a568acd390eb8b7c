"""TPU multiplication of float32 matrices: passes of bfloat16 operands, summed in float32.

The matrix unit (MXU) takes bfloat16. `default` rounds each operand once. `high` and `highest` split them
into two and three bfloat16 parts and sum the products that matter, the smallest first.

Which split belongs to which precision follows from torch_xla's tests on a TPU, each with a two-sided
tolerance. One pass satisfies them only with rounding to nearest, three only with truncation
(`benchmarks/emulation_bands.py`). The splits are exact to the bit. The order in which the matrix unit
accumulates is not documented.

Nothing here depends on a framework: `Split` is what a framework has to provide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from migrate.parity.ground.settings import Precision

Array = TypeVar("Array")

# The parts whose products are summed, in this order: (part of a, part of b).
_PRODUCTS: dict[Precision, tuple[tuple[int, int], ...]] = {
    "default": ((0, 0),),
    "high": ((1, 0), (0, 1), (0, 0)),
    "highest": ((1, 1), (0, 2), (2, 0), (0, 1), (1, 0), (0, 0)),
}


class Split(Protocol[Array]):
    """The two roundings of float32 to bfloat16, with the result in float32."""

    def nearest(self, array: Array) -> Array:
        """Round to nearest, ties to even."""

    def truncated(self, array: Array) -> Array:
        """Round toward zero: keep the upper 16 bits."""

    def rest(self, array: Array, part: Array) -> Array:
        """`array - part`, exact; 0 where `array` is not finite."""

    def numbers(self, array: Array) -> Array:
        """Replace NaN by 0."""


def parts(array: Array, precision: Precision, split: Split[Array]) -> tuple[Array, ...]:
    """Split an operand into bfloat16 parts, the largest first; their sum is the (`default`: rounded)
    operand.
    """
    if precision == "default":
        return (split.nearest(array),)
    first = split.truncated(array)
    rest = split.rest(array, first)
    if precision == "high":
        return first, split.nearest(rest)
    second = split.truncated(rest)
    return first, second, split.nearest(split.rest(rest, second))


def in_passes(
    multiply: Callable[[Array, Array], Array],
    a: Array,
    b: Array,
    precision: Precision,
    split: Split[Array],
) -> Array:
    """Compute a product that is linear in both operands in the passes of `precision`.

    Args:
        multiply: the product in true float32 (a matmul, a convolution).
    """
    of_a, of_b = parts(a, precision, split), parts(b, precision, split)
    *small, last = (multiply(of_a[i], of_b[j]) for i, j in _PRODUCTS[precision])
    if not small:
        return last
    total: Any = small[0]
    for product in small[1:]:
        total = total + product
    # Infinity times a part that is 0 is NaN; the product of the first parts has the right result.
    low: Any = split.numbers(total)
    return low + last


def dot_on_vector_unit(m: int, n: int, k: int) -> bool:
    """Whether the TPU's compiler turns a float32 dot `[m,k]·[k,n]` into a multiply and a sum.

    They run on the vector unit, which computes true float32: nothing is rounded to bfloat16 (jax#16349). `m`
    and `n` are the products of *all* dimensions that only one operand has, `k` of all contracted dimensions.
    Batch dimensions do not count. Measured: `tests/parity/emulate/test_vector_unit.py` asks the compiler.
    """
    return 1 in (m, n, k)


def convolution_on_vector_unit(
    window: Sequence[int], inputs: int, outputs: int, plain: bool
) -> bool:
    """Whether a convolution runs on the vector unit: only if it scales each channel by a number.

    Args:
        window: the kernel's spatial sizes.
        inputs, outputs: channels of a group.
        plain: neither stride nor padding nor dilation of the input.
    """
    return plain and math.prod(window) == inputs == outputs == 1
