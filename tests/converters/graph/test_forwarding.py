"""Functions that only call another one are left out; those with arguments in another order are one."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import nn

from converters.graph import port
from converters.graph.writing.original.forwarding import without_forwarding


def written(functions: str, method: str) -> str:
    made, trees = without_forwarding(
        [one for one in ast.parse(functions).body if isinstance(one, ast.FunctionDef)],
        [ast.parse(method)],
    )
    return "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in (*made, *trees))


INNER = "def inner_2(a, b):\n    c = a + 1\n    return c, b\n"


def test_the_name_of_the_outer_one_stays() -> None:
    outer = 'def outer(x, y):\n    """Does it."""\n    p, q = inner_2(y, x)\n    return p, q\n'
    text = written(INNER + outer, "r, s = outer(t, u)")
    assert (
        text
        == 'def outer(b, a):\n    """Does it."""\n    c = a + 1\n    return (c, b)\nr, s = outer(t, u)'
    )


def test_two_that_call_the_same() -> None:
    first = "def first(x, y):\n    return inner_2(y, x)\n"
    second = "def second(x, y):\n    return inner_2(x, y)\n"
    text = written(INNER + first + second, "r = first(t, u)[0] + second(t, u)[1]")
    assert "r = inner(u, t)[0] + inner(t, u)[1]" in text
    assert "first" not in text
    assert "second" not in text


def test_through_several() -> None:
    text = written(
        INNER
        + "def middle(x, y):\n    return inner_2(x, y)\ndef outer(x, y):\n    return middle(x, y)\n",
        "r, s = outer(t, u)",
    )
    assert text.count("def ") == 1
    assert text.startswith("def outer(a, b):")


@pytest.mark.parametrize(
    "outer",
    [
        "def outer(x, y):\n    return inner_2(x, x)\n",
        "def outer(x, y):\n    return inner_2(x, y + 1)\n",
        "def outer(x, y):\n    p, q = inner_2(x, y)\n    return q, p\n",
        "def outer(x, y):\n    return inner_2(x, b=y)\n",
        "def outer(x, y):\n    return other(x, y)\n",
    ],
)
def test_what_does_more_stays(outer: str) -> None:
    assert "def outer(x, y):" in written(INNER + outer, "r, s = outer(t, u)")


def test_a_function_that_is_given_on_stays() -> None:
    outer = "def outer(x, y):\n    return inner_2(x, y)\n"
    assert "def outer(x, y):" in written(INNER + outer, "r = outer(t, u), jax.vmap(outer)(t, u)")


def test_a_number_goes_only_where_the_name_is_free() -> None:
    assert "def inner_2(" in written(INNER, "inner = inner_2(t, u)")
    assert "def inner(" in written(INNER, "r = inner_2(t, u)")


def mixed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    shifted = x - weight.mean()
    return torch.tanh(shifted) * weight.sum()


def called(**arguments: torch.Tensor) -> torch.Tensor:
    return mixed(**arguments)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.first(x)
        right = self.second(x)
        once = called(x=left, weight=right)
        return once + called(weight=left, x=right)


def test_arguments_in_another_order_are_the_same_function() -> None:
    source = port(Net(), {"x": torch.randn(2, 3, 4)}).modeling
    assert source.count("jnp.tanh") == 1
    assert "mixed_2" not in source


def test_a_function_that_only_others_call_has_the_name_of_what_it_does() -> None:
    text = written(
        "def both(a, b):\n    return a & b\ndef either(a, b):\n    return a | b\n"
        "def both_2(a, b):\n    return either(a, b)\n"
        "def mask(a, b):\n    c = both_2(a, b)\n    return c + both(a, b)\n",
        "m = mask(p, q)",
    )
    assert "c = either(a, b)" in text
    assert "both_2" not in text
