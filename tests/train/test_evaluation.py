"""Evaluations: what a device computes of a batch, what stays on the host, and the loop that asks for it."""

from __future__ import annotations

import ast
import math
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from migrate.train.evaluation import evaluations_of
from migrate.train.frames import Frame
from migrate.train.proof.evaluations import TRAINING_MODE, compare_evaluations, evaluated
from migrate.train.slice.data import data_slice
from migrate.train.slice.evaluation import (
    DEVICE,
    MODEL,
    NoEvaluationError,
    evaluating_text,
    evaluation_slice,
)
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.text import FunctionNode, ScriptText
from migrate.train.write.evaluation import with_evaluations

FUNCTION = """
import torch

@torch.no_grad()
def test(model, device, loader):
    model.eval()
    total, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            with autocast():
                output = model(data)
            total += F.nll_loss(output, target, reduction='sum').item()  # of the batch
            pred = output.argmax(1)
            correct += pred.eq(target).sum().item()
    model.train()
    return total / len(loader.dataset), correct
"""


def kind(node: ast.expr) -> str:
    """Kind of a call's function in the texts of these tests."""
    name = ast.unparse(node)
    if name in ("model", "self.model"):
        return MODEL
    return DEVICE if name.startswith(("F.", "torch.")) or name == "get_loss" else ""


def line_of(source: str, text: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if text in line)


def function(script: ScriptText, name: str) -> FunctionNode:
    return next(n for n in ast.walk(script.tree) if isinstance(n, FunctionNode) and n.name == name)


def test_a_batch_gives_numbers_to_the_host() -> None:
    script = ScriptText("train.py", FUNCTION)
    cut = evaluation_slice(script, function(script, "test"), line_of(FUNCTION, "model(data)"), kind)
    assert cut.text.split("\n") == ["output = model(data)", "pred = output.argmax(1)"]
    assert [(v.name, v.expression, v.is_number) for v in cut.values] == [
        ("total_of_batch", "F.nll_loss(output, target, reduction='sum')", True),
        ("correct_of_batch", "pred.eq(target).sum()", True),
    ]
    assert set(cut.free) == {"model", "data", "F", "target"}


def test_the_script_has_the_values_in_place_of_the_model() -> None:
    script = ScriptText("train.py", f"{FUNCTION}\nprint(test(model, 'cpu', loader))\n")
    code = function(script, "test")
    cut = evaluation_slice(script, code, line_of(FUNCTION, "model(data)"), kind)
    call = line_of(script.source, "print(")
    chain = (Frame(13, "test", code.lineno - 1), Frame(call, "<module>", 1))
    modes = [line_of(FUNCTION, "model.eval()"), line_of(FUNCTION, "model.train()")]
    text = evaluating_text(script, cut.edits, [chain], modes)
    assert len(text.lines) == len(script.lines)  # frames know lines
    assert text.lines[call - 1] == "print(test(None, 'cpu', loader))"
    shown = [line for line in text.lines if line.strip()][1:-1]
    assert shown == [
        "def test(model, device, loader):",
        "    total, correct = 0, 0",
        "    with torch.no_grad():",
        "        for data, target in loader:",
        "            data, target = data.to(device), target.to(device)",
        "            total_of_batch, correct_of_batch = program_values",
        "            total += total_of_batch",
        "            correct += correct_of_batch",
        "    return total / len(loader.dataset), correct",
    ]


def test_what_is_no_module_keeps_its_train_and_eval() -> None:
    source = """
def test(model, probe, loader):
    model.eval()
    probe.eval()
    for x in loader:
        total = model(x).item()
    if probe.fine:
        model.train()
    probe.train()
    return total
"""
    script = ScriptText("train.py", source)
    chain = (Frame(6, "test", 2),)
    text = evaluating_text(script, [(6, 6, "        total = 0")], [chain], [3])
    assert ".eval()" in text.source
    assert [line.strip() for line in text.lines if ".eval()" in line] == ["probe.eval()"]
    assert [line.strip() for line in text.lines if ".train()" in line] == ["probe.train()"]


def test_an_item_of_a_comprehension_is_a_batch() -> None:
    source = "losses = [get_loss(model, *batch).item() for batch in loader]\n"
    script = ScriptText("train.py", source)
    cut = evaluation_slice(script, script.tree, 1, kind, "get_loss")
    assert [v.expression for v in cut.values] == ["get_loss(model, *batch)"]
    assert cut.edits == ((1, 1, "losses = [program_values for batch in loader]"),)


def test_a_tensor_that_the_host_adds_stays_a_tensor() -> None:
    source = "for x, y in loader:\n    total += (model(x) - y).abs().sum()\n"
    script = ScriptText("train.py", source)
    cut = evaluation_slice(script, script.tree, 2, kind)
    assert [(v.expression, v.is_number) for v in cut.values] == [
        ("(model(x) - y).abs().sum()", False)
    ]
    assert cut.edits == ((2, 2, "total += program_values"),)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return model(x)", "what the model computes is returned"),
        ("y = model(x)\n    if y > 0:\n        print(y.item())", "a condition or a loop reads"),
        ("y = model(x)\n    z = load()\n    w = y + z\n    print(w.item())", "the host computes"),
        ("y = model(x)", "the host reads no value of it"),
        ("y = model(x)\n    y.backward()", "calls a method of what the model computes"),
    ],
)
def test_other_statements_are_no_evaluation_of_a_program(body: str, why: str) -> None:
    script = ScriptText("train.py", f"def f(model, x):\n    {body}\n")
    with pytest.raises(NoEvaluationError, match=why):
        evaluation_slice(script, function(script, "f"), 2, kind)


def test_a_call_that_is_a_statement_stays_on_the_host() -> None:
    """It may train: run again for its value, it would train twice."""
    source = "def f(model, x):\n    y = model(x)\n    get_loss(y, y.mean())\n"
    script = ScriptText("train.py", source)
    cut = evaluation_slice(script, function(script, "f"), 2, kind)
    assert [v.expression for v in cut.values] == ["y", "y.mean()"]


LOOP = """
import torch
from torch.utils.data import DataLoader

train_loader, val_loader = DataLoader(a, 8, shuffle=True), DataLoader(b, 8)
best = 1e9
for epoch in range(3):
    total = 0.0
    for x, y in train_loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    val_loss = 0.0
    for x, y in val_loader:
        val_loss += program_values("evaluation", x=x, y=y)
    val_loss /= len(val_loader)
    print(f"epoch {epoch}: train {total:.3f}, val {val_loss:.3f}")
    if val_loss < best:
        best = val_loss
        torch.save(model.state_dict(), "best.pt")
print("best", best)
"""


def loop_text(source: str) -> str:
    """The generator of a loop whose evaluation has the program's values."""
    script = ScriptText("train.py", source)
    at = {text: Frame(line_of(source, text), "<module>", 1) for text in ("backward", "step(")}
    calls = TrainingCalls((at["backward"],), ((at["step("],),), ())
    evaluation = (Frame(line_of(source, "program_values("), "<module>", 1),)
    trained = {("<module>", 1): ["model", "optimizer"]}
    cut = data_slice(
        script,
        calls,
        loss_slice(script, at["backward"]),
        ["x", "y"],
        trained=trained,
        evaluations=[evaluation],
    )
    return cut.text


def test_the_loop_evaluates_where_the_script_does() -> None:
    text = loop_text(LOOP)
    assert "val_loss += program_values(" in text
    assert "val_loss /= len(val_loader)" in text
    assert "best = val_loss" in text
    assert text.rstrip().endswith('print("best", best)')  # after the loop
    assert "torch.save" not in text  # left by hand


def test_a_line_with_the_training_loss_has_the_values_alone() -> None:
    text = loop_text(LOOP)
    assert "total" not in text
    assert "print('epoch', epoch, 'val_loss', val_loss)" in text


def test_batches_alone_have_no_values_of_evaluations() -> None:
    sites = [{"label": "test", "numbers": [True, True]}]
    source = 'import math\ndef batches():\n    """Yield batches."""\n    yield program_values("test", x=1)\n'
    namespace: dict[str, Any] = {}
    exec(with_evaluations(source, sites), namespace)
    assert namespace["program_values"] is namespace["unknown_values"]  # of a loop that others run
    assert all(math.isnan(x) for x in next(namespace["batches"]()))
    namespace["program_values"] = lambda name, x: [name, x]
    assert next(namespace["batches"]()) == ["test", 1]


SITES: list[Mapping[str, Any]] = [
    {"label": "test", "batches": [{"update": 4, "values": [np.float32(2.0), np.int64(3)]}]}
]


def results(*values: float, in_mode: tuple[float, ...] = (2.0, 3.0)) -> dict[str, Any]:
    return {
        "evaluation:test:0": np.array(values),
        "in evaluation mode:test:0": np.array(in_mode),
    }


def test_equal_values_are_the_same() -> None:
    [row] = compare_evaluations(results(2.0, 3.0), SITES, 5)
    assert row.same
    assert row.what == "2 values of test, after 4 updates"
    [row] = compare_evaluations(results(2.0, 3.0), SITES, 3)
    assert row.what.endswith(
        "script's weights after 4 updates (the compared updates have no evaluation)"
    )


def test_moments_whose_weights_are_unknown_are_said() -> None:
    later = {"update": 6, "values": [np.float32(1.0)]}
    sites = [{"label": "test", "batches": [*SITES[0]["batches"], later]}]
    [row] = compare_evaluations(results(2.0, 3.0), sites, 5)
    assert row.same
    assert row.what.endswith(
        "not compared: after 6 updates, the script's weights then are not known"
    )


def test_an_evaluation_in_training_mode_is_named() -> None:
    [row] = compare_evaluations(results(2.1, 3.0), SITES, 5)
    assert not row.same
    assert row.cause == TRAINING_MODE
    [row] = compare_evaluations(results(2.1, 3.0, in_mode=(2.1, 3.0)), SITES, 5)
    assert not row.cause
    [row] = compare_evaluations(results(math.nan), SITES, 5)
    assert not row.same


def test_an_evaluation_that_fails_is_not_the_script_s_nan() -> None:
    sites = [{"label": "test", "batches": [{"update": 0, "values": [math.nan]}]}]
    assert compare_evaluations(
        {"evaluation:test:0": np.array([math.nan]), "in evaluation mode:test:0": np.array([])},
        sites,
        5,
    )[0].same
    values: dict[str, Any] = {}
    asked = [{"label": "test", "inputs": {}, "batches": [{"update": 0, "inputs": {}}]}]
    module = types.SimpleNamespace(
        values_of=types.SimpleNamespace(__wrapped__=None),
        EVALUATION=None,
        evaluated=lambda *_: 1 / 0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "evaluate", module)
        evaluated(None, asked, 0, values)
    assert not compare_evaluations(values, sites, 5)[0].same


def test_a_loop_with_rollouts_has_no_evaluation() -> None:
    """Its `data.py` runs the modules itself, and takes their weights."""
    script = ScriptText("train.py", "print(test(model))\n")
    site = {"why": "", "label": "test", "line": 1, "chains": [], "edits": []}
    modeling = "class Step:\n    def test(self): ...\n"

    def cutting(rollouts: bool) -> Any:
        return lambda *_: lambda: types.SimpleNamespace(rollouts=rollouts)

    recorded = {"evaluations": [site], "modes": []}
    assert evaluations_of(script, recorded, modeling, cutting(False)).sites == (site,)
    with_rollouts = evaluations_of(script, recorded, modeling, cutting(True))
    assert not with_rollouts.sites
    assert with_rollouts.left == ((1, "the loop has rollouts, in which it runs what it trains"),)


def test_nothing_is_compared_without_an_evaluation() -> None:
    assert compare_evaluations({}, SITES, 5) == []
