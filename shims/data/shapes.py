"""Number of distinct shapes that a loader yields: each is one more compilation on XLA."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shims._shared import tree

# Path, shape and dtype of each tensor of a batch.
Signature = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class ShapeCount:
    """Shape signature, and how often it occurred.

    Args:
        signature: path, shape and dtype of each tensor of the batch.
        batches: the number of batches with this signature.
        first_batch: the index of the first such batch, from 0.
    """

    signature: Signature
    batches: int
    first_batch: int

    def __str__(self) -> str:
        tensors = ", ".join(
            f"{path}{' ' if path else ''}{dtype}{list(shape)}"
            for path, shape, dtype in self.signature
        )
        return f"{self.batches} × from batch {self.first_batch}: {tensors or 'no tensors'}"


@dataclass(frozen=True)
class ShapeReport:
    """Distinct shape signatures of a loader's batches, in order of appearance."""

    shapes: tuple[ShapeCount, ...]
    batches: int

    @property
    def distinct(self) -> int:
        """Number of distinct signatures, which is the minimum of compilations on XLA."""
        return len(self.shapes)

    def __str__(self) -> str:
        head = f"{self.distinct} distinct shapes in {self.batches} batches"
        return "\n".join([head, *(f"  {count}" for count in self.shapes)])


def shapes_of(loader: Iterable[Any], batches: int | None = None) -> ShapeReport:
    """Iterate over a loader and count the distinct shapes and dtypes of its batches.

    Args:
        loader: anything that yields batches: tensors and arrays in nested dicts, lists, tuples.
        batches: the number of batches to read; None reads one epoch.

    Returns:
        The report; its `str()` is a table.
    """
    counts: dict[Signature, list[int]] = {}
    seen = 0
    for number, batch in enumerate(itertools.islice(loader, batches)):
        seen += 1
        counts.setdefault(_signature(batch), []).append(number)
    shapes = tuple(ShapeCount(signature, len(at), at[0]) for signature, at in counts.items())
    return ShapeReport(shapes, seen)


def _signature(batch: Any) -> Signature:
    return tuple(
        (path, tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for path, leaf in tree.leaves(batch)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )
