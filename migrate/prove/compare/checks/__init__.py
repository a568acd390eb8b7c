"""Checks of each step: one check a file, tried in the order of `CHECKS`.

Within a step the most informative check comes first: a missing gradient explains a norm, a norm explains a
parameter, a parameter explains the next loss.
"""

from __future__ import annotations

from collections.abc import Callable

from migrate.prove.compare.checks import (
    accumulation,
    draws,
    gradient_count,
    gradient_norm,
    learning_rate,
    loss,
    order,
    precision,
    ranks_apart,
    settings,
    snapshots,
)
from migrate.prove.compare.difference import Difference, StepCase

CHECKS: tuple[Callable[[StepCase], Difference | None], ...] = (
    order.check,
    gradient_count.check,
    learning_rate.check,
    settings.check,
    accumulation.check,
    precision.check,
    draws.check,
    ranks_apart.check,
    gradient_norm.check,
    snapshots.check,
    loss.check,
)
