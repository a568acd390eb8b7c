"""Functions of a script that its loss calls: chosen, run again, and written over states."""

from __future__ import annotations

import ast
import contextlib
import functools
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from migrate.train.frames import Frame
from migrate.train.optimizer.recorded import RecordedGroup, RecordedOptimizer
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.text import ScriptText
from migrate.train.watch.calls import SeenCall, common, observe
from migrate.train.watch.constructors import Built, Constructors
from migrate.train.watch.functions import Output, PortedFunction, outputs, run, step_functions
from migrate.train.watch.step import bind, build, children, flat
from migrate.train.write.constructors import changes_model, constructor_text, makes_models
from migrate.train.write.functions import LOOP, PART, UPDATE, FunctionTexts, Role, helpers
from migrate.train.write.public import PublicNames, missing_methods
from migrate.train.write.roles import training_roles

SCRIPT = '''
import torch


class Smoother(torch.nn.Module):
    def __init__(self, epsilon, ignore=-100):
        super().__init__()
        self.epsilon: float = epsilon
        self.ignore = ignore

    def forward(self, values):
        return values.mean() * (1 - self.epsilon)


class Trainer:
    def __init__(self, model, args, data=None):
        self.model, self.args = model, args

    def compute(self, model, x):
        return model(x).sum()

    def train(self):
        pass


def score(model, x, mask):
    return (model(x)[:, 0] * mask).sum()


def preference(policy, reference, batch, beta=0.5):
    """The loss, and numbers for the log."""
    x, mask = batch
    with torch.no_grad():
        base = score(reference, x, mask)
    margin = beta * (score(policy, x, mask) - base)
    return margin, {"margin": margin.item(), "count": 1}


def _private(x):
    return x


def train_step(model, optimizer, batch, rate):
    pass
'''


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    values: dict[str, Any] = {}
    exec(compile(SCRIPT, "toy.py", "exec"), values)
    torch.manual_seed(0)
    values["policy"], values["reference"] = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
    values["smoother"], values["trainer"] = values["Smoother"](0.1), None
    values["trainer"] = values["Trainer"](values["policy"], None)
    values["batch"] = (torch.randn(4, 3), torch.ones(4))
    return values


TEXT = """loss, metrics = preference(policy, reference, batch)
loss = loss + smoother(batch[0]) + trainer.compute(policy, _private(batch[0]))"""


@pytest.fixture(scope="module")
def functions(
    namespace: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, PortedFunction]:
    free = ("policy", "reference", "smoother", "trainer", "batch")
    bound = bind(free, namespace)
    modules = children(bound, [namespace["policy"], namespace["reference"]])
    file = tmp_path_factory.mktemp("step") / "step.py"
    step: Any = build(bound, TEXT, "loss", namespace, modules, file)
    tensors = flat(bound, bound.data)
    *_, live = observe(step, tensors, "toy.py")
    chosen = step_functions(live, dict(step.named_children()), bound.objects, ("score",))
    described = []
    for function in chosen:
        found = outputs(run(function, function.tensors(), dict(step.named_children()), step.named))
        assert found is not None
        values = {**function.__dict__, "result": found[0]}
        described.append(PortedFunction(**values))
    again: Any = build(bound, TEXT, "loss", namespace, modules, file, described)
    for function in described:  # methods of the step give what the functions give
        found = outputs(run(function, function.tensors(), dict(step.named_children()), step.named))
        given = getattr(again, function.method)(**function.tensors())
        first = given[0] if isinstance(given, tuple) else given
        assert found is not None
        torch.testing.assert_close(first, found[1][0])
    return {function.qualified: function.recorded() for function in described}


def test_public_functions_with_tensors_are_methods(functions: dict[str, PortedFunction]) -> None:
    assert {name: f.method for name, f in functions.items()} == {
        "preference": "preference",
        "score": "score_of_script",
        "Smoother.forward": "smoother",
        "Trainer.compute": "compute",
    }
    score = functions["score"]
    assert score.arguments["model"] == ("module", "policy")  # the trained one
    assert score.inputs == {("x", ()): "x", ("mask", ()): "mask"}
    assert functions["preference"].result == (Output(0), {"margin": Output(1), "count": 1})


@pytest.fixture(scope="module")
def texts(functions: dict[str, PortedFunction]) -> FunctionTexts:
    step = SeenCall(
        "train_step",
        line_of("def train_step"),
        {
            "model": ("module", "policy"),
            "optimizer": ("other", None),
            "batch": ("data", {}),
            "rate": ("plain", 0.5),
        },
    )
    train = SeenCall(
        "Trainer.train", line_of("    def train("), {"self": ("other", None)}, held=("model",)
    )
    roles = {"train_step": Role(UPDATE, step), "Trainer.train": Role(LOOP, train)}
    return FunctionTexts(
        ScriptText("toy.py", SCRIPT), list(functions.values()), roles, ["batch"], {}, {}
    )


def test_functions_take_states_and_refuse_other_numbers(texts: FunctionTexts) -> None:
    calls: list[Any] = []

    def called(method: str, state: Any, states: Any, inputs: Any) -> Any:
        calls.append((method, state, states, inputs))
        return (1.0, 2.0) if method == "preference" else 1.0

    def step(state: Any, micro: Any) -> Any:
        return state, micro

    namespace: dict[str, Any] = {"functools": __import__("functools")}
    exec(helpers(), namespace)

    def require(name: str, value: Any, expected: Any) -> None:
        if value != expected:
            raise ValueError(name)

    namespace |= {"_called": called, "_fresh": lambda: "fresh", "step": step, "_require": require}
    for node in ast.parse(SCRIPT).body:
        if isinstance(node, ast.FunctionDef):
            exec(texts.function(node), namespace)
        elif isinstance(node, ast.ClassDef):
            exec(texts.class_(node), namespace)
    assert "_private" not in namespace
    result = namespace["preference"]("p", "r", ("x", "m"))
    assert result == (1.0, {"margin": 2.0, "count": 1})
    assert calls[-1] == (
        "preference",
        "fresh",
        {"policy": "p", "reference": "r"},
        {"batch_0": "x", "batch_1": "m"},
    )
    with pytest.raises(ValueError, match="beta"):
        namespace["preference"]("p", "r", ("x", "m"), beta=0.1)

    assert namespace["Smoother"](0.1)("v") == 1.0
    with pytest.raises(ValueError, match=r"self\.epsilon"):
        namespace["Smoother"](0.2)("v")

    trainer = namespace["Trainer"]("state", None)
    assert (trainer.state, trainer.compute("s", "x")) == ("state", 1.0)
    with pytest.raises(ValueError, match="has its own data"):
        namespace["Trainer"]("state", None, [1])

    assert namespace["train_step"]("s", None, "b", 0.5) == ("s", [{"batch": "b"}])
    with pytest.raises(ValueError, match="has its own optimizer"):
        namespace["train_step"]("s", "adam", "b", 0.5)


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.startswith(text))


def test_values_that_change_from_update_to_update_are_the_programs_own() -> None:
    first = [SeenCall("f", 1, {"rate": ("plain", 0.1), "clip": ("plain", 1.0)})]
    later = [SeenCall("f", 1, {"rate": ("plain", 0.2), "clip": ("plain", 1.0)})]
    (call,) = common(first, later)
    assert call.arguments == {"rate": ("other", None), "clip": ("plain", 1.0)}


PARTS = """
class Trainer:
    def __init__(self, model, *, beta=0.1, **options):
        self.model, self.beta = model, beta

    def step(self, seen, count=2):
        for _ in range(count):
            yield seen

    @staticmethod
    def scores(seen):
        return seen


def learn(agent, optimizer, buffer):
    for row in buffer:
        yield row
        hand_over({"agent": agent})
"""


def test_a_function_that_trains_at_each_call_trains_on_its_own_batches() -> None:
    script = ScriptText("toy.py", PARTS)
    own = {node.name: node for node in script.tree.body}  # type: ignore[attr-defined]
    step = SeenCall("Trainer.step", 6, dict.fromkeys(("self", "seen", "count"), ("other", None)))
    kinds = {"agent": ("module", "agent"), "optimizer": ("other", None), "buffer": ("other", None)}
    roles = {
        "Trainer.step": Role(PART, step),
        "learn": Role(PART, SeenCall("learn", 15, kinds)),
    }
    texts = FunctionTexts(script, [], roles, ["row"], own, {}, rollouts=True)
    data: Any = types.SimpleNamespace(
        WEIGHTS=[], Ended=KeyError, command_line=contextlib.nullcontext, arrays=lambda x: x
    )
    exec(PARTS, vars(data))
    train: Any = types.SimpleNamespace(train_step=lambda state, micro: (f"{state}'",))
    namespace: dict[str, Any] = {"functools": functools, "contextlib": contextlib}
    exec(helpers(), namespace)
    namespace |= {"_data": data, "_train": train, "_fresh": lambda: "first"}
    for node in own.values():
        text = texts.class_(node) if isinstance(node, ast.ClassDef) else texts.function(node)
        exec(text, namespace)
    data.hand_over = lambda modules: modules["agent"].load_state_dict({})
    trainer = namespace["Trainer"]("model", beta=0.2, more=1)
    assert trainer.step(None, count=3) == trainer.state == "first'''"
    assert trainer._of_data.beta == 0.2
    assert namespace["Trainer"].scores(4) == 4
    assert namespace["learn"]("state", None, [None, None]) == "state''"
    with pytest.raises(ValueError, match="its own optimizer"):
        namespace["learn"]("state", "adam", [None])


MODELS = """
class Adapter(nn.Module):
    def __init__(self, linear, rank, dropout=0.0):
        super().__init__()


def add_adapters(model):
    return model


def build(config, deep=False):
    return Net(config)


def pair():
    return Net(1), Net(1)


def other(config):
    return 1


def main():
    policy, reference = build(config), build(config).eval()
    policy = add_adapters(policy)
    width = other(policy)
    model, base = pair()
"""


def test_functions_that_make_or_change_the_model_give_states() -> None:
    script = ScriptText("toy.py", MODELS)
    nodes = {n.name: n for n in script.tree.body if isinstance(n, ast.FunctionDef)}
    modules = dict.fromkeys(("policy", "reference", "model", "base"), "Net")
    namespace: dict[str, Any] = {"functools": __import__("functools")}
    exec(helpers(), namespace)
    namespace["_fresh"] = lambda: "state"
    exec(makes_models(script, nodes["build"], modules), namespace)
    exec(makes_models(script, nodes["pair"], modules), namespace)
    exec(changes_model(script, nodes["add_adapters"], modules), namespace)
    assert namespace["build"](None) == namespace["build"](None, False) == "state"
    assert namespace["pair"]() == ("state", "state")
    assert namespace["add_adapters"]("other") == "other"
    with pytest.raises(ValueError, match="its own config"):
        namespace["build"]({})
    assert makes_models(script, nodes["other"], modules) == ""
    assert changes_model(script, nodes["other"], modules) == ""


def test_a_constructor_takes_sizes_from_a_module_and_refuses_other_numbers() -> None:
    (node,) = (n for n in ast.parse(MODELS).body if isinstance(n, ast.ClassDef))
    flax = ast.parse("class Adapter:\n    config: StepConfig\n    features: int\n").body[0]
    arguments = {
        "self": ("other", None),
        "linear": ("other", None),
        "rank": ("plain", 4),
        "dropout": ("plain", 0.0),
    }
    built = Built(SeenCall("Adapter", 3, arguments), {"linear": ("out_features",)})
    namespace: dict[str, Any] = {
        "StepConfig": lambda: "config",
        "_model": SimpleNamespace(Adapter=dict),
    }

    def require(name: str, value: Any, expected: Any) -> None:
        if value != expected:
            raise ValueError(name)

    namespace["_require"] = require
    exec(constructor_text(node, built, flax), namespace)
    linear = nn.Linear(2, 3)
    assert namespace["Adapter"](linear, 4) == {"config": "config", "features": 3}
    with pytest.raises(ValueError, match="rank"):
        namespace["Adapter"](linear, 5)
    assert constructor_text(node, Built(built.call, {}), flax) == ""
    assert constructor_text(node, None, flax) == ""


def test_a_step_that_unpacks_its_batch_takes_the_batch(
    functions: dict[str, PortedFunction],
) -> None:
    arguments = {"model": ("module", "policy"), "optimizer": ("other", None), "batch": ("data", {})}
    step = SeenCall("train_step", line_of("def train_step"), {**arguments, "rate": ("plain", 0.5)})
    roles = {"train_step": Role(UPDATE, step)}
    script = ScriptText("toy.py", SCRIPT)
    parts = {"x": "batch[0]", "y": "batch[1]"}
    node = next(n for n in script.tree.body if getattr(n, "name", "") == "train_step")
    assert isinstance(node, ast.FunctionDef)
    text = FunctionTexts(script, [], roles, ["x", "y"], {}, parts).function(node)
    assert "step(model, [{'x': batch[0], 'y': batch[1]}])" in text
    assert "'batch'" not in text  # it is taken
    assert not FunctionTexts(script, [], roles, ["x", "z"], {}, parts).function(node)


APART = """
class Trainer:
    def __init__(self, model):
        self.model = model

    def backward(self, batch):
        self.model(batch).mean().backward()

    def update(self):
        self.optimizer.step()

    def fit(self, loader):
        for batch in loader:
            self.backward(batch)
            self.update()
"""


def test_an_object_updates_by_the_gradients_of_its_other_method() -> None:
    script = ScriptText("toy.py", APART)
    backward = (Frame(7, "backward", 6), Frame(14, "fit", 12))
    step = (Frame(10, "update", 9), Frame(15, "fit", 12))
    seen = SeenCall(
        "Trainer.backward", 6, {"self": ("other", None), "batch": ("data", {})}, held=("model",)
    )
    recorded = {"frames": [seen], "updates": [{"micro": [{}, {}]}]}
    roles = training_roles(script, TrainingCalls(backward, (step,), ()), recorded)
    assert {name: role.kind for name, role in roles.items()} == {
        "Trainer.backward": "gradient",
        "Trainer.update": "apply",
    }
    (node,) = script.tree.body
    assert isinstance(node, ast.ClassDef)
    text = FunctionTexts(script, [], roles, ["batch"], {}, {}).class_(node)
    namespace: dict[str, Any] = {
        "loss_and_gradients": lambda state, batch: (state, batch),
        "step": lambda state, micro: (f"{state}'", [batch["batch"] for batch in micro]),
    }
    exec(text, namespace)
    trainer = namespace["Trainer"]("first")
    assert trainer.backward(1) == ("first", {"batch": 1})
    trainer.backward(2)
    assert trainer.update() == ("first'", [1, 2])
    assert trainer.state == "first'"
    trainer.backward(3)
    assert trainer.update() == ("first''", [3])
    assert missing_methods(node, text) == ["fit"]


GROUPS = """
def groups_of(model, decay, left_out=("bias",)):
    return [
        {"params": [p for n, p in model.named_parameters() if n not in left_out], "weight_decay": decay},
        {"params": [p for n, p in model.named_parameters() if n in left_out], "weight_decay": 0.0},
    ]


def other(model):
    return [{"params": model.parameters()}]


groups = groups_of(model, args.decay)
optimizer = torch.optim.AdamW(groups, lr=0.1)
"""


def test_a_function_that_makes_the_groups_of_the_optimizer_gives_them() -> None:
    script = ScriptText("toy.py", GROUPS)
    groups = (
        RecordedGroup(("model.weight",), {"lr": 0.1, "weight_decay": 0.5}),
        RecordedGroup(("model.bias",), {"lr": 0.1, "weight_decay": 0.0}),
    )
    optimizer = RecordedOptimizer("torch.optim.adamw.AdamW", groups, ((0.1, 0.1),), line=14)
    facts: Any = SimpleNamespace(starts=False)
    nothing: Any = None
    names = PublicNames(script, nothing, facts, {"optimizer": optimizer}, nothing, nothing)
    first, other = script.tree.body[:2]
    assert isinstance(first, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert not names._groups(other)
    several = PublicNames(script, nothing, facts, {}, nothing, nothing)  # one optimizer an update
    assert not several._groups(first)

    def require(name: str, value: Any, expected: Any) -> None:
        if value != expected:
            raise ValueError(name)

    namespace: dict[str, Any] = {"_require": require, "_absent": require}
    exec(names._groups(first), namespace)
    assert namespace["groups_of"]("state", 0.5) == [
        {"params": ["model.weight"], "weight_decay": 0.5},
        {"params": ["model.bias"], "weight_decay": 0.0},
    ]
    with pytest.raises(ValueError, match="decay"):
        namespace["groups_of"]("state", 0.1)


def test_a_method_that_gives_the_learning_rate_is_in_the_interface() -> None:
    source = """
class Trainer:
    def __init__(self, model):
        self.model = model

    def train(self):
        pass

    def rate(self, step):
        return min(1.0, step / 10)
"""
    (node,) = ScriptText("toy.py", source).tree.body
    assert isinstance(node, ast.ClassDef)
    train = SeenCall("Trainer.train", 6, {"self": ("other", None)}, held=("model",))
    for line, there in ((9, True), (10, False)):
        texts = FunctionTexts(
            ScriptText("toy.py", source),
            [],
            {"Trainer.train": Role(LOOP, train)},
            [],
            {},
            {},
            rates={line: ("rate", ["step"])},
        )
        text = texts.class_(node)
        assert ("return _optimizer.rate(step)" in text) is there
        assert missing_methods(node, text) == ([] if there else ["rate"])


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 2)


class _Net(_Layer):
    def __init__(self, width: int, rates: tuple[float, ...] = (0.1, 0.2)) -> None:
        super().__init__(2 * width)


def test_a_step_knows_what_the_constructors_of_its_modules_were_called_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Module, "__init__", nn.Module.__init__)  # it is put back afterwards
    constructors = Constructors()
    constructors.follow()
    step = nn.Module()
    step.net = _Net(3)
    seen = constructors.arguments(step)
    assert seen["net"] == {"width": 3, "rates": (0.1, 0.2)}
    assert (seen["net.fc"]["in_features"], seen["net.fc"]["bias"]) == (6, True)
