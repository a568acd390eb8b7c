"""A layer is given another tensor of the model: norms before or after, blocks in another order."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.fc1(self.norm(x))
        return x + self.fc2(x)


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.fc1(x))
        return x + self.fc2(x)


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
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(4, 8),
            "has the truth's argument 0 in what fc1 is given",
            layer="fc1",
            locally=False,
        ),
        Example(
            _Sequence,
            lambda twin: loaded(_Reversed(), twin),
            normal(4, 8),
            "has the truth's second in what first is given",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each tensor that is there in the place of what is seen."""
        for name, tensor in scene.tensors():
            if tensor.is_floating_point() and tensor.numel() > 1:
                yield Variant(
                    f"{{side}} has the truth's {name} {{where}}", adjust=partial(_taken, tensor)
                )


def _taken(tensor: torch.Tensor, given: Array, _mine: Array) -> Array | None:
    array: Array = tensor.detach().numpy()
    return array if array.shape == given.shape else None
