"""Retries: temporary errors (a cut connection, 429, 5xx) are retried several times with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from converters.errors import UnreachableError

_Result = TypeVar("_Result")

TRIES = 7
FIRST_PAUSE = 0.25  # seconds; doubled each time
LONGEST_PAUSE = 15.0
TEMPORARY_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class TemporaryError(Exception):
    """Temporary error; its text is a short description without secrets.

    Args:
        what: a short description.
        pause: the pause requested by the other side in seconds, or None.
        tries: the number of tries so far: some clients retry by themselves.
    """

    def __init__(self, what: str, pause: float | None = None, tries: int = 1) -> None:
        super().__init__(what)
        self.pause = pause
        self.tries = tries


def with_retries(action: Callable[[], _Result], source: object) -> _Result:
    """Return the result of the action, retrying after each `TemporaryError`.

    Args:
        action: the request.
        source: the requested source, for the message.

    Raises:
        UnreachableError: every try failed.
    """
    tries = 0
    while True:
        try:
            return action()
        except TemporaryError as error:
            tries += error.tries
            if tries >= TRIES:
                raise UnreachableError(
                    f"{source} cannot be reached ({error}, {tries} times)",
                    "check the network, or try again later",
                ) from None
            pause = min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
            time.sleep(min(max(pause, error.pause or 0.0), 4 * LONGEST_PAUSE))
