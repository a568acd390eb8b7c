"""Loops over a size whose turns need each other (XLA119), and what an import that fails falls back to."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def reported(body: str, *codes: str) -> list[tuple[str, str]]:
    """Return the code and message of each finding of a script."""
    source = parse(textwrap.dedent(body).strip().encode() + b"\n", Path("script.py"))
    return [(one.code, one.message) for one in check_source(source, Config(select=codes))]


LOOPS = [
    ("for t in range(x.shape[1]):", "h = h * x[:, t]", True),
    ("for t in range(1, x.size(1)):", "h = h * x[:, t]", True),
    ("for t in range(length):", "h = h * x[:, t]", True),
    ("for t in range(length - 1, -1, -1):", "h = h * x[:, t]", True),
    ("for t in reversed(range(length)):", "h = torch.tanh(h + x[:, t])", True),
    ("for t in range(len(x)):", "h = self.cell(x[t], h)", True),
    ("for t, part in enumerate(x.unbind(1)):", "h = self.cell(part, h)", True),
    ("for t in range(1, length):", "x[:, t] = x[:, t - 1] * h", True),
    ("for t in turns:", "h = h * x[:, t]", True),
    ("for t in range(length):", "h = h + x[:, t].sum()", False),
    ("for t in range(length):", "h += x[:, t].sum()", False),
    ("for t in range(length):", "rows.append(x[:, t] * h)", False),
    ("for t in range(length):", "x[:, t] = x[:, t] * h", False),
    ("for t in range(length):", "x[:, t] += h", False),
    ("for t in range(0, length, 64):", "h = h * x[:, t]", False),
    ("for t in range(length % 4):", "h = h * x[:, t]", False),
    ("for t in range(8):", "h = h * x[:, t]", False),
    ("for t in range(self.turns):", "h = h * x[:, t]", False),
    ("for t in range(len(parts)):", "h = h * parts[t]", False),
    ("for t in range(length):", "h = self.layers[t](h)", False),
    ("for t in range(length):", "count = count * 2", False),
    ("for t in itself:", "h = h * x[:, t]", False),
]


@pytest.mark.parametrize(("head", "turn", "hit"), LOOPS, ids=[f"{a} {b}" for a, b, _ in LOOPS])
def test_which_loops_are_recurrences(head: str, turn: str, hit: bool) -> None:
    body = f"""
    import torch


    class Layer(torch.nn.Module):
        def forward(self, x, parts):
            batch, length = x.shape
            turns = range(length)
            itself = list(itself)
            h, rows, count = torch.zeros_like(x[:, 0]), [], 1
            {head}
                {turn}
            return h, rows, count
    """
    assert bool(reported(body, "XLA119")) is hit


def test_nothing_is_said_outside_of_steps_and_where_each_turn_is_a_graph() -> None:
    body = """
    import torch


    def smooth(x: torch.Tensor):
        h = x[0]
        for t in range(x.shape[0]):
            h = h * 0.9 + x[t]
        return h


    class Layer(torch.nn.Module):
        def forward(self, x):
            h = torch.zeros_like(x[:, 0])
            for t in range(x.shape[1]):
                h = h * x[:, t]
                print(h.sum().item())
            return h
    """
    assert reported(body, "XLA119") == []


FALLBACK = """
import torch

try:
    import selective_scan_cuda
except {error}:
    selective_scan_cuda = None


class Layer(torch.nn.Module):
    def forward(self, x):
        return x.cuda()
"""


@pytest.mark.parametrize("error", ["ImportError", "Exception", "(ModuleNotFoundError, OSError)"])
def test_the_report_names_the_fallback(error: str) -> None:
    script = FALLBACK.format(error=error)
    ((_, message),) = reported(script, "XLA410")
    assert message.endswith("on a TPU the script continues without it, by the `except` of line 5")


def test_another_error_is_no_fallback() -> None:
    ((_, message),) = reported(FALLBACK.format(error="KeyError"), "XLA410")
    assert "except" not in message


def test_a_rewrite_mentions_the_fallback_at_the_lines_of_the_original() -> None:
    source = parse(FALLBACK.format(error="ImportError").strip().encode() + b"\n", Path("script.py"))
    notes = [one for one in rewrite_source(source).findings if one.rule == "XLA410"]
    assert [(one.line, one.severity) for one in notes] == [(4, Severity.INFO)]
    assert "by the `except` of line 5" in notes[0].message


def test_a_choice_of_two_tuples_without_spaces_is_read() -> None:
    body = """
    import torch


    def bounds(n):
        low, high = (1e-4, 1e-4) if n <= 64 else(1e-3, 1e-3)
        return torch.zeros(3) * low * high
    """
    assert reported(body, "XLA119") == []
