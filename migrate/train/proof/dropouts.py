"""Dropouts of a program while it is compared: those of torch's own dropout drop nothing.

The stochastic depth of a script (DropPath) draws a number for each sample, as its other random numbers are
drawn, and the comparison gives both sides the same numbers. In the program it is a Dropout of whole samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def nothing_dropped(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call of a dropout that drops nothing."""
    return inputs


def samples_dropped(dropout: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a dropout that drops whole samples as it does, and nothing else.

    Args:
        dropout: `flax.linen.Dropout.__call__`.
    """

    @functools.wraps(dropout)
    def called(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        together = {axis % inputs.ndim for axis in self.broadcast_dims}
        if inputs.ndim > 1 and together >= {*range(1, inputs.ndim)}:
            return dropout(self, inputs, *args, **kwargs)
        return inputs

    return called
