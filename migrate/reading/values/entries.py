"""Functions that the steps of other files run, and their arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from migrate.model.calls.kind import Kind


@dataclass(frozen=True)
class PassedKinds:
    """Arguments of one call, by position and by name.

    Args:
        positional, named: the kinds of the arguments.
        loaded: positions and names of the arguments that a checkpoint holds, on the host.
        drawn: positions and names of the arguments that are random host numbers.
        numbers: positions and names of the arguments that are plainly Python numbers.
    """

    positional: tuple[Kind, ...] = ()
    named: tuple[tuple[str, Kind], ...] = ()
    loaded: frozenset[int | str] = frozenset()
    drawn: frozenset[int | str] = frozenset()
    numbers: frozenset[int | str] = frozenset()


@dataclass(frozen=True)
class StepFunction:
    """Function that a step in another file runs.

    Args:
        line: the line of its `def`.
        origin: location of the call in the step, or of its caller: `train.py:41`.
        calls: the arguments of different calls.
        marked: whether all of it runs within `with torch_xla.step():`.
        trains: whether a step that runs it trains.
        beside: whether it runs at every step, but outside of it: a metric.
    """

    line: int
    origin: str
    calls: tuple[PassedKinds, ...] = ()
    marked: bool = False
    trains: bool = True
    beside: bool = False

    def kinds(self, function: cst.FunctionDef, name: str) -> Iterator[Kind]:
        """Yield the arguments that the calls pass for the parameter `name` of `function`."""
        names = _positions(function)
        for call in self.calls:
            if name in names and names.index(name) < len(call.positional):
                yield call.positional[names.index(name)]
            yield from (kind for key, kind in call.named if key == name)

    def numbers(self, function: cst.FunctionDef, name: str) -> list[bool]:
        """Return for each call that passes the parameter `name` whether the argument is a number."""
        names = _positions(function)
        at = names.index(name) if name in names else len(names)
        return [
            _is_among(call.numbers, function, name)
            for call in self.calls
            if at < len(call.positional) or any(key == name for key, _ in call.named)
        ]

    def is_loaded(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether a call passes a part of a checkpoint, on the host, for the parameter `name`."""
        return any(_is_among(call.loaded, function, name) for call in self.calls)

    def is_drawn(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether a call passes a random host number for the parameter `name`."""
        return any(_is_among(call.drawn, function, name) for call in self.calls)


def _is_among(places: frozenset[int | str], function: cst.FunctionDef, name: str) -> bool:
    """Whether the parameter `name` of `function` is at one of `places`, positions and names."""
    names = _positions(function)
    at = names.index(name) if name in names else None
    return name in places or at in places


def _positions(function: cst.FunctionDef) -> list[str]:
    """Return the names of the parameters that take arguments by position."""
    params = (*function.params.posonly_params, *function.params.params)
    names = [parameter.name.value for parameter in params]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names
