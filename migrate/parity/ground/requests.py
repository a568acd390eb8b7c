"""What a side is asked to train, and what it gives of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Kind = Literal["torch", "xla", "linen", "nnx", "jax"]


@dataclass(frozen=True)
class Training:
    """K steps of an optimizer on the inputs in a given order.

    Attributes:
        steps: how many; step i takes input `order[i]`.
        order: numbers of inputs.
        optimizer: "sgd", "momentum" (0.9), "adam", "adamw" (decay 0.01); torch's against optax's with equal
            hyperparameters.
        learning_rate: constant.
        loss: "mse": mean of squared differences between output `output` and the target;
            "cross_entropy": mean over all but the last axis of its log-softmax at the integer target;
            or `file.py:function` called with (outputs, targets) that gives a scalar.
        output: path of the output that the loss is of.
        targets: a folder with NNN.safetensors, key "target", in this side's layout; where positions are
            padding also "counted", bool of the same shape: what the mean of mse or cross_entropy is over.
    """

    steps: int
    order: tuple[int, ...]
    optimizer: str
    learning_rate: float
    loss: str
    output: str
    targets: Path


@dataclass(frozen=True)
class Draw:
    """Random numbers that a dropout draws.

    Attributes:
        rate: the share that is dropped; negative where the numbers do not say it.
        count: how many numbers.
        kept: the share that was kept, in one run; negative where it was not measured.
        scale: what kept elements are multiplied with; 0 where it was not measured.
        alike: the largest correlation, in standard deviations, with the draws of another key and with another
            dropout of the same size.
    """

    rate: float
    count: int
    kept: float = -1.0
    scale: float = 0.0
    alike: float = 0.0


@dataclass(frozen=True)
class HostDrawn:
    """A tensor that a torch model makes in training of what Python or numpy draws; the other model's input.

    Attributes:
        name: of the input.
        place: as of `converters.host_draws.DrawLocation`.
        file: an .npy file of what both are given.
    """

    name: str
    place: tuple[str, int, int]
    file: Path

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """What both are given."""
        found: np.ndarray[Any, Any] = np.load(self.file)
        return found


@dataclass(frozen=True)
class Trained:
    """What a side draws in training."""

    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class Generated:
    """Greedy decoding.

    Attributes:
        tokens: for each input and row, the tokens that were appended.
        margins: the difference of the two largest logits at each.
    """

    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    margins: tuple[tuple[tuple[float, ...], ...], ...]
