"""The sizes of MLP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MLPConfig:
    """The sizes of MLP."""

    hidden: int = 256
    inputs: int = 784
    classes: int = 10
