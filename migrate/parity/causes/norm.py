"""Normalization: eps, mean, variance, scale, groups, position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.changes import weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.norms import NORMS, Moments, eps_of, with_eps, written_out
from migrate.parity.causes.frame.pattern import (
    Array,
    FaultExample,
    Pattern,
    Variant,
    loaded,
    normal,
)
from migrate.parity.causes.frame.scene import Scene

_USUAL = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_NAMES = ("eps", "epsilon", "variance_epsilon", "layer_norm_eps", "rms_norm_eps")


def _norm_eps_truth() -> nn.Module:
    return nn.LayerNorm(16, eps=1e-5)


def _norm_eps_faulty(twin: nn.Module) -> nn.Module:
    twin.eps = 1e-6
    return twin


class NormEps(Pattern):
    """Another eps in a normalization.

    **What it is.** The small number that is added to the variance differs. The defaults do: torch's norms
    have 1e-5, Flax's `LayerNorm`, `RMSNorm` and `GroupNorm` 1e-6, Keras's 1e-3, BERT's configuration
    1e-12. The error is small where the variance is near one, and large in quiet channels. The first field
    of Flax's `nn.LayerNorm` is epsilon: `nn.LayerNorm(12)`, as torch has it, adds 12 to the variance.

    **What to do.** Give it by name on both sides: `nn.LayerNorm(n, eps=1e-6)`, `nnx.LayerNorm(n,
    epsilon=1e-5)`. The weights were trained with one of them: keep that.
    """

    name = "norm-eps"
    examples = (
        FaultExample(
            _norm_eps_truth, _norm_eps_faulty, normal(4, 16), "adds eps 1e-06, the truth 1e-05"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield other values of eps: the side's first, then the usual ones."""
        settings = [
            value for name in _NAMES if (value := _number(scene.settings.get(name))) is not None
        ]
        has = sorted(
            {eps for call in scene.calls(*NORMS, "add") if (eps := _eps(call)) is not None}
        )
        for old in has:
            for new in dict.fromkeys((*settings, *_USUAL)):
                for where, change in (
                    scene.replaced(partial(_handlers, old, new)) if new != old else ()
                ):
                    words = f"{{side}} adds eps {new:g}, the truth {old:g}{_meant(new)}"
                    yield Variant(f"{words}{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Describe the difference in eps."""
        a, b = (
            next((v for n in _NAMES if (v := _number(s.get(n))) is not None), None)
            for s in (truth, side)
        )
        if a is None or b is None or a == b:
            return ""
        return f"{{side}} has eps {b:g}, the truth {a:g}{_meant(b)}"


def _number(value: Any) -> float | None:
    """A setting as a number; an integer is not an epsilon but a width in its position."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _meant(eps: float) -> str:
    """Explain an epsilon of 1 or more: a width in its position."""
    return (
        " (a width in the place of epsilon, the first field of Flax's norms?)" if eps >= 1 else ""
    )


def _eps(call: FunctionCall) -> float | None:
    if call.name in NORMS:
        return eps_of(call)
    added = call.get(1, "other")
    return added if isinstance(added, float) and 0 < added <= 0.01 else None


def _handlers(old: float, new: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        if _eps(call) != old:
            return call.run()
        return (with_eps(call, new) if call.name in NORMS else call.but(1, "other", new)).run()

    return dict.fromkeys((*NORMS, "add"), handle)


class _EpsPlaceTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class _EpsPlaceFaulty(_EpsPlaceTruth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x / (torch.sqrt(variance) + 1e-6))


def _layer_norm() -> nn.Module:
    return nn.LayerNorm(16, eps=1e-3)


class _Outside(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        deviation = centered.pow(2).mean(-1, keepdim=True).sqrt()
        return centered / (deviation + self.eps) * self.weight + self.bias


class EpsPlace(Pattern):
    """eps is added outside of the square root instead of inside, or the reverse.

    **What it is.** `x / (sqrt(variance) + eps)` and `x * rsqrt(variance + eps)` look alike and differ in
    quiet channels: for a variance near zero one divides by eps, the other by its root. T5 ports, the
    annotated transformer and optimizers written by hand have the first, torch's and Flax's norms the
    second.

    **What to do.** Move eps. If a checkpoint was trained with it outside, write the norm out on the other
    side too: no value of eps makes them equal.
    """

    name = "eps-place"
    examples = (
        FaultExample(
            _EpsPlaceTruth,
            lambda twin: loaded(_EpsPlaceFaulty(), twin),
            normal(4, 16, scale=0.05),
            "outside",
        ),
        FaultExample(
            _layer_norm, lambda twin: loaded(_Outside(16, eps=1e-3), twin), normal(4, 16), "outside"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield both moves, for norms of torch and for those written out."""
        outside = "{side} adds eps outside of the root, the truth inside"
        for where, change in scene.replaced(lambda: written_out(_outside)):
            yield Variant(outside + where, change)
        if scene.calls("rsqrt", "sqrt") and scene.calls("add"):
            for _, change in scene.replaced(_to_outside, each=False):
                yield Variant(outside, change)
            for _, change in scene.replaced(_to_inside, each=False):
                yield Variant("{side} adds eps inside of the root, the truth outside", change)


def _outside(moments: Moments) -> Any:
    return (moments.x - moments.mean) / (torch.sqrt(moments.variance) + moments.eps)


def _to_outside() -> Mapping[str, Handler]:
    sums: list[tuple[Any, Any, float]] = []  # (the sum, the values to which eps was added, eps)

    def add(call: FunctionCall) -> Any:
        total = call.run()
        if isinstance(call.get(1, "other"), float):
            sums.append((total, call.args[0], call.args[1]))
        return total

    def root(call: FunctionCall) -> Any:
        match = next((total for total in sums if total[0] is call.args[0]), None)
        if match is None:
            return call.run()
        value = torch.sqrt(match[1]) + match[2]
        return 1 / value if call.name == "rsqrt" else value

    return {"add": add, "rsqrt": root, "sqrt": root}


def _to_inside() -> Mapping[str, Handler]:
    roots: list[tuple[Any, Any]] = []

    def root(call: FunctionCall) -> Any:
        value = call.run()
        roots.append((value, call.args[0].square() if call.name == "std" else call.args[0]))
        return value

    def add(call: FunctionCall) -> Any:
        match = next((square_root for square_root in roots if square_root[0] is call.args[0]), None)
        if match is None or not isinstance(call.get(1, "other"), float):
            return call.run()
        return torch.sqrt(match[1] + call.args[1])

    return {"sqrt": root, "add": add}


def _mean_kept_truth() -> nn.Module:
    return nn.LayerNorm(16, bias=False)


def _mean_kept_faulty(twin: nn.Module) -> nn.Module:
    return loaded(nn.RMSNorm(16, eps=1e-5), twin)


class MeanKept(Pattern):
    """RMSNorm in the place of LayerNorm, or the reverse.

    **What it is.** LayerNorm takes the mean off before it divides, RMSNorm does not. With a small mean
    the two are close enough to be taken for noise.

    **What to do.** Use the same on both sides. In Flax `nnx.RMSNorm` or `nnx.LayerNorm(use_bias=False)`;
    a configuration that says `norm_type` or `rms_norm_eps` tells which.
    """

    name = "mean-kept"
    examples = (
        FaultExample(
            _mean_kept_truth,
            _mean_kept_faulty,
            normal(4, 16, mean=0.2),
            "does not take the mean off",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other norm."""
        names = ("layer_norm", "group_norm", "instance_norm")
        for where, change in scene.replaced(lambda: written_out(_kept, names)):
            yield Variant(
                f"{{side}} does not take the mean off before it normalizes{where}", change
            )
        for where, change in scene.replaced(lambda: written_out(_taken, ("rms_norm",))):
            yield Variant(f"{{side}} takes the mean off before it normalizes{where}", change)


def _kept(moments: Moments) -> Any:
    squares = moments.x.square().mean(moments.axes, keepdim=True)
    return moments.x / torch.sqrt(squares + moments.eps)


def _taken(moments: Moments) -> Any:
    centered = moments.x - moments.x.mean(moments.axes, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(moments.axes, keepdim=True) + moments.eps)


class _RmsOffsetTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class _RmsOffsetFaulty(_RmsOffsetTruth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class RmsOffset(Pattern):
    """The norm multiplies by 1 + weight, or by weight alone.

    **What it is.** Gemma, T5X and Keras's `RMSNormalization(rms_scaling)` keep the scale around zero and
    multiply by 1 + weight; Llama, Qwen and torch's and Flax's own `RMSNorm` keep it around one. The
    weights of one in the layer of the other give outputs near zero, or doubled.

    **What to do.** Add (or take) one from the weight when it is converted, or use the model's own norm.
    """

    name = "rms-offset"
    examples = (
        FaultExample(
            _RmsOffsetTruth,
            lambda twin: loaded(_RmsOffsetFaulty(), twin),
            normal(4, 16),
            "multiplies by the weight less 1",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the norm's weight with one more, and with one less."""
        for part, name in scene.weights(_rms_offset_is_scale):
            for added, words in ((1.0, "plus 1"), (-1.0, "less 1")):
                yield Variant(
                    f"{{side}} multiplies by the weight {words} in {part.name}",
                    partial(weight, part.module, name, partial(torch.add, other=added)),
                )


def _rms_offset_is_scale(_module: Any, name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim == 1 and name in ("weight", "scale", "gamma", "g")


def _missing_scale_truth() -> nn.Module:
    norm = nn.LayerNorm(16)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    return norm


def _missing_scale_faulty(twin: nn.Module) -> nn.Module:
    nn.init.ones_(twin.weight)
    return twin


class MissingScale(Pattern):
    """A norm's weight, or the scale of a branch, that is not applied, or was not loaded.

    **What it is.** The norm has `use_scale=False`, or its weight kept its initial ones: torch calls it
    `weight`, Flax `scale`, TensorFlow `gamma`, and a loader that is not strict passes over it. The layer
    scale of ConvNeXt and CaiT goes the same way.

    **What to do.** Compare the names of the parameters on both sides (`migrate weights plan`), and load
    strictly.
    """

    name = "missing-scale"
    examples = (
        FaultExample(
            _missing_scale_truth, _missing_scale_faulty, normal(4, 16), "without its weight"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each norm with ones."""
        for part, name in scene.weights(_missing_scale_is_scale):
            text = f"{part.name} is applied without its {name} in {{side}} (ones)"
            yield Variant(text, partial(weight, part.module, name, torch.ones_like))

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Report that one side has a scale, and the other has none."""
        a = next((truth[n] for n in ("elementwise_affine", "affine") if n in truth), None)
        b = side.get("use_scale")
        return (
            f"{{side}} has use_scale={b}, the truth affine={a}"
            if None not in (a, b) and a != b
            else ""
        )


def _missing_scale_is_scale(module: Any, name: str, tensor: torch.Tensor) -> bool:
    norm = "norm" in type(module).__name__.lower() and name == "weight"
    said = any(word in name.lower() for word in ("gamma", "scale", "lambda"))
    return (norm or said) and tensor.ndim <= 1 and bool((tensor != 1).any())


def _norm_groups_truth() -> nn.Module:
    return nn.GroupNorm(4, 16)


def _norm_groups_faulty(twin: nn.Module) -> nn.Module:
    twin.num_groups = 8
    return twin


class NormGroups(Pattern):
    """Another number of groups in GroupNorm, or groups of other channels.

    **What it is.** Flax's `GroupNorm` has 32 groups by default, torch's none; `group_size` is not
    `num_groups`. With one group it is LayerNorm over all of an image, with as many as channels
    InstanceNorm. With channels last a reshape to `(…, channels / groups, groups)` groups every n-th
    channel.

    **What to do.** Give `num_groups` on both sides, and reshape to `(…, groups, channels / groups)`.
    """

    name = "norm-groups"
    examples = (
        FaultExample(
            _norm_groups_truth,
            _norm_groups_faulty,
            normal(2, 16, 4, 4),
            "has 8 groups, the truth 4",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all numbers that divide the channels, and interleaved groups."""
        calls = scene.calls("group_norm")
        for old, channels in sorted(
            {(call.get(1, "num_groups"), call.args[0].shape[1]) for call in calls}
        ):
            for new in (n for n in range(1, channels + 1) if channels % n == 0 and n != old):
                for where, change in scene.replaced(partial(_groups, old, new)):
                    yield Variant(f"{{side}} has {new} groups, the truth {old}{where}", change)
        for where, change in scene.replaced(lambda: {"group_norm": _interleaved}):
            yield Variant(f"{{side}} takes every n-th channel into a group{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Describe the difference in the number of groups."""
        a, b = truth.get("num_groups"), side.get("num_groups")
        return f"{{side}} has {b} groups, the truth {a}" if None not in (a, b) and a != b else ""


def _groups(old: int, new: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return (call.but(1, "num_groups", new) if call.get(1, "num_groups") == old else call).run()

    return {"group_norm": handle}


def _interleaved(call: FunctionCall) -> Any:
    x, groups = call.args[0], call.get(1, "num_groups")
    order = torch.arange(x.shape[1]).reshape(-1, groups).T.reshape(-1)
    back = torch.argsort(order)
    plain = (
        call.but(2, "weight", None).but(3, "bias", None).but(0, "input", x[:, order]).run()[:, back]
    )
    shape = (1, -1, *[1] * (x.ndim - 2))
    weight, bias = call.get(2, "weight"), call.get(3, "bias")
    plain = plain if weight is None else plain * weight.reshape(shape)
    return plain if bias is None else plain + bias.reshape(shape)


class _NormPlaceTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc(self.norm(x))


class _NormPlaceFaulty(_NormPlaceTruth):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.fc(x))


class NormPlace(Pattern):
    """A norm stands in another place: before a block, or after its sum.

    **What it is.** The first transformer norms after the sum (post-norm: BERT,
    `nn.TransformerEncoderLayer` by default), GPT-2, ViT and Llama before the block (pre-norm), Gemma 2
    both. A layer is then given what goes into the norm instead of what comes out of it, or the reverse.

    **What to do.** `norm_first` of torch's layers; move the norm.
    """

    name = "norm-place"
    examples = (
        FaultExample(
            _NormPlaceTruth,
            lambda twin: loaded(_NormPlaceFaulty(), twin),
            normal(4, 8),
            "what goes into norm",
            layer="fc",
            locally=False,
        ),
        FaultExample(
            _NormPlaceFaulty,
            lambda twin: loaded(_NormPlaceTruth(), twin),
            normal(4, 8),
            "what comes out of norm",
            layer="fc",
            locally=False,
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield for each norm inside what goes in for what comes out, and the reverse."""
        outputs = {
            name: tensor for name, number, path, tensor in scene.replay.outputs() if not path
        }
        for spot, tensor in scene.replay.truth.items():
            name = spot.layer
            if name is None or name not in outputs or "norm" not in _kind(scene, name):
                continue
            before, after = tensor.numpy(), outputs[name].numpy()
            yield Variant(
                f"{{side}} has what goes into {name} {{where}}, the truth what comes out of it",
                adjust=partial(_instead, after, before),
            )
            yield Variant(
                f"{{side}} has what comes out of {name} {{where}}, the truth something else",
                adjust=partial(_unlike, after),
            )


def _kind(scene: Scene, name: str) -> str:
    return type(scene.replay.inside[name]).__name__.lower()


def _instead(old: Array, new: Array, output: Array, _mine: Array) -> Array:
    same = old.shape == output.shape and np.allclose(old, output, rtol=1e-5, atol=1e-7)
    return new if same and new.shape == output.shape else output


def _unlike(new: Array, output: Array, _mine: Array) -> Array:
    return new if new.shape == output.shape else output


def _unbiased_variance_truth() -> nn.Module:
    return nn.LayerNorm(16)


class _UnbiasedVarianceFaulty(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.var(-1, keepdim=True)  # divides by n - 1
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(
            variance + self.eps
        ) * self.weight + self.bias


class UnbiasedVariance(Pattern):
    """The variance divides by n - 1 instead of n, or the reverse.

    **What it is.** `torch.var` and `torch.std` divide by n - 1, `jnp.var`, `np.var` and every norm layer
    by n. A norm that was written out in one and copied to the other is off by a factor of about 1 + 1 /
    2n.

    **What to do.** `x.var(-1, correction=0)` in torch, `jnp.var(x, -1, ddof=1)` in JAX.
    """

    name = "unbiased-variance"
    examples = (
        FaultExample(
            _unbiased_variance_truth,
            lambda twin: loaded(_UnbiasedVarianceFaulty(16), twin),
            normal(4, 16),
            "divides the variance by n - 1",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield norms with n - 1, and `var` and `std` with the other divisor."""
        for where, change in scene.replaced(lambda: written_out(_unbiased)):
            yield Variant(f"{{side}} divides the variance by n - 1, the truth by n{where}", change)
        for where, change in scene.replaced(lambda: dict.fromkeys(("var", "std"), _biased)):
            yield Variant(f"{{side}} divides the variance by n, the truth by n - 1{where}", change)


def _unbiased(moments: Moments) -> Any:
    variance = moments.variance * (moments.count / (moments.count - 1))
    return (moments.x - moments.mean) / torch.sqrt(variance + moments.eps)


def _biased(call: FunctionCall) -> Any:
    kwargs: Mapping[str, Any] = {
        key: v for key, v in call.kwargs.items() if key not in ("unbiased", "correction")
    }
    args = [argument for argument in call.args if not isinstance(argument, bool)]
    return FunctionCall(call.name, call.function, tuple(args), {**kwargs, "correction": 0}).run()


def _batch_statistics_truth() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


class _BatchStatisticsFaulty(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True)


class BatchStatistics(Pattern):
    """BatchNorm normalizes by the batch instead of its running statistics.

    **What it is.** The layer is in training mode: `model.eval()` was not called, or Flax's `BatchNorm`
    has not `use_running_average=True`. What comes out depends on what else is in the batch.

    **What to do.** `model.eval()` in torch; in Flax `use_running_average=not train`, in nnx
    `model.eval()`.
    """

    name = "batch-statistics"
    examples = (
        FaultExample(
            _batch_statistics_truth,
            lambda twin: loaded(_BatchStatisticsFaulty(4), twin),
            normal(4, 4, 3, 3),
            "normalizes by the batch",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layers in training mode."""
        for where, change in scene.replaced(lambda: {"batch_norm": _by_batch}):
            text = f"{{side}} normalizes by the batch (training mode), not by running statistics{where}"
            yield Variant(text, change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Report that the side does not use its running statistics."""
        return (
            "{side} has use_running_average=False"
            if side.get("use_running_average") is False
            else ""
        )


def _by_batch(call: FunctionCall) -> Any:
    return (
        call.but(5, "training", True).but(1, "running_mean", None).but(2, "running_var", None).run()
    )
