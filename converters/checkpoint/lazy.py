"""Lazy tensors of a file, and a state dict of lazy tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from converters.checkpoint.reader import Checkpoint, TensorInfo, require_names
from converters.checkpoint.source import Window


class LazyTensor(ABC):
    """Tensor of a file that is not loaded.

    Attributes:
        info: its shape and dtype.
    """

    __slots__ = ()
    info: TensorInfo

    @abstractmethod
    def read(self) -> np.ndarray[Any, Any]:
        """Return its values, possibly a read-only, non-contiguous view of the mapped file.

        Raises:
            CheckpointDamagedError: the data is missing.
        """

    def window(self) -> Window | None:
        """Return the tensor for reading in parts; None if parts are impossible or cost no less than
        the whole."""
        return None

    def prepare(self) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read it. Each call is followed by one `read`."""

    @abstractmethod
    def release(self) -> None:
        """Release the memory taken by the read."""

    @property
    def identity(self) -> Hashable:
        """Return a value that is equal for tensors with the same stored bytes; None if unknown."""
        return None


class TensorsCheckpoint(Checkpoint):
    """State dict of lazy tensors.

    Args:
        source: the name of the checkpoint in messages.
        tensors: key → tensor.
        others: key → description of an entry that is not a tensor.
        entry: the dotted path of the state dict in a training checkpoint.
        training: returns the rest of the training checkpoint, on demand.
        modules: path → module, if the file holds a whole module.
        options: the options of the training run.
        unbuilt: the classes of objects in the file that were neither built nor needed.

    Raises:
        CheckpointDamagedError: a key cannot be printed.
    """

    def __init__(
        self,
        source: str,
        tensors: Mapping[str, LazyTensor],
        *,
        others: Mapping[str, str] | None = None,
        entry: str = "",
        training: Callable[[], Mapping[str, Any]] | None = None,
        modules: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        unbuilt: Sequence[str] = (),
    ) -> None:
        require_names(source, (*tensors, *(others or ()), entry, *(modules or ())))
        self.modules = MappingProxyType(dict(modules or {}))
        self.options = MappingProxyType(dict(options or {}))
        self.unbuilt = tuple(unbuilt)
        self.source = source
        self._tensors = tensors
        self.infos = {key: tensor.info for key, tensor in tensors.items()}
        self.others = MappingProxyType(dict(others or {}))
        self.shared = shared_keys({key: tensor.identity for key, tensor in tensors.items()})
        self.entry = entry
        self._rest = training

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key."""
        return self._tensors[key].read()

    def window(self, key: str) -> Window | None:
        """Return the tensor of this key for reading in parts."""
        return self._tensors[key].window()

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        self._tensors[key].prepare()

    def release(self, key: str) -> None:
        """Release the memory taken by reading this tensor."""
        self._tensors[key].release()

    @cached_property
    def training(self) -> Mapping[str, Any]:
        """Return the rest of the training checkpoint."""
        return MappingProxyType(dict(self._rest() if self._rest else {}))


def shared_keys(identities: Mapping[str, Hashable]) -> tuple[tuple[str, ...], ...]:
    """Return groups of two or more keys whose identities are equal and not None."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for key, identity in identities.items():
        if identity is not None:
            groups[identity].append(key)
    return tuple(tuple(keys) for keys in groups.values() if len(keys) > 1)
