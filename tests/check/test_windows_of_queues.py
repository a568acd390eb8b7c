"""A window that begins where a tensor says: one finding, which says how the place stays a tensor."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
    import torch


    class Queue(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.register_buffer("queue", torch.zeros(8, size))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, keys, lengths):
            n = keys.shape[0]
            start, stop = int(self.pointer), int(lengths.max())
            {assignment}
            self.queue[:, {window}] = keys.T
            return self.queue.clone()
"""


@pytest.mark.parametrize(
    ("assignment", "window", "told"),
    [
        ("", "start : start + n", ["index = (start + torch.arange(n"]),
        ("", "start : n + start", ["index = (start + torch.arange(n"]),
        ("end = start + n", "start:end", ["index = (start + torch.arange(n"]),
        ("", "start:stop", ["`start` as a slice bound", "`stop` as a slice bound"]),
        (
            "",
            "start : start + stop",
            ["`start` as a slice bound", "`start + stop` as a slice bound"],
        ),
    ],
)
def test_windows(assignment: str, window: str, told: list[str]) -> None:
    script = textwrap.dedent(SCRIPT).format(assignment=assignment, window=window)
    source = parse(script.encode(), Path("queue.py"))
    messages = [f.message for f in check_source(source, Config(select=("XLA107",)))]
    assert len(messages) == len(told)
    assert all(part in message for part, message in zip(told, messages, strict=True))
