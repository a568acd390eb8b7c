"""Linear layers after a flattened convolution: torch flattens (C, H, W), a channels-last model (H, W, C).

The model runs without values (on the meta device, without allocation), with labels on every axis:
channels or space since the last convolution. If channels come before space in the input of a
Linear, a norm before it or a recurrent layer, its rows have another order in Flax.

The input is unknown, so common image sizes are tried. The sides of the flattened image are certain
if they do not depend on the input (an adaptive pool before it, or a single axis of space).
Otherwise they are those of a square input, and the row says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from itertools import islice
from typing import Any

from converters.copied import copied
from converters.layers.entry import Weights
from converters.layers.layout import Layout, Merge, Permute, Split, chain
from converters.mapping.axes import Axis, make_labels

UNKNOWN = (
    "its input is a flattened convolution: rows are not permuted, "
    "transpose back to NCHW before flattening in Flax"
)
MAYBE = UNKNOWN.replace("its input is", "its input may be").replace("rows", "if so, rows")
_BATCH = 2
_WORK = 6000  # maximum number of modules to run: large models try only the usual sides
_USUAL = (224, 32, 28, 64, 96, 128, 256, 84)
_LARGER = (112, 144, 150, 160, 192, 200, 227, 240, 299, 300, 320, 384, 416, 448, 512, 1024)


@dataclass(frozen=True)
class Flattened:
    """Flattened input of a layer.

    Attributes:
        sides: the sizes of the flattened axes in torch's order, channels first.
        order: the same axes in Flax's order, channels last; empty if the sides are unknown.
        note: a note for the user.
    """

    sides: tuple[int, ...]
    order: tuple[int, ...]
    note: str

    def apply(self, module: Any, weights: Weights) -> Weights:
        """Return the layer's weights, with those reordered that are applied to this input."""
        return tuple(
            replace(weight, layout=chain([weight.layout, self._layout(weight.layout)]))
            if self.order and concerns(module, weight.torch)
            else weight
            for weight in weights
        )

    def _layout(self, before: Layout) -> Layout:
        """Return the layout that reorders axis 0 of a Flax array; its rank follows from the layout
        before it."""
        moved = tuple(self.sides[axis] for axis in self.order)
        behind = (len(self.sides),) if isinstance(before, Permute) else ()
        return chain([Split(0, self.sides), Permute((*self.order, *behind)), Merge(0, moved)])


def flattened_inputs(
    model: Any, example: Sequence[tuple[int, ...]] | None = None
) -> dict[str, Flattened]:
    """Return name of a layer → its flattened input, for the layers where it matters.

    Args:
        model: the `nn.Module`, on any device; it is neither changed nor run on its values.
        example: the shapes of its inputs, with a batch; None to try common image sizes.

    Returns:
        Only Linear, BatchNorm1d, LayerNorm and recurrent modules. If the model runs with no tried
        input, or the labels were lost, the layers found by the module tree alone, without an order.
    """
    from torch import nn

    convolutions: list[Any] = [
        module for module in model.modules() if isinstance(module, _convolutions())
    ]
    behind = (nn.Linear, nn.RNNBase)
    if not convolutions or not any(isinstance(module, behind) for module in model.modules()):
        return {}
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        return {}
    if example is not None:
        try:
            inputs = _trace(_without_values(model), example)
        except _NotAnImageError:
            inputs = None
        return _suspects(model) if inputs is None else inputs
    suspects = _suspects(model)
    first = convolutions[0]
    blank = None
    tries = max(len(_USUAL), _WORK // len(list(model.modules()))) if suspects else len(_USUAL)
    for sides in islice(_inputs(len(first.kernel_size)), tries):
        try:
            blank = blank or _without_values(model)
            inputs = _trace(blank, [(_BATCH, first.in_channels, *sides)])
        except _NotAnImageError:
            return suspects
        if inputs is not None:
            return _with_assumption(blank, inputs, first.in_channels, sides)
    return suspects


def concerns(module: Any, name: str) -> bool:
    """Whether this tensor of a layer has the axis of the layer's input."""
    from torch import nn

    name = name.removeprefix("parametrizations.")
    if isinstance(module, nn.Linear):  # weight_v and similar tensors replace it
        return name.startswith("weight")
    if isinstance(module, nn.RNNBase):
        return name.startswith("weight_ih_l0")
    return isinstance(module, (nn.BatchNorm1d, nn.LayerNorm)) and name != "num_batches_tracked"


class _NotAnImageError(Exception):
    """The model expects something other than one image: other sides would not help."""


def _with_assumption(
    model: Any, inputs: dict[str, Flattened], channels: int, sides: tuple[int, ...]
) -> dict[str, Flattened]:
    """Return the inputs with a note about the assumed sides."""
    other = None
    if inputs and len(sides) > 1:
        longer = tuple(side + 32 * (1 + axis) for axis, side in enumerate(sides))
        try:
            other = _trace(model, [(_BATCH, channels, *longer)])
        except _NotAnImageError:
            other = None
    noted = {}
    for name, flattened in inputs.items():
        certain = len(flattened.sides) <= 2 or (other is not None and other.get(name) == flattened)
        note = flattened.note
        if not certain and flattened.order:
            shown = " x ".join(map(str, sides))
            note += f" (assumed: inputs of {shown})"
        noted[name] = Flattened(flattened.sides, flattened.order, note)
    return noted


def _inputs(rank: int) -> Iterator[tuple[int, ...]]:
    """Yield sides to try: all equal, common ones first."""
    every = (*_USUAL, *range(1, 129), *_LARGER)
    if rank == 1:
        every = (*_USUAL, *range(1, 1025))
    if rank == 3:
        every = (*_USUAL[1:5], *range(1, 65))
    yield from ((side,) * rank for side in dict.fromkeys(every))


def _convolutions() -> Any:
    from torch import nn

    return (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _suspects(model: Any) -> dict[str, Flattened]:
    """Return the layers found by the module tree: a Linear directly after a Flatten, or one as wide as
    several positions of the preceding convolution."""
    from torch import nn

    suspects: dict[str, Flattened] = {}
    channels = 0
    flatten = False
    for name, module in model.named_modules():
        if isinstance(module, _convolutions()):
            channels, flatten = module.out_channels, False
        elif isinstance(module, nn.Flatten):
            flatten = channels > 0
        elif isinstance(module, nn.Linear) and channels:
            if module.in_features > channels and module.in_features % channels == 0:
                suspects[name] = Flattened((), (), UNKNOWN if flatten else MAYBE)
            channels = 0
    return suspects


def _without_values(model: Any) -> Any:
    """Return a copy of the model on the meta device, for inference; no tensor is copied."""
    import torch

    memo: dict[int, Any] = {}

    def empty(tensor: Any) -> Any:
        result = torch.empty_like(tensor, device="meta", requires_grad=False)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(result, requires_grad=False) if is_parameter else result

    for module in model.modules():
        plain = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
        direct = (*module._parameters.values(), *module._buffers.values(), *plain)
        memo |= {id(tensor): empty(tensor) for tensor in direct if tensor is not None}
    try:
        return copied(model, memo).eval()
    except Exception as error:  # a user's module may hold objects that cannot be copied
        raise _NotAnImageError from error


def _trace(model: Any, shapes: Sequence[tuple[int, ...]]) -> dict[str, Flattened] | None:
    """Run the model on the meta device. Return None if these shapes do not fit.

    Raises:
        _NotAnImageError: the model cannot run with images of any size.
    """
    import torch

    seen: dict[str, set[Axis]] = {}
    labels = make_labels()
    hooks = [
        module.register_forward_pre_hook(_Watch(name, seen, labels))
        for name, module in model.named_modules()
        if concerns(module, "weight") or isinstance(module, torch.nn.RNNBase)
    ]
    try:
        # Output and warnings of the user's forward belong to real runs, not to a plan.
        with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            with torch.device("meta"), labels:
                model(*(torch.empty(shape) for shape in shapes))
    except NotImplementedError as error:  # a bare module tree, as built by an inference
        raise _NotAnImageError from error
    except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError):
        return None  # of another size
    except Exception as error:  # the user's own code may raise anything
        raise _NotAnImageError from error
    finally:
        for hook in hooks:
            hook.remove()
    lost = {
        name: flattened for name, flattened in _suspects(model).items() if () in seen.get(name, ())
    }
    return lost | dict(_flattened(seen))


@dataclass(frozen=True)
class _Watch:
    """Hook that records the factors of the axis that a layer is applied to."""

    name: str
    seen: dict[str, set[Axis]]
    labels: Any

    def __call__(self, module: Any, inputs: tuple[Any, ...]) -> None:
        import torch

        if not inputs or not isinstance(inputs[0], torch.Tensor):
            return
        (x, *_) = inputs
        axes = self.labels.of(x)
        axis = 1 if isinstance(module, torch.nn.BatchNorm1d) else -1
        if isinstance(module, torch.nn.LayerNorm) and len(module.normalized_shape) != 1:
            return
        self.seen.setdefault(self.name, set()).add(axes[axis] if axes else ())


def _flattened(seen: dict[str, set[Axis]]) -> Iterator[tuple[str, Flattened]]:
    for name, axes in seen.items():
        orders = {axis: _order(axis) for axis in axes}
        if not any(orders.values()):
            continue
        if len(axes) > 1:
            note = "it is used on several inputs, flattened in different ways: rows not permuted"
            yield name, Flattened((), (), note)
            continue
        (axis,) = axes
        sides, order = tuple(side for _, side in axis), orders[axis]
        moved = tuple(sides[place] for place in order)
        note = f"rows permuted: torch flattens {sides}, Flax {moved}"
        yield name, Flattened(sides, order, note)


def _order(axis: Axis) -> tuple[int, ...]:
    """Return Flax's order of the factors of an axis; () if it is torch's order."""
    places = [place for place, (label, side) in enumerate(axis) if label == "C"]
    if len(places) != 1 or any(label == "N" for label, _ in axis):
        return ()
    (channels,) = places
    after = [side for label, side in axis[channels + 1 :]]
    if axis[channels][1] == 1 or math.prod(after) == 1:
        return ()
    return (*(place for place in range(len(axis)) if place != channels), channels)
