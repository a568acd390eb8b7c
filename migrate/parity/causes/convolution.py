"""Convolutions and what goes with images: kernels, padding, resizing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from migrate.parity.causes.frame.changes import attribute, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import FaultExample, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_NAMES = ("conv1d", "conv2d", "conv3d")


def _dilation_truth() -> nn.Module:
    return nn.Conv1d(3, 4, 3, padding=2, dilation=2)


def _dilation_faulty(twin: nn.Module) -> nn.Module:
    twin.dilation, twin.padding = (1,), (1,)
    return twin


class Dilation(Pattern):
    """A convolution without its dilation.

    **What it is.** torch's `dilation` is `kernel_dilation` of Flax's `Conv` (`input_dilation` is
    something else). With SAME padding the shape does not tell that it is missing.

    **What to do.** Give `kernel_dilation`.
    """

    name = "dilation"
    examples = (
        FaultExample(_dilation_truth, _dilation_faulty, normal(2, 3, 12), "has no dilation"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield convolutions without it, padded to the same size."""
        if any(_dilation(call) for call in scene.calls(*_NAMES)):
            for where, change in scene.replaced(lambda: dict.fromkeys(_NAMES, _without)):
                yield Variant(f"{{side}} has no dilation, the truth has{where}", change)


def _dilation(call: FunctionCall) -> tuple[int, ...]:
    """Dilation along each axis; empty if it is 1 everywhere."""
    axes, value = call.args[0].ndim - 2, call.get(5, "dilation", 1)
    each = (value,) * axes if isinstance(value, int) else tuple(value)
    return each if any(dilation > 1 for dilation in each) else ()


def _without(call: FunctionCall) -> Any:
    dilation, padding = _dilation(call), call.get(4, "padding", 0)
    if not dilation:
        return call.run()
    if not isinstance(padding, str):
        each = (padding,) * len(dilation) if isinstance(padding, int) else padding
        padding = tuple(width // by for width, by in zip(each, dilation, strict=True))
    return call.but(5, "dilation", 1).but(4, "padding", padding).run()


def _kernel_flipped_truth() -> nn.Module:
    return nn.ConvTranspose2d(3, 4, 3, stride=2)


def _kernel_flipped_faulty(twin: nn.Module) -> nn.Module:
    twin.weight.data = twin.weight.data.flip(2, 3)
    return twin


class KernelFlipped(Pattern):
    """A convolution's kernel that lies mirrored.

    **What it is.** torch's `ConvTranspose` is the gradient of a convolution, which mirrors the kernel in
    space; Flax's `ConvTranspose` does not mirror (`transpose_kernel=False`). `scipy.signal.convolve` and
    `jnp.convolve` mirror too, `nn.Conv` of both does not.

    **What to do.** Mirror the kernel when it is converted (`w[::-1, ::-1]`), or set
    `transpose_kernel=True`, which also exchanges its input and output channels.
    """

    name = "kernel-flipped"
    rank = 1
    examples = (
        FaultExample(
            _kernel_flipped_truth, _kernel_flipped_faulty, normal(2, 3, 5, 5), "lies mirrored"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the kernels mirrored in all of their axes in space."""
        for part, name in scene.weights(_is_kernel):
            axes = list(range(2, getattr(part.module, name).ndim))
            change = partial(weight, part.module, name, partial(torch.flip, dims=axes))
            yield Variant(f"{name} of {part.name} lies mirrored in {{side}}", change)


def _is_kernel(module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return (
        tensor.ndim in (3, 4, 5) and "Conv" in type(module).__name__ and max(tensor.shape[2:]) > 1
    )


_MODES = ("zeros", "reflect", "replicate", "circular")


def _padding_mode_truth() -> nn.Module:
    return nn.Conv1d(2, 4, 3, padding=1, padding_mode="reflect")


def _padding_mode_faulty(twin: nn.Module) -> nn.Module:
    twin.padding_mode = "zeros"
    return twin


class PaddingMode(Pattern):
    """Another value is padded at the edge.

    **What it is.** torch's convolutions take `padding_mode="reflect"`, "replicate" or "circular"; Flax
    pads zeros, or circularly (`padding="CIRCULAR"`), and ports lose the mode. `F.pad` and `jnp.pad` call
    them otherwise: "replicate" is "edge", "circular" is "wrap".

    **What to do.** In JAX pad first: `jnp.pad(x, ..., mode="reflect")`, then convolve with
    `padding="VALID"`.
    """

    name = "padding-mode"
    examples = (
        FaultExample(
            _padding_mode_truth,
            _padding_mode_faulty,
            normal(2, 2, 12),
            "pads zeros, the truth reflect",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all modes, of convolutions and of `F.pad`."""
        for parts in scene.groups(lambda module: hasattr(module, "padding_mode")):
            old = parts[0].module.padding_mode
            for new in (mode for mode in _MODES if mode != old and len(parts) == 1):
                set_to = partial(attribute, parts[0].module, "padding_mode", new)
                yield Variant(f"{{side}} pads {new}, the truth {old}, in {parts[0].name}", set_to)
        olds = {call.get(2, "mode", "constant") for call in scene.calls("pad")}
        for old in sorted(olds):
            for new in ("constant", *_MODES[1:]):
                for where, change in scene.replaced(partial(_mode, old, new)) if new != old else ():
                    yield Variant(f"{{side}} pads {new}, the truth {old}{where}", change)


def _mode(old: str, new: str) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        same = call.get(2, "mode", "constant") == old
        return (call.but(2, "mode", new).but(3, "value", None) if same else call).run()

    return {"pad": handle}


_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_POOLS = ("max_pool1d", "max_pool2d", "max_pool3d")


def _padding_same_truth() -> nn.Module:
    return nn.Conv2d(3, 8, 3, stride=2, padding=1)


class _PaddingSameFaulty(nn.Conv2d):
    def forward(self, x: Any) -> Any:  # what padding="SAME" is for an even size
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, stride=2)


class PaddingSame(Pattern):
    """SAME padding pads otherwise than torch's numbers.

    **What it is.** With a stride of 2 and an even size, a kernel of 3 and `padding="SAME"` (Flax's
    default) pads nothing before and one after; torch's `padding=1` pads one on either side. The shapes
    are equal, the windows lie one pixel apart.

    **What to do.** Give Flax the numbers: `padding=((1, 1), (1, 1))`; or pad by `F.pad` in torch, if the
    weights come from TensorFlow or JAX.
    """

    name = "padding-same"
    examples = (
        FaultExample(
            _padding_same_truth,
            lambda twin: loaded(_PaddingSameFaulty(3, 8, 3), twin),
            normal(2, 3, 8, 8),
            "pads as SAME does",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield SAME, and paddings before and after exchanged."""
        names = (*_CONVOLUTIONS, *_POOLS)
        for where, change in scene.replaced(
            lambda: dict.fromkeys(names, partial(_padded, after=True))
        ):
            yield Variant(f"{{side}} pads as SAME does, the truth by numbers{where}", change)
        for where, change in scene.replaced(
            lambda: dict.fromkeys(names, partial(_padded, after=False))
        ):
            yield Variant(f"{{side}} pads as SAME_LOWER does, the truth by numbers{where}", change)
        for where, change in scene.replaced(lambda: {"pad": _exchanged}):
            yield Variant(f"{{side}} pads before what the truth pads after{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that one has SAME and a stride."""
        stride = truth.get("stride", 1)
        strided = any(
            step != 1 for step in (stride if isinstance(stride, list | tuple) else [stride])
        )
        same = (
            str(side.get("padding")).upper() == "SAME"
            and str(truth.get("padding")).upper() != "SAME"
        )
        return (
            f"{{side}} pads as SAME does, the truth by {truth.get('padding')}"
            if same and strided
            else ""
        )


def _padded(call: FunctionCall, *, after: bool) -> Any:
    pool = call.name in _POOLS
    x = call.args[0]
    axes = int(call.name[-2])
    size = _each(call.get(1, "kernel_size"), axes) if pool else call.args[1].shape[2:]
    stride = call.get(2 if pool else 3, "stride", 1)
    stride = size if stride is None or stride == () else _each(stride, axes)
    dilation = _each(call.get(4 if pool else 5, "dilation", 1), axes)
    pads: list[int] = []
    for length, k, s, d in zip(x.shape[-axes:], size, stride, dilation, strict=True):
        total = max((-(-length // s) - 1) * s + (k - 1) * d + 1 - length, 0)
        low = total // 2 if after else total - total // 2
        pads[:0] = (low, total - low)
    x = F.pad(x, pads, value=float("-inf") if pool else 0.0)
    return call.but(0, "input", x).but(3 if pool else 4, "padding", 0).run()


def _each(value: Any, axes: int) -> tuple[int, ...]:
    return (
        tuple(value) * (axes if len(value) == 1 else 1)
        if isinstance(value, tuple | list)
        else (value,) * axes
    )


def _exchanged(call: FunctionCall) -> Any:
    pads = list(call.get(1, "pad"))
    return call.but(1, "pad", [pads[n ^ 1] for n in range(len(pads))]).run()


def _pixel_shuffle_order_truth() -> nn.Module:
    return nn.PixelShuffle(2)


class _PixelShuffleOrderFaulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, 2, 2, c // 4, h, w)  # position in the block first, then channel
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


class PixelShuffleOrder(Pattern):
    """Depth goes to space in another order.

    **What it is.** torch's `pixel_shuffle` takes channel c · r² + place, TensorFlow's `depth_to_space`,
    and a reshape with channels last, place · C + c.

    **What to do.** Reorder the channels of the convolution before it, or reshape as (..., C, r, r).
    """

    name = "pixel-shuffle-order"
    examples = (
        FaultExample(
            _pixel_shuffle_order_truth,
            lambda twin: _PixelShuffleOrderFaulty(),
            normal(2, 8, 3, 3),
            "place before channel",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other order, both ways."""
        for name, handler in (("pixel_shuffle", _shuffled), ("pixel_unshuffle", _unshuffled)):
            for where, change in scene.replaced(partial(_only, name, handler)):
                yield Variant(f"{{side}} has place before channel in {name}{where}", change)


def _shuffled(call: FunctionCall) -> Any:
    x, square = call.args[0], call.get(1, "upscale_factor") ** 2
    return call.but(
        0, "input", x.unflatten(-3, (square, -1)).transpose(-4, -3).flatten(-4, -3)
    ).run()


def _unshuffled(call: FunctionCall) -> Any:
    square = call.get(1, "downscale_factor") ** 2
    return call.run().unflatten(-3, (-1, square)).transpose(-4, -3).flatten(-4, -3)


def _only(name: str, handler: Handler) -> Mapping[str, Handler]:
    return {name: handler}


_FORMS: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "align_corners": None},
    "nearest-exact (half pixels)": {"mode": "nearest-exact", "align_corners": None},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bilinear with align_corners": {"mode": "bilinear", "align_corners": True},
    "bilinear with antialias": {"mode": "bilinear", "align_corners": False, "antialias": True},
    "bicubic": {"mode": "bicubic", "align_corners": False},
    "bicubic with align_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic with antialias": {"mode": "bicubic", "align_corners": False, "antialias": True},
}


class _ResizeFormTruth(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, (5, 5), mode="bilinear")


class _ResizeFormFaulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, (5, 5), mode="bilinear", antialias=True)


class ResizeForm(Pattern):
    """An image is resized in another way.

    **What it is.** `jax.image.resize` antialiases when it makes an image smaller, torch's `interpolate`
    does not unless told; torch's "nearest" takes the pixel at the left edge, JAX's the one in the middle
    ("nearest-exact"); `align_corners=True` maps corners to corners, which JAX has not; cubic kernels have
    a = -0.75 in torch and -0.5 in JAX and with antialias.

    **What to do.** `jax.image.resize(..., antialias=False)`; `mode="nearest-exact"` in torch;
    `jax.image.scale_and_translate` for aligned corners.
    """

    name = "resize-form"
    examples = (
        FaultExample(
            _ResizeFormTruth,
            lambda twin: _ResizeFormFaulty(),
            normal(2, 3, 8, 8),
            "resizes bilinear with antialias",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all forms; and grid_sample with the other corners."""
        for form, options in _FORMS.items():
            for where, change in scene.replaced(partial(_resized, options)):
                yield Variant(f"{{side}} resizes {form}{where}", change)
        for where, change in scene.replaced(lambda: {"grid_sample": _other_corners}):
            yield Variant(f"{{side}} samples with the other align_corners{where}", change)


def _resized(options: Mapping[str, Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        sizes = {"size": call.get(1, "size"), "scale_factor": call.get(2, "scale_factor")}
        return nn.functional.interpolate(call.args[0], **sizes, **options)

    return {"interpolate": handle}


def _other_corners(call: FunctionCall) -> Any:
    return call.but(4, "align_corners", not call.get(4, "align_corners", False)).run()
