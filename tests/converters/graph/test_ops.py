"""Each lowering computes what torch's operator does: values, dtypes, shapes and gradients."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn

from converters.graph.expression import dtype_name
from converters.graph.ops import Lowering, Result, Sample, Tensor, lowerings
from converters.graph.ops.functions import functions

CASES = [
    pytest.param(name, lowering, one, id=f"{name}-{number}")
    for lowering in dict.fromkeys(lowerings().values())
    for name in lowering.names
    for number, one in enumerate(lowering.samples)
]


@pytest.mark.parametrize(("name", "lowering", "given"), CASES)
def test_it_computes_what_torch_does(name: str, lowering: Lowering, given: Sample) -> None:
    arguments, named = given.arguments(torch.Generator().manual_seed(0))
    tensors: list[torch.Tensor] = []
    operator = _operator(name)
    expected = operator(*arguments, **named)
    symbols = _symbols((arguments, named), tensors)
    made = lowering(*symbols, _results(expected))
    assert isinstance(made, ast.expr)
    run = _compiled(made, len(tensors))
    arrays = [jnp.asarray(tensor.numpy()) for tensor in tensors]
    with jax.default_matmul_precision("highest"):
        got = jax.jit(run)(*arrays)
    pairs = list(zip(_flat(expected), _flat(got), strict=True))
    for wanted, found in pairs:
        assert tuple(wanted.shape) == found.shape
        assert dtype_name(wanted.dtype).removeprefix("jnp.").strip("_") == str(found.dtype)
        _close(found, wanted, given.tolerance)
    if given.gradient:
        _compare_gradients(operator, arguments, named, run, tensors, given.tolerance)


def _operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _symbols(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        name = ast.Name(f"t{len(tensors) - 1}", ast.Load())
        return Tensor(tuple(value.shape), value.dtype, name)
    if isinstance(value, dict):
        return {key: _symbols(one, tensors) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_symbols(one, tensors) for one in value)
    return value


def _results(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Result(tuple(value.shape), value.dtype)
    return tuple(_results(one) for one in value)


def _compiled(made: ast.expr, count: int) -> Any:
    names = ", ".join(f"t{index}" for index in range(count))
    text = f"lambda {names}: {ast.unparse(ast.fix_missing_locations(made))}"
    return eval(text, {"jnp": jnp, "jax": jax, "nn": nn, "np": np, **functions()})


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _close(found: Any, wanted: torch.Tensor, tolerance: float) -> None:
    a, b = np.asarray(found), wanted.detach().numpy()
    if not (np.issubdtype(b.dtype, np.inexact)):
        np.testing.assert_array_equal(a, b)
        return
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, finite.max(initial=0.0)))


def _compare_gradients(
    operator: Any,
    arguments: Any,
    named: Any,
    run: Any,
    tensors: list[torch.Tensor],
    tolerance: float,
) -> None:
    """Of the sum of all results, each times weights of its own, by every real input."""
    if not any(one.is_floating_point() for one in tensors):
        return
    leaves = [
        one.detach().clone().requires_grad_() if one.is_floating_point() else one for one in tensors
    ]
    results = _flat(operator(*_with((arguments, named), iter(leaves))[0], **_named(named, leaves, arguments)))
    real = [index for index, one in enumerate(results) if one.dtype.is_floating_point]
    if not real or not any(results[index].requires_grad for index in real):
        return
    weights = {
        index: torch.randn(results[index].shape, generator=torch.Generator().manual_seed(index))
        for index in real
    }
    loss = sum((results[index] * weights[index]).sum() for index in real)
    wanted = torch.autograd.grad(
        loss, [one for one in leaves if one.requires_grad], allow_unused=True
    )
    at = [index for index, one in enumerate(leaves) if one.requires_grad]

    def total(*arrays: Any) -> Any:
        got = _flat(run(*arrays))
        return sum((got[index] * jnp.asarray(weights[index].numpy())).sum() for index in real)

    arrays = [jnp.asarray(one.detach().numpy()) for one in tensors]
    with jax.default_matmul_precision("highest"):
        found = jax.jit(jax.grad(total, argnums=tuple(at)))(*arrays)
    for gradient, expected in zip(found, wanted, strict=True):
        if expected is not None:
            _close(gradient, expected, 10 * tolerance)


def _with(value: Any, leaves: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return next(leaves)
    if isinstance(value, dict):
        return {key: _with(one, leaves) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with(one, leaves) for one in value)
    return value


def _named(named: Any, leaves: list[torch.Tensor], arguments: Any) -> Any:
    rest = iter(leaves)
    _with(arguments, rest)
    return _with(named, rest)
