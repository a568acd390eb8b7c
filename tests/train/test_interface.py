"""`interface.py` of a written program: torch's names both ways, and the script's functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.t2j import judge, tasks
from converters.kept import kept_path
from migrate.port.weights import MAPPING, PARAMS, write_weights
from migrate.train.frames import Frame
from migrate.train.optimizer.recorded import RecordedOptimizer
from migrate.train.options import TrainOptions
from migrate.train.pipeline import train_program
from migrate.train.proof.outputs_child import nearest
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import SeenCall, observe
from migrate.train.watch.gate import contained_parts
from migrate.train.write.interface import KEPT, Interface, interface_text, outputs_text, state_text
from migrate.train.write.readme import evaluation_row
from migrate.train.write.texts import (
    CARRIED,
    ProgramFacts,
    carried_text,
    loss_text,
    train_text,
)

SCRIPT = """
def get_loss(model, x, y, scale=2.0):
    return ((model(x) - y) ** 2).mean() * scale


def make_optimizer(model, lr):
    return torch.optim.SGD(model.parameters(), lr)


def rate(it, total):
    return 1 - it / total


def evaluate(model):
    return 0
"""
LOSS = """
import jax.numpy as jnp
from flax import linen as nn
from model import Net


class StepConfig:
    pass


class Step(nn.Module):
    config: StepConfig

    def setup(self):
        self.model = Net()

    def __call__(self, x, y):
        return ((self.model(x) - y) ** 2).mean() * 2.0 / 4
"""
MODEL = """
from flax import linen as nn


class Net(nn.Module):
    def setup(self):
        self.first = nn.Dense(2)

    def __call__(self, x):
        return nn.tanh(self.first(x))
"""
OPTIMIZER = """
import optax

total = 8
optimizer = optax.sgd(0.5)


def rate(it):
    return 1 - it / total


def learning_rate_of(count):
    return 0.5
"""
FACTS = ProgramFacts(
    "toy.py",
    9,
    {"x": ("x", ()), "y": ("y", ())},
    takes_mode=False,
    training=True,
    streams=(),
    statistics=False,
    frozen=(),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.tied = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.first(x))


class Step(nn.Module):
    def __init__(self, get_loss: Any) -> None:
        super().__init__()
        self.model, self.get_loss = Net(), get_loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.get_loss(self.model, x, y) / 4
        return loss


class Toy:
    """A program written by hand, with its interface.

    Args:
        folder: receives it.
    """

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        namespace: dict[str, Any] = {"torch": torch}
        exec(compile(SCRIPT, "toy.py", "exec"), namespace)
        self.step = Step(namespace["get_loss"])
        self.batch = {"x": torch.randn(4, 3), "y": torch.randn(4, 2)}
        self.recorded = recorded = self.record()
        weights = write_weights(self.step, "program", {}, [(4, 3)], folder, folder)
        kept_path(folder / PARAMS).rename(folder / KEPT)
        assert (folder / MAPPING).exists()
        sources = {
            "loss.py": loss_text(LOSS, FACTS),
            "model.py": MODEL,
            "optimizer.py": OPTIMIZER,
            "train.py": train_text(FACTS),
            "data.py": "def batches():\n    yield from ()\n",
        }
        trained = set(recorded["gradients"]) & set(weights.paths)
        places = [("model", "__call__", 0)] if recorded["outputs"] else []
        self.interface: Interface = interface_text(
            ScriptText("toy.py", SCRIPT),
            slice_of("loss = get_loss(model, x, y) / steps"),
            FACTS,
            recorded,
            trained,
            sources,
            places,
        )
        carried = {name: carried_text(name) for name in CARRIED}
        written = {**sources, **carried, "interface.py": self.interface.text}
        for name, source in written.items():
            (folder / name).write_text(source)

    def record(self) -> dict[str, Any]:
        self.loss = self.step(**self.batch)
        self.loss.backward()
        outputs, calls, _ = observe(self.step, self.batch, "toy.py")
        return {
            "gradients": {n: p.grad for n, p in self.step.named_parameters()},
            "children": {"model": "Net"},
            "state": self.step.state_dict(),
            "outputs": outputs,
            "calls": calls,
            "builder": SeenCall(
                "make_optimizer", 6, {"model": ("module", ""), "lr": ("plain", 0.5)}
            ),
            "optimizer": RecordedOptimizer("torch.optim.SGD", (), (), line=7),
            "inputs": FACTS.inputs,
        }


def slice_of(text: str) -> LossSlice:
    return LossSlice(
        Frame(9, "<module>", 1), 8, ((8, 8),), text, "loss", ("model", "x", "y", "steps")
    )


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture
def program(toy: Toy, tmp_path: Path) -> Iterator[Any]:
    with judge.loaded(tmp_path) as get_program:
        yield get_program()


def test_weights_loss_outputs_and_gradients_have_torchs_names(toy: Toy, program: Any) -> None:
    weights = {name: value.numpy() for name, value in toy.step.model.state_dict().items()}
    other = {name: value + 1 for name, value in weights.items()}
    state = program.load({"model": other, "average": {}})
    assert_same(program.weights(state)["model"], other)

    state = program.load({"model": weights})
    batch = {name: value.numpy() for name, value in toy.batch.items()}
    loss, gradients = program.loss_and_gradients(state, batch)
    assert float(loss) == pytest.approx(toy.loss.item(), rel=1e-6)
    expected = {
        n: p.grad.numpy() for n, p in toy.step.model.named_parameters() if p.grad is not None
    }
    assert_same(gradients["model"], expected)
    (output,) = program.outputs(state, batch)
    np.testing.assert_allclose(output, toy.recorded["outputs"][0], rtol=1e-5, atol=1e-6)

    state, report = program.step(state, [batch, batch])
    assert (len(report["losses"]), report["learning_rate"]) == (2, 0.5)
    moved = {n: weights[n] - 0.5 * 2 * expected[n] for n in expected}
    assert_same({n: program.weights(state)["model"][n] for n in moved}, moved)


def test_functions_of_the_script_keep_their_parameters(toy: Toy, program: Any) -> None:
    assert toy.interface.names == ("get_loss", "make_optimizer", "rate")
    assert [line.partition(":")[0] for line in toy.interface.missing] == ["evaluate"]
    weights = {name: value.numpy() for name, value in toy.step.model.state_dict().items()}
    state = program.load({"model": weights})
    x, y = toy.batch["x"].numpy(), toy.batch["y"].numpy()
    assert float(program.get_loss(state, x, y)) == pytest.approx(4 * toy.loss.item(), rel=1e-6)
    with pytest.raises(ValueError, match=r"written for scale=2\.0, not 3\.0"):
        program.get_loss(state, x, y, scale=3.0)
    assert program.rate(2, 8) == 0.75
    with pytest.raises(ValueError, match="written for total=8"):
        program.rate(2, 9)
    assert program.make_optimizer(state, 0.5).update
    with pytest.raises(ValueError, match=r"written for lr=0\.5"):
        program.make_optimizer(state, 0.1)
    with pytest.raises(ValueError, match="site is 0"):
        program.outputs(state, {}, 1)


EVALUATING = """
@torch.no_grad()
def validate(model, loader):
    return [model(x).sum().item() for x in loader]
"""


def test_a_function_that_evaluates_takes_a_state(toy: Toy) -> None:
    script = ScriptText("toy.py", SCRIPT + EVALUATING)
    first = next(n for n, line in enumerate(script.lines, 1) if "no_grad" in line)
    chain = (Frame(first + 2, "validate", first), Frame(99, "<module>", 1))
    site = {"chains": [chain], "modules": ["model"]}
    data = """
program_values = None
def validate(model, loader):
    return [program_values("validate", x=x) for x in loader]
"""
    sources = {"data.py": data, "model.py": MODEL, "optimizer.py": OPTIMIZER}
    facts = replace(FACTS, evaluations=(site,))
    arguments: Any = (slice_of("loss = f(x)"), facts, toy.recorded, set(), sources, [])
    interface = interface_text(script, *arguments)
    assert "validate" in interface.names
    assert "from evaluate import Evaluations" in interface.text
    module = SimpleNamespace()
    exec(data, module.__dict__)

    def evaluations(state: Any, values: list[Any], before: Any) -> Any:
        return lambda name, x: (state, name, x)

    names: dict[str, Any] = {"_data": module, "Evaluations": evaluations, "contextlib": contextlib}
    written = interface.text[interface.text.index("@contextlib.contextmanager") :]
    exec(written, names)
    assert names["validate"]("a state", [1, 2]) == [
        ("a state", "validate", 1),
        ("a state", "validate", 2),
    ]
    assert module.program_values is None
    elsewhere = replace(FACTS, evaluations=({**site, "modules": ["another"]},))
    other = interface_text(script, arguments[0], elsewhere, *arguments[2:])
    assert any("evaluate.py computes it" in line for line in other.missing)


@pytest.mark.parametrize(
    "text",
    [
        "loss = get_loss(model, x, y) / len(x)",
        "n = x.shape[0]\nloss = get_loss(model, x, y) / n",
        "loss = get_loss(model, x, y)\nloss = loss / 4",
        "loss = torch.log(get_loss(model, x, y))",
    ],
)
def test_a_loss_that_is_no_multiple_of_the_function_is_left_out(toy: Toy, text: str) -> None:
    files = {"data.py": "", "model.py": "", "optimizer.py": ""}
    interface = interface_text(
        ScriptText("toy.py", SCRIPT), slice_of(text), FACTS, toy.recorded, (), files, [None]
    )
    assert "get_loss" not in interface.names
    assert interface.missing[0].startswith("outputs: ")
    assert "def outputs" not in interface.text


def test_outputs_that_nobody_could_look_for_are_missing_with_the_cause(toy: Toy) -> None:
    files = {"data.py": "", "model.py": "", "optimizer.py": ""}
    loss = slice_of("loss = get_loss(model, x, y)")
    arguments = (ScriptText("toy.py", SCRIPT), loss, FACTS, toy.recorded, (), files, [])
    interface = interface_text(*arguments, "the search for them failed (ValueError)")
    assert interface.missing[0] == "outputs: the search for them failed (ValueError)"


def test_a_factor_is_there_only_for_multiples(toy: Toy) -> None:
    (call,) = toy.recorded["calls"]
    assert (call.function, call.factor) == ("get_loss", 0.25)
    assert call.arguments["y"] == ("data", {(): "y"})
    step: Any = toy.step
    step.forward = lambda x, y: step.get_loss(step.model, x, y) ** 2
    _, (call,), _ = observe(step, toy.batch, "toy.py")
    assert call.factor is None


def test_the_outermost_equal_value_is_the_output() -> None:
    array = np.arange(1.0, 5.0)
    values = [(["model", "head", 0], array), (["model", 0], array * (1 + 1e-6)), (["x"], array + 1)]
    assert nearest(values, array) == ["model", 0]
    assert nearest(values, array * 2) is None


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.long
def test_the_judge_passes_a_program_as_it_is_written(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "t2j" / "scripts" / "llama_sft.py"
    place = tmp_path / "program"
    train_program(TrainOptions(script, place, proof=False), "", lambda _: None)  # type: ignore[arg-type]
    recording, precise = judge.record(script, tasks.read_task(script))
    verdicts = judge.judge(place, script, recording, precise)
    assert [verdict.passed for verdict in verdicts] == [True, True, True], verdicts


def test_outputs_of_a_form_are_those_of_its_own_method() -> None:
    text = (
        "def captured(more):\n"
        + outputs_text("PLACES", forms=True)
        + "    return captured(batch)\n"
    )
    namespace: dict[str, Any] = {"PLACES": [("model", "net", "__call__", 0)]}
    exec(text, namespace)
    for method in ("__call__", "call_1"):
        batch = {"intermediates": {"model": {"net": {"inner": {"__call__": (1,)}, method: (7,)}}}}
        assert namespace["outputs"](None, batch) == [7]


def test_weights_may_have_the_names_of_a_containers_parts(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    state = SimpleNamespace(params=seen, variables={})
    namespace: dict[str, Any] = {
        "MODULES": ("model",),
        "PARTS": {"policy": "model.policy", "reference": "model.reference"},
        "_modules": {"model": "model"},
        "_HERE": tmp_path,
        "_folder": tmp_path,
        "_kept": None,
        "_train": SimpleNamespace(PARAMS="params", load=lambda output: state),
        "convert": lambda source, **_: seen.update(torch.load(source)),
        "kept_path": lambda output: output,
        "load_file": lambda file: {},
        "save_file": lambda arrays, file: None,
        "by_torch_names": lambda tree, kept: tree["params"],
        "torch": torch,
        "np": np,
    }
    contained = {"policy": "model.policy", "reference": "model.reference"}
    exec(state_text(None, others=False, contained=contained), namespace)
    named = {"policy": {"w": np.ones(2)}, "reference": {"w": np.zeros(2)}}
    whole = {"model": {f"{part}.w": x["w"] for part, x in named.items()}}
    for weights in (named, whole):
        seen.clear()
        found = namespace["weights"](namespace["load"](weights))
        assert set(seen) == {"model.policy.w", "model.reference.w"}
        assert {m: set(arrays) for m, arrays in found.items()} == {
            m: set(arrays) for m, arrays in weights.items()
        }
    with pytest.raises(KeyError, match="no weights of the module reference"):
        namespace["load"]({"policy": {"w": np.ones(2)}})


def test_parts_of_a_module_that_holds_nothing_beside_them() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.reference, self.act = nn.Linear(2, 2), nn.Linear(2, 2), nn.Tanh()

    step = nn.Module()
    step.model, step.other = Pair(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert contained_parts(step) == {}  # a library's class
    Pair.__module__ = "__main__"
    assert contained_parts(step) == {"policy": "model.policy", "reference": "model.reference"}
    step.policy = nn.Linear(2, 2)
    assert contained_parts(step) == {}  # two names for one thing


def test_the_readme_names_the_line_of_an_evaluation_not_of_its_caller() -> None:
    script = ScriptText("toy.py", SCRIPT)
    chains = [(Frame(12, "validate", 9), Frame(99, "<module>", 1))]
    assert evaluation_row(script, {"label": "validate", "chains": chains})[0] == "toy.py:12"
