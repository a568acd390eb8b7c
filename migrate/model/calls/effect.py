"""Effects of a piece of code on the training state."""

from __future__ import annotations

from enum import Flag, auto


class Effect(Flag):
    """Effect of a piece of code on the training state."""

    NONE = 0
    BACKWARD = auto()
    STEP = auto()


BOTH = Effect.BACKWARD | Effect.STEP
