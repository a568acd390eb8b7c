"""What the process of a side can be asked for. One class implements it for torch, one for JAX.

Every method works on the model that was loaded when the process started, and leaves it as it was. What is
wrong with the user's model or inputs is a `ParityError` in one line; it travels to the parent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from migrate.parity.dump.dump import Dump, Facts, RecentDump
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.alignment import Alignment
from migrate.parity.ground.settings import Settings
from migrate.parity.inputs.set import InputSet

Kind = Literal["torch", "xla", "linen", "nnx", "jax"]


@dataclass(frozen=True)
class Reference:
    """The truth, and how a side lies to it.

    Attributes:
        truth: the dump of the truth, of the same inputs.
        alignment: of this side with the truth.
    """

    truth: Path
    alignment: Alignment

    @functools.cached_property
    def dump(self) -> Dump:
        """The truth's dump, open; it holds the tensors that were read last."""
        return RecentDump(self.truth)


class Forced(Reference):
    """Feed every layer with the truth's inputs, so that what it puts out has its own error only.

    Before a layer that has a pair runs, its arguments are replaced by the truth's (in the side's dtype and
    layout); after it, its output is written, and what its caller goes on with is the truth's output. A
    layer with others inside so shows what *its own* operations add. A layer whose arguments have no
    partner is run with what it is given.

    The `arguments` of every Call are written as the caller gave them, *before* they were replaced: what the
    caller computes between the layers that it calls (an activation that is no module, a mask, a residual)
    is seen nowhere else. Values that the side's dtype does not hold (float64's most negative number in a
    mask) become its largest, not infinities.
    """


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
class Generated:
    """Greedy decoding.

    Attributes:
        tokens: for each input and row, the tokens that were appended.
        margins: the difference of the two largest logits at each.
    """

    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    margins: tuple[tuple[tuple[float, ...], ...], ...]


class Runner(Protocol):
    """A model that was loaded in this process."""

    @property
    def kind(self) -> Kind:
        """What it is."""

    def facts(self, settings: Settings) -> Facts:
        """What would run with these settings."""

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """Names of the forward pass's parameters that take inputs, and whether each is required."""

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """Make inputs as far as the model tells what they are (a Hugging Face config).

        Raises:
            InputsError: it does not tell; the line says how to.
        """

    def prepare(self, settings: Settings, inputs: InputSet) -> None:
        """Initialise weights that need an input to be (linen's); nothing where they are already."""

    def save_weights(self, file: Path) -> None:
        """Write the model's weights: a state dict, or a pytree with `/`-joined paths (safetensors)."""

    def load_weights(self, file: Path) -> None:
        """Take weights of the same naming.

        Raises:
            ParityError: they do not fit; every missing, surplus and misshapen name is told.
        """

    def capture(
        self,
        settings: Settings,
        inputs: InputSet,
        writer: DumpWriter,
        *,
        layers: bool = True,
        forced: Forced | None = None,
        numbers: Sequence[int] | None = None,
    ) -> float:
        """Run the model on each input and write what it computes; give the seconds of the plain passes.

        The outputs in the dump are always those of a pass without hooks. Where those of the pass with
        hooks differ (observation can change how a compiler fuses), the dump gets a note (`writer.note`) with
        the relative L2 difference. The writer is closed by the caller.

        Args:
            numbers: of the inputs that are run; None: all.
        """

    def gradients(self, settings: Settings, inputs: InputSet, cotangents: Path, into: Path) -> None:
        """Write the gradients of Σ <output, cotangent>, for each input a file NNN.safetensors in `into`.

        Keys: `weights/NAME` in the side's naming and layout, `inputs/NAME` for floating inputs. Cotangents
        are in NNN.safetensors, keyed by the output's path (an output that is a single tensor: "output").
        """

    def train(self, settings: Settings, inputs: InputSet, training: Training) -> list[float]:
        """The loss at each step, before its update. The model's weights are put back after it."""

    def generate(self, settings: Settings, inputs: InputSet, tokens: int, output: str) -> Generated:
        """Append the most likely token `tokens` times to the argument `input_ids`, row by row."""
