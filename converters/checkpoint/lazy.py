"""Tensors that are somewhere in a file, and a state dict made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from converters.checkpoint.place import Window
from converters.checkpoint.reader import Checkpoint, TensorInfo, require_names


class LazyTensor(ABC):
    """One tensor of a file, not loaded.

    Attributes:
        info: its shape and dtype.
    """

    __slots__ = ()
    info: TensorInfo

    @abstractmethod
    def read(self) -> np.ndarray[Any, Any]:
        """Its values; may be a read-only view of the mapped file, and not contiguous.

        Raises:
            CheckpointDamagedError: what should be there is not.
        """

    def window(self) -> Window | None:
        """The tensor, to be read in parts; None: only as a whole, or parts cost no more."""
        return None

    def prepare(self) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read it; `read` will be asked for once for each time that this is called."""

    @abstractmethod
    def release(self) -> None:
        """Give the memory back that reading took."""

    @property
    def identity(self) -> Hashable:
        """What equals that of another tensor exactly if both are the same bytes; None: unknown."""
        return None


class TensorsCheckpoint(Checkpoint):
    """A state dict of lazy tensors.

    Args:
        source: what to call it in messages.
        tensors: key → tensor.
        others: key → what it is, of entries that are no tensors.
        found: where in a training checkpoint it was.
        training: gives the rest of the training checkpoint; called when that is asked for.
        modules: of a whole module: those that it is made of, by path.
        options: what the training run was told.
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
        found: str = "",
        training: Callable[[], Mapping[str, Any]] | None = None,
        modules: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        unbuilt: Sequence[str] = (),
    ) -> None:
        require_names(source, (*tensors, *(others or ()), found, *(modules or ())))
        self.modules = MappingProxyType(dict(modules or {}))
        self.options = MappingProxyType(dict(options or {}))
        self.unbuilt = tuple(unbuilt)
        self.source = source
        self._tensors = tensors
        self.infos = {key: tensor.info for key, tensor in tensors.items()}
        self.others = MappingProxyType(dict(others or {}))
        self.shared = shared_keys({key: tensor.identity for key, tensor in tensors.items()})
        self.found = found
        self._rest = training

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key."""
        return self._tensors[key].read()

    def window(self, key: str) -> Window | None:
        """The tensor of this key, to be read in parts."""
        return self._tensors[key].window()

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        self._tensors[key].prepare()

    def release(self, key: str) -> None:
        """Give the memory back that reading this tensor took."""
        self._tensors[key].release()

    @cached_property
    def training(self) -> Mapping[str, Any]:
        """The rest of the training checkpoint."""
        return MappingProxyType(dict(self._rest() if self._rest else {}))


def shared_keys(identities: Mapping[str, Hashable]) -> tuple[tuple[str, ...], ...]:
    """The keys whose identities are equal, and not None, in groups of two or more."""
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for key, identity in identities.items():
        if identity is not None:
            groups[identity].append(key)
    return tuple(tuple(keys) for keys in groups.values() if len(keys) > 1)
