"""From named inputs to the call of a JAX model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError

# Arguments that say whether it is trained, and what they are where it is not.
MODES = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_option(parameter: inspect.Parameter) -> bool:
    """By its name, annotation or default it is a switch or a number, no array."""
    said = parameter.annotation
    text = said.__name__ if isinstance(said, type) else str(said)
    switch = isinstance(parameter.default, bool | str)
    return parameter.name in MODES or text in ("bool", "int", "float", "str") or switch


@dataclass(frozen=True)
class Bound:
    """Inputs as a model takes them.

    Attributes:
        args: those without a name of their own (of `*args`, positional-only).
        kwargs: parameter → array.
        modes: parameter → whether it is trained, and the like.
        renamed: parameter (or position) → the input's name, where they differ.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    modes: Mapping[str, Any]
    renamed: Mapping[str, str]

    def named(self) -> dict[str, Any]:
        """The arrays by the inputs' names."""
        together = {str(number): one for number, one in enumerate(self.args)} | dict(self.kwargs)
        return {self.renamed.get(name, name): one for name, one in together.items()}


class Arguments:
    """The parameters of a model's call.

    Args:
        parameters: without `self`, and without a function's weights.
        shown: the model, for messages.
    """

    def __init__(self, parameters: list[inspect.Parameter], shown: str) -> None:
        self._shown = shown
        self._plain = [one for one in parameters if one.kind not in _ANY]
        self._inputs = [one for one in self._plain if not _is_option(one)]
        kinds = {one.kind for one in parameters}
        self._takes_more = inspect.Parameter.VAR_POSITIONAL in kinds
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds

    def names(self) -> tuple[tuple[str, bool], ...]:
        """Parameters that take inputs, and whether each is required."""
        return tuple((one.name, one.default is one.empty) for one in self._inputs)

    def bind(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Bound:
        """Which parameter takes which: by name where there is one of that name, else by position.

        Raises:
            InputsError: one has no place, or a required parameter gets none.
        """
        by_name = {one.name for one in self._plain}
        taken: dict[str, Any] = {}
        renamed: dict[str, str] = {}
        more: list[Any] = []
        for index, (name, array) in enumerate(arrays.items()):
            position = int(name) if name.isdecimal() else index
            if name in by_name or (self._takes_any_name and not name.isdecimal()):
                self._take(taken, name, name, array)
            elif position < len(self._inputs) and self._inputs[position].name not in arrays:
                self._take(taken, self._inputs[position].name, name, array)
                renamed[self._inputs[position].name] = name
            elif self._takes_more:
                renamed[str(len(more))] = name
                more.append(array)
            else:
                raise self._refused(f"takes no input {name}")
        missing = [name for name, required in self.names() if required and name not in taken]
        if missing:
            raise self._refused(f"needs {', '.join(missing)}")
        return self._call(taken, more, renamed)

    def _take(self, taken: dict[str, Any], parameter: str, name: str, array: Any) -> None:
        if parameter in taken:
            raise self._refused(f"would take both {name} and another input as {parameter}")
        taken[parameter] = array

    def _call(self, taken: dict[str, Any], more: list[Any], renamed: dict[str, str]) -> Bound:
        """Keywords, as far as Python lets them be."""
        positional = [
            one.name
            for one in self._plain
            if one.kind is one.POSITIONAL_ONLY or (more and one.kind is one.POSITIONAL_OR_KEYWORD)
        ]
        first = [taken.pop(name) for name in positional if name in taken]
        shifted = {
            str(len(first) + int(key)) if key.isdecimal() else key: name
            for key, name in renamed.items()
        }
        for number, parameter in enumerate(positional):
            shifted[str(number)] = renamed.get(parameter, parameter)
        modes = {
            one.name: MODES[one.name]
            for one in self._plain
            if one.name in MODES and one.name not in taken
        }
        return Bound((*first, *more), taken, modes, shifted)

    def _refused(self, what: str) -> InputsError:
        names = ", ".join(one.name for one in self._inputs) or "no inputs"
        return InputsError(
            f"{self._shown}: {what} (its call takes {names})", "name the inputs as the model does"
        )
