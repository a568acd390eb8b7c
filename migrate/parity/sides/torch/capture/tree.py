"""Tensors in arguments and outputs of a torch module: paths, values, and replacements."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray[Any, Any]

# Dtypes that numpy does not have: read as integers of the same width, viewed as ml_dtypes's.
_FOREIGN = {
    name: (getattr(torch, name), bits)
    for name, bits in (
        ("bfloat16", torch.int16),
        ("float8_e4m3fn", torch.uint8),
        ("float8_e5m2", torch.uint8),
        ("float8_e4m3fnuz", torch.uint8),
        ("float8_e5m2fnuz", torch.uint8),
    )
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each tensor in a structure of tuples, lists, mappings and dataclasses, with its path.

    Keys are joined by dots; a single tensor has the path "". Tensors in other objects (caches) are skipped,
    as are nested tensors and those without values (`meta`).
    """
    if isinstance(value, torch.Tensor):
        if not value.is_nested and not value.is_meta:
            yield path, value
        return
    for key, inner in _children(value):
        yield from leaves(inner, f"{path}.{key}" if path else str(key))


def call_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Tensors among the arguments of a call; a path begins with a position or a name."""
    return [*leaves(args), *leaves(kwargs)]


def replaced(value: Any, new: Mapping[str, Any], path: str = "") -> Any:
    """Replace tensors at some paths in a structure; unchanged structures are returned as they are."""
    if isinstance(value, torch.Tensor):
        return new.get(path, value)
    changed = {}
    for key, inner in _children(value):
        other = replaced(inner, new, f"{path}.{key}" if path else str(key))
        if other is not inner:
            changed[key] = other
    return _with(value, changed) if changed else value


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):  # transformers' ModelOutput is a Mapping too
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return [(attribute.name, getattr(value, attribute.name, None)) for attribute in fields]
    return []


def _with(value: Any, changed: Mapping[Any, Any]) -> Any:
    if isinstance(value, tuple | list):
        items = [changed.get(number, item) for number, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    other = copy.copy(value)
    for key, item in changed.items():
        if isinstance(value, Mapping):
            other[key] = item
        else:
            object.__setattr__(other, key, item)
    return other


def to_numpy(tensor: Any) -> Array:
    """Convert a tensor to numpy, sharing memory if possible; complex numbers get a last axis (real,
    imaginary).
    """
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    for name, (dtype, bits) in _FOREIGN.items():
        if tensor.dtype == dtype:
            whole: Array = tensor.contiguous().view(bits).numpy()
            return whole.view(getattr(ml_dtypes, name))
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array, like: Any) -> Any:
    """Convert an array to a tensor with the dtype and device of another, in memory of its own.

    Numbers out of that dtype's range (a mask's most negative float64) become its largest, not an infinity.

    Raises:
        ValueError: the shapes differ, or one has integers and the other real numbers.
    """
    real = like.is_floating_point() or like.is_complex()
    if real != (array.dtype.kind not in "biu"):
        raise ValueError(f"{array.dtype.name} instead of {str(like.dtype).removeprefix('torch.')}")
    # numpy casts on one thread: torch's threads would wait for each other longer than they work.
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    tensor = _narrowed(array, dtype) if real else torch.tensor(array).to(dtype)
    if like.is_complex():
        tensor = torch.view_as_complex(tensor.contiguous())
    if tuple(tensor.shape) != tuple(like.shape):
        raise ValueError(f"shape {list(tensor.shape)} instead of {list(like.shape)}")
    return tensor.to(like.device)


def _narrowed(array: Array, dtype: torch.dtype) -> Any:
    if dtype == torch.float64:
        return torch.from_numpy(array.astype(np.float64))
    try:
        with np.errstate(over="raise"):
            values = array.astype(np.float32)
    except FloatingPointError:
        values = _clipped(array, torch.finfo(torch.float32).max).astype(np.float32)
    if dtype == torch.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(_clipped(values, torch.finfo(dtype).max)).to(dtype)


def _clipped(array: Array, most: float) -> Array:
    """Clip numbers to these limits; infinities stay."""
    clipped: Array = np.where(np.isinf(array), array, np.clip(array, -most, most))
    return clipped.astype(array.dtype, copy=False)
