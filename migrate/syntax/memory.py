"""Frequency of Python's garbage collection while a script is analyzed.

The tree of a script is a hundred thousand objects that all stay in use: to look for garbage among them again
and again took a fifth of the time of a rewrite.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# New objects between two searches, and searches between two that go further back.
SELDOM = (200_000, 5, 1)


def collect_seldom() -> None:
    """Make the searches of this process rare; for one that does nothing else."""
    gc.set_threshold(*SELDOM)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Make searches rare while the block runs."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)
