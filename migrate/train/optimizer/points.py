"""Points at which functions of the script are compared beyond the first updates."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from migrate.train.optimizer.functions import Unportable, parsed
from migrate.train.optimizer.recorded import RecordedFunction

_LARGEST = 2**22
# Steps are int32 in the program.
_END = 2**31 - 2
_MOST = 512


def far_points(
    functions: Sequence[RecordedFunction], start: float = 0, stride: float = 1
) -> list[int]:
    """Return updates at which a function may change: powers of two, and the numbers that it has, ±1.

    Args:
        functions: the functions.
        start: their argument at the first update.
        stride: what their argument grows by in one update.
    """
    points = {2**power for power in range(_LARGEST.bit_length())}
    constants = {value for function in functions for value in _numbers(function)}
    for constant in sorted(constants)[:_MOST]:
        update = (constant - start) / stride if stride else 0.0
        points |= {math.floor(update) + more for more in (-1, 0, 1, 2)}
    return sorted(point for point in points if 0 <= point <= _END)


def _numbers(function: RecordedFunction) -> Iterator[float]:
    try:
        nodes = list(ast.walk(parsed(function)))
    except Unportable:
        nodes = []
    values: list[object] = [node.value for node in nodes if isinstance(node, ast.Constant)]
    values += [*function.values.values(), *function.keywords.values()]
    while values:
        value = values.pop()
        if isinstance(value, list | tuple):
            values += value
        elif isinstance(value, int | float) and 1 < value <= _END:
            yield value
    for called in function.functions.values():
        yield from _numbers(called)
