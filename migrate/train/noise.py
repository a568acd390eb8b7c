"""Random numbers inside a loss: in a comparison, a script and its program draw the same.

Each micro-batch draws the same numbers again: a compiled program has them as constants.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from migrate.parity.ground.draws import Draws
from migrate.train.frames import script_frames

_SEED = 0


def jax_noise() -> AbstractContextManager[None]:
    """Make `jax.random` return the numbers of the comparison, from the first one on."""
    from migrate.parity.sides.jax.draws import drawn

    return drawn(Draws(_SEED))


def torch_noise(
    draws: Draws | None = None, is_inside: Callable[[], bool] = lambda: True
) -> AbstractContextManager[Any]:
    """Make torch draw the numbers of the comparison, from the first one on.

    Args:
        draws: the numbers; they know afterwards whether anything was drawn.
        is_inside: whether a draw is one of the comparison. Others stay torch's own.
    """
    import torch

    from migrate.parity.sides.torch.draws import ComparisonDraws

    class Noise(ComparisonDraws):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if torch.Tag.nondeterministic_seeded in func.tags and not is_inside():
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

    return Noise(draws or noise())


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
    """The numbers of the comparison in the statements that compute the loss of a running script.

    Attributes:
        is_drawn: whether the first loss drew numbers; None before. If not, later ones are left alone.

    Args:
        file: the script.
        question: has the function of the statements, and their lines.
        is_drawn: the same, if it is known.
    """

    def __init__(
        self, file: str, question: Mapping[str, Any], *, is_drawn: bool | None = None
    ) -> None:
        self.is_drawn = is_drawn
        self._file, self._function = file, tuple(question["slice"])
        self._lines = {n for a, b in question["lines"] for n in range(a, b + 1)}
        self._draws = noise()
        self._mode: AbstractContextManager[Any] | None = None

    def begin(self) -> None:
        """Let torch draw them from here on."""
        self.end()
        if self.is_drawn is not False:
            self._draws = noise()
            self._mode = torch_noise(self._draws, self._is_inside)
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

    def _is_inside(self) -> bool:
        """Whether a statement of the loss is running: a batch may be drawn between them."""
        return any(
            (frame.function, frame.first) == self._function and frame.line in self._lines
            for frame in script_frames(self._file)[0]
        )
