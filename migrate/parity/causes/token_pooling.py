"""Another token, or the mean, is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, 0])


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean(1))


_READ: dict[str, Callable[[Any], Any]] = {
    "the first": lambda x: x[:, 0],
    "the last": lambda x: x[:, -1],
    "the mean": lambda x: x.mean(1),
    "the mean without the first": lambda x: x[:, 1:].mean(1),
    "the sum": lambda x: x.sum(1),
    "the largest": lambda x: x.amax(1),
}


class TokenPooling(Pattern):
    """Another token is read, or the mean of them.

    **What it is.** The head reads the class token, the last token, the state after the last step, or the
    mean: by the shape all are alike. (A mean that counts padding is mask-ignored.)

    **What to do.** Take what the weights were trained with: `global_pool` in timm, `pooling_mode` in
    sentence-transformers, `summary_type` in GPT-2.
    """

    name = "token-pooling"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            normal(2, 5, 8),
            "reads the mean along axis 1",
            layer="head",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each way in the place of `x[:, n]` and of a mean over axis 1."""
        for words, read in _READ.items():
            for where, change in scene.replaced(partial(_handlers, read)):
                yield Variant(
                    f"{{side}} reads {words} along axis 1, the truth does not{where}", change
                )


def _handlers(read: Callable[[Any], Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        value = call.run()
        x = call.args[0]
        pools = torch.is_tensor(value) and x.ndim >= 3 and value.shape == x.shape[:1] + x.shape[2:]
        return read(x) if pools else value

    return dict.fromkeys(("getitem", "select", "mean", "sum", "amax"), handle)
