"""Reads at every step: below a flag, and of losses whose makers the analysis cannot follow."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

RUNNER = """
    import torch
    import builder


    def run(args, config, loader, meter, writer=None, shown=None):
        net = builder.model(config)
        net.cuda()
        optimizer, scheduler = builder.optimizer(net, config)
        for epoch in range(config.epochs):
            for index, (names, data) in enumerate(loader):
                points, label = data[0].cuda(), data[1].cuda()
                loss, accuracy = net.losses(net(points), label)
                total = loss
                total.backward()
                optimizer.step()
                net.zero_grad()
                args.turn(index)
                {below}
"""
UPDATED = "meter.update([loss.item(), accuracy.item()])"


def reads(below: str) -> list[str]:
    text = textwrap.dedent(RUNNER).replace("{below}", below.replace("\n", "\n" + " " * 12))
    found = check_source(parse(text.encode(), Path("runner.py")), Config(select=("XLA201",)))
    return [text.splitlines()[f.line - 1][f.column - 1 :].partition(".")[0] for f in found]


@pytest.mark.parametrize(
    "below",
    [
        UPDATED,
        f"if config.distributed:\n    {UPDATED}",
        f"if not config.distributed:\n    {UPDATED}",
        f"if config.distributed:\n    loss = builder.mean(loss, config)\nelse:\n    {UPDATED}",
        f"if shown:\n    {UPDATED}",
        f"if writer is not None:\n    {UPDATED}",
    ],
)
def test_a_read_below_a_flag_is_one_of_every_step(below: str) -> None:
    """A flag that the loop leaves alone decides for the whole run; these had no finding."""
    assert reads(below) == ["loss", "accuracy"]


@pytest.mark.parametrize(
    "below",
    [
        f"if index % 10 == 0:\n    {UPDATED}",
        f"if args.is_shown:\n    {UPDATED}",  # the loop calls a method of the object
        f"shown = index > 5\nif shown:\n    {UPDATED}",
        "count = names.item()",
    ],
)
def test_other_reads_are_left_alone(below: str) -> None:
    assert reads(below) == []
