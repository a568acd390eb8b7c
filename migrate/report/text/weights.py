"""Terminal view and JSON of `migrate weights`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.report.text.quantities import shown_bytes
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from converters import Conversion, Plan, Row
    from converters.optimizer.convert import OptimizerConversion
    from converters.reverse import Reversal


def plan_table(rows: Sequence[Row]) -> RenderableType:
    """Return what became of every key; the keys of repeated layers share a line: `layer.{0..5}.bias`.

    A long note of several lines stands once below the table.
    """
    from rich.console import Group

    groups = repeated(rows)
    notes = Counter(group[0].note for group in groups)
    shared = [note for note, count in notes.items() if count > 1 and len(note) > _LONG]
    numbers = {note: f"({number})" for number, note in enumerate(shared, 1)}
    inferred = any(row.evidence not in ("", "module tree") for row in rows)
    columns = ("key", "shape", "became", "in the pytree", "shape", "kind", "note")
    table = plain_table(*columns, *(("evidence",) if inferred else ()), fixed=("became",))
    for group in groups:
        row = group[0]
        table.add_row(
            escape(_braced([row.key for row in group], KEY_INDEX)),
            _shape(row.shape, row.dtype),
            row.outcome.value + (f" ({len(group)})" if len(group) > 1 else ""),
            escape(_braced([row.path for row in group], PATH_INDEX)),
            _shape(row.target_shape),
            row.kind,
            escape(numbers.get(row.note, row.note)),
            *((escape(row.evidence),) if inferred else ()),
        )
    return Group(table, *(f"{number} {escape(note)}" for note, number in numbers.items()))


# Letters of a note that is not repeated in each line.
_LONG = 40
# Arrays that are named, of those with numbers that are not finite.
SHOWN = 8
# Where the number of a repeated layer stands: `layer.3.bias`, `layer_3/bias`.
KEY_INDEX = re.compile(r"(?<![^.])\d+(?=\.)")
PATH_INDEX = re.compile(r"(?<=[/_])\d+(?=/)")


def repeated(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows that differ in nothing but the numbers of repeated layers.

    A group holds every combination of its numbers, so that its one line stands for exactly its keys.
    """
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        same = (
            row.shape,
            row.dtype,
            row.outcome,
            row.target_shape,
            row.kind,
            row.note,
            row.evidence,
        )
        groups[KEY_INDEX.sub("*", row.key), PATH_INDEX.sub("*", row.path), *same].append(row)
    result = []
    for group in groups.values():
        numbers = [KEY_INDEX.findall(row.key) for row in group]
        combinations = math.prod(len(set(column)) for column in zip(*numbers, strict=True))
        result.extend([group] if combinations == len(group) else [[row] for row in group])
    return result


def _braced(names: Sequence[str], index: re.Pattern[str]) -> str:
    """Return one name for all: `layer.{0..5}.bias`, `layer.{0,2}.bias`."""
    columns = [
        sorted({int(number) for number in column})
        for column in zip(*(index.findall(name) for name in names), strict=True)
    ]
    braces = iter([_range(column) for column in columns])
    return index.sub(lambda _: next(braces), names[0])


def _range(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return str(first)
    if len(numbers) == last - first + 1:
        return f"{{{first}..{last}}}"
    return f"{{{','.join(map(str, numbers))}}}"


def _shape(shape: tuple[int, ...] | None, dtype: str | None = None) -> str:
    sides = "" if shape is None else "×".join(map(str, shape)) or "scalar"
    return f"{dtype} {sides}" if dtype else sides


def plan_summary(planned: Plan, notes: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the table of keys, notes, and the count of keys by outcome."""
    yield plan_table(planned.rows)
    yield from map(escape, notes)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in planned.counts.items())
    yield f"[bold]{many(len(planned.rows), 'key')}[/bold]: {counts}"


def conversion_summary(done: Conversion) -> Iterator[RenderableType]:
    """Yield the table of keys, their count by outcome, and what was written."""
    yield from plan_summary(done.plan, done.notes)
    yield from _what_was_written(done)
    if any(leaf.sha256 for leaf in done.written.leaves):
        table = plain_table("array", "sha256")
        for leaf in done.written.leaves:
            table.add_row(escape(leaf.path), leaf.sha256)
        yield table
    if done.written.resumed:
        yield f"{shown_bytes(done.written.resumed)} of it come from an interrupted conversion"
    if done.written.left_over:
        yield "parts of an interrupted conversion were discarded (--resume continues it)"
    if done.written.not_finite:
        counted = ", ".join(
            f"{leaf.path} ({leaf.not_finite})" for leaf in done.written.not_finite[:SHOWN]
        )
        more = len(done.written.not_finite) - SHOWN
        yield f"NaN or infinite: {escape(counted)}" + (
            f" and {more} more arrays" if more > 0 else ""
        )
    yield f"{escape(str(done.kept))}: needed to convert back: `migrate weights OUTPUT --to torch`"
    if done.optimizer is not None:
        yield from _optimizer_summary(done.optimizer)


def conversion_end(done: Conversion) -> Iterator[RenderableType]:
    """Yield what was written, and the last note: of a process that is not the first of several."""
    yield from map(escape, done.notes[-1:])
    yield from _what_was_written(done)


def _what_was_written(done: Conversion) -> Iterator[str]:
    yield _written(done)


def _written(done: Conversion | Reversal) -> str:
    size = shown_bytes(done.size)
    return f"{escape(str(done.output))}: {done.parameters:,} parameters, {size}, {done.format}"


def _optimizer_summary(state: OptimizerConversion) -> Iterator[RenderableType]:
    yield f"{escape(str(state.output))}: the state of {state.kind}, {state.arrays} arrays. Continue with"
    yield escape(f"    tx = {state.recipe.text}")
    yield from map(escape, state.recipe.notes)


def plan_as_json(
    planned: Plan, notes: Sequence[str], trained_with: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what becomes of each key as plain values.

    Args:
        planned: the plan.
        notes: what else the user should know.
        trained_with: the options of the training run, as far as the checkpoint holds them.
    """
    return {
        "counts": planned.counts,
        "notes": list(notes),
        "options": dict(trained_with),
        "keys": [
            {
                "key": row.key,
                "shape": row.shape,
                "dtype": row.dtype,
                "kind": row.kind,
                "outcome": row.outcome.value,
                "path": row.path,
                "target_shape": row.target_shape,
                "note": row.note,
                "evidence": row.evidence,
            }
            for row in planned.rows
        ],
    }


def conversion_as_json(done: Conversion) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "output": str(done.output),
        "kept": str(done.kept),
        "format": done.format,
        "parameters": done.parameters,
        "bytes": done.size,
        "resumed": done.written.resumed,
        "arrays": [dataclasses.asdict(leaf) for leaf in done.written.leaves],
        "optimizer": None if done.optimizer is None else _optimizer_as_json(done.optimizer),
        **plan_as_json(done.plan, done.notes, done.options),
    }


def _optimizer_as_json(state: OptimizerConversion) -> dict[str, Any]:
    return {
        "output": str(state.output),
        "kind": state.kind,
        "arrays": state.arrays,
        "steps": dict(state.steps),
        "optax": state.recipe.text,
        "notes": list(state.recipe.notes),
    }


def reversal_summary(done: Reversal) -> Iterator[RenderableType]:
    """Yield what of a torch state dict came from where, and what was written."""
    table = plain_table("key", "shape", "from", "note")
    for row in done.rows:
        if row.note:
            shape = _shape(row.info.shape, row.info.dtype)
            table.add_row(escape(row.key), shape, row.origin.value, escape(row.note))
    if table.row_count:
        yield table
    yield from map(escape, done.notes)
    counts = ", ".join(f"{count} from {origin}" for origin, count in done.counts.items() if count)
    yield f"[bold]{len(done.rows)} keys[/bold]: {counts}"
    if done.output is not None:
        yield _written(done)


def reversal_as_json(done: Reversal) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "output": None if done.output is None else str(done.output),
        "format": done.format,
        "parameters": done.parameters,
        "bytes": done.size,
        "counts": dict(done.counts),
        "notes": list(done.notes),
        "keys": [
            {
                "key": row.key,
                "shape": row.info.shape,
                "dtype": row.info.dtype,
                "from": row.origin.value,
                "note": row.note,
            }
            for row in done.rows
        ],
    }
