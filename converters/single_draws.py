"""Single random numbers that decide whether a layer runs, as in `if torch.rand([]) < self.layerdrop`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from converters.original_lines import line_of_original

_KEPT, _DROPPED = 1.0, 0.0


class DrawError(RuntimeError):
    """A Python branch depends on a random number."""


class Decisions:
    """Decisions of one forward pass, in order.

    A number is 1 if layers are kept, and 0 if they are dropped.

    Args:
        turn: the decisions that drop: every second one, from 0 or from 1; None for none.

    Attributes:
        rates: the number that each draw was compared with, which is between 0 and 1.
    """

    def __init__(self, turn: int | None = None) -> None:
        self.turn = turn
        self.rates: list[float] = []

    def restart(self) -> None:
        """Start another forward pass."""
        self.rates.clear()

    def decide(self, rate: float) -> tuple[int, float]:
        """Return the number of a new decision, and its drawn value."""
        number = len(self.rates)
        self.rates.append(rate)
        drops = self.turn is not None and number % 2 == self.turn
        return number, _DROPPED if drops else _KEPT


class _Draw(float):
    """Random number between 0 and 1."""

    decisions: Decisions
    decision: tuple[int, float] | None = None

    def _value(self, other: Any) -> float:
        """Return the drawn value, for a comparison with another number."""
        if isinstance(other, _Draw) or not isinstance(other, int | float):
            raise DrawError(f"a branch of Python rests on a random number{_line()}")
        if not 0 < other < 1:
            return 0.5  # for any draw
        if self.decision is None:
            self.decision = self.decisions.decide(float(other))
        number, value = self.decision
        if self.decisions.rates[number : number + 1] != [float(other)]:
            raise DrawError(f"a random number is compared with several numbers{_line()}")
        return value

    def __lt__(self, other: Any) -> bool:
        return self._value(other) < other

    def __le__(self, other: Any) -> bool:
        return self._value(other) <= other

    def __gt__(self, other: Any) -> bool:
        return self._value(other) > other

    def __ge__(self, other: Any) -> bool:
        return self._value(other) >= other

    __hash__ = float.__hash__


def _line() -> str:
    line = line_of_original()
    return f" ({line})" if line else ""


class _Scalars(TorchFunctionMode):
    """Mode that returns `torch.rand([])` as a Python number."""

    def __init__(self, decisions: Decisions) -> None:
        super().__init__()
        self.decisions = decisions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.rand and (args == ([],) or args == ((),)):
            return _drawn(self.decisions)
        return func(*args, **(kwargs or {}))


def _drawn(decisions: Decisions) -> _Draw:
    draw = _Draw(0.5)
    draw.decisions = decisions
    return draw


def is_decision(value: Any) -> bool:
    """Whether a value is a single number that decides whether a layer runs."""
    return isinstance(value, _Draw)


@contextmanager
def draws_compared(decisions: Decisions | None = None) -> Iterator[Decisions]:
    """Decide the comparisons of single random numbers; without decisions, all layers are kept.

    A comparison with a rate of 0 or 1, or beyond, is not a decision.
    """
    decisions = decisions or Decisions()
    uniform, drawn = random.uniform, random.random
    numpy_uniform, numpy_rand = np.random.uniform, np.random.rand

    def draw_method(first: Any, *between: Any) -> Any:
        def draw(*args: Any, **named: Any) -> Any:
            return _drawn(decisions) if args in between and not named else first(*args, **named)

        draw.__self__ = getattr(first, "__self__", None)  # type: ignore[attr-defined]  # who draws
        return draw

    random.uniform, random.random = draw_method(uniform, (0, 1)), draw_method(drawn, ())
    np.random.uniform, np.random.rand = (
        draw_method(numpy_uniform, (0, 1), ()),
        draw_method(numpy_rand, ()),
    )
    try:
        with _Scalars(decisions):
            yield decisions
    finally:
        random.uniform, random.random = uniform, drawn
        np.random.uniform, np.random.rand = numpy_uniform, numpy_rand
