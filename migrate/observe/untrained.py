"""Optimizers whose parameters never get a gradient. Their steps train nothing.

On XLA the usual reason is an optimizer that was made before the model was moved: the move makes new
parameters, and the optimizer keeps the old ones.
"""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import current_line

if TYPE_CHECKING:
    import torch


@dataclass
class Stepped:
    """An optimizer that has made steps.

    Attributes:
        rank: the replica.
        name: the class.
        line: the line of the user's code that made it, else the line of its first step.
        parameters: how many it holds.
        steps: how many steps it made.
        trained: whether a parameter had a gradient at one of them.
    """

    rank: int
    name: str
    line: DumpFrame | None
    parameters: int = 0
    steps: int = 0
    trained: bool = False


class OptimizerWatch:
    """The optimizers of this process.

    Args:
        rank: returns the replica.
    """

    def __init__(self, rank: Callable[[], int]) -> None:
        self._rank = rank
        self._made: weakref.WeakKeyDictionary[torch.optim.Optimizer, DumpFrame | None] = (
            weakref.WeakKeyDictionary()
        )
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, Stepped] = (
            weakref.WeakKeyDictionary()
        )
        self._stepped: list[Stepped] = []

    def follow(self) -> None:
        """Take note of the line of each optimizer that is made from now on."""
        from torch.optim import Optimizer

        kind: Any = Optimizer
        make, lines = kind.__init__, self._made

        @functools.wraps(make)
        def noting(optimizer: torch.optim.Optimizer, *args: Any, **options: Any) -> None:
            make(optimizer, *args, **options)
            lines.setdefault(optimizer, current_line())

        kind.__init__ = noting

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note of a step."""
        known = self._known.get(optimizer)
        if known is None:
            line = self._made.get(optimizer) or current_line()
            known = self._known[optimizer] = Stepped(self._rank(), type(optimizer).__name__, line)
            self._stepped.append(known)
        known.steps += 1
        if not known.trained:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            known.parameters = len(held)
            known.trained = any(parameter.grad is not None for parameter in held)

    def write(self, folder: Path) -> None:
        """Write the optimizers that made steps to a file of this process."""
        if self._stepped:
            path = folder / f"optimizers.{os.getpid()}.json"
            # A process that is killed here leaves no half of a file.
            part = path.with_suffix(".part")
            part.write_text(json.dumps([asdict(step) for step in self._stepped]))
            part.replace(path)


def untrained(folder: Path) -> Iterator[Stepped]:
    """Yield each optimizer of a run whose parameters never had a gradient.

    Args:
        folder: folder of the run's records.
    """
    for path in sorted(folder.glob("optimizers.*.json")):
        for value in json.loads(path.read_text()):
            line = value.pop("line")
            stepped = Stepped(**value, line=DumpFrame(**line) if line else None)
            if stepped.parameters and not stepped.trained:
                yield stepped
