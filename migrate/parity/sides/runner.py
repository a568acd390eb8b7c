"""Interface of a side's process, implemented once for torch and once for JAX.

Every method works on the model that was loaded when the process started, and leaves it unchanged. Errors of
the user's model or inputs are a `ParityError` in one line, which is passed to the parent.
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
    """Model that was loaded in this process."""

    @property
    def kind(self) -> Kind:
        """Kind of the model."""

    @property
    def lies_as_torch(self) -> bool:
        """Whether the model is Flax's and takes images as torch does."""

    def facts(self, settings: SideSettings) -> RunFacts:
        """Facts about a run with these settings."""

    def arguments(self) -> tuple[tuple[str, bool], ...]:
        """Names of the forward pass's parameters that take inputs, and whether each is required."""

    def suggest_inputs(self, count: int, seed: int, folder: Path) -> InputSet:
        """Create inputs, if the model describes them (a Hugging Face config).

        Raises:
            InputsError: the model does not describe them; the message says how to.
        """

    def prepare(self, settings: SideSettings, inputs: InputSet, *, drawn: bool = True) -> None:
        """Initialize weights that need an input for that (linen's); existing weights stay.

        If they are not `drawn`, other weights are loaded before the run: then only names and shapes are
        created.
        """

    def save_weights(self, file: Path) -> None:
        """Write the model's weights: a state dict, or a pytree with `/`-joined paths (safetensors)."""

    def load_weights(self, file: Path) -> None:
        """Load weights with the same names.

        Raises:
            ParityError: the weights do not fit; the message lists every missing, surplus and misshapen name.
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
        """Run the model on each input and write its tensors; return the seconds of the plain passes.

        The outputs in the dump are always those of a pass without hooks. If the outputs of the pass with
        hooks differ (observation can change how a compiler fuses), the dump gets a note (`writer.note`) with
        the relative L2 difference. The writer is closed by the caller.

        Args:
            numbers: numbers of the inputs to run; None: all.
        """

    def gradients(
        self, settings: SideSettings, inputs: InputSet, cotangents: Path, into: Path
    ) -> None:
        """Write the gradients of Σ <output, cotangent>, for each input a file NNN.safetensors in `into`.

        Keys: `weights/NAME` in the side's naming and layout, `inputs/NAME` for floating inputs. Cotangents
        are in NNN.safetensors, keyed by the output's path (an output that is a single tensor: "output").
        """

    def train(self, settings: SideSettings, inputs: InputSet, training: Training) -> list[float]:
        """Return the loss at each step, before its update. The model's weights are restored afterwards."""

    def in_training(
        self,
        settings: SideSettings,
        inputs: InputSet,
        cotangents: Path,
        into: Path,
        batches: int,
        drawn: tuple[HostDrawn, ...] = (),
    ) -> TrainingDraws:
        """Write the tensors of training mode at dropout rates of 0; return the draws at the model's own
        rates.

        Files are as in `gradients`, with `outputs/PATH` too. statistics.safetensors has `weights/NAME` of
        the running statistics after `batches` batches, starting from the model's. Without statistics there
        are no batches. Tensors `drawn` by Python or numpy have the same values in all models.
        """

    def generate(
        self, settings: SideSettings, inputs: InputSet, tokens: int, output: str
    ) -> Generated:
        """Append the most likely token `tokens` times to the argument `input_ids`, row by row."""
