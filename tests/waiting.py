"""Tests wait for events, not for times: a machine with other work is slow, and nothing is wrong with that."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds after which a program that a test started counts as hung. No test measures anything with it.
LIMIT = 900.0


def until(happened: Callable[[], object], what: str) -> None:
    """Return as soon as `happened()` is true.

    Raises:
        AssertionError: it was not within `LIMIT`; it says `what` was waited for.
    """
    end = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < end, f"waited {LIMIT:.0f} s for {what}"
        time.sleep(0.02)
