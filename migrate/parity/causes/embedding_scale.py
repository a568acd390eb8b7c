"""Embeddings that are multiplied by √d, or not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded
from migrate.parity.causes.frame.scene import Scene


class _Truth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embed(ids) * 16**0.5)


class _Faulty(_Truth):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embed(ids))


def _plain() -> nn.Module:
    return nn.Embedding(20, 16)


class _Scaled(nn.Embedding):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 4.0


def _inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 20, (2, 7)),)


class EmbeddingScale(Pattern):
    """Embeddings that are multiplied by the root of their size, or not.

    **What it is.** The first transformer, Gemma, T5X and Marian multiply the embeddings by √d, BERT,
    GPT-2 and Llama do not. A norm right after it hides most of it.

    **What to do.** Multiply on both sides or on neither; in bfloat16 the factor itself is rounded
    (Gemma).
    """

    name = "embedding-scale"
    rank = 0
    examples = (
        Example(
            _Truth,
            lambda twin: loaded(_Faulty(), twin),
            _inputs,
            "does not multiply",
            layer="norm",
            locally=False,
        ),
        Example(
            _plain,
            lambda twin: loaded(_Scaled(20, 16), twin),
            _inputs,
            "multiplies the embeddings by √16",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield embeddings times √d, and factors of √d that are left out."""
        for size in sorted({call.get(1, "weight").shape[1] for call in scene.calls("embedding")}):
            text = f"{{side}} multiplies the embeddings by √{size}, the truth does not"
            for where, change in scene.replaced(partial(_times, math.sqrt(size))):
                yield Variant(text + where, change)
        sizes = {call.args[0].shape[-1] for call in scene.calls("mul") if _is_root(call)}
        for size in sorted(sizes):
            for where, change in scene.replaced(lambda: {"mul": _without}):
                yield Variant(
                    f"{{side}} does not multiply by √{size}, the truth does{where}", change
                )
        if any(isinstance(module, nn.Embedding) for module in scene.replay.inside.values()):
            yield Variant(
                "{side} multiplies the embeddings by √d, the truth does not", adjust=_by_root
            )


def _times(factor: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.run() * factor

    return {"embedding": handle}


def _is_root(call: FunctionCall) -> bool:
    other = call.get(1, "other")
    if torch.is_tensor(other) and other.ndim == 0:
        other = float(other)
    x = call.args[0]
    root = math.sqrt(x.shape[-1]) if torch.is_tensor(x) and x.ndim else 0.0
    return isinstance(other, float) and abs(other - root) < 0.01 * root


def _without(call: FunctionCall) -> Any:
    return call.args[0] if _is_root(call) else call.run()


def _by_root(given: Array, _mine: Array) -> Array | None:
    return given * math.sqrt(given.shape[-1]) if given.ndim == 3 else None
