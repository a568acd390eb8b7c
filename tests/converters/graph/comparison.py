"""Runs an operator of torch and what its lowering writes, and compares."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen as nn

from converters.graph.expression import Rng, code, dtype_name
from converters.graph.ops import CannotLowerError, Lowering, Result, Size, Tensor
from converters.graph.ops.functions import functions
from converters.graph.writing.holes import fill


def operator(name: str) -> Any:
    namespace, packet, overload = name.split(".")
    if namespace == "transformers":  # registers its operators when it is imported
        importlib.import_module("transformers.integrations.moe")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def takes(name: str, arguments: Any, named: Any) -> bool:
    """Whether the operator's schema takes these arguments (its ".Scalar" takes no tensor)."""
    schema = operator(name)._schema
    by_place = [one for one in schema.arguments if not one.kwarg_only]
    if len(arguments) > len(by_place):
        return False
    given = {one.name: value for one, value in zip(by_place, arguments, strict=False)} | named
    if not set(given) <= {one.name for one in schema.arguments}:
        return False
    for one in schema.arguments:
        if one.name not in given:
            if not one.has_default_value():
                return False
        elif isinstance(given[one.name], int) and _is_list(one.type):
            if (
                one.N is None
            ):  # a single number stands for a list only where torch knows how long it is
                return False
        elif not _fits(one.type, given[one.name], name.split(".")[1]):
            return False
    return True


def _is_list(wanted: Any) -> bool:
    if wanted.kind() == "OptionalType":
        return _is_list(wanted.getElementType())
    return bool(wanted.kind() == "ListType")


def _fits(wanted: Any, value: Any, packet: str) -> bool:
    kind = wanted.kind()
    if kind == "OptionalType":
        return value is None or _fits(wanted.getElementType(), value, packet)
    if kind == "ListType":
        within = wanted.getElementType()
        if isinstance(value, list | tuple):
            return all(_fits(within, one, packet) for one in value)
        return False
    if value is None:
        return False
    if kind == "TensorType":
        numbers = torch._C._should_allow_numbers_as_tensors(packet)
        return isinstance(value, torch.Tensor) or (numbers and isinstance(value, int | float))
    if isinstance(value, torch.Tensor | list | tuple):
        return False
    return kind == "StringType" if isinstance(value, str) else kind != "StringType"


@dataclass
class Symbols:
    """Arguments as a lowering takes them, and what the names in their code stand for."""

    depends: bool  # whether sizes are written as depending on the inputs
    tensors: list[torch.Tensor] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def of(self, value: Any, kind: str = "") -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            name = f"t{len(self.tensors) - 1}"
            return Tensor(self._shape(value), value.dtype, ast.Name(name, ast.Load()))
        if isinstance(value, list | tuple):
            return type(value)(self.of(one, kind) for one in value)
        if self.depends and "SymInt" in kind and type(value) is int and 1 < value < 2**31:
            return self._size(value)
        return value

    def result(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Result(self._shape(value), value.dtype)
        return tuple(self.result(one) for one in value)

    def _shape(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        if not self.depends:
            return tuple(tensor.shape)
        return tuple(self._size(side) if side > 1 else side for side in tensor.shape)

    def _size(self, value: int) -> Size:
        name = f"s{len(self.sizes)}"
        self.sizes[name] = value
        return Size(ast.Name(name, ast.Load()), value)


def written(
    name: str, lowering: Lowering, arguments: Any, named: Any, expected: Any, depends: bool
) -> tuple[str, Symbols]:
    """What the lowering writes for these arguments."""
    schema = operator(name)._schema
    kinds = {one.name: str(one.real_type) for one in schema.arguments}
    by_place = [kinds[one.name] for one in schema.arguments if not one.kwarg_only]
    symbols = Symbols(depends)
    places = tuple(symbols.of(one, kind) for one, kind in zip(arguments, by_place, strict=False))
    others = {key: symbols.of(one, kinds[key]) for key, one in named.items()}
    made = lowering(places, others, symbols.result(expected))
    assert isinstance(made, ast.expr)
    made = fill(made, lambda hole: code("key") if isinstance(hole.value, Rng) else hole)
    return ast.unparse(ast.fix_missing_locations(made)), symbols


def compare(
    name: str,
    lowering: Lowering,
    arguments: Any,
    named: Any,
    tolerance: float = 2e-6,
    gradient: bool = True,
    values: bool = True,
) -> str:
    """Hold what a lowering writes to torch's operator; the text that it wrote."""
    call = operator(name)
    expected = call(*arguments, **named)
    text, symbols = written(name, lowering, arguments, named, expected, depends=False)
    weights = _weights(expected)
    wanted = _gradients(call, arguments, named, weights) if gradient else []
    chosen = [index for index, one in enumerate(wanted) if one is not None]
    run = run_written(text, symbols)
    arrays = [as_array(one) for one in symbols.tensors]

    def whole(*given: Any) -> Any:
        def real(*some: Any) -> Any:
            every = list(given)
            for index, one in zip(chosen, some, strict=True):
                every[index] = one
            got = _flat(run(*every))
            return sum(_weighted(got[index], weight) for index, weight in weights.items())

        some = [given[index] for index in chosen]
        return run(*given), jax.grad(real, tuple(range(len(some))))(*some) if some else ()

    with jax.default_matmul_precision("highest"):
        got, gradients = jax.jit(whole)(*arrays)
    _compare(text, got, expected, tolerance, values)
    for index, found in zip(chosen, gradients, strict=True):
        _close(f"{text}: gradient of t{index}", found, wanted[index], 10 * tolerance)
    _compare_sizes(name, lowering, arguments, named, expected, text, tolerance, values)
    return text


def _compare_sizes(
    name: str,
    lowering: Lowering,
    arguments: Any,
    named: Any,
    expected: Any,
    text: str,
    tolerance: float,
    values: bool,
) -> None:
    """The same with sizes that depend on the inputs: equal, or refused."""
    try:
        other, symbols = written(name, lowering, arguments, named, expected, depends=True)
    except CannotLowerError:
        return
    if other == text:
        return
    arrays = [as_array(one) for one in symbols.tensors]
    with jax.default_matmul_precision("highest"):
        got = jax.jit(run_written(other, symbols))(*arrays)
    _compare(other, got, expected, tolerance, values)


def run_written(text: str, symbols: Symbols) -> Any:
    names = ", ".join(f"t{index}" for index in range(len(symbols.tensors)))
    key = jax.random.key(0)
    space = {"jnp": jnp, "jax": jax, "nn": nn, "key": key, **functions(), **symbols.sizes}
    return eval(f"lambda {names}: {text}", space)


def as_array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return jnp.asarray(tensor.float().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(tensor.numpy())


def _compare(text: str, got: Any, expected: Any, tolerance: float, values: bool) -> None:
    for wanted, found in zip(_flat(expected), _flat(got), strict=True):
        if not isinstance(found, jax.Array):
            raise AssertionError(f"{text}: gives {type(found).__name__}")
        assert tuple(wanted.shape) == found.shape, f"{text}: shape {found.shape}"
        assert dtype_name(wanted.dtype).removeprefix("jnp.").strip("_") == str(found.dtype), (
            f"{text}: dtype {found.dtype}, not {wanted.dtype}"
        )
        assert not found.weak_type, f"{text}: its dtype gives way to another's"
        if values:
            _close(text, found, wanted, tolerance)


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _close(text: str, found: Any, wanted: torch.Tensor, tolerance: float) -> None:
    wanted = wanted.detach().resolve_conj().resolve_neg()
    if wanted.dtype in (torch.bfloat16, torch.float16):
        tolerance = max(tolerance, 2 * torch.finfo(wanted.dtype).eps)
        found, wanted = found.astype(jnp.float32), wanted.float()
    a, b = np.asarray(found), wanted.numpy()
    if not np.issubdtype(b.dtype, np.inexact):
        np.testing.assert_array_equal(a, b, err_msg=text)
        return
    finite = np.abs(b[np.isfinite(b)])
    limit = tolerance * max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=limit, err_msg=text)


def _weights(expected: Any) -> dict[int, torch.Tensor]:
    """For each result with fractions: what its elements count for."""
    return {
        index: torch.randn(one.shape, generator=torch.Generator().manual_seed(index))
        for index, one in enumerate(_flat(expected))
        if one.dtype.is_floating_point or one.dtype.is_complex
    }


def _weighted(result: Any, weight: torch.Tensor) -> Any:
    imaginary = 2 * result.imag if jnp.iscomplexobj(result) else 0
    return ((result.real.astype(jnp.float32) + imaginary) * jnp.asarray(weight.numpy())).sum()


def _gradients(
    call: Any, arguments: Any, named: Any, weights: dict[int, torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    """Of the sum of all results, each times its weights, by every real tensor among the arguments."""
    fixed: set[str] = set()
    while True:
        try:
            return _gradients_but(fixed, call, arguments, named, weights)
        except RuntimeError as error:
            if "is not implemented" in str(error):  # torch has no gradient of it
                return []
            argument = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
            if argument is None or argument[1] in fixed:
                raise
            fixed.add(argument[1])


def _gradients_but(
    fixed: set[str], call: Any, arguments: Any, named: Any, weights: dict[int, torch.Tensor]
) -> Sequence[torch.Tensor | None]:
    names = [one.name for one in call._schema.arguments if not one.kwarg_only]
    leaves: list[torch.Tensor] = []
    places = zip(names, arguments, strict=False)
    given = [_leaves(one, leaves, name not in fixed) for name, one in places]
    others = {key: _leaves(one, leaves, key not in fixed) for key, one in named.items()}
    real = [one for one in leaves if one.requires_grad]
    if not real or not weights:
        return []
    parts = list(_parts(_flat(call(*given, **others)), weights))
    if not parts:
        return []
    found = iter(torch.autograd.grad(sum(parts), real, allow_unused=True))
    return [next(found) if one.requires_grad else None for one in leaves]


def _parts(results: list[torch.Tensor], weights: dict[int, torch.Tensor]) -> Iterator[torch.Tensor]:
    for index, weight in weights.items():
        one = results[index]
        if one.requires_grad:
            yield ((one.real + 2 * one.imag if one.is_complex() else one.float()) * weight).sum()


def _leaves(value: Any, leaves: list[torch.Tensor], wanted: bool) -> Any:
    if isinstance(value, torch.Tensor):
        made = value.detach().clone()
        leaves.append(made.requires_grad_(wanted and value.is_floating_point()))
        return leaves[-1]
    if isinstance(value, list | tuple):
        return type(value)(_leaves(one, leaves, wanted) for one in value)
    return value
