"""Conversion of numpy arrays to torch tensors, and of a state dict to a file of `torch.save`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.atomic import atomic_write
from converters.installing import missing_error

Array = np.ndarray[Any, Any]

# Types that numpy has only through ml_dtypes are converted by their bits.
_BITS = {"bfloat16": np.uint16}


def to_tensor(array: Array) -> Any:
    """Return a torch tensor with the same values and bits, which owns its memory.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    torch = _torch()
    name = array.dtype.name
    # order="C" and a copy: torch refuses negative strides and warns of read-only memory.
    owned = np.array(array, order="C", copy=True)
    if name.startswith("float8"):
        return torch.from_numpy(owned.view(np.uint8)).view(getattr(torch, name))
    if name in _BITS:
        return torch.from_numpy(owned.view(_BITS[name])).view(getattr(torch, name))
    return torch.from_numpy(owned)


def save(path: Path, value: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Call `torch.save` on plain values, atomically.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
    """
    torch = _torch()
    with atomic_write(path, overwrite=overwrite) as file:
        torch.save(value, file)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise missing_error("torch", needed_by="writing tensors of torch") from None
    return torch
