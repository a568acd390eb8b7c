"""Log lines of a script in its program: what they read decides whether they are there."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from migrate.train.frames import Frame
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import ScriptText
from migrate.train.write.log import Log, log_of

ACCUMULATED = """
    import time
    log_interval = 2
    accumulation = 2
    it, t0 = 0, time.time()
    for epoch in range(2):
        running = 0.0
        for number, x in enumerate(loader):
            loss = model(x) / accumulation
            loss.backward()
            running += loss.item()
            if (number + 1) % accumulation != 0:
                continue
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if it % log_interval == 0:
                ms = (time.time() - t0) * 1000
                print(f"iter {it}: {running:.2f} {norm:.1f} {ms > 0}")
            running = 0.0
            it += 1
"""
PLAIN = """
    step = 0
    for epoch in range(2):
        for x in loader:
            loss = model(x)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 2 == 0:
                print("step", step, loss.item())
"""


def log(source: str, *, single: bool = False) -> Log | None:
    source = textwrap.dedent(source)
    script = ScriptText("train.py", source)
    line = {
        text: next(n for n, s in enumerate(script.lines, 1) if text in s)
        for text in ("backward", "optimizer.step")
    }
    backward, step = ((Frame(n, "<module>", 1),) for n in line.values())
    calls = TrainingCalls(backward, (step,), ())
    norms = [n for n, s in enumerate(script.lines, 1) if "clip_grad_norm_" in s]
    loss = loss_slice(script, backward[0])
    return log_of(script, calls, loss, {*line.values()}, norms, single=single)


def printed(found: Log, capsys: pytest.CaptureFixture[str], *updates: tuple[Any, ...]) -> list[str]:
    """What the program prints of some updates."""
    text = "".join(f"import {name}\n" for name in found.imports) + found.settings + found.function
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    for update in updates:
        namespace["report"](*update)
    return capsys.readouterr().out.splitlines()


class Number(float):
    """A number as jax has it."""

    def item(self) -> float:
        return float(self)


def test_a_line_of_an_update_has_its_losses_norm_and_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = log(ACCUMULATED)
    assert found is not None
    assert found.norm
    updates = [(n, [Number(n), Number(0.5)], 0.1, Number(3)) for n in range(3)]
    assert printed(found, capsys, *updates) == ["iter 0: 0.50 3.0 True", "iter 2: 2.50 3.0 True"]
    lines = textwrap.dedent(ACCUMULATED).splitlines()
    carried = {lines[n - 1].strip() for n in found.lines}
    assert {"running = 0.0", "running += loss.item()", "it += 1"} <= carried


def test_a_counter_is_read_after_it_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    assert log(PLAIN) is None  # of which micro-batch is the loss?
    found = log(PLAIN, single=True)
    assert found is not None
    assert not found.norm
    updates = [(n, [Number(n)], 0.1) for n in range(2)]
    assert printed(found, capsys, *updates) == ["step 2 1.0"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('print("step", step, loss.item())', 'print("step", epoch, loss.item())'),
        ('print("step", step, loss.item())', 'print("step", step, accuracy(model))'),
        ('print("step", step, loss.item())', "print(step, loss.item()); writer.add(step)"),
        ("step += 1", "step += len(x)"),
        ("step = 0", "step = start()"),
        ("loss.backward()", "loss.backward()\n            loss = loss * 2"),
    ],
)
def test_what_the_program_does_not_have_is_not_printed(before: str, after: str) -> None:
    assert before in PLAIN
    assert log(PLAIN.replace(before, after), single=True) is None


def test_a_sum_over_an_epoch_is_not_that_of_an_update() -> None:
    reset = "            running = 0.0\n            it += 1\n"
    assert reset in ACCUMULATED
    assert log(ACCUMULATED.replace(reset, "            it += 1\n")) is None
