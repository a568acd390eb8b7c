"""How many distinct shapes a loader yields: on XLA each is one more compilation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shims._shared import tree

# Of each tensor of a batch: its place, its shape, its dtype.
Signature = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class ShapeCount:
    """One shape signature, and how often it came.

    Args:
        signature: place, shape and dtype of each tensor of the batch.
        batches: the number of batches that had it.
        first_batch: the index of the first of them, from 0.
    """

    signature: Signature
    batches: int
    first_batch: int

    def __str__(self) -> str:
        tensors = ", ".join(
            f"{place}{' ' if place else ''}{dtype}{list(shape)}"
            for place, shape, dtype in self.signature
        )
        return f"{self.batches} × from batch {self.first_batch}: {tensors or 'no tensors'}"


@dataclass(frozen=True)
class ShapeReport:
    """The distinct shape signatures of a loader's batches, in order of appearance."""

    shapes: tuple[ShapeCount, ...]
    batches: int

    @property
    def distinct(self) -> int:
        """The number of distinct signatures: at least as many compilations on XLA."""
        return len(self.shapes)

    def __str__(self) -> str:
        head = f"{self.distinct} distinct shapes in {self.batches} batches"
        return "\n".join([head, *(f"  {count}" for count in self.shapes)])


def shapes_of(loader: Iterable[Any], batches: int | None = None) -> ShapeReport:
    """Go through a loader and count the distinct shapes and dtypes of its batches.

    Args:
        loader: anything that yields batches: tensors and arrays in nested dicts, lists, tuples.
        batches: look at the first so many only; None takes all, one epoch.

    Returns:
        The report; `str()` of it is a table.
    """
    counts: dict[Signature, list[int]] = {}
    seen = 0
    for number, batch in enumerate(itertools.islice(loader, batches)):
        seen += 1
        counts.setdefault(_signature(batch), []).append(number)
    shapes = tuple(ShapeCount(found, len(at), at[0]) for found, at in counts.items())
    return ShapeReport(shapes, seen)


def _signature(batch: Any) -> Signature:
    return tuple(
        (place, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for place, leaf in tree.leaves(batch)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )
