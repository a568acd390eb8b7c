"""`"cuda" if torch.cuda.is_available() else "cpu"` as an argument: the type of the replica's device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import torch


class Trainer:
    def __init__(self, net):
        self.net = net.to("cuda" if torch.cuda.is_available() else "cpu")
        self.optimizer = self.made({argument})

    def made(self, {parameter}):
        extra = dict(fused=True) if {parameter} == "cuda" else dict()
        return torch.optim.AdamW(self.net.parameters(), **extra)
"""
CHOICE = '"cuda" if torch.cuda.is_available() else "cpu"'


@pytest.mark.parametrize("parameter", ["device_type", "kind"])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    ("style", "type_"), [("native", '"xla"'), ("portable", "shims.device_type()")]
)
def test_the_type_is_handed_on(parameter: str, by_name: bool, style: Style, type_: str) -> None:
    named = f"{parameter}=" * by_name
    text = SCRIPT.format(argument=named + CHOICE, parameter=parameter)
    done = rewrite_source(
        parse(text.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    after = done.data.decode()
    assert f"self.made({named}{type_})" in after
    assert f'if {parameter} == "cuda"' in after or style == "portable"
