"""One line of the original that was recorded several times is written as it stands there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from converters.graph import Port, port
from converters.graph.expression import Hole, code
from converters.graph.writing.forms.numbered import by_number
from tests.converters.graph import on_lines
from tests.converters.graph.flax_side import variables

CASES: dict[str, Callable[[], Any]] = {
    **{
        f"calls {way}": partial(on_lines.Calls, way=way) for way in ("two", "map", "list", "nested")
    },
    **{f"routed {way}": partial(on_lines.Routed, way=way) for way in ("slice", "index", "two")},
    "uneven": on_lines.Uneven,
}


@cache
def made(name: str) -> tuple[Any, Port]:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    return model, port(model, {"x": real(name, 3)})


def real(name: str, rows: int) -> torch.Tensor:
    shape = (rows, 8 if name.startswith("calls") else 6)
    return torch.randn(shape, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("calls two", "routed two")
def test_it_computes_what_torch_does(name: str, load: Any) -> None:
    model, written = made(name)
    x = real(name, 5)
    found = load(written).apply(variables(model, written, {"x": x}), x=jnp.asarray(x.numpy()))
    with torch.no_grad():
        wanted = model(x)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in pairs:
        assert np.linalg.norm(one - other.numpy()) <= 2e-6 * np.linalg.norm(other.numpy())


@pytest.mark.parametrize("way", ["two", "map", "list", "nested"])
def test_calls_of_a_function_on_one_line_are_calls_of_it(way: str) -> None:
    source = made(f"calls {way}")[1].modeling
    assert "def turned(x: Array, cos: Array, sin: Array) -> Array:" in source
    assert source.count("turned(") == 3  # its definition and two calls
    assert re.search(r"    even = x\[:, ::2\].*\n    odd = x\[:, 1::2\]", source)


def test_a_loop_within_a_function_is_no_second_call_of_it() -> None:
    source = made("calls two")[1].modeling
    assert source.count("halved(") == 2


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("slice", "out = out + weights[:, i:i + 1] * expert(x)"),
        ("index", "out = out + weights[:, i][..., None] * expert(x)"),
        ("two", "weights[:, 2 * i:2 * i + 2].sum(axis=-1, keepdims=True) * expert(x)"),
    ],
)
def test_turns_that_differ_in_their_number_are_a_loop(way: str, said: str) -> None:
    source = made(f"routed {way}")[1].modeling
    assert "for i, expert in enumerate(self.experts):" in source
    assert said in source
    assert "for _ in range(" in source
    if way != "two":  # another depth is another instance
        assert "for _ in range(self.config.experts)]" in source


def test_turns_that_differ_otherwise_stay_apart() -> None:
    source = made("uneven")[1].modeling
    assert "enumerate" not in source
    assert source.count("self.experts[") == 3


def test_turns_that_differ_in_a_size_are_not_one() -> None:
    same = [[ast.Expr(code("x[:{n}]", n=Hole(3)))] for _ in range(3)]
    made = by_number(same, "i")
    assert made is not None
    assert [type(one) for one in ast.walk(made[0])] == [type(one) for one in ast.walk(same[0][0])]
    others = [[ast.Expr(code("x[:{n}]", n=Hole(number)))] for number in range(3)]
    assert by_number(others, "i") is None
    assert by_number([[ast.Expr(Hole(number))] for number in range(3)], "i") is None
