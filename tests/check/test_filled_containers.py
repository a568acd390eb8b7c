"""A list or dictionary that is empty at first holds what a step puts into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
from collections import defaultdict

import torch


class Net(torch.nn.Module):
    def forward(self, x):
        losses, rows = {{}}, 3
        parts = []
        logs = defaultdict(list)
        losses["a"] = x.sum()
        losses.update({{"rows": rows}}, b=x.mean())
        parts.append(x.mean())
        logs["c"].append(rows)
        return {read}
"""


@pytest.mark.parametrize(
    ("read", "reported"),
    [
        ('losses["a"].item()', ["XLA201"]),
        ("sum(losses.values()).item()", ["XLA201"]),
        ("sum(parts).item()", ["XLA201"]),
        ("x if torch.stack(parts).max() > 3 else -x", ["XLA110"]),
        ('x if losses["rows"] > 3 else -x', []),
        ('x if logs["c"] else -x', []),
        ("x if len(parts) > 3 else -x", []),
    ],
)
def test_what_is_put_in_decides(read: str, reported: list[str]) -> None:
    source = parse(SCRIPT.format(read=read).encode(), Path("net.py"))
    assert [finding.code for finding in check_source(source, Config())] == reported
