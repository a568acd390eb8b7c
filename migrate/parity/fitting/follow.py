"""Pass of a Flax model that matches its layers with torch's one by one, and loads the weights.

When a layer is called, every layer before it is known. Its inputs thus equal the inputs of a torch layer,
and show which layer it is. Its outputs are compared with torch's. Where either differs, the models differ.
The location is recorded, and the pass continues with torch's values, so that a difference hides no other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate.parity.align.tensors import TensorArrangement, distance, ways
from migrate.parity.fitting.heads import OpenHeadChoices
from migrate.parity.fitting.names import likeness, pattern
from migrate.parity.fitting.roles import SourcedArray, ways_to_make
from migrate.parity.fitting.sources import EXACT, SourceArray, TorchSources, UnitCall, nearest, once
from migrate.parity.fitting.trying import Choices, EnoughSeen, Open, TriedPass
from migrate.parity.ground.fitting import SINGLE, ModelDifference
from migrate.parity.sides.jax.capture.recorder import CalledLayer
from migrate.parity.sides.jax.capture.values import is_batched, is_traced, rebuilt, tensors

Array = np.ndarray[Any, Any]
# Minimum number of values in each channel to recognize a scaled channel.
_ROWS, _SHOWN = 8, 3
# Number of layers to run and compare with torch's output where no torch layer has the same input.
_TRIED = 4
# Number of axes of a kernel in which heads are separate.
_WITH_HEADS = 3


@dataclass
class Pass(TriedPass):
    """Findings of a pass.

    Attributes:
        pieces: array of Flax's → the pieces that it is made of (several: one for each turn of a loop).
        stacked: array of Flax's → the axis of these pieces.
        unmatched: layers of Flax's without a counterpart in torch: name, location of the call, its arrays.
        unseen: layers whose insides cannot be observed (vmap).
    """

    pieces: dict[str, list[SourcedArray]] = field(default_factory=lambda: defaultdict(list))
    stacked: dict[str, int] = field(default_factory=dict)
    unmatched: list[tuple[str, str]] = field(default_factory=list)
    unseen: dict[str, None] = field(default_factory=dict)


class Follower:
    """Watcher of a pass (`sides.jax.capture.recorder.Watcher`).

    Args:
        sources: torch's layers and weights.
        drawn: random values of Flax's arrays, by name.
        linen: whether these names begin with a collection.
        choices: choices that differ from the proposals by names and order.
        spare: arrays of torch's layers that an earlier pass matched with no layer of Flax's.
        limit: number of differences that ends the pass.
        inject: whether the pass continues with torch's values where the models diverge; if not, a layer
            whose input no torch layer has keeps its weights.

    Attributes:
        found: findings of the pass.
        after: the last layer that agreed.
    """

    def __init__(
        self,
        sources: TorchSources,
        drawn: Mapping[str, Array],
        *,
        linen: bool,
        choices: Choices,
        spare: Sequence[SourceArray],
        limit: int | None,
        inject: bool = True,
    ) -> None:
        self._inject = inject
        self._sources, self._drawn, self._choices = sources, drawn, choices
        self._free, self._limit = [*sources.loose, *spare], limit
        self._stack: list[CalledLayer] = []
        self._inside_unit = 0
        self._used: set[tuple[str, int]] = set()
        self._votes: Counter[tuple[int, int, Any]] = Counter()
        self.after = ""
        self._parted = 0
        self._alike: set[tuple[str, int]] = set()
        self._loose_used: set[str] = set()
        self._arrays_below = _below(drawn, linen)
        self.found = Pass()
        self._questions = OpenHeadChoices(choices, self.found)
        self._tried: Sequence[SourcedArray] | None = None

    @property
    def inside(self) -> CalledLayer | None:
        """See `Watcher`."""
        return self._stack[-1] if self._stack else None

    def call(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """See `Watcher`."""
        if self._inside_unit or (self._stack and self._stack[-1].key == seen.key):
            return run(*args, **kwargs)
        # Arrays that the model computes itself are no weights.
        own = {name: array for name, array in seen.held().items() if name in self._drawn}
        if is_traced((args, kwargs, list(own.values()))):
            if is_batched((args, kwargs, list(own.values()))) and own:
                self.found.unseen[seen.name] = None
            return run(*args, **kwargs)
        self._stack.append(seen)
        try:
            below = self._below(seen.name, own)
            if not own and not below:
                return run(*args, **kwargs)
            if below:
                return self._composite(seen, run, args, kwargs, own, below)
            return self._layer(seen, run, args, kwargs, own)
        finally:
            self._stack.pop()

    def _below(self, name: str, own: Mapping[str, Any]) -> list[str]:
        return [held for held in self._arrays_below.get(name, ()) if held not in own]

    # Layers with layers inside.

    def _composite(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
        below: Sequence[str],
    ) -> Any:
        whole = self._whole(seen, args, kwargs, own, below)
        if whole is not None:
            return self._run_as(seen, run, args, kwargs, whole, own)
        if own:
            self._loose(seen, own)
        return run(*args, **kwargs)

    def _whole(
        self,
        seen: CalledLayer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
        below: Sequence[str],
    ) -> _Candidate | None:
        """Torch layer that equals a whole container: its own attention, a recurrent layer."""
        names = [*own, *below]
        shapes = {name: self._drawn[name].shape for name in names}
        calls = [
            call
            for call in self._sources.of_size(sum(self._drawn[name].size for name in names))
            if call.key not in self._used and len(call.unit.sources) == len(names)
        ]
        first = _first(args, kwargs)
        if not calls or first is None or not any(len(call.unit.sources) > 2 for call in calls):
            return None
        mine = np.asarray(first)
        for call in calls:
            layouts = ways_to_make(shapes, call.unit.sources)
            if layouts and self._sources.given(call, mine) is not None:
                return _Candidate(call, layouts, 0.0)
        return None

    # Layers without layers inside.

    def _layer(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
    ) -> Any:
        shapes = {name: tuple(array.shape) for name, array in own.items()}
        calls = self._possible(shapes, own)
        first = _first(args, kwargs)
        fed = self._by_values(shapes, calls, first)
        if fed:
            best = min(candidate.distance for candidate in fed)
            group = [candidate for candidate in fed if candidate.distance <= max(EXACT, 10 * best)]
            chosen = self._chosen(seen, group)
            if len(group) > 1:
                self._alike |= {candidate.call.key for candidate in group}
            if chosen.call.key in self._alike:
                self.found.unsure |= dict.fromkeys(own)
            if best > EXACT:
                self._differs(seen, chosen.call.unit.layer, inside=False, distance=best)
            else:
                inputs = self._sources.values(chosen.call.call.arguments[0])
                self._questions.agrees(chosen.call.unit.name, inputs, self._parted)
        else:
            if self._known(own) and next(self._fitting(shapes, calls), None) is None:
                return run(*args, **kwargs)  # once more than torch calls it
            hidden = list(self._fitting(shapes, [call for call in calls if call.unit.hidden]))
            last = [
                candidate
                for candidate in hidden
                if candidate.call.unit.name.rpartition(".")[2] == "out"
            ]
            inner = self._into_attention(
                [candidate for candidate in hidden if candidate not in last], first
            )
            if inner:
                projection = inner[self._rank(seen.name, [each.call.unit.name for each in inner])]
                self._take(seen, projection.call, projection.ways[0], own)
                self.found.unsure |= dict.fromkeys(own)
                return run(*args, **kwargs)
            whole = [call for call in calls if call.unit.part is None and not call.unit.hidden]
            tried = itertools.islice(self._fitting(shapes, whole), _TRIED)
            same = self._same_result(seen, run, args, kwargs, own, [*last, *tried])
            if same is not None:
                return same
            left = next(self._fitting(shapes, whole), None)
            if left is None:
                # Its arrays may be arrays that torch has outside layers.
                if not self._loose(seen, own):
                    self.found.unmatched.append((seen.name, seen.describe(None).called))
                return run(*args, **kwargs)
            if not self._inject:
                return run(*args, **kwargs)
            chosen = left
            args, kwargs = self._fed(chosen.call, args, kwargs)
            said = _scaled(first, _first(args, kwargs))
            self._differs(
                seen, chosen.call.unit.layer, inside=False, distance=math.inf, settings=said
            )
        return self._run_as(seen, run, args, kwargs, chosen, own)

    def _known(self, own: Mapping[str, Any]) -> bool:
        """Whether a layer was called before, with the same arrays."""
        return all(
            name in self.found.pieces and tuple(array.shape) == self._drawn[name].shape
            for name, array in own.items()
        )

    def _possible(
        self, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, Any]
    ) -> list[UnitCall]:
        """Calls with the right number of weights; for a layer called before, calls with the same weights."""
        tensors, pieces = self._sources.tensors, self.found.pieces
        known = {tensors(pieces[name][0].source) for name in own} if self._known(own) else None
        return [
            call
            for call in self._sources.of_size(sum(math.prod(shape) for shape in shapes.values()))
            if call.key not in self._used
            and (known is None or known == {tensors(source) for source in call.unit.sources})
        ]

    def _fitting(
        self, shapes: Mapping[str, tuple[int, ...]], calls: Sequence[UnitCall]
    ) -> Iterator[_Candidate]:
        """Yield the calls whose weights can be arranged as these arrays."""
        ways_of: dict[int, list[tuple[SourcedArray, ...]]] = {}
        for call in calls:
            unit = id(call.unit)
            if unit not in ways_of:
                ways_of[unit] = ways_to_make(shapes, call.unit.sources)
            if ways_of[unit]:
                yield _Candidate(call, ways_of[unit], math.inf)

    def _by_values(
        self, shapes: Mapping[str, tuple[int, ...]], calls: Sequence[UnitCall], first: Any
    ) -> list[_Candidate]:
        """Calls whose input in torch equals this layer's input."""
        if first is None:
            return []
        mine = np.asarray(first)
        alike = self._sources.alike(mine)
        seen = [
            call
            for call in calls
            if not call.unit.hidden and (call.unit.layer, call.call.number) in alike
        ]
        candidates = []
        inputs: dict[tuple[str, int], tuple[Any, TensorArrangement, float] | None] = {}
        for candidate in self._fitting(shapes, seen):
            at = candidate.call.unit.layer, candidate.call.call.number
            if at not in inputs:
                inputs[at] = self._sources.given(candidate.call, mine)
            near = inputs[at]
            if near is not None:
                candidates.append(_Candidate(candidate.call, candidate.ways, near[2]))
                if near[2] <= EXACT:
                    self._votes[(len(near[0].shape), mine.ndim, near[1].layout)] += 1
        return candidates

    def _chosen(self, seen: CalledLayer, group: Sequence[_Candidate]) -> _Candidate:
        """Choose a candidate: the choice of this pass, else the most similar name, else the first."""
        whole = [candidate for candidate in group if candidate.call.unit.part is None]
        group = whole or group
        return group[self._rank(seen.name, [candidate.call.unit.name for candidate in group])]

    def _rank(self, asking: str, names: Sequence[str]) -> int:
        """Index of the most similar name, else of the first; or another index that this pass tries."""
        if len(names) == 1:
            return 0
        scores = [likeness(asking, name) for name in names]
        order = sorted(range(len(names)), key=lambda index: -scores[index])
        key = pattern(asking, names)
        self.found.open.append(Open(key, len(names), self._parted))
        return order[self._choices.get(key, 0) % len(order)]

    def _into_attention(self, hidden: Sequence[_Candidate], first: Any) -> list[_Candidate]:
        """Projections inside torch's own attention whose attention received this value."""
        if first is None:
            return []
        mine = np.asarray(first)
        return [
            candidate
            for candidate in hidden
            if self._sources.given(candidate.call, mine) is not None
        ]

    def _same_result(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
        candidates: Sequence[_Candidate],
    ) -> Any:
        """Run a layer with the weights of candidates until its output equals the output of one of them.

        It is unknown whether their inputs are equal: the last projection of torch's own attention; a table
        that computes its own positions.

        Returns:
            The output of the layer; None if no candidate matches.
        """
        for candidate in candidates:
            if self._sources.output(candidate.call) is None:
                continue
            for arrays in candidate.ways:
                result = self._run_with(seen, run, args, kwargs, arrays)
                if self._distance_of_result(candidate.call, result) <= EXACT:
                    self._take(seen, candidate.call, arrays, own)
                    self.found.agreed += not self._parted
                    self.after = seen.name
                    return result
                seen.take({})
        return None

    def _run_with(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arrays: Sequence[SourcedArray],
    ) -> Any:
        """Run a layer with these weights, without inspecting the calls inside it."""
        seen.take({array.name: self._value(array) for array in arrays})
        self._tried = arrays
        self._inside_unit += 1
        try:
            return run(*args, **kwargs)
        finally:
            self._inside_unit -= 1

    # Run a layer as one of torch's.

    def _run_as(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        candidate: _Candidate,
        own: Mapping[str, Any],
    ) -> Any:
        best: tuple[float, tuple[SourcedArray, ...], Any] | None = None
        for arrays in candidate.ways:
            result = self._run_with(seen, run, args, kwargs, arrays)
            apart = self._distance_of_result(candidate.call, result)
            if best is None or apart < best[0]:
                best = apart, arrays, result
            if apart <= EXACT:
                break
        assert best is not None
        apart, arrays, result = best
        self._take(seen, candidate.call, arrays, own)
        if apart > EXACT:
            real = self._differs(seen, candidate.call.unit.layer, inside=True, distance=apart)
            result = self._answered(candidate.call, result) if self._inject else result
            if real:
                return result
        else:
            result = self._with_heads(seen, run, args, kwargs, candidate.call, arrays, result)
        if not self._parted:
            self.found.agreed += 1
        self.after = seen.name
        return result

    def _with_heads(
        self,
        seen: CalledLayer,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: UnitCall,
        arrays: Sequence[SourcedArray],
        result: Any,
    ) -> Any:
        """Output of a query or key with this pass's choice of heads: torch's order and size, or others."""
        kernel = max(
            (array.layout.shape(array.source.leaf.info.shape) for array in arrays), key=len
        )
        if len(kernel) < _WITH_HEADS or not call.call.arguments:
            return result
        inputs = self._sources.values(call.call.arguments[0])
        heads = self._questions.heads(call.unit.name, inputs, kernel, self._parted)
        if heads.plain:
            return result
        other = [array.of(heads) for array in arrays]
        for other_array in other:
            self.found.pieces[other_array.name][-1] = other_array
        return self._run_with(seen, run, args, kwargs, other)

    def _take(
        self,
        seen: CalledLayer,
        call: UnitCall,
        arrays: Sequence[SourcedArray],
        own: Mapping[str, Any],
    ) -> None:
        """Load weights into a layer permanently."""
        if self._tried is not arrays:
            seen.take({array.name: self._value(array) for array in arrays})
        for array in arrays:
            self._keep(array, own.get(array.name))
        self._used |= self._sources.overlapping(call)
        self.found.layers += 1

    def _keep(self, array: SourcedArray, held: Any) -> None:
        whole = self._drawn[array.name]
        pieces = self.found.pieces[array.name]
        if held is None or tuple(held.shape) == whole.shape:
            if not pieces:
                pieces.append(array)
            return
        axis = self.found.stacked.get(array.name)
        if axis is None:
            axis = _axis(whole, np.asarray(held))
            self.found.stacked[array.name] = axis
        pieces.append(array)

    def _value(self, array: SourcedArray) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(self._sources.array(array.source, array.layout))

    def _distance_of_result(self, call: UnitCall, result: Any) -> float:
        """Distance of a layer's output from torch's; 0 where that is unknown."""
        truth, mine = self._sources.output(call), _first((result,), {})
        if truth is None or mine is None:
            return 0.0
        mine = np.asarray(mine)
        if truth.size != mine.size:
            truth, mine = once(truth), once(mine)
        match = nearest(truth, mine)
        if match is None:
            return float("inf")
        if match[1] <= EXACT:
            self._votes[(truth.ndim, mine.ndim, match[0].layout)] += 1
        return match[1]

    # Continue with torch's values.

    def _fed(
        self, call: UnitCall, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mine = _first(args, kwargs)
        if mine is None:
            return args, kwargs
        for ref in call.call.arguments:
            new = self._laid(self._sources.values(ref), np.asarray(mine))
            if new is not None:
                return _replaced((args, kwargs), mine, new)
        return args, kwargs

    def _answered(self, call: UnitCall, result: Any) -> Any:
        mine, truth = _first((result,), {}), self._sources.output(call)
        if mine is None or truth is None:
            return result
        new = self._laid(truth, np.asarray(mine))
        return result if new is None else _replaced(result, mine, new)

    def _laid(self, truth: Array, mine: Array) -> Array | None:
        """Arrange torch's tensor in Flax's shape: by the values, else as other tensors with as many axes."""
        if (truth.dtype.kind == "f") != (mine.dtype.kind == "f"):
            return None
        possible = ways(truth.shape, mine.shape, self._sources.images(mine.size))
        if not possible:
            return None
        usual = max(possible, key=lambda way: self._votes[(truth.ndim, mine.ndim, way.layout)])
        laid = [way.pair("", "").as_mine(truth) for way in possible]
        apart = [distance(array, mine) for array in laid]
        near = int(np.argmin(apart))
        chosen = laid[near] if apart[near] <= 0.3 else usual.pair("", "").as_mine(truth)
        return np.asarray(chosen)

    def _differs(
        self, seen: CalledLayer, truth: str, *, inside: bool, distance: float, settings: str = ""
    ) -> bool:
        """Record a difference; return whether it is more than rounding."""
        layer = seen.describe(None)
        if inside:
            settings = self._sources.settings(truth, layer.settings)
        difference = ModelDifference(
            seen.name, layer.called, truth, self.after, inside, distance, settings
        )
        self.found.differences.append(difference)
        if difference.rounding:
            return False
        self._parted += 1
        if self._limit is not None and self._parted >= self._limit:
            raise EnoughSeen
        return True

    # Arrays that no torch layer holds alone.

    def _loose(self, seen: CalledLayer, own: Mapping[str, Any]) -> bool:
        """Load arrays that torch has outside layers: of the same shapes, with similar names, in order."""
        all_found = True
        for name, array in own.items():
            if name in self.found.pieces and tuple(array.shape) == self._drawn[name].shape:
                continue
            sourced = self._loose_one(name, tuple(array.shape))
            if sourced is None:
                all_found = False
                continue
            self._loose_used.add(sourced.source.path)
            seen.take({name: self._value(sourced)})
            self._keep(sourced, array)
            self.found.unsure[name] = None
        return all_found

    def _loose_one(self, name: str, shape: tuple[int, ...]) -> SourcedArray | None:
        fitting = [
            layouts[0][0]
            for source in self._free
            if source.path not in self._loose_used
            and (layouts := ways_to_make({name: shape}, [source]))
        ]
        if not fitting:
            return None
        return fitting[self._rank(name, [array.source.path for array in fitting])]


@dataclass(frozen=True)
class _Candidate:
    """Call of torch's that a layer may match.

    Attributes:
        call: the call.
        ways: ways to make the layer's arrays from the unit's.
        distance: distance of the two inputs; infinite if unknown.
    """

    call: UnitCall
    ways: list[tuple[SourcedArray, ...]]
    distance: float


def _below(names: Mapping[str, Any], linen: bool) -> dict[str, list[str]]:
    """Layer → the arrays that the layer or the layers inside it hold."""
    arrays: dict[str, list[str]] = defaultdict(list)
    for name in names:
        keys = name.split("/")[1 if linen else 0 : -1]
        for end in range(len(keys) + 1):
            arrays[".".join(keys[:end])].append(name)
    return arrays


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """First array among a layer's arguments or outputs."""
    return next(iter((tensors(tuple(args)) | tensors(dict(kwargs))).values()), None)


def _scaled(mine: Any, truth: Any) -> str:
    """Message for inputs whose channels each have a factor and an offset; "" if they do not."""
    if mine is truth or mine is None:
        return ""
    a, b = (
        np.asarray(values, np.float64).reshape(-1, values.shape[-1]) for values in (truth, mine)
    )
    spread = a.std(0)
    if len(a) < _ROWS or not spread.all():
        return ""
    factor = ((a - a.mean(0)) * (b - b.mean(0))).mean(0) / spread**2
    offset = b.mean(0) - factor * a.mean(0)
    rest = float(np.linalg.norm(a * factor + offset - b) / (np.linalg.norm(b) or 1.0))
    if rest > SINGLE:
        return ""
    offset = np.where(np.abs(offset) < EXACT * spread, 0.0, offset)
    factors, offsets = (
        ", ".join(f"{number:.3g}" for number in its[:_SHOWN]) for its in (factor, offset)
    )
    return f"it is given torch's values, each channel times {factors} and {offsets} added"


def _replaced(value: Any, old: Any, new: Array) -> Any:
    """Replace an array in a structure by another array."""
    import jax.numpy as jnp

    placed = jnp.asarray(new, dtype=old.dtype)
    return rebuilt(value, lambda _, array: placed if array is old else array)


def _axis(whole: Array, held: Array) -> int:
    """Axis along which a loop takes its slices; the values decide, where several axes fit."""
    possible = [
        axis
        for axis in range(whole.ndim)
        if (*whole.shape[:axis], *whole.shape[axis + 1 :]) == held.shape
    ]
    for axis in possible:
        if any(np.array_equal(turn, held) for turn in np.moveaxis(whole, axis, 0)):
            return axis
    return possible[0]
