"""Mistakes in batches: the program's own beside the recorded ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Batch = dict[str, Array]


def data_cause(
    own: Sequence[Sequence[Any]],
    recorded: Sequence[Mapping[str, Any]],
    between: Sequence[int] = (),
) -> str:
    """Name the mistake in the program's batches; "" if none is known.

    Args:
        own: the program's micro-batches of each update.
        recorded: the recorded updates.
        between: runs of the loop over batches before which the script drew random numbers that the program
            does not draw.
    """
    ours = [flat(batch) for micro in own for batch in micro]
    theirs = [flat(micro["batch"]) for update in recorded for micro in update["micro"]]
    if not ours or not theirs:
        return "the program has no batches"
    counts = [len(micro) for micro in own], [len(update["micro"]) for update in recorded]
    if all(map(_same, ours, theirs)) and counts[0][:1] != counts[1][:1]:
        return f"{counts[0][0]} micro-batches in an update, in the script {counts[1][0]}"
    for shift in (1, 2):
        if len(theirs) > shift and all(map(_same, ours[: len(theirs) - shift], theirs[shift:])):
            return f"batches are ahead by {shift}: the first one of the script is left out"
        if len(theirs) > shift and all(map(_same, ours[shift:], theirs[: len(theirs) - shift])):
            return f"batches are late by {shift}: one comes before the script's first"
    at = next((n for n, pair in enumerate(zip(ours, theirs, strict=False)) if not _same(*pair)), 0)
    if cause := _one(ours[at], theirs[at]):
        return cause
    again = [n for n in range(at) if _same(ours[n], ours[at]) and not _same(theirs[n], theirs[at])]
    if again:
        return (
            "an epoch has the order of an earlier one again: set_epoch, or the generator, is lost"
        )
    known = {row for batch in theirs for row in _rows(batch)}
    rows = [row for batch in ours for row in _rows(batch)]
    epoch_order = len(rows) and sum(row in known for row in rows) / len(rows)
    if epoch_order >= 0.5 and between:
        return (
            f"another order from run {between[0] + 1} of the loop on: before it, a statement that the "
            "program does not have (evaluation), or the loss, draws from the generator that shuffles. "
            f"Write the program with --updates {len(recorded)}: data.py then restores the generators"
        )
    if epoch_order >= 0.5:
        return (
            "another order: the rows are the script's, shuffled otherwise (order, seed or sampler)"
        )
    return ""


def _one(ours: Batch, theirs: Batch) -> str:
    """Mistake that one batch shows."""
    unlike = [name for name in theirs if not _equal(ours.get(name), theirs[name])]
    for name in unlike:
        a, b = ours.get(name), theirs[name]
        if a is None:
            return f"the batch has no {name}"
        if len(unlike) < len(theirs) and a.shape == b.shape:
            others = [value for other, value in theirs.items() if other != name]
            if any(_equal(a, other) for other in others):
                return f"labels not shifted: {name} is what the model reads, not what comes next"
            if a.ndim > 1 and a.dtype.kind in "iu" and _equal(a[:, 1:], b[:, :-1]):
                return f"labels not shifted: {name} is one position early"
        if a.shape != b.shape:
            return (
                f"{name} is {list(a.shape)}, in the script {list(b.shape)}: another batch size, or the last "
                "short batch dropped or kept"
            )
        if a.dtype.kind == "f" and a.size > 1 and (scaled := _scaled(a, b)):
            return f"another preprocessing: {name} is {scaled}"
    return ""


def _scaled(ours: Array, theirs: Array) -> str:
    x, y = theirs.ravel().astype(np.float64), ours.ravel().astype(np.float64)
    if not np.ptp(x):
        return ""
    slope, offset = np.polyfit(x, y, 1)
    if np.linalg.norm(slope * x + offset - y) > 1e-4 * max(float(np.linalg.norm(y)), 1e-30):
        return ""
    return f"{slope:.4g} times the script's plus {offset:.4g}"


def flat(value: Any, name: str = "") -> Batch:
    """Arrays of nested data by their keys."""
    if isinstance(value, np.ndarray) or np.isscalar(value):
        return {name: np.asarray(value)}
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list | tuple):
        items = iter(enumerate(value))
    return dict(
        itertools.chain.from_iterable(
            flat(item, f"{name}.{key}".strip(".")).items() for key, item in items
        )
    )


def _same(a: Batch, b: Batch) -> bool:
    return all(_equal(a.get(name), b[name]) for name in b)


def _equal(a: Array | None, b: Array) -> bool:
    return a is not None and np.array_equal(a, b, equal_nan=b.dtype.kind == "f")


def _rows(batch: Batch) -> Iterator[bytes]:
    """Contents of each row of a batch."""
    arrays = [x for x in batch.values() if x.ndim and x.dtype != object]
    for row in range(min((len(x) for x in arrays), default=0)):
        yield b"".join(np.ascontiguousarray(x[row]).tobytes() for x in arrays)
