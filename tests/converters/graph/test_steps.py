"""Turns that go over an array are a loop, and compute what they computed."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch
from torch import nn

from converters.graph import port
from converters.graph.writing.forms.steps import stepped


def original(x: Any) -> Any:
    """What names the list."""
    outs: list[Any] = []
    outs.append(x)
    return outs


def looped(source: str) -> str:
    """The source with its turns in loops; it must give what it gave."""
    *body, last = ast.parse(source).body
    assert isinstance(last, ast.Expr)
    made, result = stepped(body, last.value, original)
    tree = ast.Module([*made, ast.Expr(result)], [])
    text = ast.unparse(ast.fix_missing_locations(tree))
    values = []
    for each in (source, text):
        *lines, end = ast.parse(each).body
        assert isinstance(end, ast.Expr)
        names: dict[str, Any] = {
            "x": [3, 5, 7, 11, 13, 17],
            "f": lambda a, b: 10 * a + b,
            "two": lambda a, b, c: (a + 2 * b + c, a - c),
            "list": list,
        }
        exec(compile(ast.Module(lines, []), "", "exec"), names)
        values.append(eval(compile(ast.Expression(end.value), "", "eval"), names))
    assert values[0] == values[1]
    return text


def test_a_state_that_goes_on() -> None:
    text = looped(
        "s = 1\nh = f(x[0], s)\nh_2 = f(x[1], h)\nh_3 = f(x[2], h_2)\nh_4 = f(x[3], h_3)\nh_4 + 1"
    )
    assert text == "s = 1\nh = s\nfor i in range(4):\n    h = f(x[i], h)\nh + 1"


def test_all_states_in_a_list() -> None:
    text = looped(
        "s = 2\nh, c = two(x[1], s, s)\nh_2, c = two(x[2], h, c)\nh_3, c = two(x[3], h_2, c)\n"
        "h_4, c = two(x[4], h_3, c)\nh_5, c = two(x[5], h_4, c)\n(sum([h, h_2, h_3, h_4, h_5]), h_5, c)"
    )
    assert text == (
        "s = 2\nh = c = s\nouts: list[jax.Array] = []\nfor i in range(5):\n"
        "    h, c = two(x[i + 1], h, c)\n    outs.append(h)\n(sum(outs), h, c)"
    )


def test_what_is_computed_of_each_state() -> None:
    text = looped(
        "h = f(x[0], 0)\nh_2 = f(x[1], h)\nh_3 = f(x[2], h_2)\nh_4 = f(x[3], h_3)\n"
        "h_5 = f(x[4], h_4)\nh_6 = f(x[5], h_5)\n[h % 7, h_2 % 7, h_3 % 7, h_4 % 7, h_5 % 7, h_6 % 7]"
    )
    assert "    outs.append(h % 7)\n" in text


def test_turns_of_several_statements() -> None:
    text = looped(
        "s = 2\na = f(x[0], s)\nh = f(a, s)\na_2 = f(x[1], h)\nh_2 = f(a_2, h)\n"
        "a_3 = f(x[2], h_2)\nh_3 = f(a_3, h_2)\nh_3"
    )
    assert "for i in range(3):\n    a = f(x[i], h)\n    h = f(a, h)\nh" in text


@pytest.mark.parametrize(
    "source",
    [
        # A turn in the middle is read for itself.
        "h = f(x[0], 0)\nh_2 = f(x[1], h)\nh_3 = f(x[2], h_2)\nh_4 = f(x[3], h_3)\nh_4 + h_2",
        # In another order.
        "h = f(x[0], 0)\nh_2 = f(x[1], h)\nh_3 = f(x[2], h_2)\nh_4 = f(x[3], h_3)\n[h_4, h_3, h_2, h]",
        # Numbers that follow from nothing.
        "h = f(x[0], 0)\nh_2 = f(x[3], h)\nh_3 = f(x[2], h_2)\nh_4 = f(x[5], h_3)\nh_4",
        # The state of two turns ago.
        "h = f(x[0], 0)\nh_2 = f(x[1], h)\nh_3 = f(x[2], h)\nh_4 = f(x[3], h_2)\nh_5 = f(x[4], h_3)\nh_5",
        # What was before is read again.
        "h = 4\na = f(x[0], h)\nh_2 = f(x[1], a)\nh_3 = f(x[2], h_2)\nh_4 = f(x[3], h_3)\nh_4 + h + a",
        # A name is another value later.
        "h = 4\nk = f(x[0], h)\nh_2 = f(x[1], k)\nk_2 = f(x[2], h_2)\nh_3 = f(x[3], k_2)\nh_3 + k",
        # Nothing goes on.
        "h = f(x[0], 1)\nh_2 = f(x[1], 1)\nh_3 = f(x[2], 1)\nh_4 = f(x[3], 1)\n[h, h_2, h_3, h_4]",
        # Two turns.
        "h = f(x[0], 1)\nh_2 = f(x[1], h)\nh_2",
    ],
)
def test_other_turns_stay(source: str) -> None:
    assert "for " not in looped(source)


def test_a_start_that_has_the_name_of_the_state() -> None:
    text = looped("h = 4\nh = f(x[0], h)\nh = f(x[1], h)\nh = f(x[2], h)\nh = f(x[3], h)\nh")
    assert text == "h = 4\nfor i in range(4):\n    h = f(x[i], h)\nh"


def test_states_that_begin_as_each_other() -> None:
    """The old state is read after the new one has its name: these are no turns of a loop."""
    looped(
        "a, b = 1, 2\na_2 = f(x[0], b)\nb_2 = f(x[0], a)\na_3 = f(x[1], b_2)\nb_3 = f(x[1], a_2)\n"
        "a_4 = f(x[2], b_3)\nb_4 = f(x[2], a_3)\n(a_4, b_4)"
    )
    looped(
        "a, b = 1, 2\na, b = two(b, a, x[0])\na, b = two(b, a, x[1])\na, b = two(b, a, x[2])\n"
        "a, b = two(b, a, x[3])\na, b = two(b, a, x[4])\n(a, b)"
    )
    looped(
        "b, a = 1, 2\na_2, b_2 = two(b, a, x[0])\na_3, b_3 = two(a_2, b_2, x[1])\n"
        "a_4, b_4 = two(a_3, b_3, x[2])\na_5, b_5 = two(a_4, b_4, x[3])\n(a_5, b_5)"
    )


class Steps(nn.Module):
    """A cell that goes over a sequence."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = nn.GRUCell(3, hidden)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], self.hidden)
        scores = []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            scores.append(self.head(state))
        return torch.stack(scores, 1)


def test_a_cell_in_a_loop_of_the_original() -> None:
    source = port(Steps(), {"x": torch.randn(2, 5, 3)}).modeling
    assert (
        "        scores: list[Array] = []\n"
        "        for i in range(5):\n"
        "            state = self.cell(x[:, i], state)\n"
        "            scores.append(self.head(state))\n"
        "        return jnp.stack(scores, axis=1)\n"
    ) in source


def test_a_cell_brings_nothing_of_the_stacks_of_layers() -> None:
    source = port(Steps(), {"x": torch.randn(2, 5, 3)}).modeling
    assert "class _Cell(" in source
    assert "Stack" not in source
    assert "jax.lax.scan" not in source
