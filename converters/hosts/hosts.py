"""What the processes of one conversion ask of each other; and the one that is alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from converters.errors import HostsError
from converters.hosts.identity import Process

_Value = TypeVar("_Value")


class Hosts:
    """The processes of one conversion, as one of them sees them. This one is alone.

    Attributes:
        process: which one this is.
    """

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def count(self) -> int:
        """How many there are."""
        return self.process.count

    @property
    def first(self) -> bool:
        """Whether this is process 0, which does what only one may do."""
        return self.process.index == 0

    def all_told(self, value: _Value) -> list[_Value]:
        """What each process tells, by its number; waits for all. JSON values.

        Raises:
            HostsError: one of them died, failed, or is at another place.
        """
        return [value]

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """What process 0 makes; the others wait for it. A JSON value.

        Raises:
            HostsError: as in `all_told`.
        """
        return make()

    def require_all(self) -> None:
        """No other process has died or failed.

        Raises:
            HostsError: one has.
        """

    def agree(self, values: Mapping[str, str]) -> None:
        """All processes were given the same.

        Args:
            values: what it is → what this process was given.

        Raises:
            HostsError: one was given another thing, by name.
        """
        told = self.all_told(dict(values))
        for number, other in enumerate(told):
            for what, value in told[0].items():
                if other.get(what) != value:
                    raise HostsError(
                        f"process {number} has another {what} than process 0: {other.get(what)}, not {value}",
                        "start the same command on every host",
                    )


ALONE = Hosts(Process(0, 1))
