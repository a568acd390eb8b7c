"""An evaluation that takes its batches by `next` in a `while` loop has a step a turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

STYLES = ("native", "portable")
SCRIPT = """
import torch
import torch.distributed as dist


class Tester:
    def __init__(self, net, rank):
        self.net = net.eval().cuda()
        self.rank = rank

    @torch.no_grad()
    def run(self, loader, shared):
        source, total, seen = iter(loader), 0.0, 0
        signal = torch.zeros(1, device="cuda")
        while TEST:
            FETCH
            batch = batch.to("cuda")
            value = self.net(batch).mean()
            total += value * len(batch)
            if seen % 100 == 0:
                print(f"{total:.4f}")
            seen += 1
        return total
"""
PLAIN = """batch = next(source, None)
            if batch is None:
                break"""
SHARED = """if shared:
                if self.rank == 0:
                    batch = next(source, None)
                    signal.fill_(0 if batch is None else 1)
                dist.broadcast(signal, src=0)
                if signal.item() == 0:
                    break
            else:
                batch = next(source, None)
                if batch is None:
                    break"""


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("test", ["True", "seen < 10"])
@pytest.mark.parametrize("fetch", [PLAIN, SHARED], ids=["plain", "shared"])
def test_each_turn_is_a_step(fetch: str, test: str, style: Style) -> None:
    text = SCRIPT.replace("FETCH", fetch).replace("TEST", test)
    done = rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    after = done.data.decode()
    step = after[after.index(".step():") :].splitlines()[1:4]
    assert [line.split(" = ")[0].split(" += ")[0].strip() for line in step] == [
        "batch",
        "value",
        "total",
    ]
    assert all(line.startswith(" " * 16) for line in step)
    assert after.index(".step():") > after.index("break")


@pytest.mark.parametrize("style", STYLES)
def test_a_loop_that_reads_where_it_computes_stays(style: Style) -> None:
    text = """
import torch


@torch.no_grad()
def collect(net, source, outputs):
    net.cuda()
    while True:
        batch = next(source, None)
        if batch is None:
            break
        outputs.append(net(batch.cuda()).cpu())
"""
    done = rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    assert ".step():" not in done.data.decode()
