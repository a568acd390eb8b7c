"""What one rank alone would compute for its own log, computed by all of them."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator

from shims.backends import current
from shims.rng import rng_state, set_rng_state


@contextlib.contextmanager
def together(*, tells: bool) -> Iterator[None]:
    """Run a block on all ranks that only one of them was to run, as `if rank == 0:` says.

    On XLA all ranks must run the same graphs. The ranks that do not tell compute the same and leave no
    trace of it: they print nothing, and their random numbers (Python's, numpy's, torch's on the host and on
    the device) go on as if they had not run the block.

    Args:
        tells: whether this is the rank that the block is for.
    """
    if tells:
        try:
            yield
        finally:
            # On XLA the seed of what is drawn next may be a part of a graph that has not run: here it
            # becomes a number in all ranks, or their next graphs would differ.
            backend = current()
            backend.set_device_rng_state(backend.device_rng_state())
        return
    before = rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield
    finally:
        set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)
