"""Checkpoint under other keys: without the prefixes of wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.checkpoint.reader import Checkpoint
from converters.checkpoint.source import Window


class Renamed(Checkpoint):
    """Checkpoint with the same tensors under other keys.

    Args:
        inner: the checkpoint.
        names: the inner key → the new key, for every key; the new keys are distinct.

    Attributes:
        stored: the new key → the inner key.
    """

    def __init__(self, inner: Checkpoint, names: Mapping[str, str]) -> None:
        self._inner = inner
        self.stored = {name: key for key, name in names.items()}
        self.source = inner.source
        self.infos = {names[key]: info for key, info in inner.infos.items()}
        self.others = inner.others
        self.shared = tuple(tuple(names[key] for key in group) for group in inner.shared)
        self.entry = inner.entry
        self.modules = inner.modules
        self.options = inner.options
        self.unbuilt = inner.unbuilt
        self.keys_in_order = inner.keys_in_order

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key, bit for bit."""
        return self._inner.read(self.stored[key])

    def window(self, key: str) -> Window | None:
        """Return the tensor of this key for reading in parts."""
        return self._inner.window(self.stored[key])

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        self._inner.prepare(self.stored[key])

    def release(self, key: str) -> None:
        """Release the memory taken by reading this tensor."""
        self._inner.release(self.stored[key])

    @property
    def training(self) -> Mapping[str, Any]:
        """Rest of the training checkpoint."""
        return self._inner.training
