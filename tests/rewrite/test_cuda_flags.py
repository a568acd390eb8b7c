"""Arguments that ask whether there is CUDA, and say only how it is used."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import torch
from torch import nn

model = nn.Linear(4, 2).cuda()
{line}
"""


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        (
            "opt = torch.optim.AdamW(model.parameters(), fused=torch.cuda.is_available())",
            "opt = torch.optim.AdamW(model.parameters())",
        ),
        (
            "opt = torch.optim.SGD(model.parameters(), fused=True if torch.cuda.is_available() else False)",
            "opt = torch.optim.SGD(model.parameters())",
        ),
        (
            "x = torch.ones(2).cuda(non_blocking=torch.cuda.is_available())",
            'x = torch.ones(2).to("xla", non_blocking=True)',
        ),
        (
            "with torch.autocast('cuda', enabled=torch.cuda.is_available()):\n    model(torch.ones(1))",
            "enabled=True):",
        ),
    ],
)
def test_no_word_of_the_way_for_the_cpu(line: str, becomes: str) -> None:
    done = rewrite_source(parse(SCRIPT.format(line=line).encode(), Path("script.py")))
    assert becomes in done.data.decode()
    assert done.findings == ()


def test_a_dictionary_for_an_optimizer_is_told_once() -> None:
    line = """
    settings = {"lr": 1, "fused": torch.cuda.is_available()}
    opt = torch.optim.SGD(model.parameters(), **settings)
    """
    source = SCRIPT.format(line=textwrap.dedent(line))
    done = rewrite_source(parse(source.encode(), Path("script.py")))
    assert [note.rule for note in done.findings] == ["fused-optimizer"]
