"""Stop the ranks of a recorded run after a number of optimizer steps, all at the same one.

A rank stops right after the step by which every optimizer of the script has made K steps; or, where one
makes none or fewer (a generator that is trained less often than its critic), before the first step K + 1 of
any. It leaves by SystemExit(0), so that what the script does at its end is done; one that goes on all
the same leaves the process at the next step. A file for each rank tells `migrate.prove.run` that its
recording is whole, whatever the exit code of the script then is.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Ranks that wait for one that never comes (it had less data) leave after this time.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.02


class StoppedError(SystemExit):
    """The rank has made its steps. Not an Exception: a script that goes on after errors must not see it."""


class StepLimit:
    """When this rank stops.

    Args:
        folder: of the recording.
        steps: K; None: never.
    """

    def __init__(self, folder: Path, steps: int | None) -> None:
        self._folder = folder
        self._steps = steps
        self._made: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._inner: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._left = False
        if steps is not None:
            self._hear_of_optimizers()

    def _hear_of_optimizers(self) -> None:
        # Not at the top: the parent of a run asks only which ranks have stopped, and may lack torch.
        from torch.optim import Optimizer

        kind: Any = Optimizer
        made, counts = kind.__init__, self._made

        @functools.wraps(made)
        def told(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            counts.setdefault(optimizer, 0)

        kind.__init__ = told

    def inner(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer steps inside another one: it counts for nothing."""
        self._inner.add(optimizer)

    def reached_before(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the step that the optimizer is about to make is one too many."""
        self.leave_if_it_goes_on()
        return self._steps is not None and self._made.get(optimizer, 0) >= self._steps

    def reached_after(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step; whether it was the last one."""
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        counted = [count for one, count in self._made.items() if one not in self._inner]
        return self._steps is not None and min(counted) >= self._steps

    def leave_if_it_goes_on(self) -> None:
        """End the process of a script that caught the stop and trains on."""
        if self._left:
            os._exit(0)

    def leave(self, rank: int, world_size: int) -> None:
        """Tell that the recording is whole, wait for the other ranks, and stop.

        Raises:
            StoppedError: always.
        """
        stopped_path(self._folder, rank).write_text(str(world_size))
        # A rank that ended first would break the collectives that the others are still in.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not all_stopped(self._folder) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._left = True
        raise StoppedError(0)


def stopped_path(folder: Path, rank: int) -> Path:
    """The file by which a rank tells that it has stopped; it holds the number of ranks."""
    return folder / f"rank{rank}.stopped"


def all_stopped(folder: Path) -> bool:
    """Whether every rank of the run has stopped after its steps."""
    texts = [path.read_text() for path in folder.glob("rank*.stopped")]
    return any(text.isdecimal() and int(text) <= len(texts) for text in texts)
