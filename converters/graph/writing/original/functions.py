"""Functions of the original come back: what one call of a function recorded is that call again."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
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
        one
        for one in frames[1:]
        if one.function not in _WRAPPERS and not one.file.startswith(_RECORDING)
    )
    return (*frames[:1], *named)


def within(module: Any, frames: tuple[Frame, ...], called: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames from a module's forward inwards, of one that was called at others."""
    where = _extent(type(module))
    inside = [
        index
        for index, one in enumerate(frames)
        if one.file == where[0] and where[1] <= one.line <= where[2]
    ]
    return frames[inside[-1] :] if inside else frames[len(called) :]


def _extent(cls: type) -> tuple[str, int, int]:
    return _extent_of(inspect.unwrap(cls.forward))  # type: ignore[attr-defined]


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
    made: list[tuple[Item, tuple[Frame, ...]]] = []
    runs = [
        (key, list(run)) for key, run in itertools.groupby(items, lambda one: _key(one[1], depth))
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
            made += run if key is None else inner
            continue
        apply = _apply(run, inner, then, depth)
        made += [apply] if apply else inner
    return made


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
    given: dict[Any, Any] = {}
    for item in body:
        for one in arguments(item):
            if isinstance(one, Held):
                given.setdefault(one.key, one)
            elif one.id not in known:
                given.setdefault(one.id, one)
    frames = run[0][1]
    frame = frames[depth]
    return (
        Apply(frame, tuple(given.values()), results, tuple(body), frames[: depth + 1]),
        frames[:depth],
    )


def argument_names(frames: Sequence[Frame], frame: Frame, values: Sequence[str]) -> list[str]:
    """What a function calls its arguments, of which the caller's names are known.

    The call in the caller's source says which argument a name is given for; else it keeps the caller's name.

    Args:
        frames: of the caller, its own line last.
        frame: a line of the function.
        values: names in the caller, "" where there is none.
    """
    parameters = names.function_parameters(frame)
    calls = names.calls_of(frames[-1], frame, set(values)) if frames else ()
    made: list[str] = []
    for value in values:
        found = next((one[value] for one in calls if value in one and one[value] not in made), "")
        if not found and value in parameters:
            found = value
        wanted = names.clean(found or value or "x")
        number, name = 1, wanted
        while name in made:
            number += 1
            name = f"{wanted}_{number}"
        made.append(name)
    return made


def outs(item: Item) -> tuple[int, ...]:
    """The tensors that an item gives."""
    return item.outs


def arguments(item: Item) -> list[Any]:
    """The tensors, parameters and buffers that an item is given."""
    if isinstance(item, Op):
        given = (item.arguments, item.named)
        return [*references(given), *held(given)]
    if isinstance(item, Apply):
        return list(item.given)
    return [one.value for one in item.given]


def used(item: Item) -> set[int]:
    """The tensors that an item is given."""
    return {one.id for one in arguments(item) if isinstance(one, Ref)}
