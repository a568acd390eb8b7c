"""The proof at a second size: what a port follows, and what it must hold to its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from converters.graph.writing.original.elsewhere import values_elsewhere
from migrate.port.sizes.beyond import lifted
from migrate.port.sizes.construction import Construction
from migrate.port.sizes.distance import distance
from migrate.port.sizes.flax import PortRefusesError, outputs_of, package_of
from migrate.port.sizes.instance import Arrays, Axis, Change, Instance, alive, built
from migrate.port.sizes.methods import method_apart
from migrate.port.sizes.results import Held, Sizes, unproven
from migrate.port.sizes.second import Second, second

# Instances of the port that are run at most.
_CHECKS = 24


def sizes_of(
    port: Any,
    folder: Path,
    module: Any,
    construction: Construction | None,
    inputs: Arrays,
    work: Path,
    shown: str,
    methods: Mapping[str, Arrays] | None = None,
) -> Sizes:
    """Build the original and the port at a second size, and compare their outputs.

    Args:
        port: what the compiler gave; its source asserts none of its bounds.
        folder: of the port.
        module: the original.
        construction: how it was made; None: not known.
        inputs: what it was recorded with.
        work: for files in between.
        shown: the model, for messages.
        methods: what further methods were recorded with.
    """
    with package_of(folder) as package:
        free = lifted(port, package, folder, module, inputs, work / "beyond")
    found = _at_another_size(port, folder, module, construction, inputs, work, shown, methods or {})
    return replace(found, lifted=free)


def _at_another_size(
    port: Any,
    folder: Path,
    module: Any,
    construction: Construction | None,
    inputs: Arrays,
    work: Path,
    shown: str,
    methods: Mapping[str, Arrays],
) -> Sizes:
    fixed = tuple(Axis(*place) for place in unproven(port, "").axes)
    if construction is None:
        return unproven(port, "the call of the model's constructor was not seen")
    base = built(construction, inputs, (), shown)
    if base is None:
        return unproven(port, "its constructor's arguments do not build the model a second time")
    if not _is_same(base.module, module):
        return unproven(port, "the model was changed after its constructor had made it")
    found = second(construction, base, fixed, shown)
    return _Proof(port, folder, construction, base, found, inputs, work, shown, methods).run(fixed)


def _sizes(inputs: Arrays, axes: Sequence[Axis]) -> dict[Axis, int]:
    return {one: int(inputs[one.name].shape[one.axis]) for one in axes}


def _is_same(one: Any, other: Any) -> bool:
    """Whether two modules hold tensors of the same names and shapes."""
    shapes = [
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        for module in (one, other)
    ]
    kinds = [{name: type(inner) for name, inner in each.named_modules()} for each in (one, other)]
    return shapes[0] == shapes[1] and kinds[0] == kinds[1]


class _Proof:
    def __init__(
        self,
        port: Any,
        folder: Path,
        construction: Construction,
        base: Instance,
        found: Second,
        inputs: Arrays,
        work: Path,
        shown: str,
        methods: Mapping[str, Arrays],
    ) -> None:
        self.methods = methods
        self.port, self.folder, self.construction, self.base = port, folder, construction, base
        self.found, self.inputs, self.work, self.shown = found, inputs, work, shown
        self.good: list[Change] = []
        self.bad: dict[int, tuple[Change, str]] = {}
        self.distance: float | None = None
        self.settings: dict[str, Any] = dict(port.settings)
        self.left = _CHECKS
        self.known: dict[tuple[int, ...], str] = {}

    def run(self, fixed: Sequence[Axis]) -> Sizes:
        with package_of(self.folder) as package:
            self.package = package
            changes = self.found.changes
            followed, others = self._parted(changes)
            if changes and not self._goes(changes):
                self._settle(followed)
                self._settle(others)
            for method, given in self.methods.items() if self.good else ():
                if why := self._method(method, given):
                    return unproven(self.port, f"there its method {method} {why}")
        return self._result(fixed)

    def _method(self, method: str, given: Arrays) -> str:
        """What is wrong with a further method under the changes that the forward follows."""
        ordered = tuple(one for one in self.found.changes if one in self.good)
        made = built(self.construction, self.inputs, ordered, self.shown)
        if made is None:
            return "was not tried"
        made = alive(made)
        settings = {**self.port.settings, **self._there(made)}
        where = self.work / method
        return method_apart(
            self.port, self.package, self.folder, settings, made, ordered, method, given, where
        )

    def _parted(self, changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
        """Changes of what the port has a field for, and others: these are more often the ones that part."""
        names = {setting for setting, _ in self.port.sources.values()} | set(self.port.settings)
        followed = [
            one
            for one in changes
            if one.leaf is None or one.leaf.name in names or one.leaf.path[-1] in names
        ]
        return followed, [one for one in changes if one not in followed]

    def _settle(self, group: Sequence[Change]) -> None:
        """Add the changes of a group that the port follows beside those which it is known to follow."""
        if not group or (len(group) > 1 and self._goes(group)):
            return
        if len(group) == 1:
            why = self._tried((*self.good, group[0]))
            if why:
                self.bad[id(group[0])] = group[0], why
            else:
                self.good.append(group[0])
            return
        half = len(group) // 2
        self._settle(group[:half])
        self._settle(group[half:])

    def _goes(self, group: Sequence[Change]) -> bool:
        if self._tried((*self.good, *group)):
            return False
        self.good += group
        return True

    def _tried(self, changes: Sequence[Change]) -> str:
        """What is wrong with the port under these changes; "" where it gives what the original gives."""
        key = tuple(sorted(map(id, changes)))
        if key not in self.known:
            self.known[key] = self._compared(changes)
        return self.known[key]

    def _compared(self, changes: Sequence[Change]) -> str:
        ordered = tuple(one for one in self.found.changes if one in changes)
        made = built(self.construction, self.inputs, ordered, self.shown)
        if made is None:
            return "the original refuses it beside the others"
        if self.left <= 0:
            return "not tried"
        self.left -= 1
        made = alive(made)
        settings = {**self.port.settings, **self._there(made)}
        names = self.port.model_class, self.port.config_class
        where = self.work / f"size{self.left}"
        try:
            found = outputs_of(
                self.package, self.folder, names, settings, made.module, made.inputs, where
            )
        except PortRefusesError as error:
            return f"the port raises {error}"
        apart, limit = distance(found, made)
        if not apart <= limit:
            return f"the outputs are {apart:.1e} from the original's"
        self.distance, self.settings = apart, settings
        return ""

    def _there(self, made: Instance) -> dict[str, Any]:
        """The settings of the port at another size."""
        own = self.base.module, self.construction.arguments
        other = made.module, made.arguments
        return values_elsewhere(self.port.settings, self.port.sources, own, other)

    def _result(self, fixed: Sequence[Axis]) -> Sizes:
        held: dict[str, Held] = {}
        settings = self.port.settings
        for change, why in self.bad.values():
            if change.leaf is None:
                continue
            alone = built(self.construction, self.inputs, (change,), self.shown)
            moved = {} if alone is None else self._there(alone)
            names = [name for name, value in settings.items() if moved.get(name, value) != value]
            if not names:
                names = [change.leaf.name]
            for name in names:
                value = settings.get(name, change.leaf.value)
                held[name] = Held(name, value, f"at {change.value!r} {why}")
        for name, value in settings.items():
            if self.settings[name] == value and name not in held:
                held[name] = Held(name, value, self._why(name))
        axes = _sizes(self.inputs, fixed)
        proven = {axis for change in self.good for axis in change.axes}
        changed = [
            (one.name, one.leaf.value if one.leaf else self._own(one), one.value)
            for one in self.good
        ]
        return Sizes(
            tuple(changed),
            tuple(held.values()),
            {(one.name, one.axis): size for one, size in axes.items() if one not in proven},
            distance=self.distance,
            idle=tuple(leaf.name for leaf in self.found.idle if leaf.name not in settings),
        )

    def _why(self, name: str) -> str:
        idle = {leaf.name for leaf in self.found.idle}
        if name in idle:
            return "other values had no effect on the inputs of the proof"
        return "the original took no other value that was tried"

    def _own(self, change: Change) -> int:
        first = next(iter(change.axes))
        return int(self.inputs[first.name].shape[first.axis])
