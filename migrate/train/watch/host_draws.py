"""Draws from `random` and `numpy.random`: a step that makes them gives another loss each time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def host_state() -> tuple[Any, ...]:
    """Return the states of the generators of `random` and `numpy.random`; equal ones draw the same."""
    of_numpy = np.random.get_state(legacy=False)
    return random.getstate(), repr(of_numpy["state"]["key"].tobytes()), of_numpy["state"]["pos"]


class HostProbe:
    """Something that is called as it is, and notes whether a call draws.

    Attributes:
        draws: whether one did.

    Args:
        called: what is called.
    """

    def __init__(self, called: Any) -> None:
        self._called, self.draws = called, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        before = host_state()
        try:
            return self._called(*args, **kwargs)
        finally:
            self.draws |= host_state() != before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._called, name)
