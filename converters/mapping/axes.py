"""Meaning of each axis of a tensor while a model runs: channels, space, or several of them flattened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

Factor = tuple[str, int]  # "C" (channels), "S0", "S1" … (space), "N" (anything else), and its size
Axis = tuple[Factor, ...]

# Operators that keep the meaning of every axis, though sizes may change, in addition to elementwise
# ones.
_KEEPING = (
    "pool",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "upsample",
    "pad",
    "dropout",
    "clone",
    "_to_copy",
    "detach",
    "alias",
    "cat",
    "slice",
    "contiguous",
    # Elementwise operators that torch does not mark as such.
    "leaky_relu",
    "hardswish",
    "prelu",
    "rrelu",
    "log_sigmoid",
    "softmax",
)
_RESHAPING = ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")


def make_labels() -> Any:
    """Create a mode that labels the axes of every tensor. The class is defined here because torch is
    imported late."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.weak import WeakIdKeyDictionary

    class Labels(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.known = WeakIdKeyDictionary()

        def of(self, tensor: Any) -> tuple[Axis, ...]:
            return self.known.get(tensor, ())

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            output = func(*args, **(kwargs or {}))
            result = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(result, torch.Tensor):
                tensors = [
                    argument for argument in _flat(args) if isinstance(argument, torch.Tensor)
                ]
                axes = self._axes(func, args, tensors, tuple(result.shape))
                if axes:
                    self.known[result] = axes
                else:
                    self.known.pop(result, None)
            return output

        def _axes(
            self, func: Any, args: tuple[Any, ...], tensors: list[Any], shape: tuple[int, ...]
        ) -> tuple[Axis, ...]:
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            if "convolution" in name:
                return _image(shape)
            source = next((tensor for tensor in tensors if self.of(tensor)), None)
            if source is None:
                return ()
            axes = self.of(source)
            if name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"):
                return _image(shape)
            if name in _RESHAPING:
                return _regrouped(axes, shape)
            if name in ("permute", "transpose", "t"):
                return _permuted(name, args, axes)
            if torch.Tag.pointwise in func.tags or any(word in name for word in _KEEPING):
                return _resized(axes, shape)
            return ()

    return Labels()


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    for argument in args:
        if isinstance(argument, tuple | list):
            yield from _flat(argument)
        else:
            yield argument


def _image(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    space = [((f"S{place}", side),) for place, side in enumerate(shape[2:])]
    return ((("N", shape[0]),), (("C", shape[1]),), *space)


def _permuted(name: str, args: tuple[Any, ...], axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    if name == "permute":
        return tuple(axes[axis] for axis in args[1])
    first, second = (0, 1) if name == "t" else (axis % len(axes) for axis in args[1:3])
    permuted = list(axes)
    permuted[first], permuted[second] = permuted[second], permuted[first]
    return tuple(permuted)


def _resized(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the same axes with other sizes; () if a merged axis has changed."""
    if len(axes) != len(shape):
        return ()
    resized = []
    for axis, side in zip(axes, shape, strict=True):
        if math.prod(size for _, size in axis) == side:
            resized.append(axis)
        elif len(axis) == 1:
            resized.append(((axis[0][0], side),))
        else:
            return ()
    return tuple(resized)


def _regrouped(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the factors of all axes in new groups; () if a factor would have to be split."""
    factors = [factor for axis in axes for factor in axis if factor[1] != 1]
    groups = []
    for side in shape:
        group: list[Factor] = []
        while factors and math.prod(size for _, size in group) < side:
            group.append(factors.pop(0))
        if math.prod(size for _, size in group) != side:
            return ()
        groups.append(tuple(group) or (("N", 1),))
    return () if factors else tuple(groups)
