"""Log lines that read the epoch, a batch's number or sums over an epoch stay in the loop of `data.py`."""

from __future__ import annotations

import functools
import math
import textwrap
from typing import Any

import numpy as np
import pytest
import torch

from migrate.train.frames import Frame
from migrate.train.loop_log import LoopLog, loop_log
from migrate.train.slice.data import data_slice
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import ScriptText

LOOP = """
    log_interval = 2
    loader = [1.0, 2.0, 3.0]
    model, optimizer, scheduler = build()
    for epoch in range(2):
        print(f"epoch {epoch}")
        total = 0.0
        for i, x in enumerate(loader):
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if i % log_interval == 0:
                print(f"{epoch} [{i}/{len(loader)}] {loss.item():.1f}")
        scheduler.step()
        print(f"mean {total / len(loader):.1f}")
"""
ACCUMULATED = """
    model, optimizer = build()
    seen = 0
    for epoch in range(2):
        for i, x in enumerate([1.0, 2.0, 3.0, 4.0]):
            loss = model(x)
            loss.backward()
            seen += 1
            if (i + 1) % 2 == 0:
                optimizer.step()
                print(f"{epoch} {seen} {loss.item():.1f}")
"""


class Number(float):
    """A number as a tensor has it."""

    def item(self) -> float:
        return float(self)


FUNCTION = """
    def train(model, optimizer, loader, epoch):
        total = 0.0
        for i, x in enumerate(loader):
            loss = model(x)
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total / len(loader), epoch


    def main():
        model, optimizer = build()
        loader = [1.0, 2.0, 3.0]
        for epoch in range(2):
            mean, number = train(model, optimizer, loader, epoch)
            print(f"epoch {number}: {mean:.1f}")


    main()
"""


def log(source: str) -> LoopLog | None:
    source = textwrap.dedent(source)
    script = ScriptText("train.py", source)
    line = {
        text: next(n for n, s in enumerate(script.lines, 1) if text in s)
        for text in ("backward", "optimizer.step")
    }
    outer: tuple[Frame, ...] = ()
    own = ("<module>", 1)
    if "def train(" in source:
        starts = {
            word: n
            for n, s in enumerate(script.lines, 1)
            for word in ("train", "main")
            if f"def {word}(" in s
        }
        call = next(n for n, s in enumerate(script.lines, 1) if "= train(" in s)
        own = ("train", starts["train"])
        outer = (Frame(call, "main", starts["main"]), Frame(len(script.lines), "<module>", 1))
    backward, step = ((Frame(n, *own), *outer) for n in line.values())
    at = {
        word: [n for n, s in enumerate(script.lines, 1) if word in s]
        for word in ("clip_grad", "scheduler.step", "zero_grad")
    }
    dropped = [(Frame(n, "<module>", 1),) for lines in at.values() for n in lines]
    if "def set_rate(" in source:
        first, call = (n for n, s in enumerate(script.lines, 1) if "set_rate()" in s)
        [line_in_it] = at["scheduler.step"]
        dropped.remove((Frame(line_in_it, "<module>", 1),))
        dropped.append((Frame(line_in_it, "set_rate", first), Frame(call, "<module>", 1)))
    calls = TrainingCalls(backward, (step,), tuple(dropped))
    loss = loss_slice(script, backward[0])
    trained = {(f.function, f.first): ["model", "optimizer", "scheduler"] for f in backward}
    recorded = {"trained": trained, "schedule_lines": at["scheduler.step"]}
    cut = functools.partial(data_slice, script, calls, loss, ["x"], trained=trained)
    return loop_log(script, calls, loss, recorded, cut, cut(), at["clip_grad"])


def printed(found: LoopLog, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What the loop prints of updates whose loss is ten times the batch, and whose rate is their number."""
    update: dict[str, Any] = {"loss": math.nan, "next_rate": Number(0)}
    namespace: dict[str, Any] = {
        "UPDATE": update,
        "np": np,
        "torch": torch,
        "build": lambda: (None, None, None),
    }
    exec(found.data.text, namespace)
    count, batch = 0, None
    for item in namespace["micro_batches"]():
        if item is not None:
            batch = item["x"]
            continue
        assert batch is not None
        count += 1
        update.update(
            loss=Number(10 * batch),
            norm=Number(batch),
            rate=Number(count - 1),
            next_rate=Number(count),
        )
    return capsys.readouterr().out.splitlines()


def test_lines_of_the_loop_read_its_names_and_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    found = log(LOOP)
    assert found is not None
    assert found.values == ("loss",)
    of_epoch = ["{0} [0/3] 10.0", "{0} [2/3] 30.0", "mean 20.0"]
    wanted = [line.format(n) for n in range(2) for line in ["epoch {0}", *of_epoch]]
    assert printed(found, capsys) == wanted
    assert "build" not in found.data.text
    assert 'print(f"{epoch} [{i}/{len(loader)}] {loss.item():.1f}")' in found.data.text


def test_a_line_of_an_update_over_micro_batches_has_the_last_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = log(ACCUMULATED)
    assert found is not None
    assert printed(found, capsys) == ["0 2 20.0", "0 4 40.0", "1 6 20.0", "1 8 40.0"]


@pytest.mark.parametrize(
    "line",
    ["running += loss.item()", "if i % 10 == 0:\n                print(loss.item())"],
    ids=["sum", "print"],
)
def test_a_loss_of_a_micro_batch_is_not_read_before_its_update(line: str) -> None:
    source = ACCUMULATED.replace("seen = 0", "seen = running = 0").replace(
        "seen += 1", f"seen += 1\n            {line}"
    )
    source = source.replace("{seen}", "{running}") if "running +=" in line else source
    found = log(source)
    if "running +=" in line:
        assert found is None
    else:
        assert found is not None
        assert "print(loss.item())" not in found.data.text


@pytest.mark.parametrize(
    ("reads", "wanted"),
    [
        ('{optimizer.param_groups[0]["lr"]:.0f}', "rate"),
        ("{scheduler.get_last_lr()[0]:.0f}", "rate"),
        ("{norm:.1f}", "norm"),
    ],
)
def test_rate_and_norm_are_those_of_the_update(
    reads: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = LOOP.replace("{loss.item():.1f}", reads.replace('"', "'"))
    found = log(source)
    assert found is not None
    assert wanted in found.values
    lines = [line for line in printed(found, capsys) if "[2/3]" in line]
    numbers = {"rate": ["2", "5"], "norm": ["3.0", "3.0"]}[wanted]
    assert lines == [f"{n} [2/3] {number}" for n, number in enumerate(numbers)]


def test_a_rate_after_a_step_of_its_schedule_is_that_of_the_next_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = LOOP.replace("mean {total", "{scheduler.get_last_lr()[0]:.0f} mean {total")
    source = source.replace(
        'print(f"epoch {epoch}")', "print('epoch', epoch, scheduler.get_last_lr()[0])"
    )
    found = log(source)
    assert found is not None
    assert set(found.values) == {"loss", "next_rate"}
    lines = printed(found, capsys)
    assert [line for line in lines if "mean" in line] == ["3 mean 20.0", "6 mean 20.0"]
    assert [line for line in lines if "epoch" in line] == ["epoch 0 0.0", "epoch 1 3.0"]


def test_a_rate_that_a_function_sets_is_unknown() -> None:
    line = "[{i}/{len(loader)}] {optimizer.param_groups[0]['lr']}"
    source = LOOP.replace("[{i}/{len(loader)}] {loss.item():.1f}", line)
    assert line in source
    head = "    def set_rate():\n        scheduler.step()\n"
    found = log(head + source.replace("        scheduler.step()\n", "        set_rate()\n"))
    assert found is not None
    assert "param_groups" not in found.data.text
    assert found.values == ("loss",)  # of the mean


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{i}/{len(loader)}", "{model.size}"),
        ("{i}/{len(loader)}", "{accuracy(model)}"),
        ("            optimizer.zero_grad()\n", "            h = model.part(x)\n"),
    ],
)
def test_a_line_that_reads_what_the_program_has_not_is_left(before: str, after: str) -> None:
    source = LOOP.replace(before, after)
    if "h = " in after:
        source = source.replace("{i}/", "{h}/").replace("model(x)", "model(h)")
    assert source != LOOP
    found = log(source)
    assert found is not None
    assert "[{" not in found.data.text
    assert "mean {" in found.data.text


def test_the_last_loss_of_an_epoch_is_read_after_its_loop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = log(LOOP.replace("mean {total / len(loader):.1f}", "last {loss.item()}"))
    assert found is not None
    assert [line for line in printed(found, capsys) if "last" in line] == ["last 30.0"] * 2


def test_a_name_of_another_loss_is_not_taken_for_it() -> None:
    later = """        scheduler.step()
        for y in loader:
            loss = model(y)
"""
    found = log(
        LOOP.replace("        scheduler.step()\n", later).replace(
            "mean {total", "mean {loss.item()} {total"
        )
    )
    assert found is not None
    assert "mean" not in found.data.text  # the loss there is that of the other loop
    assert "[{i}/" in found.data.text  # here it is that of the update


def test_a_loss_is_a_tensor_only_where_a_line_needs_one() -> None:
    found = log(LOOP)
    assert found is not None
    assert 'loss = UPDATE["loss"]' in found.data.text  # it waits where it is printed
    found = log(LOOP.replace("total += loss.item()", "total += loss.detach()"))
    assert found is not None
    assert 'loss = torch.tensor(np.asarray(UPDATE["loss"]))' in found.data.text


def test_a_line_reads_what_the_function_with_the_loop_returns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = log(FUNCTION)
    assert found is not None
    assert printed(found, capsys) == ["epoch 0: 20.0", "epoch 1: 20.0"]
    unknown = FUNCTION.replace("len(loader), epoch", "len(loader), model.size")
    assert log(unknown) is None
    other = FUNCTION.replace("{mean:.1f}", "{number}")
    found = log(other)
    assert found is None or "loss" in found.values


def test_a_line_in_a_function_reads_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    line = "total += loss.item()\n"
    found = log(FUNCTION.replace(line, f"{line}            print(epoch, i, loss.item())\n"))
    assert found is not None
    lines = [line for line in printed(found, capsys) if "epoch" not in line]
    assert lines == [f"{n} {i} {10.0 * (i + 1)}" for n in range(2) for i in range(3)]


def test_lines_without_a_value_of_an_update_stay_out() -> None:
    source = LOOP.replace(" {loss.item():.1f}", "").replace("mean {total / len(loader):.1f}", "end")
    assert log(source) is None


def test_a_progress_bar_shows_the_loss() -> None:
    source = LOOP.replace("in enumerate(loader):", "in enumerate(bar := Bar(loader)):")
    source = source.replace(
        "            if i %", "            bar.set_postfix(loss=loss.item())\n            if i %"
    )
    found = log("    from tqdm import tqdm as Bar\n" + source)
    assert found is not None
    assert "bar.set_postfix(loss=loss.item())" in found.data.text
