"""Questions about a script: names, positions, parents, scopes, ranks of workers."""

from __future__ import annotations

from functools import cached_property

from migrate.reading.replicas.for_cuda import guarded
from migrate.reading.replicas.guards import Guards
from migrate.reading.replicas.launch import Launch
from migrate.reading.replicas.partly_bound import PartlyBound
from migrate.reading.steps.effects import Effects
from migrate.reading.values.devices import Placed


class Script(Placed):
    """Facts about a script, collected before any rule or hazard inspects it.

    Attributes:
        entered: the last `Facts` that also know its functions that steps of other files run.
    """

    entered: object = None

    @property
    def portable(self) -> bool:
        """Whether the script already uses `shims`, and so runs on CUDA, the CPU and a TPU."""
        return False

    @cached_property
    def launch(self) -> Launch:
        """Start of the script, and the part of its code that runs in a replica."""
        return Launch(self)

    @cached_property
    def guards(self) -> Guards:
        """Code that runs only on some of the replicas."""
        return Guards(self)

    @cached_property
    def partly_bound(self) -> PartlyBound:
        """Names that only some of the replicas bind."""
        return PartlyBound(self, self.guards)

    @cached_property
    def effects(self) -> Effects:
        """Statements that run a backward pass or an optimizer step."""
        return Effects(self)

    @cached_property
    def for_cuda(self) -> frozenset[int]:
        """Ids of the nodes below `if shims.device_type() == "cuda"`, which stay unchanged."""
        return guarded(self)
