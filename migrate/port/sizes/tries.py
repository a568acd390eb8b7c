"""Tries of a port under groups of changes of its original: shapes first, outputs where these agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from migrate.port.sizes.distance import difference, distance
from migrate.port.sizes.flax import PortAtSize, PortRefusesError, origin
from migrate.port.sizes.instance import SizeChange, SizedModel, alive
from migrate.port.sizes.question import SizeQuestion
from migrate.port.sizes.rates import Kept, kept_by_port, same
from migrate.port.sizes.starts import starts_apart
from migrate.progress import Progress

# Instances of the port that are compiled and run at most, and those of which only shapes are computed.
_RUNS = 24
_TRACES = 64
_Attempt = Callable[[PortAtSize, SizedModel], str]
REFUSED = "the original refuses it beside the others"
NO_START = "new models of the original start alike with other values"


class Tries:
    """Tests of a port under groups of changes. Each group is tried once.

    Attributes:
        distance: relative L2 of the worst output in the last run that agreed.
        settings: the settings of the port in that run.
    """

    def __init__(
        self,
        question: SizeQuestion,
        package: Any,
        order: Sequence[SizeChange],
        progress: Progress,
    ) -> None:
        """Prepare tries of these changes.

        Args:
            question: the port and its original.
            package: package of the port.
            order: all changes, in the order in which the original takes them.
            progress: receives the progress.
        """
        self._question, self._package = question, package
        self._order, self._progress = order, progress
        self._traces, self._runs = _TRACES, _RUNS
        self._known: dict[tuple[str, tuple[int, ...]], str] = {}
        self.distance: float | None = None
        self.settings: dict[str, Any] = dict(question.port.settings)

    def shapes(self, changes: Sequence[SizeChange]) -> str:
        """Return what is wrong with the shapes of weights and outputs, or "". Nothing is compiled."""
        return self._once(self._shapes, "shapes", changes)

    def outputs(self, changes: Sequence[SizeChange]) -> str:
        """Return what is wrong with the outputs, or "" if the port agrees with the original."""
        return self._once(self._outputs, "outputs", changes)

    def rates(self, instance: SizedModel, theirs: Kept) -> str:
        """Return what is wrong with what the port drops in training, or ""."""
        port = self._question.port
        settings = self._question.settings(instance)
        try:
            there = self._question.port_at(self._package, settings, instance)
            mine = kept_by_port(there) if port.trains else Kept()
        except PortRefusesError as error:
            return f"the port {error}"
        if mine is None:
            return "the original drops other shares in training; not tried for nnx"
        if not same(theirs, mine, scanned=bool(port.stacks)):
            return "training drops other shares than the original"
        return ""

    def starts(self, before: Sequence[SizeChange], changes: Sequence[SizeChange]) -> str:
        """Return what is wrong with what `init` draws under changes beside others, or "".

        The original must draw otherwise with them, or nothing is shown.
        """
        ordered = [change for change in self._order if change in before]
        with_them, without = (self._question.second((*ordered, *more)) for more in (changes, ()))
        if with_them is None or without is None:
            return REFUSED
        self._progress("comparing initial values at other sizes", 0, 0, "size")
        unchanged = replace(with_them, settings=without.settings)
        try:
            if not starts_apart(self._question, unchanged):
                return NO_START
            apart = starts_apart(self._question, with_them)
        except Exception as error:  # whatever a source that does not run raises
            return f"init: {type(error).__name__}: {error}"
        said = "; ".join(f"{path}: {why}" for path, why in list(apart.items())[:2])
        return f"`init` draws otherwise than the original ({said})" if said else ""

    def _once(self, attempt: _Attempt, what: str, changes: Sequence[SizeChange]) -> str:
        key = what, tuple(sorted(map(id, changes)))
        if key not in self._known:
            done = sum(tried == what for tried, _ in self._known)
            self._progress(f"comparing {what} at other sizes", done, 0, "size")
            self._known[key] = self._tried(attempt, changes)
        return self._known[key]

    def _tried(self, attempt: _Attempt, changes: Sequence[SizeChange]) -> str:
        ordered = tuple(change for change in self._order if change in changes)
        instance = self._question.built(ordered, computes=attempt == self._outputs)
        if instance is None:
            return REFUSED
        if min(self._traces, self._runs) <= 0:
            return "not tried"
        if attempt == self._outputs:
            instance = alive(instance)
        settings = self._question.settings(instance)
        try:
            why = attempt(self._question.port_at(self._package, settings, instance), instance)
        except PortRefusesError as error:
            place = origin(error, instance.module)
            return f"the port {error}{f' ({place})' if place else ''}"
        if not why:
            self.settings = dict(settings)
        return why

    def _shapes(self, there: PortAtSize, instance: SizedModel) -> str:
        self._traces -= 1
        shapes, wanted = there.shapes(), [tuple(output.shape) for output in instance.outputs]
        return "" if shapes == wanted else f"the outputs are {shapes}, the original's {wanted}"

    def _outputs(self, there: PortAtSize, instance: SizedModel) -> str:
        self._runs -= 1
        outputs = there.outputs()
        apart, limit = distance(outputs, instance)
        if not apart <= limit:
            return f"the outputs {difference(outputs, instance, apart)}"
        self.distance = apart
        return ""
