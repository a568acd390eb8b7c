"""Autograd's search for NaN, which a rewrite reports: it stays in the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.hazard import Severity
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--debug", action="store_true")
args = parser.parse_args()


def main():
    {setting}
    device = torch.device("cuda")
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 8).to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("setting", "mention"),
    [
        ("torch.autograd.set_detect_anomaly(True)", False),
        ("torch.autograd.set_detect_anomaly(args.debug)", True),
        ("torch.autograd.set_detect_anomaly(False)", None),
    ],
)
def test_the_search_for_nan_is_reported(style: Style, setting: str, mention: bool | None) -> None:
    source = parse(SCRIPT.format(setting=setting).encode(), Path("train.py"))
    notes = rewrite_source(source, options=RewriteOptions(style=style)).findings
    mentions = [note.severity is Severity.INFO for note in notes if note.rule == "XLA213"]
    assert mentions == ([] if mention is None else [mention])
