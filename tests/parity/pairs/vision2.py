"""Larger pictures of vision: U-Net, ConvNeXt, ViT, mixer, and gated convolutions of one axis."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen, nnx
from torch import nn

from tests.parity.pairs.pair import Fault, Pair, blank, normal

ONE = ((1, 1), (1, 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(6, 4, 3, padding=1)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = F.relu(self.enter(x))
        low = F.relu(self.middle(F.relu(self.down(high))))
        low = F.interpolate(low, size=high.shape[2:], mode="bilinear", align_corners=False)
        return self.out(torch.cat([low, high], 1))


def corners_aligned(x: Any, height: int, width: int) -> Any:
    """Bilinear, the corners' centres on each other."""
    scale = jnp.asarray([(height - 1) / (x.shape[1] - 1), (width - 1) / (x.shape[2] - 1)])
    shift = 0.5 * (1 - scale)
    shape = (x.shape[0], height, width, x.shape[3])
    return jax.image.scale_and_translate(
        x, shape, (1, 2), scale, shift, method="linear", antialias=False
    )


class LinenUNet(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        high = linen.relu(linen.Conv(4, (3, 3), padding=ONE, name="enter")(x))
        same = "SAME" if self.fault == "padding-same" else ONE
        low = linen.Conv(6, (3, 3), strides=2, padding=same, name="down")(high)
        low = linen.relu(linen.Conv(4, (3, 3), padding=ONE, name="middle")(linen.relu(low)))
        batch, height, width, _ = high.shape
        if self.fault == "align-corners":
            low = corners_aligned(low, height, width).astype(high.dtype)
        else:
            low = jax.image.resize(low, (batch, height, width, 4), "bilinear")
        parts = [high, low] if self.fault == "concat-order" else [low, high]
        return linen.Conv(3, (3, 3), padding=ONE, name="out")(jnp.concatenate(parts, -1))


UNET = Pair(
    "unet_mini",
    "linen",
    UNet,
    LinenUNet,
    lambda g: {"x": normal(g, 2, 2, 8, 12)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(
        Fault(
            "align-corners", "resized with the corners aligned, as old torch did", "", "resize-form"
        ),
        Fault("concat-order", "the skip is put first", "", "concat-order"),
        Fault(
            "padding-same", "SAME with a stride of 2, as Flax examples have", "down", "padding-same"
        ),
    ),
)


class ConvNextBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(6, 6, 7, padding=3, groups=6)
        self.norm = nn.LayerNorm(6, eps=1e-6)
        self.pwconv1 = nn.Linear(6, 24)
        self.pwconv2 = nn.Linear(24, 6)
        self.gamma = nn.Parameter(0.5 * torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 2, stride=2)
        self.blocks = nn.ModuleList([ConvNextBlock(), ConvNextBlock()])
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class NnxConvNextBlock(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        self.dwconv = nnx.Conv(
            6, 6, (7, 7), padding=((3, 3), (3, 3)), feature_group_count=6, rngs=rngs
        )
        self.norm = nnx.LayerNorm(6, epsilon=1e-6, use_fast_variance=False, rngs=rngs)
        self.pwconv1 = nnx.Linear(6, 24, rngs=rngs)
        self.pwconv2 = nnx.Linear(24, 6, rngs=rngs)
        self.gamma = nnx.Param(jnp.ones(6))
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        y = self.pwconv1(self.norm(self.dwconv(x)))
        y = self.pwconv2(nnx.gelu(y, approximate=self.fault == "gelu-tanh"))
        return x + (y if self.fault == "layer-scale-missing" else self.gamma[...] * y)


class NnxConvNext(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 6, (2, 2), strides=2, padding="VALID", rngs=rngs)
        self.blocks = nnx.List([NnxConvNextBlock("", rngs), NnxConvNextBlock(fault, rngs)])
        self.head = nnx.Linear(6, 5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


CONVNEXT = Pair(
    "convnext_mini",
    "nnx",
    ConvNext,
    lambda fault: blank(NnxConvNext, fault),
    lambda g: {"x": normal(g, 2, 3, 10, 8)},
    channels_last=("x",),
    faults=(
        Fault("gelu-tanh", "jax's gelu in its default form, in one block", "blocks.1", "gelu-form"),
        Fault(
            "layer-scale-missing",
            "the learned scale of the branch is not used",
            "blocks.1",
            "missing-scale",
        ),
    ),
)


class VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 20)
        self.fc2 = nn.Linear(20, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls = nn.Parameter(0.5 * torch.randn(1, 1, 8))
        self.position = nn.Parameter(0.5 * torch.randn(1, 7, 8))
        self.blocks = nn.ModuleList([VitBlock(), VitBlock()])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class NnxVitBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, eps: float = 1e-5) -> None:
        self.norm1 = nnx.LayerNorm(8, epsilon=eps, use_fast_variance=False, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm2 = nnx.LayerNorm(8, epsilon=eps, use_fast_variance=False, rngs=rngs)
        self.fc1 = nnx.Linear(8, 20, rngs=rngs)
        self.fc2 = nnx.Linear(20, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(nnx.gelu(self.fc1(self.norm2(x)), approximate=False))


class NnxVit(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.patch = nnx.Conv(3, 8, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.cls = nnx.Param(jnp.zeros((1, 1, 8)))
        self.position = nnx.Param(jnp.zeros((1, 7, 8)))
        self.blocks = nnx.List([NnxVitBlock(rngs), NnxVitBlock(rngs)])
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.head = nnx.Linear(8, 5, rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        x = self.patch(x)
        if self.fault == "patch-order":
            x = x.transpose(0, 2, 1, 3)
        x = x.reshape(len(x), -1, 8)
        x = jnp.concatenate([jnp.broadcast_to(self.cls[...], (len(x), 1, 8)), x], 1)
        x = x + self.position[...]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self.fault == "mean-pooling" else x[:, 0])


VIT = Pair(
    "vit_mini",
    "nnx",
    Vit,
    lambda fault: blank(NnxVit, fault),
    lambda g: {"x": normal(g, 2, 3, 8, 12)},
    channels_last=("x",),
    faults=(
        Fault(
            "mean-pooling",
            "the head reads the mean of the patches, not the class token",
            "",
            "token-pooling",
        ),
        Fault("patch-order", "patches are counted column by column", "", "flatten-order"),
    ),
)


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(7)
        self.token1 = nn.Linear(6, 9)
        self.token2 = nn.Linear(9, 6)
        self.norm2 = nn.LayerNorm(7)
        self.channel1 = nn.Linear(7, 10)
        self.channel2 = nn.Linear(10, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.token2(F.gelu(self.token1(y))).transpose(1, 2)
        return x + self.channel2(F.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 7)
        self.blocks = nn.Sequential(MixerBlock(), MixerBlock())
        self.head = nn.Linear(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(1))


class LinenMixerBlock(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        def norm(name: str) -> Any:
            return linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name=name)

        y = linen.Dense(9, name="token1")(norm("norm1")(x).swapaxes(1, 2))
        y = linen.Dense(6, name="token2")(linen.gelu(y, approximate=False)).swapaxes(1, 2)
        second = norm("norm2")
        if self.fault == "parallel-branches":  # the second branch from before the first
            x, z = x + y, second(x)
        else:
            x = x + y
            z = second(x)
        z = linen.Dense(10, name="channel1")(z)
        return x + linen.Dense(7, name="channel2")(linen.gelu(z, approximate=False))


class LinenMixer(linen.Module):
    fault: str = ""

    def setup(self) -> None:
        self.stem = linen.Dense(7)
        self.blocks = linen.Sequential([LinenMixerBlock(), LinenMixerBlock(self.fault)])
        self.head = linen.Dense(4)

    def __call__(self, x: Any) -> Any:
        return self.head(self.blocks(self.stem(x)).mean(1))


MIXER = Pair(
    "mixer",
    "linen",
    Mixer,
    LinenMixer,
    lambda g: {"x": normal(g, 2, 6, 5)},
    faults=(
        Fault(
            "parallel-branches",
            "both branches read the block's input, as in GPT-J",
            "blocks.1",
            "missing-term",
        ),
    ),
)


class GatedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 12, 3, padding=2, dilation=2)
        self.out = nn.Conv1d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.glu(self.conv(x), 1))


class NnxGatedConv(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        dilation = 1 if fault == "dilation-missing" else 2
        self.conv = nnx.Conv(
            5, 12, (3,), padding=((dilation, dilation),), kernel_dilation=dilation, rngs=rngs
        )
        self.out = nnx.Conv(6, 4, (1,), rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        value, gate = jnp.split(self.conv(x), 2, -1)
        if self.fault == "glu-halves":
            value, gate = gate, value
        return self.out(value * nnx.sigmoid(gate))


GATED = Pair(
    "gated_conv",
    "nnx",
    GatedConv,
    lambda fault: blank(NnxGatedConv, fault),
    lambda g: {"x": normal(g, 2, 5, 11)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(
        Fault("glu-halves", "the gate is taken from the first half", "", "swapped-halves"),
        Fault("dilation-missing", "the dilation was forgotten", "conv", "dilation"),
    ),
)

PAIRS = (UNET, CONVNEXT, VIT, MIXER, GATED)
