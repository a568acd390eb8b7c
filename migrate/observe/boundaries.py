"""Training steps that no sync ends.

XLA traces what a program does and runs it at a sync. Where nothing in a training loop synchronizes (no
`torch_xla.step()`, no `torch_xla.sync()`, no `MpDeviceLoader`), every step is added to one graph, which grows
until memory or the compiler gives up; values that are read in between do not end it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from migrate.observe.places import ends_no_step

if TYPE_CHECKING:
    import torch

# Steps of one optimizer in one graph. A critic that is trained a few times before the sync is meant; more
# than this is a loop whose steps nothing ends.
MOST_STEPS = 8


def at_each_end(ended: Callable[[], None]) -> None:
    """Call `ended` whenever a sync of this process has ended a step."""
    from torch_xla.core import xla_model

    # Not `_xla_step_marker`: a Python function around that one is taken for the cause of the sync.
    run_closures = xla_model._run_step_closures

    def synchronized() -> object:
        context = run_closures()
        if not ends_no_step():
            ended()
        return context

    xla_model._run_step_closures = synchronized


class StepsInGraph:
    """Number of steps of each optimizer since the last step boundary.

    Attributes:
        most: highest number of steps of one optimizer.
    """

    def __init__(self) -> None:
        self.ended()

    def ended(self) -> None:
        """A sync has run the graph."""
        self.most = 0
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )

    def stepped(self, optimizer: torch.optim.Optimizer) -> int:
        """Count a step; how many the optimizer has made. One without parameters on XLA makes none."""
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        if all(parameter.device.type != "xla" for parameter in held):
            return 0
        count = self._steps.get(optimizer, 0) + 1
        self._steps[optimizer] = count
        self.most = max(self.most, count)
        return count
