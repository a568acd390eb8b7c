"""Relation of a schedule's own steps to the updates of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migrate.train.errors import TrainError
from migrate.train.optimizer.recorded import RecordedOptimizer, RecordedSchedule


@dataclass(frozen=True)
class ScheduleSteps:
    """Number of a schedule's steps before each update: `update * factor // every + offset`.

    Attributes:
        factor: its steps in one update.
        every: updates in one of its steps.
        offset: its steps before the first update.
    """

    factor: int = 1
    every: int = 1
    offset: int = 0

    def count(self, update: int) -> int:
        """Return the number of steps before an update."""
        return update * self.factor // self.every + self.offset

    def text(self, step: str) -> str:
        """Return the number of steps as an expression of the update's number."""
        result = step
        if self.factor > 1:
            result = f"{self.factor} * {result}"
        if self.every > 1:
            result = f"{result} // updates_per_epoch"
        return f"{result} + {self.offset}" if self.offset else result


def steps_of(recorded: RecordedOptimizer, schedule: RecordedSchedule) -> ScheduleSteps:
    """Return when a schedule is stepped.

    Raises:
        TrainError: the record does not show it.
    """
    counts = schedule.counts
    if len(counts) < 2:
        raise TrainError(
            f"{recorded.at}: one update does not show when the schedule is stepped",
            "record two updates or more",
        )
    steps = shown_steps(counts, schedule.per_epoch)
    if steps is None:
        raise TrainError(
            f"{recorded.at}: the schedule is stepped in an order that the first {len(counts)} updates do not "
            f"show (steps before each: {', '.join(map(str, counts[:8]))})",
            "record more updates, or step the schedule once in each update or epoch",
        )
    return steps


def shown_steps(counts: Sequence[int], per_epoch: int = 0) -> ScheduleSteps | None:
    """Return when a schedule is stepped, if the numbers of its steps before the first updates show it.

    Args:
        counts: steps before each of them.
        per_epoch: updates in an epoch, if the schedule is known to be stepped once after it.
    """
    if len(counts) < 2:
        return None
    candidates = [ScheduleSteps()]
    candidates += [ScheduleSteps(factor=counts[1] - counts[0]), ScheduleSteps(offset=counts[0])]
    changes = [i for i in range(1, len(counts)) if counts[i] != counts[i - 1]]
    if len(changes) > 1:
        candidates.append(ScheduleSteps(every=changes[0]))
    if per_epoch:
        candidates.append(ScheduleSteps(every=per_epoch, offset=counts[0]))
    for candidate in candidates:
        agrees = all(candidate.count(i) == count for i, count in enumerate(counts))
        if candidate.factor > 0 and agrees:
            return candidate
    return None
