"""Options of a comparison."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path

from migrate.parity.ground.outputs import OutputRules, read_rules
from migrate.parity.ground.requests import HostDrawn
from migrate.parity.ground.settings import SideSettings


@dataclass(frozen=True)
class SideOptions:
    """Options of one side.

    Attributes:
        settings: how the side runs.
        weights: its weights: a torch checkpoint, or a Flax pytree; None: the other side's.
        python: the Python interpreter of its process.
        channels_last: arguments that it takes channels last; None: those that torch's convolutions take, if
            this side is Flax's and the other is torch's.
        outputs_last: outputs that it has channels last, and the other side channels first.
        hasty: whether its process compiles with little optimization, because compiling for a single run costs
            more than the run.
    """

    settings: SideSettings = field(default_factory=SideSettings)
    weights: Path | None = None
    python: str = sys.executable
    channels_last: tuple[str, ...] | None = None
    outputs_last: tuple[str, ...] = ()
    hasty: bool = False


@dataclass(frozen=True)
class ParityOptions:
    """Options of a comparison.

    Attributes:
        a, b: options of each side.
        inputs: inputs as in `migrate.parity.inputs.spec`; none: derived from the model.
        count: number of inputs to create or to read.
        seed: random seed of inputs, initial weights, cotangents and bootstrap.
        mapping: a mapping file for the weights.
        drop: torch keys that the Flax model has no use for.
        align: a file of layers that are the same.
        outputs, skip_outputs: rules as in `ground.outputs`.
        profile: name of the limits; None: chosen by the sides' precision.
        strict: whether to use the tighter limits.
        layers: whether to compare layers, not only outputs.
        gradients: whether to compare gradients.
        modes: whether to compare training mode: outputs and gradients at dropout rates of 0, statistics,
            and the rates of dropouts.
        drawn: replacements for what torch's model draws with Python or numpy in training mode.
        train: training steps; 0: none.
        optimizer, learning_rate, loss: those of the training.
        tokens: tokens of greedy decoding; 0: none.
        logits: the output that holds logits; None: the output called logits, if there is one.
        batch: whether to compare batch 1 with the whole batch, on each side.
        timeout: seconds for a request to a side.
        keep: a folder that keeps dumps, inputs and logs; None: they are deleted.
    """

    a: SideOptions = field(default_factory=SideOptions)
    b: SideOptions = field(default_factory=SideOptions)
    inputs: tuple[str, ...] = ()
    count: int = 8
    seed: int = 0
    mapping: Path | None = None
    drop: tuple[str, ...] = ()
    align: Path | None = None
    outputs: tuple[str, ...] = ()
    skip_outputs: tuple[str, ...] = ()
    profile: str | None = None
    strict: bool = False
    layers: bool = True
    gradients: bool = False
    modes: bool = False
    drawn: tuple[HostDrawn, ...] = ()
    train: int = 0
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    loss: str = "auto"
    tokens: int = 0
    logits: str | None = None
    batch: bool = False
    timeout: float = 600.0
    keep: Path | None = None

    def rules(self, truth: str) -> OutputRules:
        """Read the rules for outputs; `truth` names the side whose model is the truth.

        Raises:
            ParityError: a rule cannot be read.
        """
        sides = ("A", self.a), ("B", self.b)
        last = [(letter, path) for letter, side in sides for path in side.outputs_last]
        read = read_rules(self.outputs, self.skip_outputs, last)
        return dataclasses.replace(read, truth=truth)
