"""Parties of small models in this process: what the tests of the tasks compare."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from migrate.parity.align.weight_pairs import WeightPair
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.make import make_inputs
from migrate.parity.inputs.set import InputSet
from migrate.parity.judge.profiles import find_profile
from migrate.parity.sides import protocol
from migrate.parity.sides.side import ComparedSide, InProcess
from migrate.parity.tasks.party import Parties, Party, same_outputs


class Mlp(nn.Module):
    """Two linear layers with a normalization between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.two = nn.Linear(16, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.norm(self.one(x))))


class Words(nn.Module):
    """A causal model: each position sees the mean of what came before it."""

    def __init__(self, vocabulary: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, 16)
        self.inner = nn.Linear(16, 32)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.words(input_ids).cumsum(1)
        counts = torch.arange(1, input_ids.shape[1] + 1, dtype=seen.dtype)[:, None]
        return {"logits": self.head(torch.relu(self.inner(seen / counts)))}


class Image(nn.Module):
    """Its output has channels first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def torch_side(module: nn.Module, work: Path) -> ComparedSide:
    from migrate.parity.sides.torch.runner import TorchRunner

    work.mkdir(parents=True, exist_ok=True)
    return InProcess(TorchRunner(module, "torch", type(module).__name__), work)


def captured(side: ComparedSide, settings: SideSettings, inputs: InputSet, folder: Path) -> Dump:
    side.ask(protocol.Capture(settings, inputs, folder, layers=False))
    return Dump(folder)


def parties(
    a: nn.Module,
    b: nn.Module | ComparedSide,
    inputs: InputSet,
    work: Path,
    *,
    b_settings: SideSettings | None = None,
    b_outputs: tuple[TensorPair, ...] | None = None,
    b_weights: tuple[WeightPair, ...] | None = None,
    profile: str = "f32-highest",
    emulated: bool = True,
) -> Parties:
    """A is the truth's model; B another torch module, or a side of another kind."""
    side = torch_side(a, work / "a")
    other = torch_side(b, work / "b") if isinstance(b, nn.Module) else b
    b_settings = b_settings or SideSettings()
    names = (name for name, _ in a.named_parameters(remove_duplicate=False))
    weights = tuple(WeightPair(name, (name,)) for name in names)
    made = {}
    for name, (one, settings) in {
        "T": (side, TRUTH),
        "A": (side, SideSettings()),
        "B": (other, b_settings),
        "E": (side, dataclasses.replace(b_settings, transposed=())),
    }.items():
        dump = captured(one, settings, inputs, work / f"dump {name}")
        own = weights, same_outputs(dump)
        if name == "B":
            own = b_weights or weights, b_outputs or own[1]
        made[name] = Party(name, one, settings, dump, own[1], own[0])
    return Parties(
        made["A"],
        made["B"],
        made["T"],
        made["E"] if emulated else None,
        inputs,
        work,
        depth=4,
        profile=find_profile(profile),
    )


def changed(module: nn.Module, **changes: Any) -> nn.Module:
    """A copy whose parameters of these names (dots as __) are changed by a function of the value."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for name, change in changes.items():
            parameter = made.get_parameter(name.replace("__", "."))
            parameter.copy_(change(parameter))
    return made


def vectors(work: Path, count: int = 8) -> InputSet:
    return make_inputs(["x=float32[6,8]"], count, 0, work / "inputs")


def tokens(work: Path, count: int = 4) -> InputSet:
    return make_inputs(["input_ids=int64[3,20]<50"], count, 0, work / "inputs")
