"""Pooling: of windows, and of the tokens of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import FaultExample, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene

_AVG_POOL_EDGE_NAMES = ("avg_pool1d", "avg_pool2d", "avg_pool3d")


def _avg_pool_edge_truth() -> nn.Module:
    return nn.AvgPool2d(3, stride=2, padding=1)


def _avg_pool_edge_faulty(twin: nn.Module) -> nn.Module:
    twin.count_include_pad = False
    return twin


class AvgPoolEdge(Pattern):
    """Whether padded zeros count in an average pool.

    **What it is.** At the edges torch divides by the size of the window by default, padding included;
    TensorFlow divides by the number of real pixels. Flax's `avg_pool` has both, and includes them by
    default.

    **What to do.** `count_include_pad` says it, in both.
    """

    name = "avg-pool-edge"
    examples = (
        FaultExample(
            _avg_pool_edge_truth,
            _avg_pool_edge_faulty,
            normal(2, 3, 8, 8),
            "does not count padded zeros",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other way."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_AVG_POOL_EDGE_NAMES, _other)):
            does = all(
                call.get(5, "count_include_pad", True)
                for call in scene.calls(*_AVG_POOL_EDGE_NAMES)
            )
            words = "does not count padded zeros" if does else "counts padded zeros"
            yield Variant(f"{{side}} {words} in the average{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Describe the difference in the setting."""
        a, b = truth.get("count_include_pad"), side.get("count_include_pad")
        return (
            f"{{side}} has count_include_pad={b}, the truth {a}"
            if None not in (a, b) and a != b
            else ""
        )


def _other(call: FunctionCall) -> Any:
    return call.but(5, "count_include_pad", not call.get(5, "count_include_pad", True)).run()


_MAX_POOL_EDGE_NAMES = ("max_pool1d", "max_pool2d", "max_pool3d")


def _max_pool_edge_truth() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


def _max_pool_edge_faulty(twin: nn.Module) -> nn.Module:
    return nn.Sequential(nn.ZeroPad2d(1), nn.MaxPool2d(3, stride=2))


class MaxPoolEdge(Pattern):
    """Zeros are padded around a max pool.

    **What it is.** A max pool must pad -inf: padded zeros win where all of a window is negative. After a
    ReLU nobody sees it.

    **What to do.** Give the padding to the pool (`padding=1`, `padding=((1, 1), (1, 1))`) instead of
    padding before it.
    """

    name = "max-pool-edge"
    examples = (
        FaultExample(
            _max_pool_edge_truth,
            _max_pool_edge_faulty,
            normal(2, 3, 8, 8, mean=-1.0),
            "pads zeros around the max pool",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield pools of inputs that are padded by zeros."""
        for where, change in scene.replaced(lambda: dict.fromkeys(_MAX_POOL_EDGE_NAMES, _zeros)):
            yield Variant(f"{{side}} pads zeros around the max pool{where}", change)


def _zeros(call: FunctionCall) -> Any:
    axes, padding = int(call.name[-2]), call.get(3, "padding", 0)
    each = [padding] * axes if isinstance(padding, int) else list(padding)
    pads = [pad for size in reversed(each) for pad in (size, size)]
    return call.but(0, "input", F.pad(call.args[0], pads)).but(3, "padding", 0).run()


class _TokenPoolingTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, 0])


class _TokenPoolingFaulty(_TokenPoolingTruth):
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
    examples = (
        FaultExample(
            _TokenPoolingTruth,
            lambda twin: loaded(_TokenPoolingFaulty(), twin),
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
