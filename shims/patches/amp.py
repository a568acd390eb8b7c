"""Mixed precision for "cuda": autocast on the real device, and GradScaler's own arithmetic."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from shims.patches import calls
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of `torch.autocast` in all its forms, and of the functions that read its state.

    On the CPU float16 is float16, computed by the CPU's kernels and its list of operations.
    GradScaler works as on a GPU, with the same state in checkpoints. A TPU has no usable float16. It
    computes in bfloat16, which needs no scaling, and GradScaler passes values through.
    """
    autocast_init = torch.autocast.__init__
    real = devices.placement.target.type
    on_tpu = real != "cpu"

    @functools.wraps(autocast_init)
    def init(
        autocast: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        widens = device_type.partition(":")[0] == "cuda" and dtype == torch.float32
        if device_type.partition(":")[0] == "cuda":
            dtype = torch.bfloat16 if on_tpu or widens else dtype or get_dtype("cuda")
            device_type = real
        autocast_init(autocast, device_type, dtype, *args, **kwargs)
        if widens:
            # Except on CUDA, torch refuses float32 here, but enters a region of any dtype.
            autocast.fast_dtype = torch.float32

    text = f"autocast('{real}', bfloat16)" if on_tpu else "autocast of the CPU, with the same dtype"
    yield patch(torch.autocast, "__init__", init, text, name="torch.autocast")
    # torch's own code calls these for the older names, where no line of the program is visible.
    yield _seen(torch.cuda.amp.autocast, text, "torch.cuda.amp.autocast")

    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def enabled(device_type: str = "cuda") -> bool:
        return is_enabled(real if device_type == "cuda" else device_type)

    def dtype_of(device_type: str) -> torch.dtype:
        mapped = device_type == "cuda" and is_enabled(real)
        return get_dtype(real if mapped else device_type)

    yield patch(torch, "is_autocast_enabled", enabled, text)
    yield patch(torch, "get_autocast_dtype", dtype_of, text)
    yield patch(torch, "get_autocast_gpu_dtype", lambda: dtype_of("cuda"), text)

    scales = "passes through: bfloat16" if on_tpu else "torch's own arithmetic"
    yield _seen(torch.cuda.amp.GradScaler, scales, "torch.cuda.amp.GradScaler")
    if not on_tpu:
        yield _seen(torch.amp.GradScaler, scales, "torch.amp.GradScaler")
    else:
        scaler_init = torch.amp.GradScaler.__init__

        @functools.wraps(scaler_init)
        def disabled(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
            # Position 4 after the device is `enabled`.
            kwargs["enabled"] = False
            scaler_init(scaler, device, *args[:4], **kwargs)

        yield patch(torch.amp.GradScaler, "__init__", disabled, scales, name="torch.amp.GradScaler")


def _seen(kind: type, answers: str, name: str) -> Patch:
    """Return a patch that keeps the class and logs its construction."""
    original = vars(kind)["__init__"]
    # A deprecation is reported at the program's line; torch's wrapper would name this line.
    deprecation, plain = (
        getattr(original, "__deprecated__", ""),
        getattr(original, "__wrapped__", original),
    )

    @functools.wraps(plain)
    def init(instance: Any, *args: Any, **kwargs: Any) -> None:
        if deprecation:
            warnings.warn(deprecation, FutureWarning, stacklevel=3 if calls.enabled() else 2)
        plain(instance, *args, **kwargs)

    return patch(kind, "__init__", init, answers, name=name)
