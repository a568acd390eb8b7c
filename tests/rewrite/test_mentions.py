"""Reads of every step, and loaders that copy by themselves, are mentioned and set no exit code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.left.deferrable import SUGGESTION
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

LOOP = """
import torch
from torch.utils.data import DataLoader


def train(model, data, optimizer, loss_fn, bar, values):
    total = 0.0
    loader = DataLoader(data, batch_size=8, drop_last=True)
    for step, (x, y) in enumerate(loader):
        {move}
        loss = loss_fn(model(x), y)
        {inside}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        {after}
        if step % 10 == 9:
            print(total)
            total = 0.0
"""
MOVE = "x, y = x.cuda(), y.cuda()"
STYLES = pytest.mark.parametrize("style", ["native", "portable"])


def rewritten(
    style: str = "native",
    *,
    move: str = MOVE,
    inside: str = "pass",
    after: str = "pass",
    defer_reads: bool = False,
) -> Rewrite:
    text = LOOP.format(move=move, inside=inside, after=after)
    options = RewriteOptions(style=style, defer_reads=defer_reads)
    return rewrite_source(parse(text.encode(), Path("train.py")), options=options)


def mentioned(done: Rewrite) -> dict[tuple[str, int], str]:
    return {(note.rule, note.line): note.message for note in done.findings if note.rule != "XLA210"}


@STYLES
@pytest.mark.parametrize("read", ["total += loss.item()", "total += float(loss)"])
def test_a_read_of_every_step_is_mentioned_with_the_option_that_defers_it(
    style: str, read: str
) -> None:
    done = rewritten(style, after=read)
    code = "XLA201" if "item" in read else "XLA202"
    assert mentioned(done).keys() == {(code, 16)}
    assert SUGGESTION in mentioned(done)[code, 16]
    assert not done.fails()
    assert SUGGESTION not in str(rewritten(style, after=read, defer_reads=True).findings)


@STYLES
@pytest.mark.parametrize("read", ["values(loss.item())", "print(step, loss.item())"])
def test_the_option_is_not_suggested_for_what_it_would_not_defer(style: str, read: str) -> None:
    done = rewritten(style, after=read)
    assert ("XLA201", 16) in mentioned(done)
    assert SUGGESTION not in str(done.findings)
    assert not done.fails()


def test_a_read_that_went_below_the_step_is_mentioned_where_it_stood() -> None:
    done = rewritten(
        inside="value = loss.item(); loss /= 4".replace("; ", "\n        "), after="bar(value)"
    )
    assert mentioned(done).keys() == {("XLA201", 12)}


def test_a_line_with_a_worse_finding_is_not_mentioned_as_well() -> None:
    done = rewritten(after="bar.set_postfix(loss=loss.item())")
    assert mentioned(done).keys() == {("XLA205", 16)}


def test_a_read_now_and_then_is_not_mentioned() -> None:
    done = rewritten(after="if step % 10 == 0:\n            print(loss.item())")
    assert mentioned(done) == {}


def loaders(done: Rewrite) -> list[int]:
    return [note.line for note in done.findings if note.rule == "XLA210"]


@pytest.mark.parametrize(
    "move",
    [
        MOVE,
        'x = x.to("cuda")\n        y = y.to("cuda", non_blocking=True)',
        "size = x.size(0)\n        x, y = x.cuda(), y.cuda()",
    ],
)
def test_a_loader_whose_batches_the_loop_copies_is_mentioned_once(move: str) -> None:
    done = rewritten(move=move)
    assert loaders(done) == [9]
    assert not done.fails()
    assert loaders(rewritten("portable", move=move)) == []  # the loader is torch_xla's alone


@pytest.mark.parametrize(
    "move", ["values.append(y.tolist())\n        " + MOVE, "x = x.cuda()\n        y = y.tolist()"]
)
def test_a_loader_of_which_the_host_uses_a_part_is_not_mentioned(move: str) -> None:
    assert loaders(rewritten(move=move)) == []


def test_a_function_that_moves_the_batch_counts_and_one_loop_is_one_finding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            from torch.utils.data import DataLoader


            def to_device(batch):
                return {name: part.cuda() for name, part in batch.items()}


            def train(model, data, optimizer):
                model.cuda()
                loader = DataLoader(data, batch_size=8, drop_last=True)
                for batch in loader:
                    batch = to_device(batch)
                    model(batch["x"]).mean().backward()
                    optimizer.step()
            """
        )
    )
    found = check_file(script, Config(select=("XLA210",)))
    assert [finding.line for finding in found] == [12]


@pytest.mark.parametrize(("style", "lines"), [("native", [7]), ("portable", [])])
def test_copies_of_batches_beside_a_function_of_shims(style: str, lines: list[int]) -> None:
    """A native rewrite that takes one function from shims still runs on XLA alone."""
    source = """\
import torch
from torch.utils.data import DataLoader

def train(model, data, optimizer):
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()
    loader = DataLoader(data, batch_size=8, drop_last=True)
    for x in loader:
        x = x.cuda()
        model(x).mean().backward()
        optimizer.step()
"""
    options = RewriteOptions(style=style)
    done = rewrite_source(parse(source.encode(), Path("train.py")), options=options)
    assert b"shims" in done.data
    assert loaders(done) == lines
