"""Reads with an effect, above a `continue`, `break` or `return` that the rest of the step comes after."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite, rewrite_source
from migrate.rewrite.rules.step.wrapping import READS_INSIDE
from migrate.syntax.source import parse
from tests.waiting import LIMIT

HEAD = """
import torch


def train(model, loader, optimizer, meter, every=4):
    model.cuda()
    seen = []
    total = 0
    for turn, x in enumerate(loader):
        x = x.cuda()
        loss = model(x).mean()
"""


def written(turn: str) -> str:
    """Return the rewritten loop whose turn goes on with `turn`."""
    source = HEAD + textwrap.indent(textwrap.dedent(turn).lstrip(), " " * 8) + "    return total\n"
    return rewrite_source(parse(source.encode(), Path("train.py"))).data.decode()


@pytest.mark.parametrize("effect", ["total += loss.item()", "seen.append(loss.item())"])
@pytest.mark.parametrize("leaves", ["continue", "break", "return total"])
def test_the_step_ends_above_what_leaves_the_turn(effect: str, leaves: str) -> None:
    text = written(f"""
        {effect}
        loss.backward()
        if turn % every != 0:
            {leaves}
        optimizer.step()
        optimizer.zero_grad()
    """)
    assert (
        f"""            loss.backward()
        {effect}
        if turn % every != 0:
            {leaves}
        with torch_xla.step():
            optimizer.step()
            optimizer.zero_grad()
"""
        in text
    )


def test_a_read_in_a_with_stays_above_what_leaves_the_turn() -> None:
    text = written("""
        loss.backward()
        with torch.no_grad():
            last = loss.item()
        if turn % every != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
        meter.update(last)
    """)
    assert text.index("loss.item()") < text.index("continue") < text.index("optimizer.step()")


def test_a_read_stays_where_a_part_of_the_step_itself_leaves() -> None:
    done = rewrite_source(
        parse(
            (
                HEAD
                + """        total += loss.item()
        if turn % every == 0:
            loss.backward()
            continue
        (loss * 2).backward()
        optimizer.step()
"""
            ).encode(),
            Path("train.py"),
        )
    )
    text = done.data.decode()
    assert text.index("loss.item()") < text.index("continue")
    assert any(READS_INSIDE in note.message for note in done.findings)


def test_what_leaves_above_the_read_parts_no_step() -> None:
    text = written("""
        if turn == 100:
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    """)
    assert text.count("torch_xla.step()") == 1


def test_an_evaluation_ends_its_step_above_what_leaves_the_turn() -> None:
    source = """
import torch


@torch.no_grad()
def validate(model, other, loader):
    model.cuda().eval()
    seen, total = [], 0
    for turn, x in enumerate(loader):
        x = x.cuda()
        first = model(x).mean().item()
        seen.append(first)
        if turn == 3:
            continue
        total += other(x).mean().item()
    return total, seen
"""
    text = rewrite_source(parse(source.encode(), Path("train.py"))).data.decode()
    kept = "        seen.append(first)\n        if turn == 3:\n            continue\n"
    assert f"        first = first.item()\n{kept}" in text


TRAINED = """
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(train(model, [torch.ones(3, 2)] * 8, optimizer, 4))
"""


@pytest.mark.xla
@pytest.mark.long
def test_the_sum_counts_every_turn_as_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import torch


def train(model, loader, optimizer, every):
    model.cuda()
    total = 0.0
    for turn, x in enumerate(loader):
        x = x.cuda()
        loss = model(x).mean()
        total += loss.item()
        loss.backward()
        if turn % every:
            continue
        optimizer.step()
        optimizer.zero_grad()
    return total
""")
    text = rewrite(script).data.decode().replace('"xla"', '"cpu"')
    totals = []
    for source in (script.read_text().replace("cuda()", "cpu()"), text):
        # In a process of its own: torch_xla replaces layers of torch when it is imported.
        script.write_text(f"{source}\n\n{TRAINED}")
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
        totals.append(float(done.stdout))
    assert totals[0] == totals[1]


ASKS_OTHERS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def joined(group, info):
    if info["index"] != 0:
        try:
            dist.monitored_barrier(group=group)
            return False
        except RuntimeError:
            return True
    return False


def train(net, loader, optimizer, group):
    model = DDP(net.cuda())
    info = {}
    for index, x in enumerate(loader):
        info["tag"] = "train"
        info["index"] = index
        if joined(group, info):
            break
        info["loss"] = model(x.cuda()).mean()
        info["loss"].backward()
        optimizer.step()
"""


def test_no_step_before_a_test_where_nothing_is_computed() -> None:
    """Two names that were assigned above the test stood in a step of their own."""
    source = parse(ASKS_OTHERS.lstrip().encode(), Path("train.py"))
    lines = rewrite_source(source).data.decode().splitlines()
    assert [line.strip() for line in lines].count("with torch_xla.step():") == 1
    assert '        info["index"] = index' in lines
