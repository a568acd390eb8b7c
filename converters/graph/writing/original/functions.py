"""Functions of the original come back: what one call of a function recorded is that call again."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

from converters.graph import recording
from converters.graph.ir import Apply, Call, Frame, Held, Item, Op, Ref, held, references
from converters.graph.writing.original import names

# Frames that wrap others; what they run has a frame of its own.
_WRAPPERS = {
    "wrapper",
    "wrapped",
    "inner",
    "__call__",
    "_call_impl",
    "_wrapped_call_impl",
    "forward",
    "<lambda>",
    "<listcomp>",
    "<genexpr>",
    "<dictcomp>",
    "__getitem__",
}
# What stands in for functions of the original while they are recorded.
_RECORDING = str(Path(recording.__file__).parent)


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The first frame, and those of functions below it that bear a name."""
    named = (
        frame
        for frame in frames[1:]
        if frame.function not in _WRAPPERS and not frame.file.startswith(_RECORDING)
    )
    return (*frames[:1], *named)


def within(forward: Any, frames: tuple[Frame, ...], called: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames from a module's forward inwards, of one that was called at others."""
    where = _extent_of(inspect.unwrap(forward))
    inside = [
        index
        for index, frame in enumerate(frames)
        if frame.file == where[0] and where[1] <= frame.line <= where[2]
    ]
    return frames[inside[-1] :] if inside else frames[len(called) :]


@cache
def _extent_of(function: Any) -> tuple[str, int, int]:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return "", 0, 0
    return function.__code__.co_filename, first, first + len(lines) - 1


def with_functions(
    items: Sequence[tuple[Item, tuple[Frame, ...]]], later: set[int], depth: int = 1
) -> list[tuple[Item, tuple[Frame, ...]]]:
    """Items with runs of operators replaced by the function that they are of.

    Args:
        items: each with its frames from the module's forward inwards (`own_frames`).
        later: tensors that are used after these items.
        depth: how many frames are above the functions that are looked for.
    """
    kept: list[tuple[Item, tuple[Frame, ...]]] = []
    runs = [
        (key, part)
        for key, run in itertools.groupby(items, lambda entry: _key(entry[1], depth))
        for part in _calls_apart(list(run), key, depth)
    ]
    needed: list[set[int]] = []
    after = set(later)
    for _, run in reversed(runs):
        needed.append(set(after))
        for item, _ in run:
            after |= used(item)
    needed.reverse()
    for (key, run), then in zip(runs, needed, strict=True):
        inner = with_functions(run, then, depth + 1) if key is not None else run
        operators = sum(isinstance(item, Op) for item, _ in run)
        if key is None or any(isinstance(item, Call) for item, _ in run) or operators < 2:
            kept += run if key is None else inner
            continue
        apply = _apply(run, inner, then, depth)
        kept += [apply] if apply else inner
    return kept


def _calls_apart(
    run: list[tuple[Item, tuple[Frame, ...]]], key: Any, depth: int
) -> list[list[tuple[Item, tuple[Frame, ...]]]]:
    """Split the items of several calls of a function on one line: `q, k = turn(q), turn(k)` is two.

    A call begins where the lines of the function begin anew, if the line has as many calls as there are such
    beginnings. A loop in the function goes back to a later line than its first, or is the whole of it.
    """
    if key is None or len(run) < 4:
        return [run]
    caller, called = run[0][1][depth - 1], run[0][1][depth]
    written, repeats = names.times_called(caller, called)
    if written < 2 and not repeats:
        return [run]
    lines = [frames[depth].line for _, frames in run]
    first = min(lines)
    starts = [
        at for at, line in enumerate(lines) if line == first and (not at or lines[at - 1] != first)
    ]
    expected = len(names.targets(caller)) if repeats else written
    if len(starts) == 1 and expected > 1 and len(run) % expected == 0:  # it is of one line
        starts = list(range(0, len(run), len(run) // expected))
    if starts[:1] != [0] or not _alike(run, starts, depth):
        return [run]
    if len(starts) != written and not (repeats and len(starts) > 1):
        return [run]
    return [run[at:end] for at, end in itertools.pairwise([*starts, len(run)])]


def _alike(
    run: Sequence[tuple[Item, tuple[Frame, ...]]], starts: Sequence[int], depth: int
) -> bool:
    """Whether the parts of a run that begin at these places did the same."""

    def said(item: Item, frames: tuple[Frame, ...]) -> tuple[str, tuple[int, ...]]:
        what = item.target if isinstance(item, Op) else type(item).__name__
        return what, tuple(frame.line for frame in frames[depth:])

    parts = [
        [said(*entry) for entry in run[at:end]]
        for at, end in itertools.pairwise([*starts, len(run)])
    ]
    return all(part == parts[0] for part in parts)


def _key(frames: tuple[Frame, ...], depth: int) -> Any:
    if len(frames) <= depth:
        return None
    return tuple(frames[:depth]), frames[depth].function, frames[depth].file


def _apply(
    run: Sequence[tuple[Item, tuple[Frame, ...]]],
    inner: Sequence[tuple[Item, tuple[Frame, ...]]],
    later: set[int],
    depth: int,
) -> tuple[Item, tuple[Frame, ...]] | None:
    body = [item for item, _ in inner]
    produced = [out for item in body for out in outs(item) if out >= 0]
    results = tuple(out for out in produced if out in later)
    if not results:
        return None
    known = set(produced)
    inputs: dict[Any, Any] = {}
    for item in body:
        for value in arguments(item):
            if isinstance(value, Held):
                inputs.setdefault(value.key, value)
            elif value.id not in known:
                inputs.setdefault(value.id, value)
    frames = run[0][1]
    frame = frames[depth]
    return (
        Apply(frame, tuple(inputs.values()), results, tuple(body), frames[: depth + 1]),
        frames[:depth],
    )


def argument_names(
    frames: Sequence[Frame], frame: Frame, values: Sequence[str], order: Sequence[int]
) -> list[str]:
    """Names of a function's arguments, given the caller's names.

    The call in the caller's source says which argument a name is given for; else it keeps the caller's name.

    Args:
        frames: of the caller, its own line last.
        frame: a line of the function.
        values: names in the caller, "" where there is none.
        order: numbers that increase as the values were computed.
    """
    parameters = names.function_parameters(frame)
    calls = names.calls_of(frames[-1], frame, set(values)) if frames else ()
    spare = _parameter_left(calls, values)
    if not calls and len(parameters) == len(values) == 1:
        spare = parameters[0]  # `map(turn, (q, k))` names no argument
    own = {names.clean(name) for name in names.targets(frames[-1])} if frames else set()
    computed = _parameters_computed(calls, values, order, own)
    spread = bool(frames) and names.spread_call(frames[-1])[0] == frame.function
    if spread and len(values) == len(
        parameters
    ):  # `f(*g(x))`: in the order in which g returns them
        places = sorted(range(len(values)), key=lambda at: order[at])
        computed = dict(zip(places, parameters, strict=True))
    given_names: list[str] = []
    for at, value in enumerate(values):
        parameter = computed.get(at, "") or next(
            (call[value] for call in calls if value in call and call[value] not in given_names), ""
        )
        if not parameter and value in parameters:
            parameter = value
        if not parameter and spare and not any(value in call for call in calls):
            parameter = spare
        wanted = names.clean(parameter or value or "x")
        number, name = 1, wanted
        while name in given_names:
            number += 1
            name = f"{wanted}_{number}"
        given_names.append(name)
    return given_names


def _parameter_left(calls: Sequence[Mapping[str, str]], values: Sequence[str]) -> str:
    """The parameter of the one value that calls give by no name that the caller knows.

    "" if there is none, or more than one.

    `map(lambda one: turn(one, cos), (q, k))` gives `one`, which is `q` or `k` here.
    """
    unknown = [value for value in values if not any(value in call for call in calls)]
    left = {name for call in calls for passed, name in call.items() if passed not in values}
    return left.pop() if len(unknown) == len(left) == 1 else ""


def _parameters_computed(
    calls: Sequence[Mapping[str, str]],
    values: Sequence[str],
    order: Sequence[int],
    targets: Set[str],
) -> dict[int, str]:
    """Place among the values → parameter, of the values that the only call computes: `f(2 * x, y[0])`.

    Python computes them in the order in which they stand there. They have the name that the line assigns; a
    value that an earlier line computed too has that line's.
    """
    if len(calls) != 1:
        return {}
    unknown = [at for at, value in enumerate(values) if value not in calls[0]]
    left = [
        name
        for passed, name in calls[0].items()
        if passed not in values and not passed.replace(".", "").isidentifier()
    ]
    if len(unknown) != len(left) or {re.sub(r"_\d+$", "", values[at]) for at in unknown} - targets:
        return {}
    return dict(zip(sorted(unknown, key=lambda at: order[at]), left, strict=True))


def outs(item: Item) -> tuple[int, ...]:
    """The tensors that an item gives."""
    return item.outs


def arguments(item: Item) -> list[Any]:
    """The tensors, parameters and buffers that an item is given."""
    if isinstance(item, Op):
        values = (item.arguments, item.named)
        return [*references(values), *held(values)]
    if isinstance(item, Apply):
        return list(item.arguments)
    return [argument.value for argument in item.arguments]


def used(item: Item) -> set[int]:
    """The tensors that an item is given."""
    return {value.id for value in arguments(item) if isinstance(value, Ref)}
