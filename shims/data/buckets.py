"""Bucket lengths: the few lengths that batches may have."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from shims.errors import ShimError


class ShapeError(ShimError):
    """A sample does not fit the shapes that batches may have.

    Remedy: the message names the entry. Add a bucket that is long enough, `truncate=True`, the
    `keys` to pad, or samples of one structure.
    """


def sorted_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """Return the bucket lengths, ascending and without duplicates.

    Raises:
        ShapeError: there are no lengths, or a length is not a positive integer.
    """
    if not buckets or any(type(bucket) is not int or bucket < 1 for bucket in buckets):
        raise ShapeError(f"buckets={buckets!r}", "give one or more positive lengths")
    return tuple(sorted(set(buckets)))


def bucket_of(length: int, buckets: tuple[int, ...], *, truncate: bool, what: str) -> int:
    """Return the smallest bucket that holds `length`; with `truncate`, else the largest.

    Raises:
        ShapeError: the length exceeds the largest bucket, and `truncate` is off.
    """
    index = bisect.bisect_left(buckets, length)
    if index < len(buckets):
        return buckets[index]
    if truncate:
        return buckets[-1]
    raise ShapeError(
        f"{what} has length {length}, the largest bucket is {buckets[-1]}",
        "add a longer bucket, or cut with truncate=True",
    )
