"""Small torch models, and what the tests of the torch side ask of dumps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.parity.sides.capture import capture_into
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.torch.runner import TorchRunner


class Block(nn.Module):
    """One of the layers of `Deep`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Deep(nn.Module):
    """Four blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Convolutions(nn.Module):
    """BatchNorm, ReLU in place, once with its result unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.relu, self.last = (
            nn.Conv2d(8, 8, 3),
            nn.ReLU(inplace=True),
            nn.Linear(8, 4),
        )

    def forward(self, x: Any) -> Any:
        x = self.relu(self.norm(self.first(x)))
        x = self.second(x)
        self.relu(x)
        return self.last(x.mean((2, 3)))


class Recurrent(nn.Module):
    """A dictionary of outputs; a module that draws at random in train()."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(12, 5)
        self.lstm = nn.LSTM(8, 12, num_layers=2, batch_first=True, dropout=0.5)

    def forward(self, ids: Any) -> Any:
        y, (h, _) = self.lstm(self.embed(ids))
        return {"logits": self.out(y), "state": (h,)}


class Attention(nn.Module):
    """A module whose weights are used past its forward pass (`out_proj`)."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.norm(x + self.attend(x, x, x, key_padding_mask=mask)[0])


class Reused(nn.Module):
    """One module, three calls."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = torch.tanh(self.again(x))
        return x


def runner(model: nn.Module, shown: str = "model.py:build") -> TorchRunner:
    return TorchRunner(model, "torch", shown)


def arrays(shape: tuple[int, ...], count: int = 2, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for _ in range(count)]


def floats(folder: Path, name: str, shape: tuple[int, ...], count: int = 2) -> InputSet:
    return write_inputs(folder / "inputs", [{name: one} for one in arrays(shape, count)])


def inputs_for(model: Runner, folder: Path, count: int = 2) -> InputSet:
    return model.suggest_inputs(count, 0, folder / "inputs")


def captured(
    model: Runner,
    inputs: InputSet,
    folder: Path,
    settings: SideSettings | None = None,
    *,
    forced: Forced | None = None,
    layers: bool = True,
) -> Dump:
    capture_into(model, settings or SideSettings(), inputs, folder, layers=layers, forced=forced)
    return Dump(folder)


def same_model(dump: Dump) -> LayerAlignment:
    """Each layer with itself."""
    pairs = []
    for name in dump.layers:
        call = next(dump.of(name), None)
        if call is not None:
            one, two = (
                tuple(TensorPair(ref.path, ref.path) for ref in refs)
                for refs in (call.arguments, call.outputs)
            )
            pairs.append(Pair(name, name, "same model", arguments=one, outputs=two))
    return LayerAlignment(tuple(pairs))


def errors(dump: Dump, truth: Dump, of: str = "outputs") -> Mapping[str, float]:
    """Layer → the largest relative L2 error of the outputs (or arguments) of its calls."""
    calls = {(one.layer, one.number, one.input): one for one in truth.calls}
    worst: dict[str, float] = {}
    for call in dump.calls:
        other = calls[call.layer, call.number, call.input]
        for mine, theirs in zip(getattr(call, of), getattr(other, of), strict=True):
            x, t = (one.astype(np.float64) for one in (dump.tensor(mine), truth.tensor(theirs)))
            norm = float(np.linalg.norm(t)) or 1.0
            error = float(np.linalg.norm(x - t)) / norm
            worst[call.layer] = max(worst.get(call.layer, 0.0), error)
    return worst


def local_errors(
    model: Runner,
    truth_of: Runner,
    inputs: InputSet,
    folder: Path,
    settings: SideSettings | None = None,
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The accumulated and the local errors of each layer."""
    truth = captured(truth_of, inputs, folder / "truth", TRUTH)
    free = captured(model, inputs, folder / "free", settings)
    forced = Forced(truth.folder, same_model(truth))
    fed = captured(model, inputs, folder / "fed", settings, forced=forced)
    return errors(free, truth), errors(fed, truth)
