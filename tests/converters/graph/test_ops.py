"""Each lowering computes what torch's operator does: values, dtypes, shapes and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph.ops import CannotLowerError, Lowering, Sample, lowerings
from tests.converters.graph.comparison import (
    as_array,
    compare,
    operator,
    run_written,
    takes,
    written,
)


def _given(one: Sample) -> Any:
    return one.arguments(torch.Generator().manual_seed(0))


def _cases() -> Iterator[Any]:
    """Every sample that an operator takes.

    By default the first of each operator, once for the operators of a lowering that begin with the same
    sample: `add` and `add_`. The others run with the long tests.
    """
    for lowering in dict.fromkeys(lowerings().values()):
        begun: set[int] = set()
        for name in lowering.names:
            samples = enumerate(lowering.samples)
            taken = [(number, one) for number, one in samples if takes(name, *_given(one))]
            for place, (number, one) in enumerate(taken):
                marks = [pytest.mark.long] if place or number in begun else []
                begun.update([number] if not place else [])
                yield pytest.param(name, lowering, one, id=f"{name}-{number}", marks=marks)


CASES = list(_cases())


@pytest.mark.parametrize(("name", "lowering", "given"), CASES)
def test_it_computes_what_torch_does(name: str, lowering: Lowering, given: Sample) -> None:
    arguments, named = _given(given)
    compare(name, lowering, arguments, named, given.tolerance, given.gradient, given.values)


PROVEN = [name for name, lowering in lowerings().items() if lowering.samples]


def test_every_name_has_a_sample_that_it_takes() -> None:
    proven = {case.values[0] for case in CASES}
    assert not set(PROVEN) - proven


@pytest.mark.parametrize("name", sorted(set(lowerings()) - set(PROVEN)))
def test_what_has_no_sample_is_refused(name: str) -> None:
    operator(name)  # torch has it
    with pytest.raises(CannotLowerError):
        lowerings()[name]((), {}, None)


def test_what_is_not_compared_says_why() -> None:
    for name, lowering in lowerings().items():
        for one in lowering.samples:
            strict = one.tolerance <= 1e-5 and one.gradient and one.values
            assert strict or one.why, name


@pytest.mark.parametrize("name", PROVEN)
def test_a_lowering_takes_what_the_schema_says(name: str) -> None:
    """Its parameters are torch's, in torch's order and with torch's defaults."""
    parameters = dict(signature(lowerings()[name].write).parameters)
    parameters.pop("out", None)
    by_place = list(parameters.values())
    if by_place[0].kind is Parameter.VAR_POSITIONAL:  # it goes by the result alone
        return
    for place, one in enumerate(operator(name)._schema.arguments):
        if one.name in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"):
            continue
        found = parameters.get(one.name) if one.kwarg_only else by_place[place]
        assert found is not None, f"{one.name} is missing"
        if one.has_default_value():
            assert found.default is not Parameter.empty, f"{one.name} has a default"
            if one.name != "dtype":  # the result says what that is
                assert _listed(found.default) == _listed(one.default_value), one.name


def _listed(value: Any) -> Any:
    """A default, of which the schema says `[0, 0]` and a lowering 0."""
    if isinstance(value, list | tuple):
        return value[0] if value and len(set(value)) == 1 else list(value)
    return value


def _bits(*shape: int) -> torch.Tensor:
    near_one = 1 + 0.02 * torch.rand(*shape, generator=torch.Generator().manual_seed(0))
    return near_one.bfloat16()


_INTO, _PLACES = torch.zeros(4, dtype=torch.bfloat16), torch.arange(300) % 4
# Operators that combine many elements, in torch in float32 for 16 bits, on the CPU and on CUDA.
ACCUMULATING: dict[str, tuple[Any, ...]] = {
    "aten.cumsum.default": (_bits(4, 300), 1),
    "aten.cumprod.default": (_bits(4, 300), 1),
    "aten.logcumsumexp.default": (10 * _bits(4, 300) - 10, 1),
    "aten.sum.dim_IntList": (_bits(4, 300), [1]),
    "aten.mean.dim": (_bits(4, 300), [1]),
    "aten.prod.dim_int": (_bits(4, 300), 1),
    "aten.var.correction": (_bits(4, 300), [1]),
    "aten.logsumexp.default": (_bits(4, 300), [1]),
    "aten.linalg_vector_norm.default": (_bits(4, 300), 3, [1]),
    "aten.norm.ScalarOpt_dim": (_bits(4, 300), 3, [1]),
    "aten.linalg_norm.default": (_bits(4, 300), 3, [1]),
    "aten.dist.default": (_bits(300), _bits(300) - 2, 3),
    "aten.avg_pool1d.default": (_bits(1, 2, 300), [100], [100]),
    "aten.avg_pool2d.default": (_bits(1, 2, 30, 10), [10, 10]),
    "aten.adaptive_avg_pool2d.default": (_bits(1, 2, 30, 10), [1, 1]),
    "aten.renorm.default": (_bits(4, 300), 3, 0, 1.0),
    "aten.scatter_add.default": (_INTO, 0, _PLACES, _bits(300)),
    "aten.scatter_reduce.two": (_INTO, 0, _PLACES, _bits(300), "sum"),
    "aten.index_add.default": (_INTO, 0, _PLACES, _bits(300)),
    "aten.index_put.default": (_INTO, [_PLACES], _bits(300), True),
}


@pytest.mark.parametrize("name", ACCUMULATING)
def test_many_elements_of_16_bits_are_accumulated_as_in_torch(name: str) -> None:
    arguments = ACCUMULATING[name]
    expected = operator(name)(*arguments)
    wide = [one.double() if _is_floating(one) else one for one in arguments]
    reference = operator(name)(*wide)
    text, symbols = written(name, lowerings()[name], arguments, {}, expected, depends=False)
    got = jax.jit(run_written(text, symbols))(*map(as_array, symbols.tensors))
    assert got.dtype == jnp.bfloat16, text
    mine = torch.from_numpy(np.asarray(got, np.float64))
    errors = [float((one - reference).norm() / reference.norm()) for one in (mine, expected)]
    assert errors[0] <= 1.5 * max(errors[1], 2.0**-9), f"{text}: {errors}"


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
