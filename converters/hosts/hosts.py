"""Exchange between the processes of one conversion; the base class is a single process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from converters.errors import HostsError
from converters.hosts.identity import Process

_Value = TypeVar("_Value")


class Hosts:
    """Processes of one conversion, from the view of one process. This class is a single process.

    Attributes:
        process: the identity of this process.
    """

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def count(self) -> int:
        """Number of processes."""
        return self.process.count

    @property
    def first(self) -> bool:
        """Whether this is process 0, which does the work that only one process may do."""
        return self.process.index == 0

    def gather(self, value: _Value) -> list[_Value]:
        """Return the value of each process, by its number. Wait for all. Values are JSON.

        Raises:
            HostsError: a process died, failed, or is at another point of the program.
        """
        return [value]

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """Return the value made by process 0; the others wait for it. The value is JSON.

        Raises:
            HostsError: as in `gather`.
        """
        return make()

    def require_all(self) -> None:
        """Check that no other process has died or failed.

        Raises:
            HostsError: another process has.
        """

    def agree(self, values: Mapping[str, str]) -> None:
        """Check that all processes have the same values.

        Args:
            values: name → value of this process.

        Raises:
            HostsError: a process has another value; the message names it.
        """
        gathered = self.gather(dict(values))
        for number, other in enumerate(gathered):
            for what, value in gathered[0].items():
                if other.get(what) != value:
                    raise HostsError(
                        f"process {number} has another {what} than process 0: {other.get(what)}, not {value}",
                        "start the same command on every host",
                    )


ALONE = Hosts(Process(0, 1))
