"""What may be asked about a script: names, positions, parents, scopes, what is a worker's rank."""

from __future__ import annotations

from functools import cached_property

from migrate.reading.replicas.for_cuda import guarded
from migrate.reading.replicas.guards import Guards
from migrate.reading.replicas.launch import Launch
from migrate.reading.replicas.partly_bound import PartlyBound
from migrate.reading.steps.effects import Effects
from migrate.reading.values.devices import Placed


class Script(Placed):
    """A script with everything that is known about it before a rule or a hazard looks."""

    @property
    def portable(self) -> bool:
        """Whether it is known to be for `shims`, and so for CUDA, the CPU and a TPU."""
        return False

    @cached_property
    def launch(self) -> Launch:
        """How the script is started, and which of its code runs in a replica."""
        return Launch(self)

    @cached_property
    def guards(self) -> Guards:
        """What runs only on some of the replicas."""
        return Guards(self)

    @cached_property
    def partly_bound(self) -> PartlyBound:
        """Which names only some of the replicas bind."""
        return PartlyBound(self, self.guards)

    @cached_property
    def effects(self) -> Effects:
        """Which statements run a backward pass or an optimizer step."""
        return Effects(self)

    @cached_property
    def for_cuda(self) -> frozenset[int]:
        """The ids of the nodes below `if shims.device_type() == "cuda"`, which stay as they are."""
        return guarded(self)
