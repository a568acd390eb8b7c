"""A side in a process of its own: what it answers, and how it ends when the user's code ends it."""

import sys

import numpy as np
import pytest

from migrate.parity.dump.dump import Dump
from migrate.parity.ground.errors import ParityError, SideDiedError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides import protocol
from migrate.parity.sides.process import SideProcess, Turns
from migrate.parity.sides.target import parse_target
from tests.waiting import LIMIT

MODEL = """
import os
import signal
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        how = int(x[0, 0])
        if how == 1:
            print("about to go", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == 2:
            time.sleep(600)
        if how == 3:
            raise ValueError("not three")
        return self.layer(x)


def broken():
    raise RuntimeError("no such file: weights.bin")


number = 3
"""


@pytest.fixture
def side(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    target = parse_target(f"{tmp_path / 'net.py'}:Net")
    with SideProcess("A", target, tmp_path, Turns(), timeout=LIMIT) as started:
        yield started


def inputs(folder, first):
    x = np.ones((4, 3), np.float32)
    x[0, 0] = first
    return write_inputs(folder / f"inputs{first}", [{"x": x}])


def test_a_side_answers_dies_and_starts_again(side, tmp_path):
    assert side.kind == "torch"
    weights = tmp_path / "weights.safetensors"
    side.ask(protocol.SaveWeights(weights))
    side.ask(protocol.LoadWeights(weights))
    side.ask(protocol.Capture(SideSettings(), inputs(tmp_path, 0), tmp_path / "dump"))

    with pytest.raises(ParityError, match=r"^side A: .*ValueError.*not three"):
        side.ask(protocol.Capture(SideSettings(), inputs(tmp_path, 3), tmp_path / "raises"))
    assert not (tmp_path / "raises" / "dump.json").exists()

    with pytest.raises(SideDiedError, match=r"side A .*its process ended.*SIGSEGV") as died:
        side.ask(protocol.Capture(SideSettings(), inputs(tmp_path, 1), tmp_path / "dies"))
    assert "about to go" in died.value.output
    # It starts again, with the weights that it was given.
    again = tmp_path / "again.safetensors"
    side.ask(protocol.SaveWeights(again))
    assert again.read_bytes() == weights.read_bytes()

    side._timeout = 3.0
    with pytest.raises(SideDiedError, match=r"side A .*no answer within 3 s .*--timeout"):
        side.ask(protocol.Capture(SideSettings(), inputs(tmp_path, 2), tmp_path / "hangs"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "building the model failed .*no such file: weights.bin"),
        ("number", "is a int, no model"),
        ("missing", "has no missing"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(tmp_path, name, message):
    (tmp_path / "net.py").write_text(MODEL)
    target = parse_target(f"{tmp_path / 'net.py'}:{name}")
    with pytest.raises(ParityError, match=message) as told:
        SideProcess("B", target, tmp_path, Turns(), timeout=LIMIT).start()
    assert "\n" not in str(told.value)


def test_another_interpreter_sees_only_our_packages(tmp_path):
    side = SideProcess("A", parse_target("net:Net"), tmp_path, Turns(), python=sys.executable)
    assert (
        "PYTHONPATH" not in side._variables() or "packages-" not in side._variables()["PYTHONPATH"]
    )
    other = SideProcess("A", parse_target("net:Net"), tmp_path, Turns(), python="/elsewhere/python")
    (folder,) = tmp_path.glob("packages-*") if other._variables() else ()
    assert sorted(path.name for path in folder.iterdir()) == ["converters", "migrate", "shims"]


ORDERED = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        made = {}
        for word in {"local", "global", "full", "chunked", "linear"}:
            made[word] = self.layer(x * len(word))
        return made["global"]
"""


def test_both_sides_go_through_a_set_in_one_order(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "net.py").write_text(ORDERED)
    target = parse_target(f"{tmp_path / 'net.py'}:Net")
    given, found = inputs(tmp_path, 1), []
    for label in "AB":
        with SideProcess(label, target, tmp_path, Turns(), timeout=LIMIT) as started:
            started.ask(protocol.Capture(SideSettings(), given, tmp_path / label))
        dump = Dump(tmp_path / label)
        calls = [call for call in dump.calls if call.layer == "layer"]
        found.append([float(dump.tensor(call.arguments[0])[0, 0]) for call in calls])
    assert len(found[0]) == 5
    assert found[0] == found[1]
