"""Torch's side of a fit: its layers that hold weights, their calls, and their weights as Flax has them."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converters.layers.layout import UNCHANGED, Layout
from converters.mapping import Outcome, Plan
from converters.mapping.leaves import PlannedLeaf
from converters.target.arrange import kinds_of, tied_leaves
from converters.target.fused import NAMES, parts_of
from converters.target.layouts import TRANSPOSED
from converters.target.modules import role_of
from migrate.parity.align.tensors import Way, distance, ways
from migrate.parity.dump.dump import Call, Dump, TensorRef

Array = np.ndarray[Any, Any]

# Relative L2 up to which two tensors of float64 are one: sums in another order, no other function.
EXACT = 1e-9
# And up to which they are taken for one that went through something else before (float32's rounding).
NEAR = 1e-2
_PARTS = (2, 3, 4)
# A layer and the number of its call.
_CallKey = tuple[str, int]
_RANKS_OF_IMAGES = (3, 4, 5)
# Settings that decide what a layer computes, as torch and Flax call them.
_SETTINGS = (
    ("eps", "epsilon"),
    ("stride", "strides"),
    ("dilation", "kernel_dilation"),
    ("groups", "feature_group_count"),
    ("num_groups", "num_groups"),
)


@dataclass(frozen=True)
class Source:
    """An array of the plan: what a weight of torch is in Flax, before it is fitted.

    Attributes:
        path: its path in the plan.
        leaf: what it is made of.
        kind: of its layer ("Linear"; "Parameter Block" of a class of the user's own).
        plain: the same as it is where what comes before was flattened as in torch: rows not in another order.
    """

    path: str
    leaf: PlannedLeaf
    kind: str
    plain: Source | None = None

    @property
    def role(self) -> str:
        """What it is in its layer: "kernel", "bias", "scale" …"""
        return role_of(self.path, self.leaf.info.shape)[1]


@dataclass(frozen=True)
class Unit:
    """A layer of torch that holds weights, or a part of one (the query of a fused attention).

    Attributes:
        layer: its name.
        name: the same, with what part it is: what names are compared by.
        sources: its arrays.
        part: which of how many equal parts of its outputs it is; None: the whole layer.
        hidden: a projection inside of torch's own attention: what goes in or out of it was not recorded.
    """

    layer: str
    name: str
    sources: tuple[Source, ...]
    part: tuple[int, int] | None = None
    hidden: bool = False

    @property
    def size(self) -> int:
        """Number of elements of its arrays."""
        return sum(source.leaf.info.size for source in self.sources)


@dataclass(frozen=True)
class UnitCall:
    """A call of a unit on the first input."""

    unit: Unit
    call: Call

    @property
    def key(self) -> tuple[str, int]:
        """Equal for the parts of one call, and the call itself."""
        return self.unit.name, self.call.number


class Sources:
    """What is known of torch's side.

    Args:
        dump: its calls in float64.
        plan: its keys, with the usual names of Flax.
        read: gives torch's tensor of a key.

    Attributes:
        tensor: gives torch's tensor of a key.
        leaves: path in the plan → array, also of those that were made of others.
        kinds: path → kind of layer.
        owners: key of a tensor that is another one's → that one's key.
        calls: of units, in the order in which they ended.
        loose: arrays that no layer of its own holds: a class token, a table of positions, what is used
            without its layer being called.
    """

    def __init__(self, dump: Dump, plan: Plan, read: Callable[[str], Array]) -> None:
        self.dump = dump
        self.tensor = read
        self.kinds = kinds_of(plan)
        owners = {row.targets: row.key for row in plan.mapped}
        self.owners = {row.key: owners[row.targets] for row in plan.of(Outcome.TIED)}
        self.leaves = {leaf.path: leaf for leaf in plan.leaves}
        for leaf, kind in tied_leaves(plan, {}, first=True):
            self.leaves[leaf.path], self.kinds[leaf.path] = leaf, kind
        self._called = [call for call in dump.calls if call.input == 0]
        self._by_layer: dict[str, list[Call]] = defaultdict(list)
        for call in sorted(self._called, key=lambda one: one.order):
            self._by_layer[call.layer].append(call)
        held = self._held()
        containers = self._above(held)
        self.loose: list[Source] = []
        self.calls: list[UnitCall] = []
        for layer, sources in held.items():
            if layer in containers or layer not in self._by_layer:
                self.loose += sources
                continue
            for unit in self._units(layer, sources):
                self.calls += [UnitCall(unit, call) for call in self._by_layer[layer]]
        self.calls.sort(key=lambda one: one.call.order)
        self._by_size: dict[int, list[UnitCall]] = defaultdict(list)
        self._of_layer: dict[tuple[str, int], list[UnitCall]] = defaultdict(list)
        for one in self.calls:
            self._of_layer[one.unit.layer, one.call.number].append(one)
            self._by_size[one.unit.size].append(one)
        self._images: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for call in self._called:
            for ref in (*call.arguments, *call.outputs):
                if len(ref.shape) in _RANKS_OF_IMAGES:
                    self._images[math.prod(ref.shape)].add(ref.shape)
        self._loaded: dict[tuple[str, str], Array] = {}
        self._arguments = self._by_marks()
        self._tables: dict[tuple[int, bool], Array] = {}
        self._asked: tuple[Array, Mapping[_CallKey, Sequence[TensorRef]]] | None = None

    def _held(self) -> dict[str, list[Source]]:
        """Layer → the arrays that it holds, in its own weights or in those of layers that are not called."""
        owner = {key: layer.name for layer in self.dump.layers.values() for key in layer.weights}
        found: dict[str, list[Source]] = defaultdict(list)
        for path, leaf in list(self.leaves.items()):
            source = self._source(path, leaf)
            layer = owner.get(leaf.pieces[0].key, leaf.pieces[0].key.rpartition(".")[0])
            above: str | None = layer
            while above is not None and above not in self._by_layer:
                above = self.dump.layers[above].parent if above in self.dump.layers else None
            whole = above if above else layer
            found[whole].append(source)
        return found

    def _source(self, path: str, leaf: PlannedLeaf) -> Source:
        kind, (piece, *others) = self.kinds[path], leaf.pieces
        flattened = piece.layout not in (TRANSPOSED, UNCHANGED) and len(leaf.info.shape) == 2
        if others or kind != "Linear" or not flattened:
            return Source(path, leaf, kind)
        plain = PlannedLeaf(f"{path}#plain", leaf.info, (replace(piece, layout=TRANSPOSED),))
        self.leaves[plain.path], self.kinds[plain.path] = plain, kind
        return Source(path, leaf, kind, _Part(plain.path, plain, kind, as_="kernel"))

    def _above(self, held: Mapping[str, Sequence[Source]]) -> set[str]:
        """Layers in whose calls others are called that hold weights."""
        found: set[str] = set()
        for layer in held:
            parent = self.dump.layers[layer].parent if layer in self.dump.layers else None
            while parent is not None and parent not in found:
                found.add(parent)
                parent = self.dump.layers[parent].parent if parent in self.dump.layers else None
        return found

    def _units(self, layer: str, sources: Sequence[Source]) -> Iterator[Unit]:
        for form in _forms(sources):
            yield Unit(layer, layer, form)
            sources = form
        modules: dict[str, list[Source]] = defaultdict(list)
        for source in sources:
            modules[source.path.rpartition("/")[0].partition("/")[2]].append(source)
        if len(modules) > 1:  # torch's own attention
            for module, its in modules.items():
                name = f"{layer}.{module.rpartition('/')[2]}"
                yield Unit(layer, name, tuple(its), hidden=True)
        elif all(source.kind.partition(" ")[0] in ("Linear", "Parameter") for source in sources):
            yield from self._parts(layer, sources)

    def _parts(self, layer: str, sources: Sequence[Source]) -> Iterator[Unit]:
        """Equal parts of a layer's outputs, as it may have fused query, key and value."""
        for count in _PARTS:
            parts = [parts_of(source.leaf, count) for source in sources]
            if not all(parts):
                return
            for index in range(count):
                its = []
                for source, of in zip(sources, parts, strict=True):
                    path = f"{source.path}#{index}/{count}"
                    self.leaves[path] = replace(of[index], path=path)
                    self.kinds[path] = source.kind
                    its.append(_Part(path, self.leaves[path], source.kind, as_=source.role))
                name = NAMES[index] if count == len(NAMES) else f"part_{index}"
                yield Unit(layer, f"{layer}.{name}#{count}", tuple(its), (index, count))

    def of_size(self, size: int) -> Sequence[UnitCall]:
        """The calls of units whose arrays have so many elements."""
        return self._by_size.get(size, ())

    def tensors(self, source: Source) -> tuple[Any, ...]:
        """Torch's tensors that it is made of: those that torch shares are one."""
        its = source.leaf.pieces
        return tuple((self.owners.get(one.key, one.key), one.part) for one in its)

    def array(self, source: Source, layout: Layout) -> Array:
        """Its values in float64, arranged so."""
        return np.asarray(layout.apply(source.leaf.read(self.tensor)), np.float64)

    def overlapping(self, call: UnitCall) -> set[tuple[str, int]]:
        """The calls that are this one, or share weights with it: the whole and its parts."""
        number, layer = call.call.number, call.unit.layer
        return {
            other.key
            for other in self._of_layer[layer, number]
            if other.key == call.key or _overlap(other.unit, call.unit)
        }

    def settings(self, layer: str, mine: Mapping[str, Any]) -> str:
        """What of a layer's settings is other than torch's, in words; "" if nothing is seen."""
        theirs = self.dump.layers[layer].settings
        said = []
        for names in _SETTINGS:
            a = next((theirs[name] for name in names if name in theirs), None)
            b = next((mine[name] for name in names if name in mine), None)
            if a is not None and b is not None and _plain(a) != _plain(b):
                said.append(f"{names[-1]} {b}, torch's {names[0]} {a}")
        return ", ".join(said)

    def values(self, ref: TensorRef) -> Array:
        """Of a tensor."""
        at = ref.file, ref.key
        if at not in self._loaded:
            self._loaded[at] = self.dump.tensor(ref)
        return self._loaded[at]

    def given(self, call: UnitCall, mine: Array) -> tuple[TensorRef, Way, float] | None:
        """Which argument of a call a tensor of Flax's is, and how it lies; None: none is near."""
        found: tuple[TensorRef, Way, float] | None = None
        for ref in self.alike(mine).get((call.unit.layer, call.call.number), ()):
            one = self.nearest(ref, mine)
            if one is not None and (found is None or one[1] < found[2]):
                found = ref, *one
            if found is not None and found[2] <= EXACT:
                break
        return found if found is not None and found[2] <= NEAR else None

    def images(self, size: int) -> Sequence[tuple[int, ...]]:
        """Shapes of torch's tensors that may have been flattened into one of this size."""
        return sorted(self._images.get(size, ()))

    def output(self, call: UnitCall) -> Array | None:
        """What a call gives: its first tensor; of a part its share along the last axis."""
        if not call.call.outputs:
            return None
        whole = self.values(call.call.outputs[0])
        if call.unit.part is None:
            return whole
        index, count = call.unit.part
        side = whole.shape[-1] // count
        return whole[..., index * side : (index + 1) * side]

    def alike(self, mine: Array) -> Mapping[_CallKey, Sequence[TensorRef]]:
        """Calls (layer and number) and their arguments that this may be: what no layout changes is near."""
        if self._asked is None or self._asked[0] is not mine:
            self._asked = mine, self._alike(mine)
        return self._asked[1]

    def _alike(self, mine: Array) -> Mapping[_CallKey, Sequence[TensorRef]]:
        mine = mine if mine.dtype.kind == "f" else once(mine)
        key = mine.size, mine.dtype.kind == "f"
        known = self._arguments.get(key, ())
        found: dict[_CallKey, list[TensorRef]] = defaultdict(list)
        if not known:
            return found
        if key not in self._tables:
            self._tables[key] = np.array([marks(self.values(ref)) for _, ref in known])
        table, own = self._tables[key], np.array(marks(mine))
        scale = np.maximum(np.maximum(table[:, :1], own[0]), 1e-300)
        for row in np.flatnonzero((np.abs(table - own) <= 2 * NEAR * scale).all(1)):
            at, ref = known[int(row)]
            found[at].append(ref)
        return found

    def _by_marks(self) -> Mapping[tuple[int, bool], Sequence[tuple[_CallKey, TensorRef]]]:
        """Size, and whether floating → what layers with weights were given, in the order of execution."""
        found: dict[tuple[int, bool], list[tuple[_CallKey, TensorRef]]] = defaultdict(list)
        for at, units in self._of_layer.items():
            for ref in units[0].call.arguments:
                floating = "float" in ref.dtype
                size = math.prod(ref.shape) if floating else once(self.values(ref)).size
                found[size, floating].append((at, ref))
        return found

    def nearest(self, ref: TensorRef, mine: Array) -> tuple[Way, float] | None:
        """How an argument lies as a tensor of Flax's, and how far it then is from it."""
        truth = self.values(ref)
        if truth.size != mine.size:
            truth, mine = once(truth), once(mine)
        return nearest(truth, mine, self.images(mine.size))

    def of_call(self, at: _CallKey) -> Sequence[UnitCall]:
        """The units that a call of a layer is of: the whole and its parts."""
        return self._of_layer[at]


def _forms(sources: Sequence[Source]) -> Iterator[tuple[Source, ...]]:
    """The arrays of a layer, of a tensor that is a table and a kernel elsewhere one of the two."""
    by_tensor: dict[Any, list[Source]] = defaultdict(list)
    for one in sources:
        by_tensor[tuple((piece.key, piece.part) for piece in one.leaf.pieces)].append(one)
    yield from itertools.product(*by_tensor.values())


def _overlap(one: Unit, other: Unit) -> bool:
    """Whether two units of a layer are not parts of the same cut of it."""
    cuts = [unit.part[1] if unit.part else unit.hidden for unit in (one, other)]
    return cuts[0] != cuts[1] or not cuts[0]


def _plain(value: Any) -> Any:
    """One number for all axes is that number on each."""
    if isinstance(value, list | tuple):
        plain = [_plain(one) for one in value]
        return plain[0] if plain and all(one == plain[0] for one in plain) else plain
    return value


@dataclass(frozen=True)
class _Part(Source):
    """A part of an array: it has the whole's role, not that of its path."""

    as_: str = ""

    @property
    def role(self) -> str:
        """See `Source`."""
        return self.as_


def marks(array: Array) -> tuple[float, ...]:
    """Numbers that depend on no order of the elements: root mean square, mean size, mean."""
    values = array.astype(np.float64).reshape(-1)
    size = max(values.size, 1)
    with np.errstate(all="ignore"):
        return (
            math.sqrt(float(values @ values) / size),
            float(np.abs(values).sum()) / size,
            float(values.sum()) / size,
        )


def once(array: Array) -> Array:
    """Of rows that are all the same, one: positions are given for each of a batch, or once for all."""
    alike = array.ndim > 1 and len(array) > 1 and bool((array == array[:1]).all())
    return array[:1] if alike else array


def nearest(
    truth: Array, mine: Array, images: Iterable[tuple[int, ...]] = ()
) -> tuple[Way, float] | None:
    """How a tensor of torch's lies in Flax so that it is most alike, and how far they then are.

    `images` are shapes of what may have been flattened into it.
    """
    if (truth.dtype.kind == "f") != (mine.dtype.kind == "f"):
        return None
    found: tuple[Way, float] | None = None
    for way in ways(truth.shape, mine.shape, images):
        apart = distance(way.pair("", "").as_mine(truth), mine)
        if found is None or apart < found[1]:
            found = way, apart
        if apart <= EXACT:
            break
    return found
