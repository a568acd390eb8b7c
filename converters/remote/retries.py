"""Asking again: what may pass (a cut connection, 429, 5xx) is tried several times, later each time."""

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
    """What may pass: the text says what it was, in a few words and without secrets.

    Args:
        what: a few words.
        pause: the seconds that the other side asked for; None: it did not.
        tries: how often it was tried until then: some clients ask again by themselves.
    """

    def __init__(self, what: str, pause: float | None = None, tries: int = 1) -> None:
        super().__init__(what)
        self.pause = pause
        self.tries = tries


def persistent(action: Callable[[], _Result], place: object) -> _Result:
    """What the action gives, which may raise `TemporaryError` a few times before.

    Args:
        action: asks the other side.
        place: what it asks about, for the message.

    Raises:
        UnreachableError: it did so every time.
    """
    tries = 0
    while True:
        try:
            return action()
        except TemporaryError as error:
            tries += error.tries
            if tries >= TRIES:
                raise UnreachableError(
                    f"{place} cannot be reached ({error}, {tries} times)",
                    "check the network, or try again later",
                ) from None
            pause = min(FIRST_PAUSE * 2 ** (tries - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.5)
            time.sleep(min(max(pause, error.pause or 0.0), 4 * LONGEST_PAUSE))
