"""Functions of numbers that an interface has as the script has them."""

from __future__ import annotations

import ast

import pytest

from migrate.train.slice.text import ScriptText
from migrate.train.write.numbers import function_of_numbers


def text_of(function: str) -> str:
    script = ScriptText("train.py", f"import math as m\nimport torch\n\n\n{function}\n")
    node = script.tree.body[-1]
    assert isinstance(node, ast.FunctionDef)
    return function_of_numbers(script, node)


def test_a_schedule_is_the_scripts_own() -> None:
    text = text_of(
        "def schedule(cfg, step: int, total):\n"
        '    """Rate."""\n'
        "    done = min(1.0, step / total)\n"
        "    return cfg.lr * (1 + m.cos(m.pi * done)) / 2"
    )
    names: dict[str, object] = {}
    exec(text, names)
    cfg = type("Config", (), {"lr": 2.0})
    assert names["schedule"](cfg, 5, 10) == pytest.approx(1.0)  # type: ignore[operator]
    assert text.startswith("def schedule(cfg, step, total):")


@pytest.mark.parametrize(
    "function",
    [
        "def loss(model, x):\n    return model(x)",
        "def mean(x):\n    return x.sum() / 2",
        "def mean(x):\n    return torch.mean(x)",
        "def add(x):\n    x += 1\n    return x",
        "def put(x):\n    x[0] = 1\n    return x",
        "def train(steps):\n    count = steps",
        "def other(x):\n    return helper(x)",
    ],
)
def test_what_does_more_is_left_out(function: str) -> None:
    assert text_of(function) == ""
