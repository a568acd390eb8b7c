"""Interface of checkpoint readers: names and shapes at once, each tensor on demand."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.source import RemoteSource, Source, Window
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

COPY_AGAIN = "copy or download it again and compare its size with the original's"
MOST_DIMENSIONS = 64  # of a numpy array
_MOST_ELEMENTS = 1 << 58  # of at most 16 bytes each


@dataclass(frozen=True)
class TensorInfo:
    """Shape and element type ("float32", "bfloat16", …) of a tensor that is not loaded."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * numpy_dtype(self.dtype, "the tensor").itemsize


class Checkpoint(ABC):
    """Torch state dict on disk or in memory.

    Attributes:
        source: the name in messages: the path as the user gave it.
        infos: shape and dtype of every tensor, in the checkpoint's order; nothing is loaded.
        others: entries that are not tensors (a counter, `_extra_state`): key → short
            description.
        shared: groups of keys that share a tensor in the file, each in the order of `infos`.
        entry: the path of the state dict in a training checkpoint ("model", "ema.state_dict"); ""
            for a plain state dict.
        training: the rest of the training checkpoint, in plain containers: an optimizer's state
            dict, counters. Its tensors are `LazyTensor`s, its objects records.
        modules: path → recorded module, if the file holds a whole `nn.Module`
            (`converters.checkpoint.inert.modules.RecordedModule`).
        options: the options of the training run (an `argparse.Namespace`, a config) as plain values,
            by entry name.
        unbuilt: classes of objects in the file that were neither built nor needed.
        keys_in_order: whether the keys are in the module's registration order, as `torch.save` keeps
            it; safetensors, an index and torch.distributed.checkpoint sort them.
    """

    source: str
    infos: Mapping[str, TensorInfo]
    others: Mapping[str, str] = MappingProxyType({})
    shared: tuple[tuple[str, ...], ...] = ()
    entry: str = ""
    modules: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    unbuilt: tuple[str, ...] = ()
    keys_in_order: bool = True

    @abstractmethod
    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key, bit for bit.

        The result may be a read-only view of the mapped file, and not contiguous. Its pages, once
        touched, stay in memory until `release(key)`.
        """

    def window(self, key: str) -> Window | None:
        """Return the tensor of this key for reading in parts; None if parts save nothing."""
        return None

    def prepare(self, key: str) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read a tensor. Each call is followed by one `read`."""

    def release(self, key: str) -> None:  # noqa: B027 (what holds no pages has nothing to do)
        """Release the memory taken by reading this tensor; views of it stay valid."""

    @property
    def training(self) -> Mapping[str, Any]:
        """Rest of the training checkpoint; see the class."""
        return MappingProxyType({})


def read_start(path: Source, size: int) -> bytes:
    """Return the first `size` bytes of a regular, non-empty, readable file.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointDamagedError: the file is a pipe or device, empty, unreadable, or a Git LFS pointer.
    """
    start = (
        _remote_start(path, size) if isinstance(path, RemoteSource) else _local_start(path, size)
    )
    if not start:
        raise CheckpointDamagedError(f"{path} is empty", COPY_AGAIN)
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        raise CheckpointDamagedError(
            f"{path} is a Git LFS pointer, not the weights", "run `git lfs pull` in its repository"
        )
    return start[:size]


def _remote_start(source: RemoteSource, size: int) -> bytes:
    file = source.open()
    return file.copy(0, min(max(size, 64), file.size))


def _local_start(path: Path, size: int) -> bytes:
    # os.path returns False where pathlib raises: for a name that is too long, or a folder without
    # permission.
    if not os.path.exists(path):
        raise CheckpointNotFoundError(f"{path} does not exist", "check the path")
    if not path.is_file():
        raise CheckpointDamagedError(f"{path} is not a regular file", "name a checkpoint file")
    try:
        with path.open("rb") as file:
            return file.read(max(size, 64))
    except OSError as error:
        raise CheckpointDamagedError(
            f"{path} cannot be read ({error.strerror})", "check its permissions"
        ) from None


def require_names(source: object, keys: Iterable[str]) -> None:
    """Check that every key can be printed and written: no control characters, no surrogates.

    Raises:
        CheckpointDamagedError: a key cannot be printed.
    """
    for key in keys:
        if not key.isprintable():
            raise CheckpointDamagedError(
                f"{source} has a key with unprintable characters: {ascii(key)[:160]}", COPY_AGAIN
            )


def is_shape(value: object) -> bool:
    """Whether the value is a tuple or list of valid array sides."""
    if not is_steps(value):
        return False
    size = 1
    for side in value:
        size *= side or 1  # NumPy computes this way to ensure that no product of sides overflows
    return size < _MOST_ELEMENTS


def is_steps(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Whether the values are non-negative numbers, for at most the maximum number of axes."""
    return (
        isinstance(value, tuple | list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(step) is int and 0 <= step < _MOST_ELEMENTS for step in value)
    )
