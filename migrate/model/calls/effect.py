"""What running a piece of code does to the training state."""

from __future__ import annotations

from enum import Flag, auto


class Effect(Flag):
    """What running a piece of code does to the training state."""

    NONE = 0
    BACKWARD = auto()
    STEP = auto()


BOTH = Effect.BACKWARD | Effect.STEP
