"""Arguments and sizes that a port takes as it was recorded with them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def demand_recorded(name: str, value: Any, recorded: Any) -> None:
    """Raise where an argument has other values than the recording: sizes or choices rest on them.

    Under `jax.jit` it is asked while the model runs; give it as numbers, by `functools.partial`, and it is
    asked once.
    """

    def check(value: Any) -> None:
        if not np.array_equal(value, recorded):
            numbers = np.asarray(value).tolist()
            raise ValueError(f"{name} is {numbers}: this port takes {recorded} only")

    if isinstance(value, jax.core.Tracer):
        jax.debug.callback(check, value)
    else:
        check(value)


def demand_size(holds: bool, what: str) -> None:
    """Raise ValueError for input sizes that this port does not support."""
    if not holds:
        raise ValueError(f"this port takes {what}; see 'Free axes' in its README")
