"""What the process of a side can be asked for. One class implements it for torch, one for JAX.

Every method works on the model that was loaded when the process started, and leaves it as it was. What is
wrong with the user's model or inputs is a `ParityError` in one line; it travels to the parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from migrate.parity.dump.reference import Forced
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.facts import RunFacts
from migrate.parity.ground.requests import Generated, HostDrawn, Kind, Training, TrainingDraws
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet


class Runner(Protocol):
    """A model that was loaded in this process."""

    @property
    def kind(self) -> Kind:
        """What it is."""

    @property
    def lies_as_torch(self) -> bool:
        """Whether it is Flax's and takes images as torch does."""

    def facts(self, settings: SideSettings) -> RunFacts:
        """What would run with these settings."""

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """Names of the forward pass's parameters that take inputs, and whether each is required."""

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """Make inputs as far as the model tells what they are (a Hugging Face config).

        Raises:
            InputsError: it does not tell; the line says how to.
        """

    def prepare(self, settings: SideSettings, inputs: InputSet, *, drawn: bool = True) -> None:
        """Initialise weights that need an input to be (linen's); nothing where they are already.

        Where they are not `drawn`, others come before it runs: of these only names and shapes are made.
        """

    def save_weights(self, file: Path) -> None:
        """Write the model's weights: a state dict, or a pytree with `/`-joined paths (safetensors)."""

    def load_weights(self, file: Path) -> None:
        """Take weights of the same naming.

        Raises:
            ParityError: they do not fit; every missing, surplus and misshapen name is told.
        """

    def capture(
        self,
        settings: SideSettings,
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

    def gradients(
        self, settings: SideSettings, inputs: InputSet, cotangents: Path, into: Path
    ) -> None:
        """Write the gradients of Σ <output, cotangent>, for each input a file NNN.safetensors in `into`.

        Keys: `weights/NAME` in the side's naming and layout, `inputs/NAME` for floating inputs. Cotangents
        are in NNN.safetensors, keyed by the output's path (an output that is a single tensor: "output").
        """

    def train(self, settings: SideSettings, inputs: InputSet, training: Training) -> list[float]:
        """The loss at each step, before its update. The model's weights are put back after it."""

    def in_training(
        self,
        settings: SideSettings,
        inputs: InputSet,
        cotangents: Path,
        into: Path,
        batches: int,
        drawn: tuple[HostDrawn, ...] = (),
    ) -> TrainingDraws:
        """Write what the model gives in training mode, at rates of 0; give what it draws at its own rates.

        As `gradients`, with `outputs/PATH` beside; and statistics.safetensors: `weights/NAME` of the running
        statistics after so many batches, from those that it has. Without statistics there are no batches.
        What is `drawn` by Python or numpy has the same values in all models.
        """

    def generate(
        self, settings: SideSettings, inputs: InputSet, tokens: int, output: str
    ) -> Generated:
        """Append the most likely token `tokens` times to the argument `input_ids`, row by row."""
