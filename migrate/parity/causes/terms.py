"""Terms and factors that one side has and the other has not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

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


class _ConstantFactorTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, similarity: torch.Tensor) -> torch.Tensor:
        return similarity * self.scale.exp()


class _ConstantFactorFaulty(_ConstantFactorTruth):
    def forward(self, similarity: torch.Tensor) -> torch.Tensor:
        return similarity * self.scale


class ConstantFactor(Pattern):
    """The output has a constant factor that the truth's has not.

    **What it is.** A temperature, a logit scale, a residual multiplier, a mean in the place of a sum: all
    of the output is the truth's times one number.

    **What to do.** Look for that number, its root, or its logarithm, among the configuration and the
    parameters.
    """

    name = "constant-factor"
    rank = 3
    examples = (
        FaultExample(
            _ConstantFactorTruth,
            lambda twin: loaded(_ConstantFactorFaulty(), twin),
            normal(4, 16),
            "constant factor",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the factor that fits best."""
        yield Variant(
            "{side}'s tensor is the truth's with a constant factor", adjust=_constant_factor_fitted
        )


def _constant_factor_fitted(output: Array, mine: Array) -> Array | None:
    if output.shape != mine.shape or output.size < 8 or not np.isfinite(mine).all():
        return None
    norm = float((output * output).sum())
    factor = float((output * mine).sum()) / norm if norm else 0.0
    return factor * output if factor > 0 else None


class _EmbeddingScaleTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embed(ids) * 16**0.5)


class _EmbeddingScaleFaulty(_EmbeddingScaleTruth):
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
    examples = (
        FaultExample(
            _EmbeddingScaleTruth,
            lambda twin: loaded(_EmbeddingScaleFaulty(), twin),
            _inputs,
            "does not multiply",
            layer="norm",
            locally=False,
        ),
        FaultExample(
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


def _by_root(output: Array, _mine: Array) -> Array | None:
    return output * math.sqrt(output.shape[-1]) if output.ndim == 3 else None


class _InputNormalizationTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        mean = torch.tensor([0.485, 0.456, 0.406], dtype=image.dtype)
        std = torch.tensor([0.229, 0.224, 0.225], dtype=image.dtype)
        return self.conv((image - mean[:, None, None]) / std[:, None, None])


class _InputNormalizationFaulty(_InputNormalizationTruth):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.conv(2 * image - 1)


class InputNormalization(Pattern):
    """An image that is normalized otherwise.

    **What it is.** One model takes 0 to 255, another 0 to 1, -1 to 1, or ImageNet's mean and deviation
    taken off. What a side gives its first layer is then, channel by channel, a multiple of what the truth
    gives, plus a number.

    **What to do.** Take the preprocessing that the weights were trained with: `mean`, `std` and
    `rescale_factor` of the image processor's configuration.
    """

    name = "input-normalization"
    rank = 2
    examples = (
        FaultExample(
            _InputNormalizationTruth,
            lambda twin: loaded(_InputNormalizationFaulty(), twin),
            normal(2, 3, 8, 8, scale=0.2, mean=0.5),
            "is normalized otherwise",
            layer="conv",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield an image whose channels have the factor and the offset that fit best."""
        for axis in (1, -1):
            text = "the image is normalized otherwise in {side}: each channel has a factor and an offset"
            yield Variant(
                f"{text} (axis {axis})", adjust=partial(_input_normalization_fitted, axis)
            )


def _input_normalization_fitted(axis: int, output: Array, mine: Array) -> Array | None:
    if (
        output.ndim not in (4, 5)
        or output.shape != mine.shape
        or output.shape[axis] not in (1, 3, 4)
    ):
        return None
    if output.size // output.shape[axis] < 32 or not np.isfinite(mine).all():
        return None
    x, y = (np.moveaxis(array, axis, 0).reshape(output.shape[axis], -1) for array in (output, mine))
    x_mean, y_mean = x.mean(1, keepdims=True), y.mean(1, keepdims=True)
    spread = ((x - x_mean) ** 2).sum(1, keepdims=True)
    factor = ((x - x_mean) * (y - y_mean)).sum(1, keepdims=True) / spread
    moved = np.moveaxis(output, axis, 0)
    fitted = factor * (x - x_mean) + y_mean
    return np.moveaxis(fitted.reshape(moved.shape), 0, axis)


class _MissingTermTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class _MissingTermFaulty(_MissingTermTruth):
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
    examples = (
        FaultExample(
            _MissingTermTruth,
            lambda twin: loaded(_MissingTermFaulty(), twin),
            normal(4, 8),
            "does not add argument 0",
        ),
        FaultExample(
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
    same = (
        name
        for name, tensor_known in known
        if tensor_known.shape == tensor.shape and torch.equal(tensor_known, tensor)
    )
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
