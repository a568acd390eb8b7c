"""What each axis of a tensor means while a model runs: channels, space, or several of them flattened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

Factor = tuple[str, int]  # "C" (channels), "S0", "S1" … (space), "N" (anything else), and its side
Axis = tuple[Factor, ...]

# What keeps the meaning of every axis, though sides may change: beside all that works element by element.
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
    # Element by element too, though torch does not mark them so.
    "leaky_relu",
    "hardswish",
    "prelu",
    "rrelu",
    "log_sigmoid",
    "softmax",
)
_RESHAPING = ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")


def make_labels() -> Any:
    """A mode that gives every tensor's axes their labels; made late, for torch is imported late."""
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
                given = [one for one in _flat(args) if isinstance(one, torch.Tensor)]
                axes = self._axes(func, args, given, tuple(result.shape))
                if axes:
                    self.known[result] = axes
                else:
                    self.known.pop(result, None)
            return output

        def _axes(
            self, func: Any, args: tuple[Any, ...], given: list[Any], shape: tuple[int, ...]
        ) -> tuple[Axis, ...]:
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            if "convolution" in name:
                return _image(shape)
            source = next((one for one in given if self.of(one)), None)
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
    for one in args:
        if isinstance(one, tuple | list):
            yield from _flat(one)
        else:
            yield one


def _image(shape: tuple[int, ...]) -> tuple[Axis, ...]:
    space = [((f"S{place}", side),) for place, side in enumerate(shape[2:])]
    return ((("N", shape[0]),), (("C", shape[1]),), *space)


def _permuted(name: str, args: tuple[Any, ...], axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    if name == "permute":
        return tuple(axes[axis] for axis in args[1])
    one, two = (0, 1) if name == "t" else (axis % len(axes) for axis in args[1:3])
    found = list(axes)
    found[one], found[two] = found[two], found[one]
    return tuple(found)


def _resized(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """The same axes with other sides; () where one that was put together has changed."""
    if len(axes) != len(shape):
        return ()
    found = []
    for axis, side in zip(axes, shape, strict=True):
        if math.prod(one for _, one in axis) == side:
            found.append(axis)
        elif len(axis) == 1:
            found.append(((axis[0][0], side),))
        else:
            return ()
    return tuple(found)


def _regrouped(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> tuple[Axis, ...]:
    """The factors of all axes, in new groups; () where one would have to be cut."""
    factors = [factor for axis in axes for factor in axis if factor[1] != 1]
    found = []
    for side in shape:
        group: list[Factor] = []
        while factors and math.prod(one for _, one in group) < side:
            group.append(factors.pop(0))
        if math.prod(one for _, one in group) != side:
            return ()
        found.append(tuple(group) or (("N", 1),))
    return () if factors else tuple(found)
