"""A layer is given another tensor of the model: norms before or after, blocks in another order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import combinations, islice

import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_MOST = 200  # sums


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
        Example(
            _Sequence,
            lambda twin: loaded(_Reversed(), twin),
            normal(4, 8),
            "has the truth's second in what first is given",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each tensor, and each sum of two, in the place of what is seen."""
        known = {
            name: tensor.detach().numpy()
            for name, tensor in scene.tensors()
            if tensor.is_floating_point() and tensor.numel() > 1
        }
        for name, array in known.items():
            yield Variant(
                f"{{side}} has the truth's {name} {{where}}", adjust=partial(_taken, array, None)
            )
        for (a, one), (b, other) in islice(combinations(known.items(), 2), _MOST):
            if one.shape == other.shape:
                yield Variant(
                    f"{{side}} has the sum of the truth's {a} and {b} {{where}}",
                    adjust=partial(_taken, one, other),
                )


def _taken(array: Array, added: Array | None, given: Array, _mine: Array) -> Array | None:
    if array.shape != given.shape:
        return None
    return array if added is None else array + added
