"""Programs that every chip runs, with their inputs and expected results.

The limits against float64 are those of correct arithmetic with room to spare: a chip that is a little off is
found by the comparison of bits, and only what all chips have in common is left to them. Sources: relative L2
of one bf16 pass 2.4e-3, of a bfloat16 result 1.7e-3, of float32 1.8e-7 to 4.2e-7, all measured over k = 4 to
16384; sums of integers below 2^24 are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ALL_REDUCE = "all-reduce float32"
_SEED = 20


@dataclass(frozen=True)
class ChipJob:
    """A program.

    Attributes:
        name: name for the reader.
        kind: "matmul", "softmax" or "all-reduce".
        inputs: the same on every chip; of an all-reduce one for each chip along the first axis.
        truth: the float64 reference.
        limit: largest relative L2 distance from the reference.
        highest: whether float32 is multiplied as float32 (six bf16 passes on a TPU), not in one bf16 pass.
    """

    name: str
    kind: str
    inputs: tuple[Array, ...]
    truth: Array
    limit: float
    highest: bool = False


def jobs(size: int, chips: int) -> Iterator[ChipJob]:
    """The programs, one after the other."""
    import ml_dtypes

    rng = np.random.default_rng(_SEED)
    a, b = (np.asarray(rng.standard_normal((size, size)), np.float32) for _ in range(2))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    yield ChipJob("matmul float32", "matmul", (a, b), exact, 5e-3)
    yield ChipJob("matmul float32 highest", "matmul", (a, b), exact, 1e-6, highest=True)
    short = tuple(array.astype(ml_dtypes.bfloat16) for array in (a, b))
    exact = short[0].astype(np.float64) @ short[1].astype(np.float64)
    yield ChipJob("matmul bfloat16", "matmul", short, exact, 5e-3)
    whole = tuple(rng.integers(-127, 128, (size, size), np.int8) for _ in range(2))
    exact = whole[0].astype(np.float64) @ whole[1].astype(np.float64)
    yield ChipJob("matmul int8", "matmul", whole, exact, 0.0)
    scores = 4 * a.astype(np.float64)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    yield ChipJob(
        "softmax float32",
        "softmax",
        (4 * a,),
        powers / powers.sum(-1, keepdims=True),
        1e-5,
    )
    side = min(size, 512)
    array = rng.integers(-1000, 1001, (chips, side, side)).astype(np.float32)
    yield ChipJob(ALL_REDUCE, "all-reduce", (array,), array.sum(0, dtype=np.float64), 0.0)


def relative(array: Array, truth: Array) -> float:
    """Relative L2 distance from the truth; infinite where something is not finite."""
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.linalg.norm(values - truth) / np.linalg.norm(truth))


def not_finite(array: Array) -> int:
    """Number of elements that are NaN or infinite."""
    return int(array.size - np.isfinite(array.astype(np.float64)).sum())


def checksum(array: Array) -> str:
    """The exact sum of the elements' bits as unsigned integers, in hexadecimal."""
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return f"{int(bits.sum(dtype=np.uint64)):x}"


def digest(array: Array) -> str:
    """Digest of all bits and their positions. Two results are the same if their digests are."""
    import hashlib

    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=12).hexdigest()


def lost_contribution(array: Array, job: ChipJob) -> int | None:
    """Return the number of the chip whose part is missing in a sum, or None for another error."""
    (parts,) = job.inputs
    missing = job.truth - array.astype(np.float64)
    matching = [place for place, part in enumerate(parts) if np.array_equal(missing, part)]
    return matching[0] if matching else None
