"""One pass of a Flax model that finds, layer by layer, which of torch's it is, and gives it the weights.

Every layer above is known when a layer is called, so what it is given has the values that torch's was given:
they say which it is. What it gives is held against what torch's gave. Where either differs the models
do: the place is noted, and the pass goes on with torch's values, so that one difference hides no other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate.parity.align.tensors import Way, distance, ways
from migrate.parity.fitting.heads import Questions
from migrate.parity.fitting.names import likeness, pattern
from migrate.parity.fitting.roles import Made, ways_to_make
from migrate.parity.fitting.sources import EXACT, Source, Sources, UnitCall, nearest, once
from migrate.parity.fitting.trying import Choices, EnoughSeen, Open, Tried
from migrate.parity.ground.fitting import SINGLE, Difference
from migrate.parity.sides.jax.capture.recorder import Seen
from migrate.parity.sides.jax.capture.values import is_batched, is_traced, rebuilt, tensors

Array = np.ndarray[Any, Any]
# Channels are seen to be scaled on no fewer values of each.
_ROWS, _SHOWN = 8, 3
# So many layers are run to see whether they give what torch's did where none was given the same.
_TRIED = 4
# Axes of a kernel in which heads are apart.
_WITH_HEADS = 3


@dataclass
class Pass(Tried):
    """What a pass found.

    Attributes:
        made: array of Flax's → the pieces that it is made of (several: one for each turn of a loop).
        stacked: array of Flax's → the axis of these pieces.
        unmatched: layers of Flax's for which torch has none: name, where it is called, its arrays.
        unseen: layers in which nothing can be seen (vmap).
    """

    made: dict[str, list[Made]] = field(default_factory=lambda: defaultdict(list))
    stacked: dict[str, int] = field(default_factory=dict)
    unmatched: list[tuple[str, str]] = field(default_factory=list)
    unseen: dict[str, None] = field(default_factory=dict)


class Follower:
    """The watcher of a pass (`sides.jax.capture.recorder.Watcher`).

    Args:
        sources: torch's side.
        drawn: random values of Flax's arrays, by name.
        linen: whether these names begin with a collection.
        choices: what to take otherwise than names and order propose.
        spare: arrays of torch's layers that were no layer's of Flax in an earlier pass.
        limit: the pass ends where it has so many differences.
        inject: whether it goes on with torch's values where the models part; if not, a layer that is given
            what torch gave none keeps the weights that it has.

    Attributes:
        found: what it found.
        after: the last layer that agreed.
    """

    def __init__(
        self,
        sources: Sources,
        drawn: Mapping[str, Array],
        *,
        linen: bool,
        choices: Choices,
        spare: Sequence[Source],
        limit: int | None,
        inject: bool = True,
    ) -> None:
        self._inject = inject
        self._sources, self._drawn, self._choices = sources, drawn, choices
        self._free, self._limit = [*sources.loose, *spare], limit
        self._stack: list[Seen] = []
        self._inside_unit = 0
        self._used: set[tuple[str, int]] = set()
        self._votes: Counter[tuple[int, int, Any]] = Counter()
        self.after = ""
        self._parted = 0
        self._alike: set[tuple[str, int]] = set()
        self._loose_used: set[str] = set()
        self._arrays_below = _below(drawn, linen)
        self.found = Pass()
        self._questions = Questions(choices, self.found)
        self._tried: Sequence[Made] | None = None

    @property
    def inside(self) -> Seen | None:
        """See `Watcher`."""
        return self._stack[-1] if self._stack else None

    def call(
        self, seen: Seen, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See `Watcher`."""
        if self._inside_unit or (self._stack and self._stack[-1].key == seen.key):
            return run(*args, **kwargs)
        own = seen.held()
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
        return [one for one in self._arrays_below.get(name, ()) if one not in own]

    # A layer that has layers in it.

    def _composite(
        self,
        seen: Seen,
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
        seen: Seen,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
        below: Sequence[str],
    ) -> _Candidate | None:
        """The one layer of torch that all of this is: its own attention, a recurrent layer."""
        names = [*own, *below]
        shapes = {name: self._drawn[name].shape for name in names}
        calls = [
            one
            for one in self._sources.of_size(sum(self._drawn[name].size for name in names))
            if one.key not in self._used and len(one.unit.sources) == len(names)
        ]
        first = _first(args, kwargs)
        if not calls or first is None or not any(len(one.unit.sources) > 2 for one in calls):
            return None
        mine = np.asarray(first)
        for call in calls:
            made = ways_to_make(shapes, call.unit.sources)
            if made and self._sources.given(call, mine) is not None:
                return _Candidate(call, made, 0.0)
        return None

    # A layer that has none.

    def _layer(
        self,
        seen: Seen,
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
            best = min(one.distance for one in fed)
            group = [one for one in fed if one.distance <= max(EXACT, 10 * best)]
            chosen = self._chosen(seen, group)
            if len(group) > 1:
                self._alike |= {one.call.key for one in group}
            if chosen.call.key in self._alike:
                self.found.unsure |= dict.fromkeys(own)
            if best > EXACT:
                self._differs(seen, chosen.call.unit.layer, inside=False, distance=best)
            else:
                given = self._sources.values(chosen.call.call.arguments[0])
                self._questions.agrees(chosen.call.unit.name, given, self._parted)
        else:
            if self._known(own) and next(self._fitting(shapes, calls), None) is None:
                return run(*args, **kwargs)  # once more than torch calls it
            hidden = list(self._fitting(shapes, [one for one in calls if one.unit.hidden]))
            last = [one for one in hidden if one.call.unit.name.rpartition(".")[2] == "out"]
            inner = self._into_attention([one for one in hidden if one not in last], first)
            if inner:
                one = inner[self._rank(seen.name, [each.call.unit.name for each in inner])]
                self._take(seen, one.call, one.ways[0], own)
                self.found.unsure |= dict.fromkeys(own)
                return run(*args, **kwargs)
            whole = [one for one in calls if one.unit.part is None and not one.unit.hidden]
            tried = itertools.islice(self._fitting(shapes, whole), _TRIED)
            same = self._same_result(seen, run, args, kwargs, own, [*last, *tried])
            if same is not None:
                return same
            left = next(self._fitting(shapes, whole), None)
            if left is None:
                # Its arrays may be what torch has without a layer.
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
            name in self.found.made and tuple(array.shape) == self._drawn[name].shape
            for name, array in own.items()
        )

    def _possible(
        self, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, Any]
    ) -> list[UnitCall]:
        """The calls with so many weights; of a layer that was called before those of the same weights."""
        tensors, made = self._sources.tensors, self.found.made
        known = {tensors(made[name][0].source) for name in own} if self._known(own) else None
        return [
            one
            for one in self._sources.of_size(sum(math.prod(shape) for shape in shapes.values()))
            if one.key not in self._used
            and (known is None or known == {tensors(source) for source in one.unit.sources})
        ]

    def _fitting(
        self, shapes: Mapping[str, tuple[int, ...]], calls: Sequence[UnitCall]
    ) -> Iterator[_Candidate]:
        """Of these calls those whose weights can be laid so."""
        ways_of: dict[int, list[tuple[Made, ...]]] = {}
        for one in calls:
            unit = id(one.unit)
            if unit not in ways_of:
                ways_of[unit] = ways_to_make(shapes, one.unit.sources)
            if ways_of[unit]:
                yield _Candidate(one, ways_of[unit], math.inf)

    def _by_values(
        self, shapes: Mapping[str, tuple[int, ...]], calls: Sequence[UnitCall], first: Any
    ) -> list[_Candidate]:
        """Those that torch gave what this layer is given."""
        if first is None:
            return []
        mine = np.asarray(first)
        alike = self._sources.alike(mine)
        seen = [
            one
            for one in calls
            if not one.unit.hidden and (one.unit.layer, one.call.number) in alike
        ]
        found = []
        given: dict[tuple[str, int], tuple[Any, Way, float] | None] = {}
        for one in self._fitting(shapes, seen):
            at = one.call.unit.layer, one.call.call.number
            if at not in given:
                given[at] = self._sources.given(one.call, mine)
            near = given[at]
            if near is not None:
                found.append(_Candidate(one.call, one.ways, near[2]))
                if near[2] <= EXACT:
                    self._votes[(len(near[0].shape), mine.ndim, near[1].layout)] += 1
        return found

    def _chosen(self, seen: Seen, group: Sequence[_Candidate]) -> _Candidate:
        """One of several: as it is to be tried, else the one that is called most alike, else the first."""
        whole = [one for one in group if one.call.unit.part is None]
        group = whole or group
        return group[self._rank(seen.name, [one.call.unit.name for one in group])]

    def _rank(self, asking: str, names: Sequence[str]) -> int:
        """Which of these it is: the one called most alike, else the first; or another that is to be tried."""
        if len(names) == 1:
            return 0
        scores = [likeness(asking, name) for name in names]
        order = sorted(range(len(names)), key=lambda one: -scores[one])
        key = pattern(asking, names)
        self.found.open.append(Open(key, len(names), self._parted))
        return order[self._choices.get(key, 0) % len(order)]

    def _into_attention(self, hidden: Sequence[_Candidate], first: Any) -> list[_Candidate]:
        """Of the projections inside of torch's own attention those whose whole was given this."""
        if first is None:
            return []
        mine = np.asarray(first)
        return [one for one in hidden if self._sources.given(one.call, mine) is not None]

    def _same_result(
        self,
        seen: Seen,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        own: Mapping[str, Any],
        candidates: Sequence[_Candidate],
    ) -> Any:
        """A layer that gives what one of these gave, of which it is not known that they are given the same.

        The last projection of torch's own attention; a table that makes its own positions.

        Returns:
            What the layer gives; None if it is none of them.
        """
        for one in candidates:
            if self._sources.output(one.call) is None:
                continue
            for made in one.ways:
                result = self._run_with(seen, run, args, kwargs, made)
                if self._apart(one.call, result) <= EXACT:
                    self._take(seen, one.call, made, own)
                    self.found.agreed += not self._parted
                    self.after = seen.name
                    return result
                seen.take({})
        return None

    def _run_with(
        self,
        seen: Seen,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: Sequence[Made],
    ) -> Any:
        """What a layer gives with these weights; what is called inside of it is not looked at."""
        seen.take({one.name: self._value(one) for one in made})
        self._tried = made
        self._inside_unit += 1
        try:
            return run(*args, **kwargs)
        finally:
            self._inside_unit -= 1

    # Running a layer as one of torch's.

    def _run_as(
        self,
        seen: Seen,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        one: _Candidate,
        own: Mapping[str, Any],
    ) -> Any:
        best: tuple[float, tuple[Made, ...], Any] | None = None
        for made in one.ways:
            result = self._run_with(seen, run, args, kwargs, made)
            apart = self._apart(one.call, result)
            if best is None or apart < best[0]:
                best = apart, made, result
            if apart <= EXACT:
                break
        assert best is not None
        apart, made, result = best
        self._take(seen, one.call, made, own)
        if apart > EXACT:
            real = self._differs(seen, one.call.unit.layer, inside=True, distance=apart)
            result = self._answered(one.call, result) if self._inject else result
            if real:
                return result
        else:
            result = self._with_heads(seen, run, args, kwargs, one.call, made, result)
        if not self._parted:
            self.found.agreed += 1
        self.after = seen.name
        return result

    def _with_heads(
        self,
        seen: Seen,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: UnitCall,
        made: Sequence[Made],
        result: Any,
    ) -> Any:
        """What a query or a key gives as this pass has its heads: torch's order and size, or others."""
        kernel = max((one.layout.shape(one.source.leaf.info.shape) for one in made), key=len)
        if len(kernel) < _WITH_HEADS or not call.call.arguments:
            return result
        given = self._sources.values(call.call.arguments[0])
        heads = self._questions.heads(call.unit.name, given, kernel, self._parted)
        if heads.plain:
            return result
        other = [one.of(heads) for one in made]
        for one in other:
            self.found.made[one.name][-1] = one
        return self._run_with(seen, run, args, kwargs, other)

    def _take(
        self,
        seen: Seen,
        call: UnitCall,
        made: Sequence[Made],
        own: Mapping[str, Any],
    ) -> None:
        """Give a layer the weights, for good."""
        if self._tried is not made:
            seen.take({one.name: self._value(one) for one in made})
        for one in made:
            self._keep(one, own.get(one.name))
        self._used |= self._sources.overlapping(call)
        self.found.layers += 1

    def _keep(self, one: Made, held: Any) -> None:
        whole = self._drawn[one.name]
        pieces = self.found.made[one.name]
        if held is None or tuple(held.shape) == whole.shape:
            if not pieces:
                pieces.append(one)
            return
        axis = self.found.stacked.get(one.name)
        if axis is None:
            axis = _axis(whole, np.asarray(held))
            self.found.stacked[one.name] = axis
        pieces.append(one)

    def _value(self, one: Made) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(self._sources.array(one.source, one.layout))

    def _apart(self, call: UnitCall, result: Any) -> float:
        """How far what a layer gives is from what torch's gave; 0 where that is not known."""
        truth, mine = self._sources.output(call), _first((result,), {})
        if truth is None or mine is None:
            return 0.0
        mine = np.asarray(mine)
        if truth.size != mine.size:
            truth, mine = once(truth), once(mine)
        found = nearest(truth, mine)
        if found is None:
            return float("inf")
        if found[1] <= EXACT:
            self._votes[(truth.ndim, mine.ndim, found[0].layout)] += 1
        return found[1]

    # Going on with torch's values.

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
        """Torch's tensor as Flax's of this shape would lie: by the values, else as others of its axes do."""
        if (truth.dtype.kind == "f") != (mine.dtype.kind == "f"):
            return None
        possible = ways(truth.shape, mine.shape, self._sources.images(mine.size))
        if not possible:
            return None
        usual = max(possible, key=lambda way: self._votes[(truth.ndim, mine.ndim, way.layout)])
        laid = [way.pair("", "").as_mine(truth) for way in possible]
        apart = [distance(one, mine) for one in laid]
        near = int(np.argmin(apart))
        chosen = laid[near] if apart[near] <= 0.3 else usual.pair("", "").as_mine(truth)
        return np.asarray(chosen)

    def _differs(
        self, seen: Seen, truth: str, *, inside: bool, distance: float, settings: str = ""
    ) -> bool:
        """Note it; whether it is more than rounding."""
        layer = seen.describe(None)
        if inside:
            settings = self._sources.settings(truth, layer.settings)
        one = Difference(seen.name, layer.called, truth, self.after, inside, distance, settings)
        self.found.differences.append(one)
        if one.rounding:
            return False
        self._parted += 1
        if self._limit is not None and self._parted >= self._limit:
            raise EnoughSeen
        return True

    # Arrays that no layer of torch's holds alone.

    def _loose(self, seen: Seen, own: Mapping[str, Any]) -> bool:
        """Give arrays what torch has without a layer: of their shapes, called alike, in order."""
        all_found = True
        for name, array in own.items():
            if name in self.found.made and tuple(array.shape) == self._drawn[name].shape:
                continue
            one = self._loose_one(name, tuple(array.shape))
            if one is None:
                all_found = False
                continue
            self._loose_used.add(one.source.path)
            seen.take({name: self._value(one)})
            self._keep(one, array)
            self.found.unsure[name] = None
        return all_found

    def _loose_one(self, name: str, shape: tuple[int, ...]) -> Made | None:
        fitting = [
            made[0][0]
            for source in self._free
            if source.path not in self._loose_used
            and (made := ways_to_make({name: shape}, [source]))
        ]
        if not fitting:
            return None
        return fitting[self._rank(name, [one.source.path for one in fitting])]


@dataclass(frozen=True)
class _Candidate:
    """A call of torch's that a layer may be.

    Attributes:
        call: the call.
        ways: in which the layer's arrays can be made of the unit's.
        distance: of what the two are given; infinite if that is not known.
    """

    call: UnitCall
    ways: list[tuple[Made, ...]]
    distance: float


def _below(names: Mapping[str, Any], linen: bool) -> dict[str, list[str]]:
    """Layer → the arrays that lie in it or in what is in it."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        keys = name.split("/")[1 if linen else 0 : -1]
        for end in range(len(keys) + 1):
            found[".".join(keys[:end])].append(name)
    return found


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The first array that a layer is given, or gives."""
    return next(iter((tensors(tuple(args)) | tensors(dict(kwargs))).values()), None)


def _scaled(mine: Any, truth: Any) -> str:
    """What to say where each channel of what a layer is given has a factor and an offset; "" where not."""
    if mine is truth or mine is None:
        return ""
    a, b = (np.asarray(one, np.float64).reshape(-1, one.shape[-1]) for one in (truth, mine))
    spread = a.std(0)
    if len(a) < _ROWS or not spread.all():
        return ""
    factor = ((a - a.mean(0)) * (b - b.mean(0))).mean(0) / spread**2
    offset = b.mean(0) - factor * a.mean(0)
    rest = float(np.linalg.norm(a * factor + offset - b) / (np.linalg.norm(b) or 1.0))
    if rest > SINGLE:
        return ""
    offset = np.where(np.abs(offset) < EXACT * spread, 0.0, offset)
    factors, offsets = (", ".join(f"{one:.3g}" for one in its[:_SHOWN]) for its in (factor, offset))
    return f"it is given torch's values, each channel times {factors} and {offsets} added"


def _replaced(value: Any, old: Any, new: Array) -> Any:
    """A structure with another array in the place of one."""
    import jax.numpy as jnp

    placed = jnp.asarray(new, dtype=old.dtype)
    return rebuilt(value, lambda _, array: placed if array is old else array)


def _axis(whole: Array, held: Array) -> int:
    """Along which axis a loop takes its slices: the values tell, where several have the shape."""
    possible = [
        axis
        for axis in range(whole.ndim)
        if (*whole.shape[:axis], *whole.shape[axis + 1 :]) == held.shape
    ]
    for axis in possible:
        if any(np.array_equal(one, held) for one in np.moveaxis(whole, axis, 0)):
            return axis
    return possible[0]
