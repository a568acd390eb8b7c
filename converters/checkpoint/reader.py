"""What every checkpoint reader offers: names and shapes at once, each tensor on demand."""

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
from converters.checkpoint.place import FarPlace, Place, Window
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
    """A torch state dict on disk (or in memory).

    Attributes:
        source: what to call it in messages: the path as the user gave it.
        infos: shape and dtype of every tensor, in the checkpoint's order; nothing is loaded.
        others: what stands beside the tensors and is none (a counter, `_extra_state`): key → what it
            is, in a few words.
        shared: groups of keys that are one tensor in the file, each in the order of `infos`.
        found: where in a training checkpoint the state dict was ("model", "ema.state_dict"); "" for
            a plain state dict.
        training: the rest of the training checkpoint, in plain containers: an optimizer's state
            dict, counters. Its tensors are `LazyTensor`s, its objects records.
        modules: of a file that holds a whole `nn.Module`: path → what it says of the module there
            (`converters.checkpoint.inert.modules.RecordedModule`).
        options: what the training run was told (an `argparse.Namespace`, a config), in plain values:
            name of the entry → its contents.
        unbuilt: classes of objects in the file that were neither built nor needed.
        keys_in_order: whether the keys are in the order in which the module registers its tensors, as
            `torch.save` keeps it; safetensors, an index and torch.distributed.checkpoint sort them.
    """

    source: str
    infos: Mapping[str, TensorInfo]
    others: Mapping[str, str] = MappingProxyType({})
    shared: tuple[tuple[str, ...], ...] = ()
    found: str = ""
    modules: Mapping[str, Any] = MappingProxyType({})
    options: Mapping[str, Any] = MappingProxyType({})
    unbuilt: tuple[str, ...] = ()
    keys_in_order: bool = True

    @abstractmethod
    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key, bit for bit.

        It may be a read-only view of the mapped file, and not contiguous. Its pages stay in memory,
        once touched, until `release(key)`.
        """

    def window(self, key: str) -> Window | None:
        """The tensor of this key, to be read in parts; None: only as a whole, or parts cost no more."""
        return None

    def prepare(self, key: str) -> None:  # noqa: B027 (what lies on a disk needs none)
        """Begin to read a tensor that `read` will be asked for, once for each time that this is called."""

    def release(self, key: str) -> None:  # noqa: B027 (what holds no pages has nothing to do)
        """Give the memory back that reading this tensor took; views of it stay good."""

    @property
    def training(self) -> Mapping[str, Any]:
        """The rest of the training checkpoint; see the class."""
        return MappingProxyType({})


def read_start(path: Place, size: int) -> bytes:
    """The first `size` bytes of a regular, non-empty, readable file.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointDamagedError: a pipe or device, empty, not readable, or a Git LFS pointer.
    """
    start = _far_start(path, size) if isinstance(path, FarPlace) else _local_start(path, size)
    if not start:
        raise CheckpointDamagedError(f"{path} is empty", COPY_AGAIN)
    if start.startswith(b"version https://git-lfs.github.com/spec/"):
        raise CheckpointDamagedError(
            f"{path} is a Git LFS pointer, not the weights", "run `git lfs pull` in its repository"
        )
    return start[:size]


def _far_start(place: FarPlace, size: int) -> bytes:
    file = place.open()
    return file.copy(0, min(max(size, 64), file.size))


def _local_start(path: Path, size: int) -> bytes:
    # os.path answers no where pathlib raises: a name too long, a folder that may not be entered.
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
    """Every key can be printed and written: no control characters, no halves of characters.

    Raises:
        CheckpointDamagedError: one cannot.
    """
    for key in keys:
        if not key.isprintable():
            raise CheckpointDamagedError(
                f"{source} has a key with unprintable characters: {ascii(key)[:160]}", COPY_AGAIN
            )


def is_shape(value: object) -> bool:
    """Whether this is a tuple or list of sides that an array can have."""
    if not is_steps(value):
        return False
    size = 1
    for side in value:
        size *= side or 1  # NumPy counts so, to know that no product of sides overflows
    return size < _MOST_ELEMENTS


def is_steps(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Whether these are numbers, none negative, for as many sides as an array can have."""
    return (
        isinstance(value, tuple | list)
        and len(value) <= MOST_DIMENSIONS
        and all(type(step) is int and 0 <= step < _MOST_ELEMENTS for step in value)
    )
