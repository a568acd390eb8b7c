"""Functions that set the learning rates themselves: `adjust_learning_rate(optimizer, epoch, args)`."""

from __future__ import annotations

import ast
import math
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from migrate.train.frames import Frame
from migrate.train.optimizer.choice import choose_rates
from migrate.train.optimizer.live import recorded_part, unrolled
from migrate.train.optimizer.recorded import RecordedCall, RecordedGroup, RecordedOptimizer
from migrate.train.optimizer.stepping import Argument, ScheduleSteps, argument_of
from migrate.train.slice.rate import as_rate, as_rates, callees, rate_setters, rate_statements
from migrate.train.slice.text import ScriptText
from migrate.train.watch.optimizers import OptimizerRecorder

COSINE = '''
def adjust_learning_rate(optimizer, epoch, args):
    """Half a cosine after the warm-up."""
    if epoch < args.warmup:
        lr = args.lr * epoch / args.warmup
    else:
        lr = args.lr * 0.5 * (1.0 + math.cos(math.pi * (epoch - args.warmup) / args.epochs))
    for group in optimizer.param_groups:
        if "lr_scale" in group:
            group["lr"] = lr * group["lr_scale"]
        else:
            group["lr"] = lr
    return lr
'''
MILESTONES = """
def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr
    if args.cos:
        lr *= 0.5 * (1.0 + math.cos(math.pi * epoch / args.epochs))
    else:
        for milestone in args.schedule:
            lr *= 0.1 if epoch >= milestone else 1.0
    for group in optimizer.param_groups:
        group["lr"] = lr
"""


def setter(text: str) -> ast.FunctionDef:
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def rates_by_running(text: str, args: Any, numbers: list[float], scales: list[float]) -> Any:
    """The rates that the function sets, before each update."""
    namespace: dict[str, Any] = {"math": math}
    exec(text, namespace)
    optimizer = SimpleNamespace(param_groups=[{"lr_scale": scale} for scale in scales])
    rates = []
    for number in numbers:
        namespace["adjust_learning_rate"](optimizer, number, args)
        rates.append(tuple(group["lr"] for group in optimizer.param_groups))
    return tuple(rates)


def recorded(text: str, args: Any, numbers: list[float], scales: list[float]) -> RecordedOptimizer:
    """The record of a run whose learning rates the function sets."""
    local, of_module = {"args": args, "epoch": 0}, {"math": math}
    part = as_rate(unrolled(setter(text), local, of_module, "epoch"), "epoch")
    assert part is not None
    function = recorded_part(part, local, of_module)
    rates = rates_by_running(text, args, numbers, scales)
    groups = [
        RecordedGroup((f"p{i}",), {"lr": rate, "lr_scale": scale})
        for i, (rate, scale) in enumerate(zip(rates[0], scales, strict=True))
    ]
    call = RecordedCall(function, tuple(numbers), sets=True)
    return RecordedOptimizer(
        "torch.optim.sgd.SGD", tuple(groups), rates, function=call, file="train.py", line=1
    )


def test_the_rate_of_each_step_with_a_factor_of_each_group() -> None:
    args = SimpleNamespace(warmup=2, lr=0.1, epochs=8)
    numbers = [update / 10 for update in range(60)]
    texts = choose_rates(recorded(COSINE, args, numbers, [0.5, 1.0]))
    assert "return adjust_learning_rate(step / 10)" in texts.source
    assert "0.5 * adjust_learning_rate(step / 10)" in texts.source
    assert "Half a cosine after the warm-up." in texts.source
    assert texts.worst < 1e-12


@pytest.mark.parametrize("cosine", [False, True])
def test_the_rate_of_each_epoch(cosine: bool) -> None:
    args = SimpleNamespace(cos=cosine, lr=0.1, epochs=6, schedule=[2, 4])
    numbers: list[float] = [update // 10 for update in range(60)]
    texts = choose_rates(recorded(MILESTONES, args, numbers, [1.0]))
    assert texts.names.constants["updates_per_epoch"] == 10
    assert "adjust_learning_rate(step // updates_per_epoch)" in texts.source
    assert ("jnp.cos" in texts.source) is cosine  # the other branch does not run
    assert ("jnp.where(epoch >= 4, 0.1, 1.0)" in texts.source) is not cosine


def test_an_epoch_that_is_longer_than_the_record() -> None:
    args = SimpleNamespace(cos=True, lr=0.1, epochs=6, schedule=[])
    record = recorded(MILESTONES, args, [0] * 5, [1.0])
    assert record.function is not None
    known = replace(record, function=replace(record.function, per_epoch=750))
    assert choose_rates(known).names.constants["updates_per_epoch"] == 750
    # Not known when it changes: the rates of the record, and a note.
    constant = choose_rates(replace(record, sets_rate=9))
    assert "train.py:9" in constant.note


def test_rates_that_something_else_sets_too_are_no_function_of_the_number() -> None:
    args = SimpleNamespace(warmup=2, lr=0.1, epochs=8)
    record = recorded(COSINE, args, [update / 10 for update in range(12)], [1.0])
    other = (*record.rates[:5], (0.5,), *record.rates[6:])
    texts = choose_rates(replace(record, rates=other, updates=12))
    assert "rates_0" in texts.source  # a table of the recorded ones


@pytest.mark.parametrize(
    "body",
    [
        "if epoch > 5:\n    return\nfor g in o.param_groups:\n    g['lr'] = 0.1",
        "for g in o.param_groups:\n    g['lr'] *= 0.5",
        "for g in o.param_groups:\n    g['lr'] = g['lr'] + epoch",
        "for i, g in enumerate(o.param_groups):\n    g['lr'] = rates[epoch] if i else 0.1",
        "for g, lr in zip(o.param_groups, (epoch, 2 * epoch)):\n    g['lr'] = lr + 1",
        "o.param_groups[0]['lr'] = 0.1\no.param_groups[1]['lr'] = epoch",
        "return epoch",
    ],
)
def test_functions_that_have_no_such_form(body: str) -> None:
    node = setter(f"def adjust(o, epoch):\n{textwrap.indent(body, '    ')}\n")
    assert as_rate(node, "epoch") is None


@pytest.mark.parametrize(
    ("numbers", "per_epoch", "expected"),
    [
        ([0, 1, 2], 0, Argument(0, 1)),
        ([1.0, 1.5, 2.0], 0, Argument(1.0, 0.5)),
        ([0, 0, 1, 1, 2], 0, Argument(epochs=ScheduleSteps(every=2))),
        ([1, 1, 1], 7, Argument(epochs=ScheduleSteps(every=7, offset=1))),
        ([1, 1, 1], 0, None),
        ([0, 2, 3], 0, None),
        ([0.1, 0.1, 0.3], 0, None),
        ([1, 1, 2, 2, 3], 0, Argument(epochs=ScheduleSteps(every=2, offset=1))),
        ([0], 0, None),
    ],
)
def test_the_number_that_the_function_takes(
    numbers: list[float], per_epoch: int, expected: Argument | None
) -> None:
    argument = argument_of(numbers, per_epoch)
    assert argument == expected
    if argument is not None:
        assert [argument.at(i) for i in range(len(numbers))] == numbers


SCRIPT = '''
import lr_sched
def scheduler_of(optimizer, base):
    def adjust(step):
        """The rate."""
        lr = base / (1 + step)
        for group in optimizer.param_groups:
            group["lr"] = lr
    return adjust
def train(loader, optimizer, epoch):
    for i, x in enumerate(loader):
        rate = lr_sched.adjust(optimizer, i / len(loader) + epoch)
        log(i)
        x.sum().backward()
def log(i):
    print(i)
'''


def test_where_the_functions_are() -> None:
    script = ScriptText("train.py", SCRIPT)
    frames = [Frame(14, "train", 10)]
    assert rate_setters(script, frames) == [("adjust", 4, 6, False)]
    assert callees(script, frames) == [("train", 10, 12, "lr_sched.adjust")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('for g in optimizer.param_groups:\n g["lr"] = b if g["fixed"] else a', ["b", "a"]),
        (
            "for g in optimizer.param_groups:\n"
            ' if "fixed" in g and g["fixed"]:\n  g["lr"] = b\n'
            ' else:\n  g["lr"] = a * g["initial_lr"]',
            ["b", "a * 2.0"],
        ),
        (
            'optimizer.param_groups[0]["lr"] = a\noptimizer.param_groups[-1]["lr"] = b',
            ["a", "b"],
        ),
        ('for g in optimizer.param_groups[1:]:\n g["lr"] = a', ["0.5", "a"]),
        (  # what no group has is compared behind a test alone
            "for g in optimizer.param_groups:\n"
            ' if g.get("warm") is not None and g.get("warm") > 0:\n  g["lr"] = b\n'
            ' else:\n  g["lr"] = a',
            ["a", "a"],
        ),
        ('for g in optimizer.param_groups:\n g["lr"] *= a', None),
        ('for g in optimizer.param_groups:\n if e > 3:\n  g["lr"] = a', None),
        ('if e > 3:\n for g in optimizer.param_groups:\n  g["lr"] = a', None),
    ],
)
def test_the_rate_of_each_group(body: str, expected: list[str] | None) -> None:
    node = setter("def f(e):\n    a, b = e / 2, 1\n" + textwrap.indent(body, "    "))
    options = [
        {"lr": 0.5, "fixed": True, "initial_lr": 1.0},
        {"lr": 0.5, "fixed": False, "initial_lr": 2.0},
    ]
    assert as_rate(node, "e") is None  # no rate of all groups
    rates = as_rates(node, "e", options)
    ends = rates and [ast.unparse(rate.body[-1]).removeprefix("return ") for rate in rates]
    assert ends == expected


LOOP = """
def train(loader, optimizer):
    step = 0
    for epoch in range(9):
        scale = 1 / (1 + epoch)
        for x in loader:
            lr = 0.1 * scale
            other = x.sum()
            if step < 5:
                lr *= step / 5
            if table is not None and step % 2 == 0:
                for group in optimizer.param_groups:
                    group["lr"] = lr
            if step < 3:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0
            x.sum().backward()
            step += 1
"""


def test_statements_of_the_loop() -> None:
    script = ScriptText("train.py", LOOP)
    found = rate_setters(script, [Frame(17, "train", 2)])
    assert found == [
        ("train", 2, 12, True),
        ("train", 2, 14, True),
    ]  # the second under its condition
    node = rate_statements(script, "train", 2, 12, ["step"])
    assert node is not None
    assert [statement.lineno for statement in node.body] == [5, 7, 9, 12]


@pytest.mark.parametrize("turns", [0, 8])
def test_an_epoch_and_a_part_of_the_next_show_the_number_with_the_turns_of_a_whole_one(
    turns: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(MILESTONES)
    which = ("adjust_learning_rate", 2, 3)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    watch = OptimizerRecorder(str(script), None, [(*which, False)])
    args = SimpleNamespace(cos=True, lr=0.1, epochs=6, schedule=[])
    for update in range(10):
        if update % 8 == 0:
            local = {"optimizer": optimizer, "epoch": update // 8, "args": args}
            setting = watch.called_setter(which, local, {"math": math})
        watch.before_update(optimizer, {id(weight): "w"}, None)
    record = watch.with_epochs(watch.recorded((), str(script)), {setting: turns})
    assert (record.function is not None) == bool(turns)
    if record.function is not None:
        assert record.function.per_epoch == turns
        assert argument_of(record.function.arguments, turns) == Argument(
            epochs=ScheduleSteps(every=8)
        )
