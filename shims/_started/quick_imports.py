"""Imports of frameworks with the garbage collector paused, which halves their time.

Objects created by an import stay alive, yet each full collection traverses them again: during the
import, later in the program, and at exit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Context whose new objects the garbage collector ignores, then and later.

    If the collector is already disabled, by an enclosing import or by the program, it stays
    disabled.
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
