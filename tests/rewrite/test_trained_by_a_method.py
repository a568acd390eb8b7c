"""Loops that train through a method of an object of which the source shows no class."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

TRAINERS = """\
import torch


class Base:
    def update(self, step, batch):
        pass


class Plain(Base):
    def __init__(self, width, device=None):
        self.device = "cuda" if device is None else device
        self.net = torch.nn.Linear(width, width).to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def update(self, step, batch):
        loss = (self.net(batch.to(self.device)) - batch.to(self.device)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
"""
TRAINING = """\
def run(data, configs):
    chosen = [config["made_by"](config["width"]) for config in configs]
    shown = {made}
    for step, batch in enumerate(data):
        for one in chosen:
            {call}
"""


def notes(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = rewrite_folder(folder)
    return [note.message for file in done.files for note in file.findings if note.rule == "step"]


def test_a_method_that_trains_is_reported(tmp_path: Path) -> None:
    text = TRAINING.format(made="{}", call="one.update(step, batch)")
    (message,) = notes(tmp_path, {"trainers.py": TRAINERS, "training.py": text})
    assert message.startswith(
        "`one.update` trains in Plain, and which class it is of is decided while"
    )


@pytest.mark.parametrize(
    ("made", "call"),
    [
        ("{}", "one.update(batch)"),  # takes no such arguments
        ("{}", "one.update(step, batch, 3)"),
        ("{}", "one.update(step, other=batch)"),
        ("{}", "one.refresh(step, batch)"),
        ("dict(a=1)", "shown.update(step, batch)"),
        ("{}, True\n    shown, more = {}, True", "shown.update(step, batch)"),
        ("{}", "shown.update(step, batch)"),
    ],
)
def test_other_calls_are_not(tmp_path: Path, made: str, call: str) -> None:
    text = TRAINING.format(made=made, call=call)
    assert not notes(tmp_path, {"trainers.py": TRAINERS, "training.py": text})


def test_a_mark_decides(tmp_path: Path) -> None:
    text = TRAINING.format(made="{}", call="one.update(step, batch)")
    text = text.replace("        for one", "        # migrate: step\n        for one")
    messages = notes(tmp_path, {"trainers.py": TRAINERS, "training.py": text})
    assert not [message for message in messages if "is decided while" in message]


def test_reads_of_the_method_are_reported(tmp_path: Path) -> None:
    text = TRAINING.format(made="{}", call="one.update(step, batch)")
    text = text.replace("        for one", "        # migrate: step\n        for one")
    (tmp_path / "training.py").write_text(text)
    (tmp_path / "trainers.py").write_text(f"{TRAINERS}        return loss.item()\n")
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path).files}
    read = 1 + len(TRAINERS.splitlines())
    assert ("XLA201", read) in [(note.rule, note.line) for note in files["trainers.py"].findings]


def test_a_class_that_trains_on_the_host_is_not(tmp_path: Path) -> None:
    text = TRAINING.format(made="{}", call="one.update(step, batch)")
    plain = TRAINERS.replace('"cuda" if device is None else device', '"cpu"')
    assert not notes(tmp_path, {"trainers.py": plain, "training.py": text})


AGENT = """\
import torch


class Agent:
    def __init__(self):
        self.model = torch.nn.Linear(4, 4).to("cuda")
        self.optim = torch.optim.Adam(self.model.parameters())

    def update(self, batches):
        self.model.train()
        states, loss = torch.empty(4, 4, device="cuda"), 0
        state = batches[0]
        for t, following in enumerate(batches[1:].unbind(0)):
            state = self.model(state)
            loss = loss + (state - following).pow(2).mean()
            states[t + 1] = state
        (loss + states.mean()).backward()
        self.optim.step()
        self.optim.zero_grad()
        self.model.eval()
        return loss.detach()
"""
STARTED = """\
import torch
from agent import Agent


class Runner:
    def __init__(self, steps, agent):
        self.steps, self.agent = steps, agent

    def train(self):
        for _ in range(self.steps):
            loss = self.agent.update(torch.rand(4, 4, 4).cuda())
        print(loss)


if __name__ == "__main__":
    Runner(3, Agent()).train()
"""


def test_a_script_beside_a_package_of_its_name(tmp_path: Path) -> None:
    for name, text in {
        "agent/__init__.py": "",
        "agent/agent.py": AGENT,
        "agent/train.py": STARTED,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path).files}
    assert b"with torch_xla.step():" in files["agent/train.py"].after
    assert b"torch_xla.step" not in files["agent/agent.py"].after


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [("train", "eval", 0), ("eval", "train", 1), ("eval", "eval", 1)],
)
def test_the_last_mode_before_a_loop_counts(
    tmp_path: Path, before: str, after: str, steps: int
) -> None:
    text = AGENT.replace("self.model.eval()", f"self.model.{after}()")
    text = text.replace("self.model.train()", f"self.model.{before}()", 1)
    text = text.replace("batches[1:].unbind(0)", "loader").replace(
        "(self, batches)", "(self, batches, loader)"
    )
    text = text.replace(
        "(loss + states.mean()).backward()\n        self.optim.step()\n", "print(loss)\n"
    )
    (tmp_path / "agent.py").write_text(text)
    (file,) = rewrite_folder(tmp_path).files
    assert file.after.count(b"with torch_xla.step():") == steps
