"""What a comparison is asked to do."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path

from migrate.parity.ground.outputs import OutputRules, read_rules
from migrate.parity.ground.requests import HostDrawn
from migrate.parity.ground.settings import Settings


@dataclass(frozen=True)
class SideOptions:
    """What is asked of one side.

    Attributes:
        settings: how it runs.
        weights: its weights: a torch checkpoint, or a Flax pytree; None: the other side's.
        python: the interpreter of its process.
        channels_last: arguments that it takes channels last; None: those that torch's convolutions take,
            where this side is Flax's and the other torch's.
        outputs_last: outputs that it has channels last, and the other side channels first.
        hasty: whether its process compiles in haste: what runs once costs more to compile than to run.
    """

    settings: Settings = field(default_factory=Settings)
    weights: Path | None = None
    python: str = sys.executable
    channels_last: tuple[str, ...] | None = None
    outputs_last: tuple[str, ...] = ()
    hasty: bool = False


@dataclass(frozen=True)
class Options:
    """What is asked of the comparison.

    Attributes:
        a, b: of each side.
        inputs: as of `migrate.parity.inputs.spec`; none: what the model tells.
        count: inputs to make or to take.
        seed: of inputs, initial weights, cotangents, bootstrap.
        mapping: a mapping file for the weights.
        drop: torch keys that the Flax model has no use for.
        align: a file that says which layers are the same.
        outputs, skip_outputs: as of `ground.outputs`.
        profile: name of the limits; None: as the sides' precision says.
        strict: the tighter limits.
        layers: whether layers are compared, not only outputs.
        gradients: whether gradients are.
        modes: whether training mode is: outputs and gradients at rates of 0, statistics, dropouts' rates.
        drawn: what takes the place of what torch's model draws by Python or numpy in training mode.
        train: steps of training; 0: none.
        optimizer, learning_rate, loss: of it.
        tokens: of greedy decoding; 0: none.
        logits: the output that holds logits; None: one called logits, if there is one.
        batch: whether batch 1 is compared with the whole batch, on each side.
        timeout: seconds for one request to a side.
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
        """What is said of the outputs, where the truth is of this side's model.

        Raises:
            ParityError: it cannot be read.
        """
        sides = ("A", self.a), ("B", self.b)
        last = [(letter, path) for letter, side in sides for path in side.outputs_last]
        read = read_rules(self.outputs, self.skip_outputs, last)
        return dataclasses.replace(read, truth=truth)
