"""Patches of `torch.cuda.FloatTensor` and similar names: as constructors, types and type strings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def requested_type(kind: Any) -> tuple[torch.dtype | None, bool | None]:
    """Return the dtype that `.type(kind)` requests, and whether on CUDA (None: the tensor's device).

    The dtype is None for an unknown type.
    """
    if isinstance(kind, torch.dtype):
        return kind, None
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    module, _, last = name.rpartition(".")
    return DTYPES.get(last), module == "torch.cuda"


class _TypedTensor(type):
    """Type of `torch.cuda.FloatTensor`: calling it creates a tensor, and nothing is an instance."""

    dtype: torch.dtype
    devices: Devices

    def __call__(cls, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        on = {"device": torch.device("cuda") if device is None else device, "dtype": cls.dtype}
        if not args or all(isinstance(arg, int) for arg in args):
            # The constructor leaves the memory uninitialized; zeros are valid content.
            return torch.zeros(args or (0,), **on)
        (content,) = args
        if isinstance(content, torch.Size):
            return torch.zeros(content, **on)
        if isinstance(content, torch.Tensor):
            return content.to(**on)
        return torch.tensor(content, **on)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.dtype is cls.dtype
            and cls.devices.placement.holds(instance)
        )


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of the typed tensors of `torch.cuda`, and of the default tensor type."""
    for name, dtype in DTYPES.items():
        typed = _TypedTensor(
            name, (), {"__module__": "torch.cuda", "dtype": dtype, "devices": devices}
        )
        yield patch(torch.cuda, name, typed, "makes the tensor on the mapped device")

    set_default_tensor_type = torch.set_default_tensor_type

    def set_type(kind: Any) -> None:
        dtype, on_cuda = requested_type(kind)
        if dtype is None or not on_cuda:
            set_default_tensor_type(kind)
            return
        torch.set_default_dtype(dtype)
        torch.set_default_device("cuda")

    yield patch(torch, "set_default_tensor_type", set_type, "sets the mapped device and the dtype")
