"""Order of elements: channels, halves, joined tensors, tensors of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import (
    Array,
    FaultExample,
    Pattern,
    Variant,
    loaded,
    normal,
)
from migrate.parity.causes.frame.scene import Scene


class _ChannelOrderTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image)


class _ChannelOrderFaulty(_ChannelOrderTruth):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(image.flip(1))


def _channel_order_faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _ChannelOrderFaulty
    return twin


def _channel_order_reversed(twin: nn.Module) -> nn.Module:
    twin.conv.weight.data = twin.conv.weight.data.flip(1)
    return twin


class ChannelOrder(Pattern):
    """The colors come in the reverse order.

    **What it is.** OpenCV and Caffe's models have blue, green, red; PIL, torchvision and TensorFlow red,
    green, blue.

    **What to do.** Reverse the channels of the image, or of the first kernel, in one place only.
    """

    name = "channel-order"
    rank = 1
    examples = (
        FaultExample(
            _ChannelOrderTruth,
            _channel_order_faulty,
            normal(2, 3, 8, 8),
            "reverse order",
            layer="conv",
            locally=False,
        ),
        FaultExample(
            _ChannelOrderTruth,
            _channel_order_reversed,
            normal(2, 3, 8, 8),
            "reverse order",
            layer="conv",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield first kernels and images with their channels reversed."""
        text = "the colors come in the reverse order in {side}"
        for axis in (1, -1):
            yield Variant(f"{text} (axis {axis})", adjust=partial(_flipped, axis))
        for part, name in scene.weights(_of_colors):
            yield Variant(
                f"{text} ({name} of {part.name})",
                partial(weight, part.module, name, partial(torch.flip, dims=[1])),
            )


def _of_colors(_module: nn.Module, _name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim in (4, 5) and tensor.shape[1] == 3


def _flipped(axis: int, output: Array, _mine: Array) -> Array | None:
    image = output.ndim in (4, 5) and output.shape[axis] == 3
    order = [slice(None)] * output.ndim
    order[axis] = slice(None, None, -1)
    return output[tuple(order)] if image else None


_CONCAT_ORDER_NAMES = ("cat", "concat", "concatenate", "stack")


class _ConcatOrderTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.skip, self.deep, self.out = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.skip(x), self.deep(x)], -1))


class _ConcatOrderFaulty(_ConcatOrderTruth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip, deep = self.skip(x), self.deep(x)
        return self.out(torch.cat([deep, skip], -1))


class ConcatOrder(Pattern):
    """Tensors are joined in another order.

    **What it is.** The skip of a U-Net is put first instead of last, the class token behind the patches,
    sin before cos: shapes are equal, the next kernel's rows are not.

    **What to do.** Join in the order that the kernel was trained for.
    """

    name = "concat-order"
    examples = (
        FaultExample(
            _ConcatOrderTruth,
            lambda twin: loaded(_ConcatOrderFaulty(), twin),
            normal(4, 8),
            "joined in the reverse order",
            layer="out",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the reverse order."""
        for where, change in scene.replaced(
            lambda: dict.fromkeys(_CONCAT_ORDER_NAMES, _concat_order_reversed)
        ):
            yield Variant(f"tensors are joined in the reverse order in {{side}}{where}", change)


def _concat_order_reversed(call: FunctionCall) -> Any:
    return call.but(0, "tensors", tuple(reversed(call.get(0, "tensors")))).run()


_FLATTEN_ORDER_NAMES = ("flatten", "reshape", "view")


class _FlattenOrderTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.conv(x), 1))


class _FlattenOrderFaulty(_FlattenOrderTruth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).permute(0, 2, 3, 1).flatten(1))


def _flatten_order_faulty(twin: nn.Module) -> nn.Module:
    twin.__class__ = _FlattenOrderFaulty
    return twin


def _spoiled(twin: nn.Module) -> nn.Module:
    kernel = twin.head.weight.data
    twin.head.weight.data = kernel.reshape(5, 4, 36).transpose(1, 2).reshape(5, 144)
    return twin


class FlattenOrder(Pattern):
    """An image is flattened with its channels last instead of first.

    **What it is.** torch flattens (channels, height, width), a Flax model (height, width, channels): the
    features of the next Dense come in another order, and its kernel from torch fits the first only.

    **What to do.** Transpose to channels first before the flatten in Flax, or reorder the kernel's rows
    when it is converted.
    """

    name = "flatten-order"
    examples = (
        FaultExample(
            _FlattenOrderTruth,
            _flatten_order_faulty,
            normal(2, 3, 8, 8),
            "with its channels last",
            layer="head",
            locally=False,
        ),
        FaultExample(
            _FlattenOrderTruth, _spoiled, normal(2, 3, 8, 8), "is for channels last", layer="head"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield flattens with channels moved to the end, and from the end to the front."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_FLATTEN_ORDER_NAMES, _last)):
            yield Variant(
                f"{{side}} flattens with its channels last, the truth with them first{where}",
                change,
            )
        for where, change in scene.replaced(lambda: dict.fromkeys(_FLATTEN_ORDER_NAMES, _first)):
            yield Variant(
                f"{{side}} flattens with its channels first, the truth with them last{where}",
                change,
            )
        for where, change in scene.replaced(lambda: dict.fromkeys(_FLATTEN_ORDER_NAMES, _columns)):
            yield Variant(
                f"{{side}} counts pixels column by column, the truth row by row{where}", change
            )
        for part in scene.parts:
            for channels in _channels(scene, part.module):
                for first, words in (
                    (False, "channels last, the truth's first"),
                    (True, "channels first, the truth's last"),
                ):
                    change = partial(
                        weight, part.module, "weight", partial(_columns_moved, channels, first)
                    )
                    yield Variant(
                        f"the kernel of {part.name} in {{side}} is for {words} ({channels} channels)",
                        change,
                    )


def _channels(scene: Scene, module: Any) -> list[int]:
    """Possible numbers of channels of an image that was flattened for this layer."""
    if not isinstance(module, nn.Linear):
        return []
    channels = {
        module_of_model.out_channels
        for module_of_model in scene.model.modules()
        if hasattr(module_of_model, "out_channels")
    }
    return sorted(n for n in channels if 1 < n < module.in_features and module.in_features % n == 0)


def _columns_moved(channels: int, first: bool, tensor: torch.Tensor) -> torch.Tensor:
    split = tensor.unflatten(1, (-1, channels) if first else (channels, -1))
    return split.transpose(1, 2).flatten(1)


def _flattens(call: FunctionCall, result: Any) -> bool:
    x = call.args[0]
    return x.ndim in (3, 4, 5) and result.ndim == 2 and result.shape[0] == x.shape[0]


def _last(call: FunctionCall) -> Any:
    result = call.run()
    return call.args[0].movedim(1, -1).reshape(result.shape) if _flattens(call, result) else result


def _first(call: FunctionCall) -> Any:
    result = call.run()
    return call.args[0].movedim(-1, 1).reshape(result.shape) if _flattens(call, result) else result


def _columns(call: FunctionCall) -> Any:
    """Exchange height and width of (…, height, width) where they become one axis."""
    x, result = call.args[0], call.run()
    merges = x.ndim == result.ndim + 1 and result.shape[-1] == x.shape[-1] * x.shape[-2]
    return x.transpose(-1, -2).reshape(result.shape) if merges else result


_OTHER_TENSOR_MOST = 200  # sums


class _Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class _Reversed(_Sequence):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(self.second(x))


class OtherTensor(Pattern):
    """A layer is given, or gives on, another tensor of the model.

    **What it is.** The norm comes after the sum instead of before the block (post-norm, pre-norm), two
    branches both read the block's input, layers run in another order: what is given is exactly what the
    truth has elsewhere.

    **What to do.** Compare the two forward passes around the layer that the sentence names.
    """

    name = "other-tensor"
    rank = 1
    examples = (
        FaultExample(
            _Sequence,
            lambda twin: loaded(_Reversed(), twin),
            normal(4, 8),
            "has the truth's second in what first is given",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each tensor, and each sum of two, in place of the compared tensor."""
        known = {
            name: tensor.detach().numpy()
            for name, tensor in scene.tensors()
            if tensor.is_floating_point() and tensor.numel() > 1
        }
        for name, array in known.items():
            yield Variant(
                f"{{side}} has the truth's {name} {{where}}", adjust=partial(_taken, array, None)
            )
        for (a, added), (b, other) in islice(combinations(known.items(), 2), _OTHER_TENSOR_MOST):
            if added.shape == other.shape:
                yield Variant(
                    f"{{side}} has the sum of the truth's {a} and {b} {{where}}",
                    adjust=partial(_taken, added, other),
                )


def _taken(array: Array, added: Array | None, output: Array, _mine: Array) -> Array | None:
    if array.shape != output.shape:
        return None
    return array if added is None else array + added


_SWAPPED_HALVES_MOST = 32  # pairs


def _truth() -> nn.Module:
    return nn.GLU()


class _SwappedHalvesFaulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, -1)
        return value * torch.sigmoid(gate)


class _SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class _Other(_SwiGlu):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class _Exchanged(_Branches):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.up(x)) * self.gate(x))


class SwappedHalves(Pattern):
    """Two halves are exchanged: gate and value, or forward and backward.

    **What it is.** `F.glu` takes the *second* half for the gate, SwiGLU of Llama's fused kernels the
    first; a port that splits as (value, gate), or gives two projections of the same shape to each other's
    place, has no error of shape. A bidirectional layer's halves are forward and backward.

    **What to do.** Exchange the names of the split, or the halves of the kernel.
    """

    name = "swapped-halves"
    examples = (
        FaultExample(_truth, lambda twin: _SwappedHalvesFaulty(), normal(4, 16), "exchanged"),
        FaultExample(
            _SwiGlu,
            lambda twin: loaded(_Other(), twin),
            normal(4, 8),
            "exchanged",
            layer="down",
            locally=False,
        ),
        FaultExample(
            _Branches,
            lambda twin: loaded(_Exchanged(), twin),
            normal(4, 8),
            "gate and up take each other's place",
            layer="down",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield splits in the reverse order, and layers that give what another gives."""
        for where, change in scene.replaced(_swapped_halves_reversed):
            yield Variant(f"the two halves are exchanged in {{side}}{where}", change)
        yield Variant(
            "the two halves of the last axis are exchanged in {side}, {where}", adjust=_halves
        )
        for a, b in _beside(scene):
            yield Variant(
                f"{a[0]} and {b[0]} take each other's place in {{side}}",
                partial(scene.replay.exchanged, a, b),
            )


def _beside(scene: Scene) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield pairs of calls of layers inside with equal output shapes; neither receives the other's
    output.
    """
    outputs = list(scene.replay.outputs())
    taken = [(spot.layer, tensor) for spot, tensor in scene.replay.truth.items() if spot.layer]
    pairs = ((a, b) for n, a in enumerate(outputs) for b in outputs[n + 1 :] if a[0] != b[0])
    for a, b in islice(
        (pair for pair in pairs if pair[0][3].shape == pair[1][3].shape), _SWAPPED_HALVES_MOST
    ):
        inner = [tensor for name, tensor in taken if name == b[0] and tensor.shape == a[3].shape]
        if not any(torch.equal(tensor, a[3]) for tensor in inner):
            yield a[:2], b[:2]


def _swapped_halves_reversed() -> Mapping[str, Handler]:
    def split(call: FunctionCall) -> Any:
        parts = call.run()
        same = len(parts) == 2 and parts[0].shape == parts[1].shape
        return tuple(reversed(parts)) if same else parts

    def glu(call: FunctionCall) -> Any:
        axis = call.get(1, "dim", -1)
        return call.but(0, "input", torch.cat(call.args[0].chunk(2, axis)[::-1], axis)).run()

    return {"glu": glu, **dict.fromkeys(("chunk", "split", "unbind", "tensor_split"), split)}


def _halves(output: Array, _mine: Array) -> Array | None:
    size = output.shape[-1] if output.ndim else 1
    return np.roll(output, size // 2, -1) if size % 2 == 0 else None
