"""The sizes of Step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepConfig:
    """The sizes of Step."""


# Arguments that before.py was run with.
ARGV = []
