"""Bind named inputs to the parameters of a JAX model's call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.ground.errors import InputsError, refused_inputs

# Arguments that set training mode, and their values outside training.
MODES = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "use_running_average": True,
}
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_option(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a switch or a number, by its name, annotation or default, and no array."""
    said = parameter.annotation
    text = said.__name__ if isinstance(said, type) else str(said)
    switch = isinstance(parameter.default, bool | str)
    return parameter.name in MODES or text in ("bool", "int", "float", "str") or switch


@dataclass(frozen=True)
class BoundInputs:
    """Inputs bound to a model's parameters.

    Attributes:
        args: arguments without a name of their own (of `*args`, positional-only).
        kwargs: parameter → array.
        modes: parameter → value that sets training mode, and similar switches.
        renamed: parameter (or position) → name of the input, where they differ.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    modes: Mapping[str, Any]
    renamed: Mapping[str, str]

    def named(self) -> dict[str, Any]:
        """Arrays by the names of the inputs."""
        together = {str(number): array for number, array in enumerate(self.args)} | dict(
            self.kwargs
        )
        return {self.renamed.get(name, name): array for name, array in together.items()}


class CallParameters:
    """Parameters of a model's call.

    Args:
        parameters: the parameters, without `self`, and without a function's weights.
        shown: name of the model, for messages.
    """

    def __init__(self, parameters: list[inspect.Parameter], shown: str) -> None:
        self._shown = shown
        self._plain = [parameter for parameter in parameters if parameter.kind not in _ANY]
        self._inputs = [parameter for parameter in self._plain if not _is_option(parameter)]
        kinds = {parameter.kind for parameter in parameters}
        self._takes_more = inspect.Parameter.VAR_POSITIONAL in kinds
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds

    def names(self) -> tuple[tuple[str, bool], ...]:
        """Names of parameters that take inputs, and whether each is required."""
        return tuple(
            (parameter.name, parameter.default is parameter.empty) for parameter in self._inputs
        )

    def bind(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> BoundInputs:
        """Bind the inputs to parameters: by name where the names agree, else by position.

        Raises:
            InputsError: an input has no parameter, or a required parameter has no input.
        """
        by_name = {parameter.name for parameter in self._plain}
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
                raise self._refused(unknown=[name])
        missing = [name for name, required in self.names() if required and name not in taken]
        if missing:
            raise self._refused(lacking=missing)
        return self._call(taken, more, renamed)

    def _take(self, taken: dict[str, Any], parameter: str, name: str, array: Any) -> None:
        if parameter in taken:
            names = ", ".join(known.name for known in self._inputs)
            raise InputsError(
                f"{self._shown}: would take both {name} and another input as {parameter}",
                f"name the inputs as the model does: {names}",
            )
        taken[parameter] = array

    def _call(self, taken: dict[str, Any], more: list[Any], renamed: dict[str, str]) -> BoundInputs:
        """Bind by keyword, as far as Python allows."""
        positional = [
            parameter.name
            for parameter in self._plain
            if parameter.kind is parameter.POSITIONAL_ONLY
            or (more and parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        ]
        first = [taken.pop(name) for name in positional if name in taken]
        shifted = {
            str(len(first) + int(key)) if key.isdecimal() else key: name
            for key, name in renamed.items()
        }
        for number, parameter in enumerate(positional):
            shifted[str(number)] = renamed.get(parameter, parameter)
        modes = {
            parameter.name: MODES[parameter.name]
            for parameter in self._plain
            if parameter.name in MODES and parameter.name not in taken
        }
        return BoundInputs((*first, *more), taken, modes, shifted)

    def _refused(self, unknown: Sequence[str] = (), lacking: Sequence[str] = ()) -> InputsError:
        takes = [parameter.name for parameter in self._inputs]
        return refused_inputs(self._shown, unknown, lacking, takes)
