"""Epochs of a run, to see when schedules are stepped. A long one is hurried through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.train.frames import script_frames

_SUPPLY = "_migrate_supply"


@dataclass
class _Epoch:
    """Turns of one run of the loop over batches, and how many came before each step of each schedule."""

    turns: int = 0
    steps: dict[int, list[int]] = field(default_factory=dict)


@dataclass
class _Supply:
    """Batches that an iterator has given, the last of them, and the most that it gives in a hurry."""

    most: int | None
    count: int = 0
    batch: Any = None


class Epochs:
    """Runs of the loop over batches.

    After `hurry` the turns of the loop are skipped, its loader gives one batch again and again, and those of
    other loops give only one. The turns of an epoch, and the steps of schedules, are still the script's.

    Args:
        script: the script, as it is run.
        line: first line of the loop over batches.
        ends: for each statement that ends the loop early, tests around it that the loop does not change.
    """

    def __init__(self, script: str, line: int, ends: Sequence[Sequence[str]]) -> None:
        self._script, self._line, self._ends = script, line, ends
        self._epochs: list[_Epoch] = []
        self._is_whole: bool | None = None  # nothing ends the loop early
        self._hurried_at = 0
        self.hurried = False

    def follow(self) -> None:
        """Watch the iterators of loaders."""
        from torch.utils.data import DataLoader, dataloader

        self._follow(DataLoader, dataloader._BaseDataLoaderIter)

    def _follow(self, loaders: Any, iterators: Any) -> None:
        start, following = loaders.__iter__, iterators.__next__

        def begun(loader: Any) -> Any:
            iterator = start(loader)
            frames, _, _ = script_frames(self._script)
            of_loop = bool(frames) and frames[0].line == self._line
            setattr(iterator, _SUPPLY, _Supply(_length(loader) if of_loop else 1))
            return iterator

        def next_batch(iterator: Any) -> Any:
            supply = getattr(iterator, _SUPPLY, None)
            if supply is None:
                return following(iterator)
            if not self.hurried or supply.most is None or not supply.count:
                supply.batch = following(iterator)
            elif supply.count >= supply.most:
                raise StopIteration
            supply.count += 1
            return supply.batch

        loaders.__iter__, iterators.__next__ = begun, next_batch

    def begin(self) -> None:
        """Note that the loop begins."""
        self._epochs.append(_Epoch())

    def turn(self, local: dict[str, Any], of_module: dict[str, Any]) -> bool:
        """Note a turn of the loop; return whether to skip it."""
        if self._epochs:
            self._epochs[-1].turns += 1
        if self.hurried and self._is_whole is None:
            self._is_whole = all(_is_unreached(tests, local, of_module) for tests in self._ends)
        return self.hurried

    def step(self, scheduler: int) -> None:
        """Note a step of a schedule."""
        if self._epochs:
            last = self._epochs[-1]
            last.steps.setdefault(scheduler, []).append(last.turns)

    def hurry(self) -> None:
        """Hurry from now on."""
        self.hurried, self._hurried_at = True, len(self._epochs)

    @property
    def shown(self) -> bool:
        """Whether an epoch was hurried through from its begin to its end."""
        return self.hurried and len(self._epochs) > self._hurried_at + 1

    def turns(self, scheduler: int, *, ended: bool) -> int:
        """Turns of each epoch, if each has as many and steps a schedule once, after the last; 0 if not.

        Args:
            scheduler: identity of the schedule.
            ended: whether the script, and with it the last epoch, came to its end.
        """
        epochs = self._epochs if ended else self._epochs[:-1]
        if not epochs or (self.hurried and not self._is_whole):
            return 0
        turns = epochs[0].turns
        alike = all(e.turns == turns and e.steps.get(scheduler) == [turns] for e in epochs)
        return turns if alike else 0


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a dataset without a length
        return None


def _is_unreached(tests: Sequence[str], local: dict[str, Any], of_module: dict[str, Any]) -> bool:
    """Whether one of the tests around a statement is false."""
    for test in tests:
        try:
            if not eval(test, of_module, local):
                return True
        except Exception:  # a name has no value yet
            continue
    return False
