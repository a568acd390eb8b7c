"""Buffers that the original's constructor computes, as the expressions that compute them."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import torch

from converters.graph.expression import SettingFloat, SettingInt, as_code, code, dtype_name
from converters.graph.writing.original import constructors
from converters.graph.writing.original.settings import Settings
from converters.graph.writing.original.tables import table


def computed(tensor: torch.Tensor, owner: Any, name: str, settings: Settings) -> ast.expr | None:
    """An expression that gives the tensor, or None: then its values have to be stored.

    It gives the same numbers but for the rounding of float32, which is checked.

    Args:
        tensor: the buffer.
        owner: the module that holds it.
        name: what it is called there.
        settings: of the model.
    """
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return None

    def size(value: int) -> Any:
        return settings.of_buffer_side(owner, name, value)

    def element(value: Any) -> Any:
        return value if isinstance(value, bool) else settings.of_buffer(owner, name, value)

    if (filled := _filled(tensor, size, element)) is not None:
        return filled
    for recognize in (_counted, _triangle):
        filled = recognize(tensor, size)
        if filled is not None:
            return filled
    return (
        _listed(tensor, owner, name)
        or _frequencies(tensor, owner, name, settings)
        or table(tensor, owner.__class__, name, lambda node: settings.of_expression(node, owner))
    )


def _dtype(tensor: torch.Tensor) -> ast.expr:
    return code(dtype_name(tensor.dtype))


def _shape(tensor: torch.Tensor, size: Callable[[int], Any]) -> tuple[Any, ...]:
    return tuple(size(side) for side in tensor.shape)


def _filled(
    tensor: torch.Tensor, size: Callable[[int], Any], element: Callable[[Any], Any]
) -> ast.expr | None:
    first = tensor.flatten()[0]
    if not bool((tensor == first).all()):
        return None
    return code(
        "jnp.full({shape}, {value}, {dtype})",
        shape=_shape(tensor, size),
        value=element(first.item()),
        dtype=_dtype(tensor),
    )


def _counted(tensor: torch.Tensor, size: Callable[[int], Any]) -> ast.expr | None:
    """0, 1, 2, … along the last axis, the others of one element."""
    if tensor.numel() != tensor.shape[-1]:
        return None
    if not torch.equal(tensor.flatten(), torch.arange(tensor.shape[-1], dtype=tensor.dtype)):
        return None
    counted = code("jnp.arange({n}, dtype={dtype})", n=size(tensor.shape[-1]), dtype=_dtype(tensor))
    for _ in range(tensor.dim() - 1):
        counted = code("{x}[None]", x=counted)
    return counted


def _listed(tensor: torch.Tensor, owner: Any, name: str) -> ast.expr | None:
    """Numbers that the constructor lists: `torch.tensor([0.5, 1.0])`."""
    for expression in constructors.assigned(owner.__class__, name):
        for node in ast.walk(expression):
            if not isinstance(node, ast.Call) or len(node.args) != 1:
                continue
            if constructors.last(node.func) not in ("tensor", "as_tensor", "Tensor"):
                continue
            try:
                listed = ast.literal_eval(node.args[0])
                same = torch.equal(torch.tensor(listed, dtype=tensor.dtype), tensor)
            except (ValueError, TypeError, RuntimeError):
                continue
            if same:
                return code("jnp.array({v}, {d})", v=node.args[0], d=_dtype(tensor))
    return None


def _frequencies(
    tensor: torch.Tensor, owner: Any, name: str, settings: Settings
) -> ast.expr | None:
    """The inverse frequencies of rotary embeddings: 1 / base ** (0, 2, 4, … / dim)."""
    if tensor.dim() != 1 or tensor.numel() < 2 or not tensor.is_floating_point():
        return None
    values, count = tensor.double(), tensor.numel()
    if values[0] != 1 or values[-1] <= 0 or values[-1] >= 1:
        return None
    exact = float(values[-1]) ** (-count / (count - 1))
    steps = torch.arange(0, 2 * count, 2, dtype=torch.float64) / (2 * count)
    # As few digits as will do: float32 knows about seven.
    for digits in (1, 2, 3, 4, 5, 6, 7, 8):
        base = float(f"{exact:.{digits}g}")
        # torch's power in float32 rounds its exponent, which counts as often as the base has digits.
        rounding = 3e-7 + 2**-24 * math.log(base)
        if torch.allclose(values, 1 / base**steps, rtol=rounding, atol=0):
            break
    else:
        return None
    # A model may have several (`sliding_attention_inv_freq`).
    which = name.removesuffix("inv_freq").strip("_") if name.endswith("inv_freq") else ""
    cls = owner.__class__
    passed = constructors.arguments(cls)
    held = next((name for name in passed if constructors.default(cls, name) == base), "base")
    theta = f"{which}_rope_theta".lstrip("_") if held in ("base", "theta") else held
    written = any(
        isinstance(node, ast.Constant) and not isinstance(node.value, bool) and node.value == base
        for expression in constructors.assigned(cls, name)
        for node in ast.walk(expression)
    )
    dim = settings.of_local(owner, "dim", 2 * count)
    own = (
        settings.of_attribute(owner, argument, number)
        for argument in passed
        for number in (base, int(base))
    )
    said = next((number for number in own if getattr(number, "text", "")), None)
    return code(
        "1.0 / {base} ** (jnp.arange(0, {dim}, 2) / {dim})",
        # A number that stands in the expression itself is nobody's setting.
        base=base if written else said or SettingFloat(base, theta, {theta: base}),
        dim=dim if isinstance(dim, SettingInt) else settings.of_buffer_side(owner, name, 2 * count),
    )


def _triangle(tensor: torch.Tensor, size: Callable[[int], Any]) -> ast.expr | None:
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor[0].numel() < 2:
        return None
    if tensor.numel() != tensor.shape[-1] ** 2:
        return None
    square = tensor.reshape(tensor.shape[-2:])
    ones = torch.ones_like(square)
    for name, wanted in (("tril", torch.tril(ones)), ("triu", torch.triu(ones))):
        if torch.equal(square, wanted):
            return code(
                f"jnp.{name}(jnp.ones({{shape}}, {{dtype}}))",
                shape=as_code(_shape(tensor, size)),
                dtype=_dtype(tensor),
            )
    return None
