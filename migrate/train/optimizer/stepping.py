"""Relation of a schedule's own steps to the updates of the training."""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class Argument:
    """Number that the script passes to a function of the learning rate: `start + step * stride`.

    Attributes:
        start: before the first update.
        stride: its growth in one update.
        epochs: the same for a number that grows from epoch to epoch; None for another one.
    """

    start: float = 0
    stride: float = 1
    epochs: ScheduleSteps | None = None

    def at(self, update: int) -> float:
        """Return the number before an update."""
        return self.epochs.count(update) if self.epochs else self.start + update * self.stride

    def text(self) -> str:
        """Return the number as an expression of the update's number, `step`."""
        if self.epochs is not None:
            return self.epochs.text("step")
        stride = self.stride
        text = "step" if stride == 1 else f"step * {stride!r}"
        if 0 < stride < 1 and math.isclose(1 / stride, round(1 / stride), rel_tol=1e-9):
            text = f"step / {round(1 / stride)}"
        return text if self.start == 0 else f"{text} + {self.start!r}"


def argument_of(numbers: Sequence[float], per_epoch: int = 0) -> Argument | None:
    """Return the number that a function takes, if those before the first updates show it.

    Args:
        numbers: the number before each of them.
        per_epoch: updates in an epoch, if the number is known to grow by one with each.
    """
    if len(numbers) < 2:
        return None
    start, stride = numbers[0], numbers[1] - numbers[0]
    whole = float(start).is_integer() and float(stride).is_integer()
    even = all(
        math.isclose(start + i * stride, number, rel_tol=1e-9, abs_tol=1e-12)
        for i, number in enumerate(numbers)
    )
    if even and stride:
        return Argument(int(start), int(stride)) if whole else Argument(start, stride)
    if not all(float(number).is_integer() for number in numbers):
        return None
    steps = shown_steps([int(number) for number in numbers], per_epoch)
    return None if steps is None else Argument(epochs=steps)


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
        candidates.append(ScheduleSteps(every=changes[0], offset=counts[0]))
    if per_epoch:
        candidates.append(ScheduleSteps(every=per_epoch, offset=counts[0]))
    for candidate in candidates:
        agrees = all(candidate.count(i) == count for i, count in enumerate(counts))
        if candidate.factor > 0 and agrees:
            return candidate
    return None
