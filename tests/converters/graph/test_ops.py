"""Each lowering computes what torch's operator does: values, dtypes, shapes and gradients."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import pytest
import torch

from converters.graph.ops import Lowering, Sample, lowerings
from tests.converters.graph.comparison import compare, operator, takes


def _given(one: Sample) -> Any:
    return one.arguments(torch.Generator().manual_seed(0))


CASES = [
    pytest.param(name, lowering, one, id=f"{name}-{number}")
    for lowering in dict.fromkeys(lowerings().values())
    for name in lowering.names
    for number, one in enumerate(lowering.samples)
    if takes(name, *_given(one))
]


@pytest.mark.parametrize(("name", "lowering", "given"), CASES)
def test_it_computes_what_torch_does(name: str, lowering: Lowering, given: Sample) -> None:
    arguments, named = _given(given)
    compare(name, lowering, arguments, named, given.tolerance, given.gradient, given.values)


def test_every_name_has_a_sample_that_it_takes() -> None:
    proven = {case.values[0] for case in CASES}
    assert not set(lowerings()) - proven


def test_what_is_not_compared_says_why() -> None:
    for name, lowering in lowerings().items():
        for one in lowering.samples:
            strict = one.tolerance <= 1e-5 and one.gradient and one.values
            assert strict or one.why, name


@pytest.mark.parametrize("name", lowerings())
def test_a_lowering_takes_what_the_schema_says(name: str) -> None:
    """Its parameters are torch's, in torch's order and with torch's defaults."""
    parameters = dict(signature(lowerings()[name].write).parameters)
    parameters.pop("out", None)
    by_place = list(parameters.values())
    for place, one in enumerate(operator(name)._schema.arguments):
        if one.name in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy"):
            continue
        found = parameters.get(one.name) if one.kwarg_only else by_place[place]
        assert found is not None, f"{one.name} is missing"
        if one.has_default_value():
            assert found.default is not Parameter.empty, f"{one.name} has a default"
            assert found.default == one.default_value or (
                isinstance(found.default, tuple) and list(found.default) == one.default_value
            ), f"{one.name} = {one.default_value}"
