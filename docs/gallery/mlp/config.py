"""The sizes of MLP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MLPConfig:
    """The sizes of MLP."""

    inputs: int = 784
    hidden: int = 256
    classes: int = 10
