"""Results of timed calls: XLA computes what a name still holds at the wait, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.reading.tree.source import parse
from migrate.rewrite.options import Options, Style
from migrate.rewrite.story import rewrite_source

SCRIPT = """\
import time

import torch
from torch import nn


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run(net, x):
    return net(x)


def measure(net, x, a, b):
    net = net.cuda().eval()
    x, a, b = x.cuda(), a.cuda(), b.cuda()
{body}


measure(nn.Linear(8, 8), torch.ones(4, 8), torch.ones(8, 8), torch.ones(8, 8))
"""


def _after(body: str, style: Style = "native") -> str:
    script = SCRIPT.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    done = rewrite_source(parse(script.encode(), Path("speed.py")), options=Options(style=style))
    return done.data.decode()


@pytest.mark.parametrize(
    ("style", "sync"), [("native", "torch_xla.sync()"), ("portable", "shims.synchronize()")]
)
def test_a_loop_that_warms_up_ends_each_turn(style: Style, sync: str) -> None:
    after = _after("for _ in range(9):\n    net(x)\ntorch.cuda.synchronize()", style)
    assert f"        output = net(x)\n        {sync}\n" in after


@pytest.mark.parametrize(
    "call",
    ["net(x)", "run(net, x)", "torch.mm(a, b)"],
)
def test_what_computes_is_kept(call: str) -> None:
    after = _after(f"start = time.time()\n{call}\nwait()\nprint(time.time() - start)")
    assert f"    output = {call}\n    wait()\n" in after


def test_the_result_between_two_events_is_kept() -> None:
    after = _after(
        """
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.no_grad():
            net(x)
        end.record()
        torch.cuda.synchronize()
        print(start.elapsed_time(end))
        """
    )
    assert "        output = net(x)\n    torch_xla.sync(wait=True)\n" in after


@pytest.mark.parametrize(
    "call",
    ["a.add_(b)", "torch.mm(a, b, out=x)", "net.eval()", "print(x)", "net(x).sum().backward()"],
)
def test_what_leaves_its_result_somewhere_stays(call: str) -> None:
    after = _after(
        f"start = time.time()\n{call}\ntorch.cuda.synchronize()\nprint(time.time() - start)"
    )
    assert f"    {call}\n" in after


@pytest.mark.parametrize(
    "lines",
    [
        "weights = net.state_dict()\nweights.update(torch.load('a.pt'))",
        "kept = {'x': x}\nkept.setdefault('a', a)",
        "parts = [a]\nparts.extend([a, b])",
    ],
)
def test_what_fills_a_container_stays(lines: str) -> None:
    after = _after(f"{lines}\nstart = time.time()\nnet(x)\nwait()\nprint(time.time() - start)")
    assert f"    {lines.splitlines()[-1].partition('(')[0]}(" in after
    assert after.count("output =") == 1
