"""Torch's side of a fit: layers with weights, their calls, and their weights in Flax's form."""

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
from migrate.parity.align.tensors import TensorArrangement, distance, ways
from migrate.parity.dump.dump import Call, Dump, TensorRef

Array = np.ndarray[Any, Any]

# Relative L2 up to which two float64 tensors are equal: other orders of summation, the same function.
EXACT = 1e-9
# Relative L2 up to which they may be equal but for earlier rounding (float32).
NEAR = 1e-2
_PARTS = (2, 3, 4)
# Layer and number of its call.
_CallKey = tuple[str, int]
_RANKS_OF_IMAGES = (3, 4, 5)
# Settings that decide what a layer computes, by their names in torch and Flax.
_SETTINGS = (
    ("eps", "epsilon"),
    ("stride", "strides"),
    ("dilation", "kernel_dilation"),
    ("groups", "feature_group_count"),
    ("num_groups", "num_groups"),
)


@dataclass(frozen=True)
class SourceArray:
    """Array of the plan: a torch weight in Flax's form, before it is fitted.

    Attributes:
        path: its path in the plan.
        leaf: the torch tensors that it is made of.
        kind: kind of its layer ("Linear"; "Parameter Block" for a user-defined class).
        plain: the same without reordered rows, for inputs that were flattened as in torch.
    """

    path: str
    leaf: PlannedLeaf
    kind: str
    plain: SourceArray | None = None

    @property
    def role(self) -> str:
        """Role in its layer: "kernel", "bias", "scale" …"""
        return role_of(self.path, self.leaf.info.shape)[1]


@dataclass(frozen=True)
class Unit:
    """Torch layer with weights, or a part of it (the query of a fused attention).

    Attributes:
        layer: name of the layer.
        name: name of the layer with its part, for comparison with other names.
        sources: its arrays.
        part: index and number of equal parts of the outputs; None: the whole layer.
        hidden: whether it is a projection inside torch's own attention, with unrecorded inputs or outputs.
    """

    layer: str
    name: str
    sources: tuple[SourceArray, ...]
    part: tuple[int, int] | None = None
    hidden: bool = False

    @property
    def size(self) -> int:
        """Number of elements of its arrays."""
        return sum(source.leaf.info.size for source in self.sources)


@dataclass(frozen=True)
class UnitCall:
    """Call of a unit on the first input."""

    unit: Unit
    call: Call

    @property
    def key(self) -> tuple[str, int]:
        """Key that is equal for a call and for its parts."""
        return self.unit.name, self.call.number


class TorchSources:
    """Layers, calls and weights of torch's side.

    Args:
        dump: its calls in float64.
        plan: its keys, with the usual names of Flax.
        read: returns torch's tensor of a key.

    Attributes:
        tensor: returns torch's tensor of a key.
        leaves: path in the plan → array, including arrays made from others.
        kinds: path → kind of layer.
        owners: key of a shared tensor → first key of that tensor.
        calls: calls of units, in the order in which they ended.
        loose: arrays without a layer of their own: a class token, a table of positions, a weight whose
            layer is not called.
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
        for call in sorted(self._called, key=lambda call: call.order):
            self._by_layer[call.layer].append(call)
        held = self._held()
        containers = self._above(held)
        self.loose: list[SourceArray] = []
        self.calls: list[UnitCall] = []
        for layer, sources in held.items():
            if layer in containers or layer not in self._by_layer:
                self.loose += sources
                continue
            for unit in self._units(layer, sources):
                self.calls += [UnitCall(unit, call) for call in self._by_layer[layer]]
        self.calls.sort(key=lambda call: call.call.order)
        self._by_size: dict[int, list[UnitCall]] = defaultdict(list)
        self._of_layer: dict[tuple[str, int], list[UnitCall]] = defaultdict(list)
        for unit_call in self.calls:
            self._of_layer[unit_call.unit.layer, unit_call.call.number].append(unit_call)
            self._by_size[unit_call.unit.size].append(unit_call)
        self._images: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for call in self._called:
            for ref in (*call.arguments, *call.outputs):
                if len(ref.shape) in _RANKS_OF_IMAGES:
                    self._images[math.prod(ref.shape)].add(ref.shape)
        self._loaded: dict[tuple[str, str], Array] = {}
        self._arguments = self._by_marks()
        self._tables: dict[tuple[int, bool], Array] = {}
        self._asked: tuple[Array, Mapping[_CallKey, Sequence[TensorRef]]] | None = None

    def _held(self) -> dict[str, list[SourceArray]]:
        """Layer → the arrays that it holds, in its own weights or in those of layers that are not called."""
        owner = {key: layer.name for layer in self.dump.layers.values() for key in layer.weights}
        held: dict[str, list[SourceArray]] = defaultdict(list)
        for path, leaf in list(self.leaves.items()):
            source = self._source(path, leaf)
            layer = owner.get(leaf.pieces[0].key, leaf.pieces[0].key.rpartition(".")[0])
            above: str | None = layer
            while above is not None and above not in self._by_layer:
                above = self.dump.layers[above].parent if above in self.dump.layers else None
            whole = above if above else layer
            held[whole].append(source)
        return held

    def _source(self, path: str, leaf: PlannedLeaf) -> SourceArray:
        kind, (piece, *others) = self.kinds[path], leaf.pieces
        flattened = piece.layout not in (TRANSPOSED, UNCHANGED) and len(leaf.info.shape) == 2
        if others or kind != "Linear" or not flattened:
            return SourceArray(path, leaf, kind)
        plain = PlannedLeaf(f"{path}#plain", leaf.info, (replace(piece, layout=TRANSPOSED),))
        self.leaves[plain.path], self.kinds[plain.path] = plain, kind
        return SourceArray(path, leaf, kind, _Part(plain.path, plain, kind, as_="kernel"))

    def _above(self, held: Mapping[str, Sequence[SourceArray]]) -> set[str]:
        """Layers in whose calls other layers with weights are called."""
        containers: set[str] = set()
        for layer in held:
            parent = self.dump.layers[layer].parent if layer in self.dump.layers else None
            while parent is not None and parent not in containers:
                containers.add(parent)
                parent = self.dump.layers[parent].parent if parent in self.dump.layers else None
        return containers

    def _units(self, layer: str, sources: Sequence[SourceArray]) -> Iterator[Unit]:
        for form in _forms(sources):
            yield Unit(layer, layer, form)
            sources = form
        modules: dict[str, list[SourceArray]] = defaultdict(list)
        for source in sources:
            modules[source.path.rpartition("/")[0].partition("/")[2]].append(source)
        if len(modules) > 1:  # torch's own attention
            for module, its in modules.items():
                name = f"{layer}.{module.rpartition('/')[2]}"
                yield Unit(layer, name, tuple(its), hidden=True)
        elif all(source.kind.partition(" ")[0] in ("Linear", "Parameter") for source in sources):
            yield from self._parts(layer, sources)

    def _parts(self, layer: str, sources: Sequence[SourceArray]) -> Iterator[Unit]:
        """Equal parts of a layer's outputs, which may be a fused query, key and value."""
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
        """Calls of units whose arrays have this number of elements."""
        return self._by_size.get(size, ())

    def tensors(self, source: SourceArray) -> tuple[Any, ...]:
        """Torch tensors in an array; shared tensors count as one."""
        its = source.leaf.pieces
        return tuple((self.owners.get(piece.key, piece.key), piece.part) for piece in its)

    def array(self, source: SourceArray, layout: Layout) -> Array:
        """Values of an array in float64, in a layout."""
        return np.asarray(layout.apply(source.leaf.read(self.tensor)), np.float64)

    def overlapping(self, call: UnitCall) -> set[tuple[str, int]]:
        """Calls that equal this call or share weights with it: the whole and its parts."""
        number, layer = call.call.number, call.unit.layer
        return {
            other.key
            for other in self._of_layer[layer, number]
            if other.key == call.key or _overlap(other.unit, call.unit)
        }

    def settings(self, layer: str, mine: Mapping[str, Any]) -> str:
        """Differences of a layer's settings from torch's, in words; "" if there are none."""
        theirs = self.dump.layers[layer].settings
        said = []
        for names in _SETTINGS:
            a = next((theirs[name] for name in names if name in theirs), None)
            b = next((mine[name] for name in names if name in mine), None)
            if a is not None and b is not None and _plain(a) != _plain(b):
                said.append(f"{names[-1]} {b}, torch's {names[0]} {a}")
        return ", ".join(said)

    def values(self, ref: TensorRef) -> Array:
        """Values of a tensor."""
        at = ref.file, ref.key
        if at not in self._loaded:
            self._loaded[at] = self.dump.tensor(ref)
        return self._loaded[at]

    def given(
        self, call: UnitCall, mine: Array
    ) -> tuple[TensorRef, TensorArrangement, float] | None:
        """Argument of a call that a Flax tensor equals, its arrangement and distance; None: none is near."""
        best: tuple[TensorRef, TensorArrangement, float] | None = None
        for ref in self.alike(mine).get((call.unit.layer, call.call.number), ()):
            match = self.nearest(ref, mine)
            if match is not None and (best is None or match[1] < best[2]):
                best = ref, *match
            if best is not None and best[2] <= EXACT:
                break
        return best if best is not None and best[2] <= NEAR else None

    def images(self, size: int) -> Sequence[tuple[int, ...]]:
        """Shapes of torch tensors that may have been flattened to this size."""
        return sorted(self._images.get(size, ()))

    def output(self, call: UnitCall) -> Array | None:
        """First output of a call; for a part, its share along the last axis."""
        if not call.call.outputs:
            return None
        whole = self.values(call.call.outputs[0])
        if call.unit.part is None:
            return whole
        index, count = call.unit.part
        side = whole.shape[-1] // count
        return whole[..., index * side : (index + 1) * side]

    def alike(self, mine: Array) -> Mapping[_CallKey, Sequence[TensorRef]]:
        """Calls (layer and number) and their arguments that may equal this tensor, by layout-independent
        values.
        """
        if self._asked is None or self._asked[0] is not mine:
            self._asked = mine, self._alike(mine)
        return self._asked[1]

    def _alike(self, mine: Array) -> Mapping[_CallKey, Sequence[TensorRef]]:
        mine = mine if mine.dtype.kind == "f" else once(mine)
        key = mine.size, mine.dtype.kind == "f"
        known = self._arguments.get(key, ())
        matches: dict[_CallKey, list[TensorRef]] = defaultdict(list)
        if not known:
            return matches
        if key not in self._tables:
            self._tables[key] = np.array([marks(self.values(ref)) for _, ref in known])
        table, own = self._tables[key], np.array(marks(mine))
        scale = np.maximum(np.maximum(table[:, :1], own[0]), 1e-300)
        for row in np.flatnonzero((np.abs(table - own) <= 2 * NEAR * scale).all(1)):
            at, ref = known[int(row)]
            matches[at].append(ref)
        return matches

    def _by_marks(self) -> Mapping[tuple[int, bool], Sequence[tuple[_CallKey, TensorRef]]]:
        """Size, and whether floating → arguments of layers with weights, in the order of execution."""
        arguments: dict[tuple[int, bool], list[tuple[_CallKey, TensorRef]]] = defaultdict(list)
        for at, units in self._of_layer.items():
            for ref in units[0].call.arguments:
                floating = "float" in ref.dtype
                size = math.prod(ref.shape) if floating else once(self.values(ref)).size
                arguments[size, floating].append((at, ref))
        return arguments

    def nearest(self, ref: TensorRef, mine: Array) -> tuple[TensorArrangement, float] | None:
        """Arrangement of an argument as a Flax tensor, and the distance."""
        truth = self.values(ref)
        if truth.size != mine.size:
            truth, mine = once(truth), once(mine)
        return nearest(truth, mine, self.images(mine.size))

    def of_call(self, at: _CallKey) -> Sequence[UnitCall]:
        """Units of a layer's call: the whole and its parts."""
        return self._of_layer[at]


def _forms(sources: Sequence[SourceArray]) -> Iterator[tuple[SourceArray, ...]]:
    """Choices of a layer's arrays, if a tensor is a table in one place and a kernel in another."""
    by_tensor: dict[Any, list[SourceArray]] = defaultdict(list)
    for source in sources:
        by_tensor[tuple((piece.key, piece.part) for piece in source.leaf.pieces)].append(source)
    yield from itertools.product(*by_tensor.values())


def _overlap(first: Unit, other: Unit) -> bool:
    """Whether two units of a layer are not parts of the same split."""
    cuts = [unit.part[1] if unit.part else unit.hidden for unit in (first, other)]
    return cuts[0] != cuts[1] or not cuts[0]


def _plain(value: Any) -> Any:
    """Reduce a setting to one number, if it is the same for all axes."""
    if isinstance(value, list | tuple):
        plain = [_plain(element) for element in value]
        return plain[0] if plain and all(element == plain[0] for element in plain) else plain
    return value


@dataclass(frozen=True)
class _Part(SourceArray):
    """Part of an array; it has the role of the whole, not of its path."""

    as_: str = ""

    @property
    def role(self) -> str:
        """See `SourceArray`."""
        return self.as_


def marks(array: Array) -> tuple[float, ...]:
    """Values independent of the order of elements: root mean square, mean size, mean."""
    values = array.astype(np.float64).reshape(-1)
    size = max(values.size, 1)
    with np.errstate(all="ignore"):
        return (
            math.sqrt(float(values @ values) / size),
            float(np.abs(values).sum()) / size,
            float(values.sum()) / size,
        )


def once(array: Array) -> Array:
    """Reduce equal rows to a single row: positions may be passed for each row of a batch, or once for
    all.
    """
    alike = array.ndim > 1 and len(array) > 1 and bool((array == array[:1]).all())
    return array[:1] if alike else array


def nearest(
    truth: Array, mine: Array, images: Iterable[tuple[int, ...]] = ()
) -> tuple[TensorArrangement, float] | None:
    """Arrangement of a torch tensor that is nearest to a Flax tensor, and its distance.

    `images` are shapes of tensors that may have been flattened into it.
    """
    if (truth.dtype.kind == "f") != (mine.dtype.kind == "f"):
        return None
    best: tuple[TensorArrangement, float] | None = None
    for way in ways(truth.shape, mine.shape, images):
        apart = distance(way.pair("", "").as_mine(truth), mine)
        if best is None or apart < best[1]:
            best = way, apart
        if apart <= EXACT:
            break
    return best
