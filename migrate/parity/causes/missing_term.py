"""A residual connection, or another term of a sum, that is not added."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class _Faulty(_Truth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x))


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds, self.norm = nn.Embedding(9, 8), nn.Embedding(2, 8), nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(ids) + self.kinds(torch.zeros_like(ids)))


class _WordsOnly(_Embeddings):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.kinds(torch.zeros_like(ids))
        return self.norm(self.words(ids))


def _ids() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 9, (2, 5)),)


class MissingTerm(Pattern):
    """A residual connection, or another term of a sum, is not added.

    **What it is.** The shortcut around a block was forgotten, or the embedding of token types or
    positions: one of the two sides of a `+` is missing.

    **What to do.** Add it. The sentence says what is missing, by the layer that gives it.
    """

    name = "missing-term"
    rank = 0
    examples = (
        Example(
            _Truth, lambda twin: loaded(_Faulty(), twin), normal(4, 8), "does not add argument 0"
        ),
        Example(
            _Embeddings,
            lambda twin: loaded(_WordsOnly(), twin),
            _ids,
            "does not add kinds",
            layer="norm",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each sum with one of its two sides alone."""
        known = list(scene.tensors())
        for number, call in enumerate(scene.calls("add")):
            for kept in (0, 1):
                dropped = call.get(1 - kept, "other")
                if not torch.is_tensor(dropped) or not dropped.is_floating_point():
                    continue
                what = _word(dropped, known)
                change = partial(_only, scene, number, kept)
                yield Variant(f"{{side}} does not add {what} (sum {number + 1})", change)


def _word(tensor: torch.Tensor, known: list[tuple[str, torch.Tensor]]) -> str:
    same = (name for name, one in known if one.shape == tensor.shape and torch.equal(one, tensor))
    return next(same, "one side of the sum")


def _only(scene: Scene, number: int, kept: int) -> Any:
    seen = iter(range(1 << 30))

    def handle(call: FunctionCall) -> Any:
        if next(seen) != number:
            return call.run()
        shape = torch.broadcast_shapes(call.args[0].shape, call.args[1].shape)
        return call.get(kept, "other").expand(shape).clone()

    handlers: Mapping[str, Handler] = {"add": handle}
    return scene.intercepted(handlers)
