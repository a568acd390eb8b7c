"""Few lengths instead of many: each compiled step serves all batches of one bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Buckets:
    """Pads batches to a few fixed lengths.

    Attributes:
        values: key of each array that grows with the length → the value that fills it. The loss of the
            script does not count positions with these values.
        step: lengths of buckets are its multiples, doubled from bucket to bucket.
        left: whether the script pads on the left.
        longest: length that is never exceeded, such as the model's context; None for no limit.
    """

    values: Mapping[str, float]
    step: int = 64
    left: bool = False
    longest: int | None = None

    def bucket(self, length: int) -> int:
        """Return the bucket's length.

        Raises:
            ValueError: the batch is longer than the longest.
        """
        if self.longest is not None and length > self.longest:
            raise ValueError(f"a batch has the length {length}, more than {self.longest}")
        size = self.step
        while size < length:
            size *= 2
        return size if self.longest is None else min(size, self.longest)

    def pad(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its arrays padded along axis 1."""
        lengths = {batch[key].shape[1] for key in self.values}
        if len(lengths) != 1:
            raise ValueError(f"arrays to pad have several lengths: {sorted(lengths)}")
        more = self.bucket(length := lengths.pop()) - length
        return {
            key: self._padded(value, self.values[key], more) if key in self.values else value
            for key, value in batch.items()
        }

    def _padded(self, array: Any, value: float, more: int) -> Any:
        widths = [(0, 0)] * array.ndim
        widths[1] = (more, 0) if self.left else (0, more)
        return np.pad(array, widths, constant_values=np.asarray(value, array.dtype))
