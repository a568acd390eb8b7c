"""What may be asked about a script: names, positions, parents, scopes, what is a worker's rank."""

from __future__ import annotations

from functools import cached_property

from migrate.reading.calls.facts import ModuleCalls, calls_of_script
from migrate.reading.replicas.for_cuda import guarded
from migrate.reading.replicas.guards import Guards
from migrate.reading.replicas.launch import Launch
from migrate.reading.steps.effects import Effects
from migrate.reading.tree.source import Source
from migrate.reading.values.devices import Placed


class Script(Placed):
    """A script with everything that is known about it before a rule or a hazard looks.

    Args:
        source: the script as read.
        calls: what its calls run, where the project that it is a part of has been looked at; else the
            local modules that it imports are read when that is asked for.
    """

    def __init__(self, source: Source, calls: ModuleCalls | None = None) -> None:
        super().__init__(source)
        self._calls = calls

    @cached_property
    def calls(self) -> ModuleCalls:
        """What the calls of the script run, also in other files of its project."""
        if self._calls is None:
            self._calls = calls_of_script(self.source.path, self.source.data)
        return self._calls

    @cached_property
    def launch(self) -> Launch:
        """How the script is started, and which of its code runs in a replica."""
        return Launch(self)

    @cached_property
    def guards(self) -> Guards:
        """What runs only on some of the replicas."""
        return Guards(self)

    @cached_property
    def effects(self) -> Effects:
        """Which statements run a backward pass or an optimizer step."""
        return Effects(self, self.calls)

    @cached_property
    def for_cuda(self) -> frozenset[int]:
        """The ids of the nodes below `if shims.device_type() == "cuda"`, which stay as they are."""
        return guarded(self)
