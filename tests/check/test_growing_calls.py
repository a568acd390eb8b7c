"""XLA115 across files: calls after which more work of the device is pending than after the call before."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

AGENT = """
import torch
import torch_xla
from noise import disturb


class Agent(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.device = torch.device("xla")
        self.net = net
        self.mean = torch.zeros(4, 8, device=self.device)

    @torch.no_grad()
    def forward(self, x):
        out = self.plan(x.to(self.device))
        LAST

    def plan(self, x):
        out = self.net(x + self.mean)
        KEEP
        return disturb(out)
"""
PLAY = """
import torch
from agent import Agent


def play(env, net):
    agent = Agent(net)
    x = env.reset()
    for _ in range(100):
        x = env.step(agent(x))
"""


# As meters share their totals: what was on the device is a list of numbers by the time it is kept.
SHARED_TOTAL = """self.total += 1.0
        t = torch.tensor([self.total], device="xla")
        t = t.tolist()
        self.total = t[0]"""


def reported(folder: Path, keep: str, noise: str, last: str) -> list[tuple[str, int, str]]:
    files = {
        "agent": AGENT.replace("KEEP", keep).replace("LAST", last),
        "play": PLAY,
        "noise": f"import torch\n\n\ndef disturb(p):\n    return {noise}",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(inspect.cleandoc(text) + "\n")
    found = check_paths([folder], Config()).findings
    return [(Path(f.path).stem, f.line, f.message) for f in found if f.code == "XLA115"]


@pytest.mark.parametrize(
    ("keep", "noise", "cause"),
    [
        ("self.mean = out.clone()", "p", "`self.mean` (Agent.plan in agent.py)"),
        (
            "mean = out * 2; self.mean = mean.clamp(-1, 1)",
            "p",
            "`self.mean` (Agent.plan in agent.py)",
        ),
        ("self.mean += out", "p", "`self.mean` (Agent.plan in agent.py)"),
        ("pass", "p + torch.randn(4, 8, device='xla')", "`torch.randn` (disturb in noise.py)"),
    ],
)
def test_the_loop_is_reported_where_nothing_ends_the_graph(
    tmp_path: Path, keep: str, noise: str, cause: str
) -> None:
    ((file, line, message),) = reported(tmp_path, keep, noise, "return out.cpu()")
    assert (file, line) == ("play", 8)
    assert message.startswith(cause)


@pytest.mark.parametrize(
    ("keep", "noise", "last"),
    [
        ("pass", "p", "return out.cpu()"),
        ("self.mean = out.cpu()", "p", "return out.cpu()"),
        ("self.last = self.last + out.to('cpu')", "p", "return out.cpu()"),
        ("self.mean = torch.ones(4, 8, device=self.device)", "p", "return out.cpu()"),
        ("self.mean = out.clone()", "p", "out = out.cpu(); torch_xla.sync(); return out"),
        ("self.mean = out.clone()", "p", "return out"),
        ("pass", "p + torch.randn(4, 8).numpy().sum()", "return out.cpu()"),
        ("self.turns = 0; self.turns += out.sum().item()", "p", "return out.cpu()"),
        ("self.rows = 0; self.rows = self.rows + len(out)", "p", "return out.cpu()"),
        (SHARED_TOTAL, "p", "return out.cpu()"),
        ("self.mean = self.mean.to(self.device)", "p", "return out.cpu()"),
    ],
)
def test_no_loop_is_reported_where_nothing_grows(
    tmp_path: Path, keep: str, noise: str, last: str
) -> None:
    assert reported(tmp_path, keep, noise, last) == []


REMADE = """
import torch
from agent import Agent


def turn(env, net):
    agent = Agent(net)
    return agent(env.reset())


def play(env, net):
    for _ in range(100):
        env.step(turn(env, net))
"""


@pytest.mark.parametrize(("called", "count"), [("__init__", 0), ("forward", 1)])
def test_a_method_of_the_constructor_makes_the_first_state(
    tmp_path: Path, called: str, count: int
) -> None:
    start = "self.mean = torch.zeros(4, 8, device=self.device)"
    text = AGENT.replace("KEEP", "pass").replace("LAST", "return out.cpu()")
    if called == "__init__":
        text = text.replace(start, f"{start}\n        self.warm()")
    else:
        text = text.replace("out = self.plan", "self.warm()\n        out = self.plan")
    text += "\n    def warm(self):\n        self.mean = self.mean * 2\n"
    (tmp_path / "agent.py").write_text(inspect.cleandoc(text) + "\n")
    (tmp_path / "noise.py").write_text("def disturb(p):\n    return p\n")
    (tmp_path / "play.py").write_text(inspect.cleandoc(REMADE) + "\n")
    found = check_paths([tmp_path], Config()).findings
    assert len([f for f in found if f.code == "XLA115"]) == count


LOOPS = """
import torch
import torch_xla


def train(model, optimizer, batches):
    for x in batches:
        with torch_xla.step():
            loss = model(x.to("xla")).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def evaluate(model, batches, device):
    for x in batches:
        noise = torch.randn(x.shape, device=device)
        print(model(noise).sum().item())
"""
EPOCHS = """
import torch
from loops import evaluate, train


def run(model, optimizer, batches):
    device = torch.device("xla")
    for epoch in range(10):
        train(model, optimizer, batches)
        evaluate(model, batches, device)
"""


@pytest.mark.parametrize(("old", "lines"), [("", [16]), ("        train(model", [7, 16])])
def test_a_training_of_another_file_ends_the_steps_of_a_turn(
    tmp_path: Path, old: str, lines: list[int]
) -> None:
    epochs = EPOCHS.replace(old, "        print(model") if old else EPOCHS
    (tmp_path / "loops.py").write_text(inspect.cleandoc(LOOPS) + "\n")
    (tmp_path / "epochs.py").write_text(inspect.cleandoc(epochs) + "\n")
    found = check_paths([tmp_path], Config()).findings
    assert sorted(f.line for f in found if f.code == "XLA115") == lines
