"""Frozen weights that a script sets to trained ones, or moves towards them, between two updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from migrate.train.watch.averages import SeenDecay, constant_decay, decay_between


@dataclass(frozen=True)
class RecordedCopies:
    """Copies of trained weights into frozen ones.

    Attributes:
        names: frozen parameter → the trained one that it gets.
        updates: numbers of the updates before which it happens.
        decays: the part of itself that the frozen parameter keeps each time; 0: it becomes a copy.
    """

    names: Mapping[str, str]
    updates: tuple[int, ...] = ()
    decays: tuple[SeenDecay, ...] = ()

    @property
    def kept(self) -> float | None:
        """The part of itself that a frozen parameter keeps; None if it is not the same each time."""
        return constant_decay(self.decays)

    def period(self, count: int, ended: bool) -> int:
        """Number of updates between two copies; 0 if these do not show one.

        Args:
            count: number of updates that were watched.
            ended: whether the script made no more.
        """
        first = self.updates[0]
        shown = len(self.updates) > 1 or ended
        return first if shown and self.updates == tuple(range(first, count, first)) else 0


class CopyWatch:
    """Copies of trained weights in one run.

    Args:
        step: the step.
    """

    def __init__(self, step: nn.Module) -> None:
        parameters = dict(step.named_parameters())
        self._frozen = {name: p for name, p in parameters.items() if not p.requires_grad}
        self._trained = {name: p for name, p in parameters.items() if p.requires_grad}
        self.recorded: RecordedCopies | None = None

    def explain(self, changed: list[str], update: int, before: Mapping[str, torch.Tensor]) -> bool:
        """Whether parameters that changed since the last update are now copies, or nearer to trained ones.

        All of them must be the same part of the way nearer.

        Args:
            changed: names of the parameters.
            update: number of the update that comes.
            before: values of all parameters after the last update.
        """
        if not set(changed) <= set(self._frozen):
            return False
        names = self.recorded.names if self.recorded else self._matched(changed[0])
        if not set(changed) <= set(names):
            return False
        now = {to: self._frozen[to].detach() for to in names}
        trained = {to: self._trained[of].detach() for to, of in names.items()}
        if all(torch.equal(now[to], trained[to]) for to in names):
            seen: SeenDecay | None = SeenDecay(0.0, 0.0)
        else:
            seen = decay_between({to: before[to] for to in names}, now, trained)
        if seen is None:
            return False
        earlier = self.recorded or RecordedCopies(names)
        self.recorded = RecordedCopies(names, (*earlier.updates, update), (*earlier.decays, seen))
        return True

    def _matched(self, changed: str) -> dict[str, str]:
        """Frozen parameters of a module with the trained ones of another, by the names inside of both."""
        parts = changed.split(".")
        for start in range(1, len(parts)):
            inner = ".".join(parts[start:])
            for name, weight in self._trained.items():
                if not name.endswith(f".{inner}") or weight.shape != self._frozen[changed].shape:
                    continue
                to, of = changed.removesuffix(inner), name.removesuffix(inner)
                pairs = {n: f"{of}{n.removeprefix(to)}" for n in self._frozen if n.startswith(to)}
                if set(pairs.values()) <= set(self._trained):
                    return pairs
        return {}
