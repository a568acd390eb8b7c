"""Results of timed calls: XLA computes what a name still holds at the wait, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

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


TIMED = """\
torch.cuda.synchronize()
start = time.time()
run(net, x)
torch.cuda.synchronize()
print(time.time() - start)
"""


def _after(body: str, style: Style = "native") -> str:
    script = SCRIPT.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    done = rewrite_source(
        parse(script.encode(), Path("speed.py")), options=RewriteOptions(style=style)
    )
    return done.data.decode()


@pytest.mark.parametrize(
    ("style", "sync"), [("native", "torch_xla.sync()"), ("portable", "shims.synchronize()")]
)
def test_a_loop_that_warms_up_ends_each_turn(style: Style, sync: str) -> None:
    after = _after(f"for _ in range(9):\n    net(x)\n{TIMED}", style)
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
    "function",
    [
        "out = net(x)\n    torch.cuda.synchronize()\n    return out",
        "net.eval()\n    return net",
        "x.add_(1)\n    return x",
    ],
    ids=["waits-for-its-result", "returns-the-model", "returns-its-argument"],
)
def test_what_is_computed_or_held_anyway_stays(function: str) -> None:
    body = f"def work(net, x):\n    {function}\n\n{TIMED.replace('run', 'work')}"
    assert "= work(" not in _after(body)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("net.eval()\n    return net, x + 1", "work(net, x)"),
        ("x.add_(1)\n    return x", "work(net, x + 1)"),
        ("x = net(x)\n    return x", "work(net, x)"),
        ("torch.cuda.synchronize()\n    return net(x)", "work(net, x)"),
    ],
)
def test_what_only_the_result_holds_is_kept(function: str, call: str) -> None:
    body = f"def work(net, x):\n    {function}\n\n{TIMED.replace('run(net, x)', call)}"
    assert f"output = {call}\n" in _after(body)


@pytest.mark.parametrize(
    ("call", "passed", "kept"),
    [
        ("report('start')", "print", False),
        ("log_line(x)", "run", True),
        ("report('a cat')", "nn.Linear(8, 8)", True),
        ("report(x)", "run", True),
    ],
)
def test_a_function_that_is_passed(call: str, passed: str, kept: bool) -> None:
    timed = textwrap.indent(TIMED.replace("run(net, x)", call), "    ")
    script = (
        SCRIPT.format(body="    pass") + f"\n\ndef seconds({call.partition('(')[0]}, x):\n{timed}"
    )
    script += f"\n\nseconds({passed}, torch.ones(4, 8).cuda())\n"
    done = rewrite_source(parse(script.encode(), Path("speed.py")))
    assert (f"output = {call}" in done.data.decode()) == kept


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


TRAINING = """
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{above}
for step in range(9):
    {first}
    if step == 2:
        net.load_teacher()
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
    if step % 5 == 0:
        torch.cuda.synchronize()
        {last}
"""


@pytest.mark.parametrize(
    ("above", "first", "last"),
    [
        ("", "", "torch.save(net.state_dict(), 'm.pt')"),
        ("start = time.time()", "", "print(time.time() - start)"),
        ("", "start = time.time()", "print(time.time() - start)"),
    ],
    ids=["no-clock", "clock-around-the-loop", "clock-of-the-turn"],
)
def test_what_prepares_the_model_in_a_loop_of_steps_stays(
    above: str, first: str, last: str
) -> None:
    after = _after(TRAINING.format(above=above, first=first or "pass", last=last))
    assert "        net.load_teacher()\n" in after
    assert "= net.load_teacher" not in after


@pytest.mark.parametrize(
    "body",
    [
        "net(x)\ntorch.cuda.synchronize()",
        "start = time.time()\nnet(x)\nprint(time.time() - start)\ntorch.cuda.synchronize()",
        "for _ in range(9):\n    net(x)\n    torch.cuda.synchronize()",
        f"net.load_teacher()\n{TIMED}",
    ],
    ids=["no-clock", "wait-after-the-reading", "loop-without-clock", "prepares"],
)
def test_what_no_clock_measures_stays(body: str) -> None:
    call = "net.load_teacher()" if "load_teacher" in body else "net(x)"
    assert f"= {call}" not in _after(body)


@pytest.mark.parametrize(
    "body",
    [
        "last = time.monotonic()\nfor _ in range(9):\n    now = time.monotonic()\n    print(now - last)\n"
        "    last = now\n    net(x)\n    wait()",
        "from timeit import default_timer\nstart = default_timer()\nfor _ in range(9):\n    net(x)\nwait()\n"
        "print(default_timer() - start)",
        "def now():\n    torch.cuda.synchronize()\n    return time.time()\n\nstart = now()\nnet(x)\n"
        "print(now() - start)",
    ],
    ids=["reading-of-the-next-turn", "around-the-loop", "helper-that-waits-and-reads"],
)
def test_what_a_clock_measures_is_kept(body: str) -> None:
    assert "output = net(x)\n" in _after(body)
