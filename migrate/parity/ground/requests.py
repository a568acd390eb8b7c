"""Types of requests to a side: training, draws and decoding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Kind = Literal["torch", "xla", "tpu", "linen", "nnx", "jax"]
# Kinds that run a torch module: on the CPU or CUDA, under torch_xla, under torch_tpu.
TORCH: tuple[Kind, ...] = ("torch", "xla", "tpu")


@dataclass(frozen=True)
class Training:
    """Steps of an optimizer on the inputs in a given order.

    Attributes:
        steps: number of steps; step i takes input `order[i]`.
        order: numbers of inputs.
        optimizer: "sgd", "momentum" (0.9), "adam", "adamw" (decay 0.01); torch's and optax's with equal
            hyperparameters.
        learning_rate: constant learning rate.
        loss: "mse": mean of squared differences between output `output` and the target;
            "cross_entropy": mean over all but the last axis of its log-softmax at the integer target;
            or `file.py:function` called with (outputs, targets) that returns a scalar.
        output: path of the output that the loss is computed from.
        targets: a folder with NNN.safetensors, key "target", in this side's layout. With padding also key
            "counted", bool of the same shape: the positions in the mean of mse or cross_entropy.
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
        rate: the fraction dropped; negative if the numbers do not show it.
        count: number of random numbers.
        kept: the fraction retained in one run; negative if not measured.
        scale: factor of retained elements; 0 if not measured.
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
    """Tensor that a torch model draws with Python or numpy in training; an input of the other model.

    Attributes:
        name: name of the input.
        place: location as in `converters.host_draws.DrawLocation`.
        file: an .npy file with the array that both receive.
    """

    name: str
    place: tuple[str, int, int]
    file: Path

    @property
    def value(self) -> np.ndarray[Any, Any]:
        """Array that both models receive."""
        array: np.ndarray[Any, Any] = np.load(self.file)
        return array


@dataclass(frozen=True)
class TrainingDraws:
    """Draws of a side in training."""

    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class Generated:
    """Result of greedy decoding.

    Attributes:
        tokens: for each input and row, the tokens that were appended.
        margins: for each token, the difference of the two largest logits.
    """

    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    margins: tuple[tuple[tuple[float, ...], ...], ...]
