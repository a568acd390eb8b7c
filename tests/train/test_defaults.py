"""Defaults of the interface's functions are values: the script's constants are not in its file."""

from __future__ import annotations

import ast

import pytest

from migrate.train.write.defaults import constants_of, with_plain_defaults

SCRIPT = """
WIDTH, DEPTH = 48, 2
NAMES = ("a", "b")
RATE: float = 1e-3
TURNS = 1
TURNS = 2
DEVICES = torch.cuda.device_count()

def train():
    global DEPTH
    DEPTH = 3
"""


def test_constants_are_literals_that_are_assigned_once() -> None:
    constants = {n: ast.literal_eval(v) for n, v in constants_of(ast.parse(SCRIPT)).items()}
    assert constants == {"WIDTH": 48, "NAMES": ("a", "b"), "RATE": 1e-3}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("def Net(width=WIDTH, *, rate=RATE):", "def Net(width=48, *, rate=0.001):"),
        ("def Net(width=2 * WIDTH, depth=3):", "def Net(width=2 * 48, depth=3):"),
        ("def Net(é='é', names=NAMES, of=print):", "def Net(é='é', names=('a', 'b'), of=print):"),
        ("def Net(devices=DEVICES):", ""),
        ("def Net(turns=TURNS):", ""),
    ],
)
def test_a_default_has_the_value_of_the_constant(head: str, expected: str) -> None:
    text = f"{head}\n    # as the script\n    return width\n"
    plain = with_plain_defaults(text, constants_of(ast.parse(SCRIPT)))
    assert plain == (text.replace(head, expected) if expected else "")


def test_defaults_of_methods_too() -> None:
    text = "class Net:\n    def __call__(self, width=WIDTH):\n        return width\n"
    plain = with_plain_defaults(text, constants_of(ast.parse(SCRIPT)))
    assert "width=48" in plain
