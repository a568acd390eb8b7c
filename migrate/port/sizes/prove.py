"""Proof at a second size: what a port follows, and what it must keep fixed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.layers.reparametrized import class_before
from migrate.port.package import package_of
from migrate.port.sizes.beyond import lifted
from migrate.port.sizes.construction import Construction
from migrate.port.sizes.instance import Arrays, Axis, SizeChange, alive, built, threads_for
from migrate.port.sizes.leaves import Leaf, candidates, leaves, other_lengths
from migrate.port.sizes.methods import method_apart
from migrate.port.sizes.question import SizeQuestion
from migrate.port.sizes.rates import kept_by_original
from migrate.port.sizes.results import FixedSize, SecondSize, Sizes, unproven
from migrate.port.sizes.second import Second, beside, is_idle, second
from migrate.port.sizes.tries import REFUSED, Tries
from migrate.port.sizes.unseen import Unseen
from migrate.progress import Progress

IDLE = "other values had no effect on the inputs of the proof"
_FORM = "with the other value the original is another model, which `modeling.py` does not have"
# How many times a number of initial values is another one: few draws tell it apart.
_SPREAD = 4
# A share to try in place of none.
_SHARE = 0.25
Attempt = Callable[[Sequence[SizeChange]], str]


def sizes_of(
    port: Any,
    folder: Path,
    module: Any,
    construction: Construction | None,
    inputs: Arrays,
    shown: str,
    progress: Progress,
    methods: Mapping[str, Arrays] | None = None,
) -> Sizes:
    """Build the original and the port at a second size, and compare their outputs.

    Args:
        port: what the compiler gave; its source asserts none of its bounds.
        folder: folder of the port.
        module: the original.
        construction: how it was made; None: not known.
        inputs: what it was recorded with.
        shown: the model, for messages.
        progress: receives the progress.
        methods: what further methods were recorded with.
    """
    with threads_for(module):
        with package_of(folder) as package:
            free = lifted(port, package, folder, module, inputs)
        sizes = _at_another_size(
            port, folder, module, construction, inputs, shown, progress, methods or {}
        )
    return replace(sizes, lifted=free)


def _at_another_size(
    port: Any,
    folder: Path,
    module: Any,
    construction: Construction | None,
    inputs: Arrays,
    shown: str,
    progress: Progress,
    methods: Mapping[str, Arrays],
) -> Sizes:
    fixed = tuple(Axis(*place) for place in unproven(port, "").axes)
    if construction is None:
        return unproven(port, "the call of the model's constructor was not seen")
    base = built(construction, inputs, (), shown)
    if construction.left_none and (base is None or not _is_same(base.module, module)):
        construction = construction.as_called()
        base = built(construction, inputs, (), shown)
    if base is None:
        return unproven(port, "its constructor's arguments do not build the model a second time")
    if not _is_same(base.module, module):
        return unproven(port, "the model was changed after its constructor had made it")
    question = SizeQuestion(port, folder, construction, base, shown)
    unseen = Unseen(question)
    second_size = second(construction, base, fixed, shown)
    with package_of(folder) as package:
        proof = _Proof(
            question, second_size, Tries(question, package, second_size.changes, progress)
        )
        sizes = proof.run(unseen, fixed)
        for method, arrays in methods.items() if proof.good else ():
            if why := proof.method_apart(package, method, arrays):
                return unproven(port, f"there its method {method} {why}")
        return sizes


def _as_setting(name: str, here: Any, there: Any, before: int, size: int) -> Iterator[str]:
    """Expressions of a setting that is a size here, and its other size there: `patch[0]`, `2 * width`."""
    if isinstance(here, tuple) and isinstance(there, tuple) and len(here) == len(there):
        for place, pair in enumerate(zip(here, there, strict=True)):
            yield from _as_setting(f"{name}[{place}]", *pair, before, size)
    elif type(here) is int and type(there) is int and here != there and here > 1 and there > 0:
        times = before // here
        if before == times * here and size == times * there:
            yield name if times == 1 else f"{times} * {name}"


def _sizes(inputs: Arrays, axes: Sequence[Axis]) -> dict[Axis, int]:
    return {axis: int(inputs[axis.name].shape[axis.axis]) for axis in axes}


def _is_same(left: Any, other: Any) -> bool:
    """Whether two modules hold tensors of the same names and shapes."""
    shapes = [
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        for module in (left, other)
    ]
    kinds = [
        {name: class_before(inner) for name, inner in each.named_modules()}
        for each in (left, other)
    ]
    return shapes[0] == shapes[1] and kinds[0] == kinds[1]


def _shown(changes: Sequence[SizeChange]) -> tuple[tuple[str, Any, Any], ...]:
    """Name, value here and value there of changes."""
    return tuple(
        (change.name, change.leaf.value, change.value)
        for change in changes
        if change.leaf is not None
    )


class _Proof:
    """The search for the changes that a port follows, from the cheapest question to the dearest.

    What the port cannot see needs no port. What its shapes refuse needs no values, and nothing is compiled.
    The others are run, all at once, and in halves where the outputs differ.
    """

    def __init__(self, question: SizeQuestion, second_size: Second, tries: Tries) -> None:
        self.question, self.found, self.tries = question, second_size, tries
        self.inputs = question.base.inputs
        self.good: list[SizeChange] = []
        self.bad: dict[int, tuple[SizeChange, str]] = {}
        self.rates: list[SizeChange] = []
        self.starts: list[SizeChange] = []
        self.lengths: list[SizeChange] = []

    def run(self, unseen: Unseen, fixed: Sequence[Axis]) -> Sizes:
        """Search, and return what was found."""
        left = [
            change for change in self.found.changes if not self._is_bad(change, unseen.why(change))
        ]
        self.good = self._followed([], left)
        self._again()
        self._try_rates()
        self._try_starts()
        self._try_lengths()
        return self._result(fixed)

    def method_apart(self, package: Any, method: str, arrays: Arrays) -> str:
        """Return what is wrong with a further method under the changes that the forward follows."""
        ordered = tuple(change for change in self.found.changes if change in self.good)
        instance = self.question.built(ordered)
        if instance is None:
            return "was not tried"
        return method_apart(self.question, package, alive(instance), ordered, method, arrays)

    def _followed(self, good: list[SizeChange], changes: Sequence[SizeChange]) -> list[SizeChange]:
        """The changes that the port follows beside the good ones, and these."""
        passing = self._settled(self.tries.shapes, good, changes)
        return [*good, *self._settled(self.tries.outputs, good, passing)]

    def _again(self) -> None:
        """Try other values of the numbers that the original refuses beside what the port follows."""
        refused = {
            change.leaf: key
            for key, (change, why) in self.bad.items()
            if why == REFUSED and change.leaf is not None
        }
        question = self.question
        more = beside(
            question.construction, question.base, self.good, tuple(refused), question.shown
        )
        for change in more:
            if change.leaf is not None:
                del self.bad[refused[change.leaf]]
        self.found.changes += more
        self.good = self._followed(self.good, more)

    def _try_rates(self) -> None:
        """Try shares without an effect in evaluation by what both sides drop in training."""
        shares = [
            leaf
            for leaf in (*self.found.idle, *self.found.untried)
            if isinstance(leaf.value, float) and 0 <= leaf.value < 1
        ]
        before = kept_by_original(self.question.base) if shares else None
        for leaf in shares if before is not None else ():
            for value in candidates(leaf, upwards=True)[:1] or (_SHARE,):
                change = SizeChange(leaf, value, {})
                instance = self.question.built((change,))
                theirs = None if instance is None else kept_by_original(instance)
                if instance is None or theirs is None or theirs == before:
                    continue
                if not self._is_bad(change, self.tries.rates(instance, theirs)):
                    self.rates.append(change)

    def _try_starts(self) -> None:
        """Try numbers without an effect in evaluation by what `init` draws with them."""
        settings = self.question.port.settings
        known = {change.leaf for change in (*self.found.changes, *self.rates)}
        left = [
            leaf
            for leaf in leaves(self.question.construction.arguments, every=True)
            if leaf not in known and not isinstance(leaf.value, tuple) and leaf.value
        ]
        changes = [SizeChange(leaf, _SPREAD * leaf.value, {}) for leaf in left]
        changes = [
            change
            for change in changes
            if any(self.tries.settings[name] == settings[name] for name in self._moved(change))
        ]
        why = self.tries.starts(self.good, changes) if changes else ""
        for change in changes:
            own = self.tries.starts(self.good, [change]) if why and len(changes) > 1 else why
            if not self._is_bad(change, own):
                self.starts.append(change)

    def _try_lengths(self) -> None:
        """Try other numbers of entries of the sequences that the port follows: each, or all as long."""
        names = set(self.question.port.settings)
        followed = [
            leaf
            for leaf in (*(change.leaf for change in self.good), *self.found.idle)
            if leaf is not None and isinstance(leaf.value, tuple) and leaf.name in names
        ]
        by_length: dict[int, list[Leaf]] = {}
        for leaf in followed:
            assert isinstance(leaf.value, tuple)
            by_length.setdefault(len(leaf.value), []).append(leaf)
        here = self.tries.settings, self.tries.distance
        for alike in by_length.values():
            left = [leaf for leaf in alike if not self._length([leaf])]
            if len(left) > 1:
                self._length(left)
        self.tries.settings, self.tries.distance = here

    def _length(self, group: Sequence[Leaf]) -> bool:
        """Try other numbers of entries of sequences that are as long as each other. Return whether all that
        the original takes agree, if it takes any.
        """
        base, tried = self.question.base, []
        for at in range(2):  # more entries, then fewer
            for values in zip(*(other_lengths(leaf)[at] for leaf in group), strict=False):
                changes = [
                    SizeChange(leaf, value, {}) for leaf, value in zip(group, values, strict=True)
                ]
                instance = self.question.built(tuple(changes))
                if instance is None or is_idle(instance, base):
                    continue
                self.found.changes += changes
                if self.tries.shapes(changes) or self.tries.outputs(changes):
                    return False
                tried += changes
                break
        self.lengths += tried
        return bool(tried)

    def _moved(self, change: SizeChange) -> list[str]:
        """The settings of the port that a change of a number moves."""
        settings = self.question.port.settings
        alone = self.question.built((change,), computes=False)
        moved = settings if alone is None else self.question.settings(alone)
        return [name for name, value in settings.items() if moved[name] != value]

    def _is_bad(self, change: SizeChange, why: str) -> bool:
        if why:
            self.bad[id(change)] = change, why
        return bool(why)

    def _settled(
        self, attempt: Attempt, before: Sequence[SizeChange], changes: Sequence[SizeChange]
    ) -> list[SizeChange]:
        """The changes that pass an attempt together, beside some from before; the others are bad."""
        good = list(before)
        if changes and not self._all_pass(attempt, good, changes):
            for group in self._parted(changes):
                self._settle(attempt, good, group)
        return [change for change in changes if change in good]

    def _parted(self, changes: Sequence[SizeChange]) -> tuple[list[SizeChange], list[SizeChange]]:
        """Changes of what the port has a field for, and others: these are more often the ones that part."""
        port = self.question.port
        names = {setting for setting, _ in port.sources.values()} | set(port.settings)
        followed = [
            change
            for change in changes
            if change.leaf is None or change.leaf.name in names or change.leaf.path[-1] in names
        ]
        return followed, [change for change in changes if change not in followed]

    def _settle(
        self, attempt: Attempt, good: list[SizeChange], group: Sequence[SizeChange]
    ) -> None:
        """Add the changes of a group that pass beside the good ones."""
        if len(group) == 1:
            if not self._is_bad(group[0], attempt((*good, group[0]))):
                good.append(group[0])
        elif group and not self._all_pass(attempt, good, group):
            half = len(group) // 2
            self._settle(attempt, good, group[:half])
            self._settle(attempt, good, group[half:])

    def _all_pass(
        self, attempt: Attempt, good: list[SizeChange], group: Sequence[SizeChange]
    ) -> bool:
        if attempt((*good, *group)):
            return False
        good += group
        return True

    def _names(self, change: SizeChange) -> list[str]:
        """The settings of the port that a change of a number moves; else the number's own name."""
        assert change.leaf is not None
        return self._moved(change) or [change.leaf.name]

    def _result(self, fixed: Sequence[Axis]) -> Sizes:
        held: dict[str, FixedSize] = {}
        settings = self.question.port.settings
        for change, why in self.bad.values():
            if change.leaf is None:
                continue
            for name in self._names(change):
                value = settings.get(name, change.leaf.value)
                held[name] = FixedSize(name, value, f"at {change.value!r} {why}")
        for leaf in self.found.forms:
            if leaf.name not in {*settings, *held}:
                held[leaf.name] = FixedSize(leaf.name, leaf.value, _FORM)
        elsewhere = (*self.rates, *self.starts, *self.lengths)
        rates = {name for change in elsewhere for name in self._names(change)}
        for name, value in settings.items():
            if self.tries.settings[name] == value and name not in {*held, *rates}:
                held[name] = FixedSize(name, value, self._why(name))
        axes = _sizes(self.inputs, fixed)
        proven = {axis for change in self.good for axis in change.axes}
        changed = [
            (change.name, change.leaf.value if change.leaf else self._own(change), change.value)
            for change in self.good
        ]
        return Sizes(
            tuple(changed),
            tuple(held.values()),
            {(axis.name, axis.axis): size for axis, size in axes.items() if axis not in proven},
            distance=self.tries.distance,
            rates=_shown(self.rates),
            starts=_shown(self.starts),
            lengths=tuple(self._lengths(held)),
            other_axes=tuple(
                (change.name, self._own(change), next(iter(change.axes.values())))
                for change in self.good
                if change.leaf is None
            ),
            unread=tuple(self._unread({*settings, *held, *rates})),
            tied=self._tied() if self.question.port.settings else {},
            there=self._there(),
        )

    def _lengths(self, held: Container[str]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
        """The sequences of the port that may have another number of entries."""
        by_name: dict[str, list[SizeChange]] = {}
        for change in self.lengths:
            for name in self._names(change):
                by_name.setdefault(name, []).append(change)
        for name, changes in by_name.items():
            if name not in held and name in self.question.port.settings:
                here = self.question.port.settings[name]
                yield name, here, tuple(change.value for change in changes)

    def _there(self) -> SecondSize | None:
        """The second size, at which all good changes are made at once."""
        ordered = tuple(change for change in self.found.changes if change in self.good)
        return self.question.second(ordered) if ordered else None

    def _tied(self) -> dict[tuple[str, int], str]:
        """Axes of inputs that follow a setting of the port, each with its expression."""
        tied: dict[tuple[str, int], str] = {}
        here = self.question.port.settings
        for change in self.good:
            if change.leaf is None or not change.axes:
                continue
            alone = self.question.built((change,))
            there = here if alone is None else self.question.settings(alone)
            for axis, size in change.axes.items():
                before = int(self.inputs[axis.name].shape[axis.axis])
                said = [
                    text
                    for name, value in here.items()
                    for text in _as_setting(name, value, there[name], before, size)
                ]
                if said:
                    tied[axis.name, axis.axis] = said[0]
        return tied

    def _unread(self, known: set[str]) -> Iterator[tuple[str, Any, str]]:
        """The numbers of the original that are neither followed nor refused, each with the reason."""
        for numbers, why in (
            (self.found.idle, IDLE),
            (self.found.refused, "the original took no other value that was tried"),
            (self.found.untried, "no other value was tried"),
        ):
            for leaf in numbers:
                if leaf.name not in known:
                    yield leaf.name, leaf.value, why

    def _why(self, name: str) -> str:
        idle = {leaf.name for leaf in self.found.idle}
        if name in idle:
            return IDLE
        if name in {leaf.name for leaf in self.found.refused}:
            return "the original took no other value that was tried"
        return "not tried: no number that the original's constructor is given changes it"

    def _own(self, change: SizeChange) -> int:
        first = next(iter(change.axes))
        return int(self.inputs[first.name].shape[first.axis])
