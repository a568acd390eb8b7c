"""Mixed precision for "cuda": autocast on the real device; GradScaler's own arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch


def patches(devices: Devices) -> Iterator[Patch]:
    """`torch.autocast` in all its forms, and what asks for its state.

    On the CPU float16 is float16, computed by the CPU's kernels under the CPU's list of operations;
    GradScaler works as on a GPU, with the same state in checkpoints. XLA has no float16 of use: it
    computes in bfloat16, which needs no scaling, and GradScaler passes through.
    """
    autocast_init = torch.autocast.__init__
    real = devices.place.target.type
    on_xla = real == "xla"

    @functools.wraps(autocast_init)
    def init(
        autocast: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if device_type.partition(":")[0] == "cuda":
            dtype = torch.bfloat16 if on_xla else dtype or get_dtype("cuda")
            device_type = real
        autocast_init(autocast, device_type, dtype, *args, **kwargs)

    text = "autocast('xla', bfloat16)" if on_xla else "autocast of the CPU, with the same dtype"
    yield patch(torch.autocast, "__init__", init, text)

    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def enabled(device_type: str = "cuda") -> bool:
        return is_enabled(real if device_type == "cuda" else device_type)

    def dtype_of(device_type: str) -> torch.dtype:
        mapped = device_type == "cuda" and is_enabled(real)
        return get_dtype(real if mapped else device_type)

    yield patch(torch, "is_autocast_enabled", enabled, text)
    yield patch(torch, "get_autocast_dtype", dtype_of, text)
    yield patch(torch, "get_autocast_gpu_dtype", lambda: dtype_of("cuda"), text)

    if on_xla:
        scaler_init = torch.amp.GradScaler.__init__

        @functools.wraps(scaler_init)
        def disabled(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
            # Position 4 after the device is `enabled`.
            kwargs["enabled"] = False
            scaler_init(scaler, device, *args[:4], **kwargs)

        yield patch(torch.amp.GradScaler, "__init__", disabled, "passes through: bfloat16")
