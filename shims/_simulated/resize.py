"""Resized images in the simulation: their gradients are computed on the device, as on a TPU.

torch_xla 2.9 gives `interpolate` by "nearest" and "bilinear" (4-D) to kernels of the TPU's compiler. XLA:CPU
has no such kernels: torch_xla resizes there by operators of its own, and computes the gradients on the host,
which cuts the graph. Here the gradients are products with the weights of the interpolation, on the device.

Source: `resize_ops.cpp` and `aten_xla_type.cpp` of torch_xla 2.9; the calls compile with libtpu 0.0.42.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Names of torch's operators and of the TPU compiler's kernels.
KERNELS = {"upsample_nearest2d": "ResizeNearest", "upsample_bilinear2d": "ResizeBilinear"}
_LIBRARIES: list[torch.library.Library] = []


@functools.cache
def install(for_compiler: Callable[[], bool] | None = None) -> None:
    """Replace the kernels of torch_xla, once.

    Args:
        for_compiler: whether the program that is traced is for the TPU's compiler, and never runs here: it
            gets the compiler's kernels, forward ones too. None: never.
    """
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)  # the kernels are replaced as long as it lives
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in KERNELS:
            backward = functools.partial(_backward, name, for_compiler)
            library.impl(f"{name}_backward", backward, "XLA", allow_override=True)
            if for_compiler is not None:
                kernel = torch.library.get_kernel(f"aten::{name}", "XLA")
                forward = functools.partial(_forward, name, for_compiler, kernel)
                library.impl(name, forward, "XLA", with_keyset=True, allow_override=True)


def _forward(
    name: str,
    for_compiler: Callable[[], bool],
    kernel: Any,
    keys: Any,
    image: torch.Tensor,
    size: Sequence[int],
    *options: Any,
) -> Any:
    sizes = [*image.shape[:2], *size]
    if for_compiler() and list(image.shape[2:]) not in ([1, 1], sizes[2:]):
        return _custom_call(KERNELS[name], image, sizes, _read(name, options)[0])
    return kernel.call_boxed(keys, image, size, *options)


def _backward(
    name: str,
    for_compiler: Callable[[], bool] | None,
    gradient: torch.Tensor,
    size: Sequence[int],
    input_size: Sequence[int],
    *options: Any,
) -> torch.Tensor:
    corners, scales = _read(name, options)
    if for_compiler is not None and for_compiler() and list(input_size[2:]) != list(size):
        return _custom_call(f"{KERNELS[name]}Grad", gradient, input_size, corners)
    rows, columns = (
        _weights(name, length, resized, corners, scale, gradient.device)
        for length, resized, scale in zip(input_size[2:], size, scales, strict=True)
    )
    with torch.autocast("xla", enabled=False):
        return (rows @ gradient.to(torch.float32) @ columns.T).to(gradient.dtype)


def _read(
    name: str, options: Sequence[Any]
) -> tuple[bool | None, tuple[float | None, float | None]]:
    """`align_corners`, None of a call without it, and the scale of each axis."""
    corners = bool(options[0]) if name == "upsample_bilinear2d" else None
    rows, columns = [*options[corners is not None :], None, None][:2]
    return corners, (rows, columns)


@functools.lru_cache(maxsize=64)
def _weights(
    name: str,
    length: int,
    resized: int,
    corners: bool | None,
    scale: float | None,
    device: torch.device,
) -> torch.Tensor:
    """Weights of one axis, (length, resized): torch's own, of an image with a one in each place."""
    with torch.inference_mode(False), torch.no_grad():
        ones = torch.eye(length, device="cpu")[None, :, :, None]
        options = (scale, None) if corners is None else (corners, scale, None)
        weights = getattr(torch.ops.aten, name)(ones, [resized, 1], *options)
        return weights[0, :, :, 0].to(device)


def _custom_call(
    target: str, image: torch.Tensor, sizes: Sequence[int], corners: bool | None
) -> torch.Tensor:
    """Call a kernel of the compiler, whose images have the channels last, as torch_xla does."""
    import torch_xla

    half = corners is False  # half-pixel centers
    [result] = torch_xla._XLAC._xla_custom_call(
        [image.permute(0, 3, 2, 1)],
        target,
        [[sizes[0], sizes[3], sizes[2], sizes[1]]],
        [image.dtype],
        False,
        f'"{int(bool(corners))}{int(half)}"',
        0,
        {},
    )
    return result.permute(0, 3, 2, 1)
