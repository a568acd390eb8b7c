"""Why a layer parts: variants of the truth's layer are tried until one gives what the side gives.

One file a family of causes; a class put into one is tried, nothing else names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from migrate.parity.causes.frame.context import Context
from migrate.parity.ground.results import Cause
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
    found = [one() for one in classes if issubclass(one, Pattern) and one is not Pattern]
    names = [pattern.name for pattern in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"two causes share a name: {twice}")
    return tuple(sorted(found, key=lambda pattern: (pattern.rank, pattern.name)))


def explain(
    model: Any,
    context: Context,
    seconds: float = 20.0,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Cause, ...]:
    """Why the layer parts, the most reliable first; empty if that is unknown.

    Args:
        model: the truth's torch module, in float64 on the CPU, in evaluation mode. It is put back as it
            was.
        context: what is known of the layer.
        seconds: no further variant is tried after that.
        note: told if for that reason some were not.
    """
    from migrate.parity.causes.frame.explain import explained

    return explained(model, context, all_patterns(), seconds, note)
