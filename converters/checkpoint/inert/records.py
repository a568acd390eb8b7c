"""Stand-ins for the names in a pickle: constructors of this package, and records for unknown names.

A record keeps the pickle's description of an object (class name, arguments, state, entries) and has
no code of that class. It is compared and hashed by identity, and nothing in it is ever called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 200


class PickleError(ValueError):
    """The bytes are not a complete pickle, or not one that `pickle.dump` writes."""


class ForbiddenNameError(Exception):
    """The pickle names something that has an effect when called; `str()` is its full name."""


def printable(name: str) -> str:
    """Return a name from a file in a form that is safe to print."""
    return (name if name.isprintable() else ascii(name)[1:-1])[:_LONGEST]


class Constructor:
    """Stand-in for a class or function that a pickle may name.

    Args:
        name: its full name.
        make: creates the inert value from the arguments; raises ValueError or TypeError for
            invalid arguments.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self.make = make


class Plain(Constructor):
    """Stand-in for a class of plain values; unknown arguments create a `Record`."""

    __slots__ = ()


class Unknown(Constructor):
    """Stand-in for an unknown class or function, which creates a `Record`."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda *arguments: Record(name, arguments))


class Record:
    """Inert stand-in for an object.

    Attributes:
        name: the full name of its class, or of the function that created it.
        arguments: the positional arguments.
        keywords: the keyword arguments.
        state: the state that was set, usually a dict of attributes, or None.
        items: the items of a list, set or queue subclass, or None.
        entries: the entries of a dict subclass, or None.
        reached: whether it stands for an attribute (an enum member, a method).
    """

    __slots__ = ("arguments", "entries", "items", "keywords", "name", "reached", "state")

    def __init__(
        self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.keywords = keywords
        self.state: Any = None
        self.items: list[Any] | None = None
        self.entries: dict[Any, Any] | None = None
        self.reached = False

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of its state by name; empty if the state has another form."""
        state = self.state
        if type(state) is tuple and len(state) == 2:  # a class with slots: (dict or None, slots)
            state = state[1] if state[0] is None else state[0]
        if type(state) is not dict:
            return {}
        return {name: value for name, value in state.items() if type(name) is str}


class Buildable(ABC):
    """Value of this package that takes its content as a pickle's state (a NumPy array)."""

    __slots__ = ()

    @abstractmethod
    def build(self, state: Any) -> Any:
        """Return the value that replaces it, or itself.

        Raises:
            ValueError, TypeError: the state is invalid.
        """
