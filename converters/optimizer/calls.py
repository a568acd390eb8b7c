"""Calls of optax as values: printed as the user's code, and executed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

OWN = "transforms"  # names that are not in optax are in converters.optimizer.transforms


@dataclass(frozen=True)
class Code:
    """Expression in the place of a number, such as the name of a schedule; it can only be printed."""

    text: str

    def __mul__(self, terms: int) -> Code:
        return self if terms == 1 else Code(f"{self.text} * {terms}")

    def __truediv__(self, terms: int) -> Code:
        return self if terms == 1 else Code(f"{self.text} / {terms}")


@dataclass(frozen=True)
class OptaxCall:
    """Call such as `optax.adamw(0.001, weight_decay=0.01)`.

    Attributes:
        name: the qualified name: "optax.adamw", "transforms.amsgrad".
        arguments: the positional arguments: numbers or other calls.
        options: the keyword arguments.
        arranged: whether its first argument is the correspondence of arrays and torch tensors.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    arranged: bool = False

    @property
    def text(self) -> str:
        """Line of code."""
        shown = ["leaves"] if self.arranged else []
        shown += [_text(argument) for argument in self.arguments]
        shown += [f"{name}={_text(value)}" for name, value in self.options]
        return f"{self.name}({', '.join(shown)})"

    def make(self, leaves: Any) -> Any:
        """Return the result of the call; `leaves` is for arranged calls."""
        import optax

        # By name, because the module imports this package.
        transforms = import_module("converters.optimizer.transforms")
        package, _, name = self.name.rpartition(".")
        function = getattr(transforms if package == OWN else optax, name)
        arguments = [leaves] if self.arranged else []
        arguments += [_made(argument, leaves) for argument in self.arguments]
        return function(*arguments, **{key: _made(value, leaves) for key, value in self.options})


def call(name: str, *arguments: Any, **options: Any) -> OptaxCall:
    """Create a call of optax, or of `transforms`."""
    return OptaxCall(name, arguments, tuple(options.items()))


def chained(*parts: OptaxCall | None) -> OptaxCall:
    """Chain the calls, omitting None."""
    there = tuple(part for part in parts if part is not None)
    return there[0] if len(there) == 1 else OptaxCall("optax.chain", there)


def _text(value: Any) -> str:
    if isinstance(value, OptaxCall | Code):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_text(item)}' for key, item in value.items()) + "}"
    return f"{value!r}"


def _made(value: Any, leaves: Any) -> Any:
    return value.make(leaves) if isinstance(value, OptaxCall) else value
