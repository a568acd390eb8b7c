"""What the names in a pickle become: constructors of ours, and records for everything that is not known.

A record keeps what the pickle says of an object (its class's name, arguments, state, entries) and has no code
of that class: it is compared and hashed by identity, and nothing of it is ever called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 200


class PickleError(ValueError):
    """The bytes are no complete pickle, or one that nobody's `dump` writes."""


class ForbiddenNameError(Exception):
    """The pickle names what has an effect when it is called; `str()` is its full name."""


def printable(name: str) -> str:
    """A name from a file as a terminal may have it."""
    return (name if name.isprintable() else ascii(name)[1:-1])[:_LONGEST]


class Constructor:
    """Stands for a class or function that a pickle may name.

    Args:
        name: its full name.
        make: makes the inert value from the arguments; a ValueError or TypeError says that they are
            not those of such a thing.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name = name
        self.make = make


class Plain(Constructor):
    """Stands for a class of plain values; of arguments that it is not known to take a `Record` is made."""

    __slots__ = ()


class Unknown(Constructor):
    """Stands for a class or function that means nothing to us: what it makes is a `Record`."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda *arguments: Record(name, arguments))


class Record:
    """An inert stand-in for an object.

    Attributes:
        name: the full name of its class, or of the function that made it.
        arguments: what that was given.
        keywords: the same, by name.
        state: what was set on it, mostly a dict of its attributes; None: nothing.
        items: of a list, set or queue of a class of its own; None: it is none.
        entries: of a dict of a class of its own; None: it is none.
        reached: whether it stands for an attribute of something else (a member of an enum, a method).
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
        """Its state as attributes by name; empty where it has another form of state."""
        state = self.state
        if type(state) is tuple and len(state) == 2:  # of a class with slots: (dict or None, slots)
            state = state[1] if state[0] is None else state[0]
        if type(state) is not dict:
            return {}
        return {name: value for name, value in state.items() if type(name) is str}


class Buildable(ABC):
    """A value of ours that takes its content as a pickle's state (an array of NumPy)."""

    __slots__ = ()

    @abstractmethod
    def build(self, state: Any) -> Any:
        """What stands in its place from now on, or itself.

        Raises:
            ValueError, TypeError: the state is not that of such a thing.
        """
