"""Stop the ranks of a recorded run after a number of optimizer steps, all at the same step.

A rank stops right after the step by which every optimizer of the script has made K steps. If an optimizer
makes none or fewer (a generator that is trained less often than its critic), it stops before the first step
K + 1 of any.

It leaves by SystemExit(0), so that the script's final code still runs. A script that continues anyway leaves
the process at the next step. A file for each rank tells `migrate.prove.run` that its recording is complete,
whatever the script's exit code.
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

# Ranks that wait for a rank that never comes (it had less data) leave after this time.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.02


class StoppedError(SystemExit):
    """Raised when the rank has made its steps; no Exception, so that scripts that catch errors do not see
    it.
    """


class StepLimit:
    """Step limit of this rank.

    Args:
        folder: folder of the recording.
        steps: K; None: no limit.
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
            self._hook_optimizers()

    def _hook_optimizers(self) -> None:
        # Not at the top: the parent of a run only asks which ranks have stopped, and may lack torch.
        from torch.optim import Optimizer

        kind: Any = Optimizer
        create, counts = kind.__init__, self._made

        @functools.wraps(create)
        def reporting(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            create(optimizer, *args, **kwargs)
            counts.setdefault(optimizer, 0)

        kind.__init__ = reporting

    def inner(self, optimizer: torch.optim.Optimizer) -> None:
        """Ignore the steps of an optimizer inside another optimizer."""
        self._inner.add(optimizer)

    def reached_before(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the step that the optimizer is about to make is one too many."""
        self.leave_if_it_goes_on()
        return self._steps is not None and self._made.get(optimizer, 0) >= self._steps

    def reached_after(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step; return whether it was the last."""
        self._made[optimizer] = self._made.get(optimizer, 0) + 1
        counted = [
            count
            for optimizer_counted, count in self._made.items()
            if optimizer_counted not in self._inner
        ]
        return self._steps is not None and min(counted) >= self._steps

    def leave_if_it_goes_on(self) -> None:
        """End the process of a script that caught the stop and continues to train."""
        if self._left:
            os._exit(0)

    def leave(self, rank: int, world_size: int) -> None:
        """Mark the recording as complete, wait for the other ranks, and stop.

        Raises:
            StoppedError: always.
        """
        stopped_path(self._folder, rank).write_text(str(world_size))
        # A rank that ended first would break the collectives of the others.
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not all_stopped(self._folder) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self._left = True
        raise StoppedError(0)


def stopped_path(folder: Path, rank: int) -> Path:
    """Path of the file by which a rank marks that it has stopped; it holds the number of ranks."""
    return folder / f"rank{rank}.stopped"


def all_stopped(folder: Path) -> bool:
    """Whether every rank of the run has stopped after its steps."""
    texts = [path.read_text() for path in folder.glob("rank*.stopped")]
    return any(text.isdecimal() and int(text) <= len(texts) for text in texts)
