"""Causes of a divergence: variants of the truth's layer are tried until one computes what the side computes.

One file holds one family of causes. A class added to a file is tried; no list names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from migrate.parity.causes.frame.context import Context
from migrate.parity.ground.results import ParityCause
from migrate.units import classes_in

if TYPE_CHECKING:
    from migrate.parity.causes.frame.pattern import Pattern

__all__ = ["Context", "all_patterns", "explain"]


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """Return an instance of every pattern, the simplest first.

    Raises:
        TypeError: two patterns have the same name.
    """
    from migrate.parity.causes.frame.pattern import Pattern

    classes = classes_in(__name__, __path__)
    patterns = [
        pattern_class()
        for pattern_class in classes
        if issubclass(pattern_class, Pattern) and pattern_class is not Pattern
    ]
    names = [pattern.name for pattern in patterns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"two causes share a name: {twice}")
    return tuple(sorted(patterns, key=lambda pattern: (pattern.rank, pattern.name)))


def explain(
    model: Any,
    context: Context,
    seconds: float = 20.0,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[ParityCause, ...]:
    """Explain why a layer diverges: causes, the most reliable first; empty if none is found.

    Args:
        model: the truth's torch module, in float64 on the CPU, in evaluation mode. It is restored afterwards.
        context: facts about the layer.
        seconds: time limit, after which no further variant is tried.
        note: called with a message if variants were left out for lack of time.
    """
    from migrate.parity.causes.frame.explain import explained

    return explained(model, context, all_patterns(), seconds, note)
