"""Convolution nets: torch has channels first, the ports channels last."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
import torch.nn.functional as F  # noqa: N812
from flax import linen, nnx
from torch import nn

from tests.parity.pairs.pair import Fault, Pair, blank, normal


class ConvBn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, (3, 2))
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class LinenConvBn(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        eps = 1e-3 if self.fault == "batchnorm-eps" else 1e-5
        x = linen.Conv(6, (3, 3), padding=((1, 1), (1, 1)), name="conv1")(x)
        if self.fault == "batchnorm-training":
            x = linen.BatchNorm(use_running_average=False, epsilon=1e-5, name="bn1")(x)
        else:
            x = linen.BatchNorm(use_running_average=True, epsilon=eps, name="bn1")(x)
        x = linen.max_pool(linen.relu(x), (2, 2), strides=(2, 2))
        x = linen.Conv(8, (3, 2), padding="VALID", name="conv2")(x)
        x = linen.relu(linen.BatchNorm(use_running_average=True, epsilon=eps, name="bn2")(x))
        if self.fault == "flatten-order":
            x = x.transpose(0, 3, 1, 2)
        return linen.Dense(5, name="fc")(x.reshape(len(x), -1))


CONV_BN = Pair(
    "conv_bn",
    "linen",
    ConvBn,
    LinenConvBn,
    lambda g: {"x": normal(g, 4, 3, 8, 6)},
    channels_last=("x",),
    options={"example": [(1, 3, 8, 6)]},
    faults=(
        Fault(
            "batchnorm-training",
            "use_running_average=False is left from training",
            "bn1",
            "batch-statistics",
        ),
        Fault("batchnorm-eps", "the epsilon of Keras and TF, 1e-3", "bn1", "norm-eps"),
        Fault(
            "flatten-order",
            "the image is turned to channels first before flattening, the rows of fc are not",
            "fc",
            "flatten-order",
        ),
    ),
)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.down = nn.Conv2d(4, 6, 1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNetMini(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.block = Residual()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.block(self.stem(x)).mean((2, 3)))


class NnxResidual(nnx.Module):
    def __init__(self, fault: str, rngs: nnx.Rngs) -> None:
        one: Any = ((1, 1), (1, 1))
        same = "SAME" if fault == "padding-same" else one
        self.conv1 = nnx.Conv(4, 6, (3, 3), strides=2, padding=same, use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(6, use_running_average=True, epsilon=1e-5, rngs=rngs)
        self.conv2 = nnx.Conv(6, 6, (3, 3), padding=one, use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(6, use_running_average=True, epsilon=1e-5, rngs=rngs)
        self.down = nnx.Conv(4, 6, (1, 1), strides=2, padding="VALID", rngs=rngs)
        self.fault = fault

    def __call__(self, x: Any) -> Any:
        y = nnx.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return nnx.relu(y if self.fault == "missing-residual" else y + self.down(x))


class NnxResNetMini(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(3, 4, (3, 3), padding=((1, 1), (1, 1)), rngs=rngs)
        self.block = NnxResidual(fault, rngs)
        self.fc = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.fc(self.block(self.stem(x)).mean((1, 2)))


RESNET = Pair(
    "resnet_mini",
    "nnx",
    ResNetMini,
    lambda fault: blank(NnxResNetMini, fault),
    lambda g: {"x": normal(g, 2, 3, 8, 6)},
    channels_last=("x",),
    faults=(
        Fault(
            "padding-same",
            "SAME with a stride of 2 pads at the end only, torch's padding=1 on both sides",
            "block.conv1",
            "padding-same",
        ),
        Fault("missing-residual", "the shortcut is computed, not added", "block", "missing-term"),
    ),
)


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, stride=(2, 1))
        self.depthwise = nn.Conv2d(6, 6, (5, 3), padding=(2, 1), groups=6)
        self.pointwise = nn.Conv2d(6, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(F.hardswish(self.depthwise(F.relu6(self.stem(x)))))


class LinenSeparable(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(6, (3, 3), strides=(2, 1), padding="VALID", name="stem")(x)
        x = linen.Conv(
            6, (5, 3), padding=((2, 2), (1, 1)), feature_group_count=6, name="depthwise"
        )(linen.relu6(x))
        x = linen.silu(x) if self.fault == "silu-for-hardswish" else linen.hard_swish(x)
        return linen.Conv(7, (1, 1), name="pointwise")(x)


SEPARABLE = Pair(
    "separable",
    "linen",
    Separable,
    LinenSeparable,
    lambda g: {"x": normal(g, 2, 2, 9, 7)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(Fault("silu-for-hardswish", "swish in the place of hardswish", "", "activation"),),
)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 1)
        self.up = nn.ConvTranspose2d(5, 4, (3, 4), stride=2, padding=(0, 1))
        self.out = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.up(self.stem(x))))


class LinenDecoder(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(5, (1, 1), name="stem")(x)
        x = linen.ConvTranspose(4, (3, 4), strides=(2, 2), padding=((2, 2), (2, 2)), name="up")(x)
        return linen.Conv(2, (3, 3), padding=((1, 1), (1, 1)), name="out")(jnp.tanh(x))


def unflip(weights: dict[str, Any]) -> None:
    weights["params/up/kernel"] = weights["params/up/kernel"][::-1, ::-1].copy()


DECODER = Pair(
    "decoder",
    "linen",
    Decoder,
    LinenDecoder,
    lambda g: {"x": normal(g, 2, 3, 4, 5)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(
        Fault(
            "unflipped-transpose",
            "the kernel of a transposed convolution was not flipped along space",
            "up",
            "kernel-flipped",
            spoil=unflip,
        ),
    ),
)


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3)
        self.avg = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.conv2 = nn.Conv2d(5, 6, 1)
        self.max = nn.MaxPool2d(3, 2, 1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.max(self.conv2(self.avg(self.conv1(x))) - 1.0)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class LinenPooling(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        one = ((1, 1), (1, 1))
        x = linen.Conv(5, (3, 3), padding="VALID", name="conv1")(x)
        counts = self.fault == "avgpool-counts-padding"
        x = linen.avg_pool(x, (3, 3), (2, 2), one, count_include_pad=counts)
        x = linen.Conv(6, (1, 1), name="conv2")(x) - 1.0
        if self.fault == "maxpool-zeros":
            x = jnp.pad(x, ((0, 0), *one, (0, 0)))
            x = linen.max_pool(x, (3, 3), (2, 2))
        else:
            x = linen.max_pool(x, (3, 3), (2, 2), one)
        return linen.Dense(4, name="fc")(x.mean((1, 2)))


POOLING = Pair(
    "pooling",
    "linen",
    Pooling,
    LinenPooling,
    lambda g: {"x": normal(g, 2, 3, 11, 9)},
    channels_last=("x",),
    faults=(
        Fault(
            "avgpool-counts-padding",
            "Flax's avg_pool counts the padding by default",
            "avg",
            "avg-pool-edge",
        ),
        Fault(
            "maxpool-zeros",
            "padded with jnp.pad's zeros before the max pool, torch pads with -inf",
            "",
            "max-pool-edge",
        ),
    ),
)


class Groups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 12, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)
        self.out = nn.Conv1d(12, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.silu(self.norm(self.conv(x))))


class NnxGroups(nnx.Module):
    def __init__(self, fault: str = "", *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(4, 12, (3,), padding=((1, 1),), rngs=rngs)
        self.norm = nnx.GroupNorm(
            12,
            num_groups=4 if fault == "groupnorm-groups" else 3,
            epsilon=1e-6 if fault == "groupnorm-eps" else 1e-5,
            use_fast_variance=False,
            rngs=rngs,
        )
        self.out = nnx.Conv(12, 5, (1,), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(nnx.silu(self.norm(self.conv(x))))


GROUPS = Pair(
    "group_norm",
    "nnx",
    Groups,
    lambda fault: blank(NnxGroups, fault),
    lambda g: {"x": normal(g, 3, 4, 10, scale=0.2)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(
        Fault(
            "groupnorm-eps",
            "Flax's GroupNorm has 1e-6 by default, torch's 1e-5",
            "norm",
            "norm-eps",
        ),
        Fault("groupnorm-groups", "another number of groups", "norm", "norm-groups"),
    ),
)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 3)
        self.fc2 = nn.Linear(3, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc2(F.relu(self.fc1(x.mean((2, 3)))))
        return x * torch.sigmoid(y)[:, :, None, None]


class SeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.se = SqueezeExcite()
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.se(self.conv(x)))


class LinenSqueezeExcite(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.relu(linen.Dense(3, name="fc1")(x.mean((1, 2))))
        y = linen.Dense(8, name="fc2")(y)
        gate = linen.hard_sigmoid(y) if self.fault == "hard-sigmoid" else linen.sigmoid(y)
        return x * gate[:, None, None, :]


class LinenSeNet(linen.Module):
    fault: str = ""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(8, (3, 3), padding=((1, 1), (1, 1)), name="conv")(x)
        x = LinenSqueezeExcite(self.fault, name="se")(x)
        return linen.Conv(2, (1, 1), name="out")(x)


SE = Pair(
    "squeeze_excite",
    "linen",
    SeNet,
    LinenSeNet,
    lambda g: {"x": normal(g, 2, 3, 6, 5)},
    channels_last=("x",),
    outputs_last=("",),
    faults=(Fault("hard-sigmoid", "the gate of MobileNetV3, not SENet's", "se", "activation"),),
)

PAIRS = (CONV_BN, RESNET, SEPARABLE, DECODER, POOLING, GROUPS, SE)
