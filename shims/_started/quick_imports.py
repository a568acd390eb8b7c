"""Imports of frameworks during which Python's garbage collector rests: it is half of their time.

What an import makes stays, and the collector goes through all of it again and again: while the import runs,
in each full collection of the program behind it, and when the program ends.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made inside is not looked at by the collector, then or later.

    Where the collector is off, by an import around this one or by the program itself, it stays so.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
