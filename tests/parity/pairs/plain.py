"""Perceptrons, norms and plain functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen, nnx
from torch import nn

from tests.parity.pairs.pair import Fault, Pair, blank, normal


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, 13)
        self.fc2 = nn.Linear(13, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(self.fc1(x)))


class LinenMlp(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        narrow = jnp.bfloat16 if self.fault == "bf16-layer" else None
        x = linen.Dense(13, dtype=narrow, name="fc1")(x)
        x = linen.leaky_relu(x) if self.fault == "leaky-relu" else linen.relu(x)
        return linen.Dense(5, name="fc2")(x)


MLP = Pair(
    "mlp",
    "linen",
    Mlp,
    LinenMlp,
    lambda g: {"x": normal(g, 3, 7)},
    faults=(
        Fault(
            "bf16-layer",
            "a layer keeps dtype=bfloat16 from the training on TPUs",
            "fc1",
            "low-precision-layer",
        ),
        Fault("leaky-relu", "leaky_relu in the place of relu", "", "activation"),
    ),
)


class GeluBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(9, 14)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(14, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class MlpGelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 9)
        self.block = GeluBlock()
        self.head = nn.Linear(9, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(x + self.block(x))


class NnxGeluBlock(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(9, 14, rngs=rngs)
        self.drop = nnx.Dropout(0.1, deterministic=True)  # torch's model calls F.dropout, or none
        self.fc2 = nnx.Linear(14, 9, rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        x = nnx.gelu(self.fc1(x), approximate=self.fault == "gelu-tanh")
        return self.fc2(self.drop(x))


class NnxMlpGelu(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Linear(6, 9, rngs=rngs)
        self.block = NnxGeluBlock(fault, rngs)
        self.head = nnx.Linear(9, 4, rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        x = self.stem(x)
        if self.fault == "missing-residual":
            return self.head(self.block(x))
        return self.head(x + self.block(x))


MLP_GELU = Pair(
    "mlp_gelu",
    "nnx",
    MlpGelu,
    lambda fault: blank(NnxMlpGelu, fault),
    lambda g: {"x": normal(g, 4, 6)},
    faults=(
        Fault(
            "gelu-tanh",
            "jax's gelu is the tanh form by default, torch's the exact one",
            "block.act",
            "gelu-form",
        ),
        Fault("missing-residual", "the residual connection was forgotten", "", "missing-term"),
    ),
)


class SquareBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.fc(self.norm(x)))


class LayerNormMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 8)
        self.block = SquareBlock()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.stem(x)))


class OutsideRoot(linen.Module):
    """A LayerNorm written out, the epsilon added to the deviation."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", linen.initializers.ones, x.shape[-1:])
        bias = self.param("bias", linen.initializers.zeros, x.shape[-1:])
        centered = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt((centered**2).mean(-1, keepdims=True))
        return centered / (deviation + 1e-5) * scale + bias


class LinenSquareBlock(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        if self.fault == "eps-outside-root":
            y = OutsideRoot(name="norm")(x)
        else:
            y = linen.LayerNorm(
                epsilon=1e-6 if self.fault == "layernorm-eps" else 1e-5,
                use_fast_variance=self.fault == "fast-variance",
                name="norm",
            )(x)
        return x + jnp.tanh(linen.Dense(8, name="fc")(y))


class LinenLayerNormMlp(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(8, name="stem")(x)
        x = LinenSquareBlock(self.fault, name="block")(x)
        return linen.Dense(3, name="head")(x)


def transpose_square(weights: dict[str, Any]) -> None:
    weights["params/block/fc/kernel"] = weights["params/block/fc/kernel"].T


LAYERNORM_MLP = Pair(
    "layernorm_mlp",
    "linen",
    LayerNormMlp,
    LinenLayerNormMlp,
    lambda g: {"x": normal(g, 6, 5, scale=0.4)},
    faults=(
        Fault(
            "layernorm-eps",
            "Flax's LayerNorm has 1e-6 by default, torch's 1e-5",
            "block.norm",
            "norm-eps",
        ),
        Fault(
            "eps-outside-root",
            "a LayerNorm written out divides by (deviation + eps)",
            "block.norm",
            "eps-place",
        ),
        Fault(
            "transposed-kernel",
            "the weight of a square Linear was copied without transposing it",
            "block.fc",
            "kernel-transposed",
            spoil=transpose_square,
        ),
    ),
)


class Centered(nn.Module):
    """A LayerNorm on raw measurements, whose mean is far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(10)
        self.fc = nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x))


class LinenCentered(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        fast = self.fault == "fast-variance"
        x = linen.LayerNorm(epsilon=1e-5, use_fast_variance=fast, name="norm")(x)
        return linen.Dense(4, name="fc")(x)


LARGE_MEAN = Pair(
    "large_mean",
    "linen",
    Centered,
    LinenCentered,
    lambda g: {"x": 80 + normal(g, 5, 10)},
    faults=(
        Fault(
            "fast-variance",
            "Flax computes the variance as E[x²] - E[x]² by default, which cancels",
            "norm",
            "fast-variance",
        ),
    ),
)


class MlpTanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 11)
        self.fc2 = nn.Linear(11, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.tanh(self.fc1(x)))


def jax_mlp(fault: str) -> Any:
    def apply(params: Any, x: Any) -> Any:
        x = jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
        x = x @ params["fc2"]["kernel"]
        return x if fault == "bias-missing" else x + params["fc2"]["bias"]

    return apply


JAX_MLP = Pair(
    "jax_mlp",
    "jax",
    MlpTanh,
    jax_mlp,
    lambda g: {"x": normal(g, 3, 6)},
    faults=(Fault("bias-missing", "the last bias was not added", "", "missing-bias"),),
)


class SoftmaxPool(nn.Module):
    """Attention pooling: weights over the sequence, then the mean by them."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(6, 3)
        self.value = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (F.softmax(self.score(x), dim=1) * self.value(x)).sum(1)


def jax_softmax_pool(fault: str) -> Any:
    def apply(params: Any, x: Any) -> Any:
        score = x @ params["score"]["kernel"] + params["score"]["bias"]
        value = x @ params["value"]["kernel"] + params["value"]["bias"]
        weights = jax.nn.softmax(score, axis=-1 if fault == "softmax-axis" else 1)
        return (weights * value).sum(1)

    return apply


JAX_POOL = Pair(
    "jax_softmax_pool",
    "jax",
    SoftmaxPool,
    jax_softmax_pool,
    lambda g: {"x": normal(g, 2, 7, 6)},
    faults=(
        Fault("softmax-axis", "jax.nn.softmax over its default, the last axis", "", "softmax-axis"),
    ),
)


class DropoutMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 12)
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(F.silu(self.fc1(x))))


class NnxDropoutMlp(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(8, 12, rngs=rngs)
        self.drop = nnx.Dropout(0.1, deterministic=True, rngs=rngs)
        self.fc2 = nnx.Linear(12, 5, rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        x = self.fc1(x)
        x = nnx.gelu(x) if self.fault == "gelu-for-silu" else nnx.silu(x)
        if self.fault == "dropout-on":
            kept = jax.random.bernoulli(jax.random.key(0), 0.9, x.shape)
            return self.fc2(jnp.where(kept, x / jnp.asarray(0.9, x.dtype), 0))
        return self.fc2(self.drop(x))


DROPOUT_MLP = Pair(
    "dropout_mlp",
    "nnx",
    DropoutMlp,
    lambda fault: blank(NnxDropoutMlp, fault),
    lambda g: {"x": normal(g, 3, 8)},
    faults=(
        Fault("dropout-on", "dropout written out with a key, without a switch", "", "dropout-on"),
        Fault("gelu-for-silu", "gelu in the place of silu", "", "activation"),
    ),
)


class MeanMlp(nn.Module):
    """A mean over many positions, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.fc(x).sigmoid().mean(1))


class LinenMeanMlp(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.sigmoid(linen.Dense(4 + 2, name="fc")(x))
        if self.fault == "bf16-accumulation":
            narrow = x.astype(jnp.bfloat16)
            total = jax.lax.reduce(narrow, jnp.bfloat16(0), jax.lax.add, (1,))
            x = (total / x.shape[1]).astype(x.dtype)
        else:
            x = x.mean(1)
        return linen.Dense(3, name="out")(x)


MEAN_MLP = Pair(
    "mean_mlp",
    "linen",
    MeanMlp,
    LinenMeanMlp,
    lambda g: {"x": normal(g, 2, 50, 4)},
    faults=(
        Fault(
            "bf16-accumulation",
            "a sum over the sequence is kept in bfloat16",
            "",
            "low-precision-layer",
        ),
    ),
)

PAIRS = (
    MLP,
    MLP_GELU,
    LAYERNORM_MLP,
    LARGE_MEAN,
    JAX_MLP,
    JAX_POOL,
    DROPOUT_MLP,
    MEAN_MLP,
)
