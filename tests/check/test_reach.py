"""Steps are followed into the functions of other files that they call."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.finding import Finding
from migrate.check.project import Checked, check_paths

TRAIN = """
import torch
from utils.metrics import accuracy, summary


def train(model, loader, criterion, optimizer):
    for step, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        out = model(x)
        loss = criterion(out, y)
        correct = accuracy(out, y)
        loss.backward()
        optimizer.step()
    print(summary(out, y))
"""
METRICS = """
import torch


def accuracy(output, target):
    right = output.argmax(1) == target
    return share(right, len(target))


def share(right, count):
    return right.sum().item() / count


def summary(output, target):
    return output.argmax(1).eq(target).sum().item()
"""


def project(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(inspect.cleandoc(text) + "\n")


def check(*paths: Path) -> Checked:
    return check_paths(paths, Config())


def reads(checked: Checked) -> list[Finding]:
    return [one for one in checked.findings if one.code.startswith("XLA2")]


def test_a_read_in_another_file_is_inside_of_the_step_that_calls_it(tmp_path: Path) -> None:
    project(tmp_path, train=TRAIN, utils__metrics=METRICS)
    (one,) = reads(check(tmp_path))
    assert (one.path, one.line, one.code) == (tmp_path / "utils/metrics.py", 10, "XLA201")
    assert (one.severity, one.caller) == ("warning", "train.py:10")
    assert one.text == f"{one.message} (called from train.py:10)"


def test_a_script_brings_the_modules_that_it_imports(tmp_path: Path) -> None:
    project(tmp_path, train=TRAIN, utils__metrics=METRICS + "\n\nx = torch.cuda.CUDAGraph()\n")
    checked = check(tmp_path / "train.py")
    (one,) = [f for f in checked.findings if f.path != tmp_path / "train.py"]
    assert (one.path.name, one.line, one.code) == ("metrics.py", 10, "XLA201")
    assert checked.files == 2
    alone = check(tmp_path / "utils/metrics.py")
    assert [f.code for f in alone.findings] == ["XLA801"]  # nobody is known to call it


def test_a_folder_brings_the_module_that_lies_outside_of_it(tmp_path: Path) -> None:
    project(tmp_path, scripts__train=TRAIN, utils__metrics=METRICS)
    (tmp_path / "pyproject.toml").write_text("")
    (one,) = reads(check(tmp_path / "scripts"))
    assert one.caller == "scripts/train.py:10"


def test_what_is_passed_decides(tmp_path: Path) -> None:
    host = TRAIN.replace("accuracy(out, y)", "accuracy(out.cpu().numpy(), 3)")
    project(tmp_path, train=host, utils__metrics=METRICS)
    assert [(one.path.name, one.code) for one in reads(check(tmp_path))] == [("train.py", "XLA203")]
    after = TRAIN.replace("        correct = accuracy(out, y)\n", "").replace("summary", "accuracy")
    project(tmp_path, train=after)
    assert reads(check(tmp_path)) == []


def test_a_step_that_is_a_method_of_another_file(tmp_path: Path) -> None:
    project(
        tmp_path,
        engine="""
        import torch


        class Engine:
            def __init__(self, model, optimizer):
                self.model = model
                self.optimizer = optimizer

            def train_batch(self, x, y):
                loss = self.model(x.cuda(), y.cuda())
                self.worst = loss.max().item()
                loss.backward()
                self.optimizer.step()
                return loss.item()
        """,
        train="""
        from engine import Engine


        def train(model, loader, optimizer):
            engine = Engine(model, optimizer)
            for x, y in loader:
                last = engine.train_batch(x, y)
        """,
    )
    found = [(one.path.name, one.line, one.severity.value) for one in reads(check(tmp_path))]
    assert found == [("engine.py", 11, "warning"), ("engine.py", 14, "info")]
    assert {one.caller for one in reads(check(tmp_path))} == {"train.py:7"}


def test_a_forward_is_followed_too(tmp_path: Path) -> None:
    project(
        tmp_path,
        model="""
        import torch
        from boxes import overlapping


        class Head(torch.nn.Module):
            def forward(self, x):
                return overlapping(x)
        """,
        boxes="""
        import torch


        def overlapping(boxes):
            return boxes.nonzero()


        def shown(boxes):
            return boxes.nonzero()
        """,
    )
    (one,) = check(tmp_path).findings
    assert (one.path.name, one.line, one.code, one.severity) == ("boxes.py", 5, "XLA101", "warning")
    assert one.caller == "model.py:7"


def test_comments_and_configuration_hold_there_too(tmp_path: Path) -> None:
    quiet = METRICS.replace(".item() / count", ".item() / count  # migrate: ignore[XLA201]")
    project(tmp_path, train=TRAIN, utils__metrics=quiet)
    assert reads(check(tmp_path / "train.py")) == []
    project(tmp_path, utils__metrics=METRICS)
    config = Config(exclude=("utils/*",), root=tmp_path)
    assert [one.path.name for one in check_paths([tmp_path / "train.py"], config).findings] == []


TRAINER = """
import torch


class Trainer:
    def __init__(self, model, optimizer, criterion):
        self.model, self.optimizer, self.criterion = model, optimizer, criterion

    def train_step(self, x, y, step):
        out = self.model(x)
        loss = self.criterion(out, y)
        loss.backward()
        self.optimizer.step()
        if step % 10 == 0:
            print((out.argmax(1) == y).float().mean().item())
"""
LOOP = """
import torch_xla
from trainer import Trainer


def train(model, loader, criterion, optimizer):
    trainer = Trainer(model, optimizer, criterion)
    for step, (x, y) in enumerate(loader):
        x, y = x.to("xla"), y.to("xla")
        STEP
"""


def test_what_stands_below_the_update_is_in_a_step_that_a_mark_ends(tmp_path: Path) -> None:
    call = "trainer.train_step(x, y, step)"
    marked = LOOP.replace("STEP", f"with torch_xla.step():\n            {call}")
    project(tmp_path / "marked", train=marked, trainer=TRAINER)
    (one,) = reads(check(tmp_path / "marked"))
    assert (one.path.name, one.line, one.code) == ("trainer.py", 14, "XLA201")
    # Nothing ends this one: where its end will be is not known yet, and the read may stay outside.
    project(tmp_path / "unmarked", train=LOOP.replace("STEP", call), trainer=TRAINER)
    assert not reads(check(tmp_path / "unmarked"))


OPTIMIZER = """
import torch
from roots import root

KEPT = "kept"


class Kept:
    def precondition(self, gradient):
        return root(gradient)


class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.lists = MADE

    @torch.no_grad()
    def step(self, closure=None):
        for kept, group in zip(self.lists, self.param_groups):
            for p in group["params"]:
                p.sub_(group["lr"] * READ.precondition(p.grad))
"""
ROOTS = """
import torch


def root(x, epsilon: float | torch.Tensor = 0.0):
    if isinstance(epsilon, (int, float)) and epsilon == 0:
        epsilon = 1e-6
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    return x / (x.norm() + epsilon)
"""
OPTIMIZING = """
import torch
from own import Own


def train(model, loader):
    model = model.cuda()
    optimizer = Own(model.parameters(), 0.1)
    for x in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "read"),
    [
        ('[{"kept": Kept()}]', 'self.lists[0]["kept"]'),
        ("[{KEPT: Kept()}]", "self.lists[0][KEPT]"),
        ("[Kept()]", "self.lists[0]"),
        ("[{}]\n        for kept in self.lists:\n            kept[KEPT] = Kept()", "kept[KEPT]"),
        ('[{}]\n        for kept in self.lists:\n            kept["x"] = Kept()', 'kept["x"]'),
    ],
)
def test_an_object_in_a_dict_of_a_list_is_followed(tmp_path: Path, made: str, read: str) -> None:
    own = OPTIMIZER.replace("MADE", made).replace("READ", read)
    project(tmp_path, train=OPTIMIZING, own=own, roots=ROOTS)
    (found,) = check(tmp_path).findings
    assert (found.code, found.path.name, found.line) == ("XLA110", "roots.py", 7)


ROLLOUT = """
import torch


@torch.no_grad()
def rollout(policy, state):
    count = yield
    while True:
        actions = []
        for _ in range(count):
            action = policy(state)
            if action.isnan().any():
                raise ValueError("not a number")
            actions.append(action)
        count = yield torch.stack(actions)
"""
POLICY = """
import torch
from rollout import rollout


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.rollout = rollout(self.layer, torch.ones(4))

    def forward(self):
        return RESUMED.mean()
"""
RESUMES = """
import torch
from policy import Policy


def train():
    policy = Policy().cuda()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    for _ in range(9):
        policy().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("resumed", ["self.rollout.send(8)", "next(self.rollout)"])
def test_a_step_is_followed_into_a_generator_that_it_resumes(tmp_path: Path, resumed: str) -> None:
    policy = POLICY.replace("RESUMED", resumed)
    project(tmp_path, rollout=ROLLOUT, policy=policy, train=RESUMES)
    (read,) = [f for f in check(tmp_path).findings if f.code == "XLA110"]
    assert (read.path.name, read.line, read.caller) == ("rollout.py", 11, "policy.py:12")
