"""Random numbers inside a loss: in a comparison, a script and its program draw the same.

Each micro-batch draws the same numbers again: a compiled program has them as constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from migrate.parity.ground.draws import Draws

_SEED = 0


def jax_noise() -> AbstractContextManager[None]:
    """Make `jax.random` return the numbers of the comparison, from the first one on."""
    from migrate.parity.sides.jax.draws import drawn

    return drawn(Draws(_SEED))


def torch_noise(draws: Draws | None = None) -> AbstractContextManager[Any]:
    """Make torch draw the numbers of the comparison, from the first one on.

    Args:
        draws: the numbers; they know afterwards whether anything was drawn.
    """
    from migrate.parity.sides.torch.draws import ComparisonDraws

    return ComparisonDraws(draws or noise())


def noise() -> Draws:
    """Numbers of the comparison."""
    return Draws(_SEED)


def with_noise(loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """A program's loss with the numbers of the comparison, in each run and each trace of it."""

    @functools.wraps(loss_of)
    def called(*args: Any) -> Any:
        with jax_noise():
            return loss_of(*args)

    return called


class StatementNoise:
    """The numbers of the comparison in a script, between the first statement of its loss and its backward.

    Attributes:
        is_drawn: whether the first loss drew numbers; None before. If not, later ones are left alone.
    """

    def __init__(self, *, is_drawn: bool | None = None) -> None:
        self.is_drawn = is_drawn
        self._draws = noise()
        self._mode: AbstractContextManager[Any] | None = None

    def begin(self) -> None:
        """Let torch draw them from here on."""
        self.end()
        if self.is_drawn is not False:
            self._draws = noise()
            self._mode = torch_noise(self._draws)
            self._mode.__enter__()

    def end(self) -> None:
        """Let torch draw its own numbers again."""
        if self._mode is None:
            return
        self._mode.__exit__(None, None, None)
        self._mode = None

    def decide(self) -> None:
        """Note at the first backward whether its loss drew numbers."""
        if self.is_drawn is None:
            self.is_drawn = self._draws.used
