"""Rollouts of the script with given values or another seed: variables of its loop at the first batch.

A variable is named as `name`, or `function:name` for the function that has it; `.key` follows an attribute, a
key or an index, and `*` is each item of a list.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import data  # type: ignore[import-not-found]
import numpy as np
import torch

Frames = list[tuple[str, dict[str, Any]]]
Weights = Callable[[], Mapping[str, Any]]
Others = Mapping[str, Mapping[str, Any]] | None
# Levels of containers and attributes in which values are looked for.
_DEPTH = 3
_RANDOM = torch.Generator | random.Random | np.random.Generator | np.random.RandomState


class RolloutVariables(Mapping[str, Any]):
    """RolloutVariables of the script's running functions, as NumPy arrays.

    Args:
        frames: function and variables of each, innermost first; the module comes last.
        again: the same of another seed, in which what is read must be equal.
    """

    def __init__(self, frames: Frames, again: RolloutVariables | None = None) -> None:
        self.frames, self.again = frames, again
        self._orders: dict[str, list[int]] = {}

    def __getitem__(self, name: str) -> Any:
        value = data.arrays(self.find(name))
        if order := self._orders.get(_list_of(name)):
            value = [value[place] for place in order]
        if self.again is not None and not _equal(self.again[name], value):
            raise ValueError(f"{name}: it depends on more than the given values that are sampled")
        return value

    def order_by(self, sampled: Mapping[str, Any]) -> None:
        """Give the items of each list in the order of given ones: the script may shuffle them.

        The order stays where an item is not among the given ones.
        """
        for path in {_list_of(name) for name in sampled} - {""}:
            names = [name for name in sampled if _list_of(name) == path]
            own = list(zip(*(data.arrays(self.find(name)) for name in names), strict=True))
            wanted = list(zip(*(sampled[name] for name in names), strict=True))
            free, order = list(range(len(own))), []
            for item in wanted:
                place = next((n for n in free if _equal(own[n], item)), None)
                if place is None:
                    break
                free.remove(place)
                order.append(place)
            if len(order) == len(own):
                self._orders[path] = order

    def __iter__(self) -> Iterator[str]:
        for function, held in self.frames:
            yield from (f"{function}:{name}" for name in held)

    def __len__(self) -> int:
        return sum(len(held) for _, held in self.frames)

    def find(self, name: str) -> Any:
        """Return the object of a variable.

        Raises:
            KeyError: no function that runs has it.
        """
        function, _, path = name.rpartition(":")
        first, *rest = path.split(".")
        for running, held in self.frames:
            if function in ("", running) and first in held:
                try:
                    return _follow(held[first], rest)
                except (AttributeError, LookupError):
                    break
        raise KeyError(f"the rollout has no variable {name}")


def rollout(weights: Weights, seed: int, others: Others = None) -> RolloutVariables:
    """Make one rollout from a seed of its own.

    All random generators that the loop holds start from the seed: prompts and samples are others.

    Args:
        weights: gives weights of the modules, by torch's names.
        seed: the seed.
        others: weights of further modules that the loop runs: module → name → array.
    """
    return RolloutVariables(_run(weights, others, seed))


def experience(
    weights: Weights, sampled: Mapping[str, Any], others: Others = None
) -> RolloutVariables:
    """Make one rollout with these values in place of those that the script samples.

    Each value is put into the script's own object as soon as a variable holds it; what the script computes
    afterwards is computed from it. Variables that hold columns of it before, tokens that are sampled one by
    one, get these columns; rows may be items of a list, `samples.*.tokens`, in the given order.

    Args:
        weights: gives weights of the modules, by torch's names.
        sampled: variable → value.
        others: weights of further modules that the loop runs: module → name → array.

    Two rollouts of different seeds are made so. A variable that differs between them raises a ValueError when
    it is read: it depends on more than these values.

    Raises:
        ValueError: the script does not hold such a value in a variable before it goes on.
    """
    seen, own = (_FirstHolders(), _FirstHolders()), []
    for holders, seed in zip(seen, (None, 1), strict=True):
        with _following(holders.note):
            own.append(RolloutVariables(_run(weights, others, seed)))
    values: dict[Spot, Any] = {}
    for name, value in sampled.items():
        held = [variables.find(name) for variables in own]
        if _list_of(name):
            # In the order in which they were made; the script may have shuffled its list since.
            held = [h.in_order(name, items) for h, items in zip(seen, held, strict=True)]
            if len(held[0]) != len(value):
                raise ValueError(f"{name}: {len(value)} items, the script has {len(held[0])}")
            values |= {seen[0].where(name, x): y for x, y in zip(held[0], value, strict=True)}
        else:
            values[seen[0].where(name, held[0])] = value
        rows = [_rows_of_numbers(x) for x in held]
        if rows[0] and rows[1]:
            values = dict(_parts_of(value, (rows[0], rows[1]), seen)) | values
    runs = []
    for seed in (None, 1):
        put = _Put(values)
        with _following(put.note):
            runs.append(RolloutVariables(_run(weights, others, seed)))
        runs[-1].order_by(sampled)
        for name, value in sampled.items():
            if not _equal(runs[-1][name], value):
                raise ValueError(f"{name}: the script has no variable with it before it goes on")
    runs[0].again = runs[1]
    return runs[0]


def _run(weights: Weights, others: Others, seed: int | None = None) -> Frames:
    """Run the script's loop to its first batch."""
    hand_over, restore = data.hand_over, getattr(data, "restore_draws", None)

    def begin(modules: Any) -> None:
        hand_over(modules)
        data.hand_over = hand_over
        for name, arrays in (others or {}).items():
            module = _module(name, arrays, modules.values(), _running(sys._getframe(1)))
            module.load_state_dict({key: torch.tensor(np.asarray(x)) for key, x in arrays.items()})
        if seed is not None:
            data.restore_draws = lambda: None
            _start_from(seed, _running(sys._getframe(1)))

    data.WEIGHTS[:] = [weights]
    data.hand_over = begin
    batches = data.micro_batches()
    try:
        with data.command_line(), contextlib.suppress(data.Ended):
            next(batches)
        return list(_suspended(batches))
    finally:
        batches.close()
        data.hand_over = hand_over
        if restore is not None:
            data.restore_draws = restore


def _suspended(generator: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the script's functions that wait at the first batch, innermost first."""
    frames = []
    while generator is not None and generator.gi_frame is not None:
        name = generator.gi_code.co_name
        frames.append(
            ("<module>" if name == "micro_batches" else name, generator.gi_frame.f_locals)
        )
        generator = generator.gi_yieldfrom
    for name, held in reversed(frames):
        yield name, dict(held)
    yield "<module>", _of_module()


def _of_module() -> dict[str, Any]:
    return {n: v for n, v in vars(data).items() if not isinstance(v, ModuleType | type)}


def _running(frame: FrameType | None) -> Iterator[dict[str, Any]]:
    """Yield the variables of the script's functions around a frame, and of its module."""
    while frame is not None:
        if frame.f_code.co_filename == data.__file__:
            yield dict(frame.f_locals)
        frame = frame.f_back
    yield _of_module()


def _module(
    name: str, arrays: Mapping[str, Any], trained: Iterable[Any], scopes: Iterator[dict[str, Any]]
) -> torch.nn.Module:
    """Return the module that has a name, or the only one whose parameters are like these.

    Raises:
        ValueError: there is none, or there are several.
    """
    shapes = {key: np.shape(x) for key, x in arrays.items()}
    learns = {id(part) for module in trained for part in module.modules()}
    alike: dict[int, Any] = {}
    for scope in scopes:
        for path, value in _parts(scope):
            if not isinstance(value, torch.nn.Module) or id(value) in learns:
                continue
            if {key: tuple(x.shape) for key, x in value.state_dict().items()} == shapes:
                if path[-1] == name:
                    return value
                alike[id(value)] = value
    if len(alike) != 1:
        raise ValueError(f"{len(alike)} modules of the loop have parameters like {name}, not 1")
    return next(iter(alike.values()))


def _start_from(seed: int, scopes: Iterator[dict[str, Any]]) -> None:
    """Seed all random generators."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    for scope in scopes:
        for _, value in _parts(scope):
            if isinstance(value, torch.Generator):
                value.manual_seed(seed)
            elif isinstance(value, random.Random | np.random.RandomState):
                value.seed(seed)
            elif isinstance(value, np.random.Generator):
                bits = value.bit_generator
                bits.state = type(bits)(seed).state


def _parts(
    value: Any, depth: int = _DEPTH, path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, Any]]:
    """Yield path and value of all that a container or an object holds."""
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value)) if len(value) <= 64 else []
    elif isinstance(value, torch.nn.Module | torch.Tensor | type | ModuleType):
        items = []
    else:
        items = list(getattr(value, "__dict__", {}).items())
    for key, item in items:
        yield (*path, key), item
        if depth > 1:
            yield from _parts(item, depth - 1, (*path, key))


def _list_of(name: str) -> str:
    """The list whose items a name with `*` follows; "" if it has none."""
    return name.partition(".*")[0] if ".*" in name else ""


def _follow(value: Any, parts: list[str]) -> Any:
    for position, part in enumerate(parts):
        if part == "*":
            return [_follow(item, parts[position + 1 :]) for item in value]
        if isinstance(value, Mapping):
            value = value[part]
        elif part.isdecimal():
            value = value[int(part)]
        else:
            value = getattr(value, part)
    return value


def _equal(a: Any, b: Any) -> bool:
    if isinstance(b, Mapping):
        return set(a) == set(b) and all(_equal(a[key], b[key]) for key in b)
    if isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(b, np.ndarray | np.generic):
        return np.array_equal(a, b, equal_nan=b.dtype.kind == "f")
    return bool(a == b)


# ---------------------------------------------------------------------------- where the script holds a value

Spot = tuple[
    str, int, tuple[Any, ...], int
]  # function, its call, path of the variable, its value's number


class _Spots:
    """Values of the script's variables, in the order in which they are bound."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._frames: dict[int, tuple[FrameType, int, dict[tuple[Any, ...], tuple[int, Any]]]] = {}

    def new(self, frame: FrameType) -> Iterator[tuple[Spot, Any]]:
        """Yield values that the variables of a frame did not have before."""
        function = frame.f_code.co_qualname
        if id(frame) not in self._frames:
            self._calls[function] = self._calls.get(function, 0) + 1
            self._frames[id(frame)] = (frame, self._calls[function], {})
        _, call, known = self._frames[id(frame)]
        for path, value in _parts(dict(frame.f_locals)):
            if not isinstance(value, torch.Tensor | np.ndarray | list):
                continue
            number, last = known.get(path, (0, None))
            if value is not last:
                known[path] = (number + 1, value)
                yield (function, call, path, number + 1), value


class _FirstHolders:
    """First variable that holds each value."""

    def __init__(self) -> None:
        self._spots = _Spots()
        self._first: dict[int, tuple[Spot, Any]] = {}
        self.numbers: dict[Spot, np.ndarray[Any, Any]] = {}

    def note(self, frame: FrameType) -> None:
        """Note the variables of a frame, and copies of arrays of integers."""
        for spot, value in self._spots.new(frame):
            self._first.setdefault(id(value), (spot, value))
            array = _whole_numbers(value)
            if array is not None:
                self.numbers[spot] = array.copy()

    def where(self, name: str, value: Any) -> Spot:
        """Return where a value is held first."""
        if id(value) not in self._first:
            raise ValueError(f"{name}: the script does not hold it in a variable")
        return self._first[id(value)][0]

    def in_order(self, name: str, values: Iterable[Any]) -> list[Any]:
        """Values in the order in which the script first held them."""
        ranks = {key: rank for rank, key in enumerate(self._first)}
        values = list(values)
        for value in values:
            self.where(name, value)
        return sorted(values, key=lambda value: ranks[id(value)])


def _whole_numbers(value: Any) -> np.ndarray[Any, Any] | None:
    """A tensor or array of integers with one or two axes as an array; None for other values."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    known = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and 1 <= value.ndim <= 2
    return value if known else None


Rows = list[np.ndarray[Any, Any]]


def _rows_of_numbers(value: Any) -> Rows:
    """Rows of integers, which may have several lengths; [] if the value has none."""
    items = value if isinstance(value, list) else [value]
    arrays = [_whole_numbers(item) for item in items]
    rows = [array for array in arrays if array is not None]
    if not isinstance(value, list):
        return list(rows[0]) if rows and rows[0].ndim == 2 else []
    return rows if len(rows) == len(items) and all(row.ndim == 1 for row in rows) else []


def _parts_of(
    value: Any, rows: tuple[Rows, Rows], seen: tuple[_FirstHolders, _FirstHolders]
) -> Iterator[tuple[Spot, Any]]:
    """Yield the columns of a value for each variable that held these columns in both of two runs.

    Args:
        value: the value.
        rows: what the script sampled in its place in each run.
        seen: variables of each run.
    """
    first, second = (holders.numbers for holders in seen)
    for spot in first.keys() & second.keys():
        places = [_columns(n[spot], x) for n, x in zip((first, second), rows, strict=True)]
        both = [place for place in places[0] if place in places[1]]
        if len(both) == 1:
            yield spot, tuple(np.asarray(row)[both[0]] for row in value)


def _columns(part: np.ndarray[Any, Any], rows: Rows) -> list[slice]:
    """Columns of rows that are equal to another array, as far as each row goes: slices of them."""
    if len(part) != len(rows):
        return []
    part = part.reshape(len(part), -1)
    size, width = max(map(len, rows)), part.shape[1]
    places = [slice(n, n + width) for n in range(size - width + 1)]
    return [
        place
        for place in places
        if all(
            np.array_equal(row[place], own[: len(row[place])])
            for row, own in zip(rows, part, strict=True)
        )
    ]


class _Put:
    """Puts values where the script holds others.

    Args:
        values: spot → value.
    """

    def __init__(self, values: Mapping[Spot, Any]) -> None:
        self._spots, self._values = _Spots(), dict(values)

    def note(self, frame: FrameType) -> None:
        """Replace the variables of a frame that have a value."""
        for spot, held in self._spots.new(frame):
            if spot in self._values:
                _replace(held, self._values.pop(spot))


def _replace(held: Any, value: Any) -> None:
    """Give an object another content; it stays the same object."""
    if isinstance(held, torch.Tensor):
        held.data = torch.tensor(_filled(held.detach().numpy(), value), dtype=held.dtype)
    elif isinstance(held, np.ndarray):
        held[...] = _filled(held, value)
    else:
        held[:] = value


def _filled(held: np.ndarray[Any, Any], value: Any) -> np.ndarray[Any, Any]:
    """The value as an array; of a tuple of rows, the script's own numbers stay behind each row's end."""
    if not isinstance(value, tuple):
        return np.asarray(value)
    filled = np.array(held, order="C")
    for row, start in zip(filled.reshape(len(filled), -1), value, strict=True):
        row[: len(start)] = start
    return filled


@contextlib.contextmanager
def _following(note: Callable[[FrameType], None]) -> Iterator[None]:
    """Call a function before each line of the script that runs."""

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != data.__file__ or frame.f_code.co_name == "arrays":
            return None
        note(frame)
        return of_frame

    before = sys.gettrace()
    sys.settrace(of_frame)
    try:
        yield
    finally:
        sys.settrace(before)
