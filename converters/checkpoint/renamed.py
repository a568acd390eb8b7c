"""A checkpoint under other keys: without the prefixes that wrappers put before them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.checkpoint.place import Window
from converters.checkpoint.reader import Checkpoint


class Renamed(Checkpoint):
    """The same tensors under other keys.

    Args:
        inner: the checkpoint.
        names: its key → the key here; every key is there, and no two are the same.

    Attributes:
        stored: key here → its key in the checkpoint.
    """

    def __init__(self, inner: Checkpoint, names: Mapping[str, str]) -> None:
        self._inner = inner
        self.stored = {name: key for key, name in names.items()}
        self.source = inner.source
        self.infos = {names[key]: info for key, info in inner.infos.items()}
        self.others = inner.others
        self.shared = tuple(tuple(names[key] for key in group) for group in inner.shared)
        self.found = inner.found
        self.modules = inner.modules
        self.options = inner.options
        self.unbuilt = inner.unbuilt
        self.keys_in_order = inner.keys_in_order

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key, bit for bit."""
        return self._inner.read(self.stored[key])

    def window(self, key: str) -> Window | None:
        """The tensor of this key, to be read in parts."""
        return self._inner.window(self.stored[key])

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        self._inner.prepare(self.stored[key])

    def release(self, key: str) -> None:
        """Give the memory back that reading this tensor took."""
        self._inner.release(self.stored[key])

    @property
    def training(self) -> Mapping[str, Any]:
        """The rest of the training checkpoint."""
        return self._inner.training
