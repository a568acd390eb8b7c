"""The few lengths that batches may have."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from shims.errors import ShimError


class ShapeError(ShimError):
    """A sample does not fit the shapes that the batches may have.

    Remedy: the message names the entry: give a bucket that is long enough, `truncate=True`, the
    `keys` that are to be padded, or samples of one structure.
    """


def sorted_buckets(buckets: Sequence[int]) -> tuple[int, ...]:
    """The bucket lengths, ascending and without repetition.

    Raises:
        ShapeError: there are none, or one is not a positive integer.
    """
    if not buckets or any(type(bucket) is not int or bucket < 1 for bucket in buckets):
        raise ShapeError(f"buckets={buckets!r}", "give one or more positive lengths")
    return tuple(sorted(set(buckets)))


def bucket_of(length: int, buckets: tuple[int, ...], *, truncate: bool, what: str) -> int:
    """The smallest bucket that holds `length`; with `truncate` the largest where none does.

    Raises:
        ShapeError: it is longer than the largest, and not to be truncated.
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
