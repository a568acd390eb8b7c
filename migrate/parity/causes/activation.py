"""Functions of the values alone: activations, softmax, caps, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import Array, FaultExample, Pattern, Variant, normal
from migrate.parity.causes.frame.scene import Scene


class _ActivationTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))


def _activation_faulty(twin: nn.Module) -> nn.Module:
    twin.act = nn.SiLU()
    return twin


_ACTIVATION_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu (tanh)": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "selu": F.selu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "mish": F.mish,
    "softplus": F.softplus,
    "squared relu": lambda x: F.relu(x).square(),
    "no activation": lambda x: x,
}


class Activation(Pattern):
    """Another activation, or none.

    **What it is.** The port has another function where the original has, say, `silu`: "swish" is `silu`,
    "gelu" has three forms (gelu-form), a configuration's `hidden_act` was not read, or a layer's
    activation is an argument that was left out.

    **What to do.** Take the function that the configuration of the weights names.
    """

    name = "activation"
    rank = 1
    examples = (
        FaultExample(
            _ActivationTruth,
            _activation_faulty,
            normal(4, 8),
            "has silu instead of relu",
            layer="act",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield each other function in the place of each that is called."""
        for old in _ACTIVATION_FUNCTIONS:
            for new, function in _ACTIVATION_FUNCTIONS.items():
                if new != old:
                    for where, change in scene.replaced(partial(_instead, old, function)):
                        yield Variant(f"{{side}} has {new} instead of {old}{where}", change)


def _instead(old: str, function: Callable[[Any], Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return function(call.args[0])

    return {old: handle}


_USUAL = (0.01, 0.1, 0.2, 0.3, 0.5, 1.0)
# Function: (the argument's name, its default).
_ACTIVATION_SLOPE_FUNCTIONS = {
    "leaky_relu": ("negative_slope", 0.01),
    "elu": ("alpha", 1.0),
    "celu": ("alpha", 1.0),
}


def _activation_slope_truth() -> nn.Module:
    return nn.LeakyReLU(0.2)


def _activation_slope_faulty(twin: nn.Module) -> nn.Module:
    return nn.LeakyReLU()


class ActivationSlope(Pattern):
    """Another slope of leaky_relu, or alpha of elu.

    **What it is.** The slope below zero is 0.01 in torch's and JAX's `leaky_relu`, 0.2 in TensorFlow's
    (and in most GANs), 0.3 in Keras's layer.

    **What to do.** Give it on both sides.
    """

    name = "activation-slope"
    examples = (
        FaultExample(
            _activation_slope_truth,
            _activation_slope_faulty,
            normal(4, 16),
            "has negative_slope 0.01, the truth 0.2",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the usual values."""
        for name, (argument, default) in _ACTIVATION_SLOPE_FUNCTIONS.items():
            for old in sorted({call.get(1, argument, default) for call in scene.calls(name)}):
                for new in (slope for slope in _USUAL if slope != old):
                    for where, change in scene.replaced(partial(_slope, name, argument, new)):
                        yield Variant(
                            f"{{side}} has {argument} {new:g}, the truth {old:g}{where}", change
                        )

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Describe the difference in the settings."""
        a, b = truth.get("negative_slope"), side.get("negative_slope")
        return (
            f"{{side}} has negative_slope {b}, the truth {a}"
            if None not in (a, b) and a != b
            else ""
        )


def _slope(name: str, argument: str, value: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(1, argument, value).run()

    return {name: handle}


class _GeluFormTruth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.form = "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x), approximate=self.form))


def _gelu_form_faulty(twin: nn.Module) -> nn.Module:
    twin.form = "tanh"
    return twin


def _gelu() -> nn.Module:
    return nn.GELU(approximate="tanh")


def _exact(twin: nn.Module) -> nn.Module:
    return nn.GELU()


_FORMS: dict[str, Callable[[Any], Any]] = {
    "exact (erf)": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "sigmoid (x · σ(1.702 x))": lambda x: x * torch.sigmoid(1.702 * x),
}


class GeluForm(Pattern):
    """Another form of gelu: exact, tanh, or sigmoid.

    **What it is.** torch's `gelu` is the exact one (erf) by default, JAX's `jax.nn.gelu` and
    `flax.linen.gelu` the tanh form; CLIP and GPT-J's "quick" gelu is `x · σ(1.702 x)`. The first two
    differ by 4e-4 at most, which no test by eye sees.

    **What to do.** `approximate=False` in JAX, or `approximate="tanh"` in torch: as the weights were
    trained. In Hugging Face configurations "gelu" is the exact one, "gelu_new" and "gelu_pytorch_tanh"
    the tanh form.
    """

    name = "gelu-form"
    examples = (
        FaultExample(
            _GeluFormTruth,
            _gelu_form_faulty,
            normal(4, 8),
            "has the tanh form",
            layer="down",
            locally=False,
        ),
        FaultExample(_gelu, _exact, normal(4, 16), "has the exact (erf) form"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the other forms, of `gelu` and of those written out with tanh and erf."""
        for form, function in _FORMS.items():
            for where, change in scene.replaced(partial(_only, function)):
                yield Variant(f"{{side}}'s gelu has the {form} form{where}", change)

    def differs(self, truth: Mapping[str, Any], side: Mapping[str, Any]) -> str:
        """Say that `approximate` differs."""
        a, b = (_form(settings.get("approximate")) for settings in (truth, side))
        return (
            f"{{side}}'s gelu has the {b} form, the truth's the {a} form"
            if a and b and a != b
            else ""
        )


def _only(function: Callable[[Any], Any]) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return function(call.args[0])

    return {"gelu": handle}


def _form(value: Any) -> str:
    return {"none": "exact", False: "exact", "tanh": "tanh", True: "tanh"}.get(value, "")


class _SoftCapTruth(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.tanh(logits / 30.0) * 30.0


class _SoftCapFaulty(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.clone()


class SoftCap(Pattern):
    """Logits or scores that are capped by tanh, or not.

    **What it is.** Gemma 2 and Grok pass their logits through `c · tanh(x / c)`, with c = 30, and the
    scores of attention with c = 50. Fast attention kernels leave it out.

    **What to do.** `final_logit_softcapping` and `attn_logit_softcapping` of the configuration.
    """

    name = "soft-cap"
    examples = (
        FaultExample(
            _SoftCapTruth, lambda twin: _SoftCapFaulty(), normal(4, 16, scale=20.0), "does not cap"
        ),
        FaultExample(
            _SoftCapFaulty,
            lambda twin: _SoftCapTruth(),
            normal(4, 16, scale=20.0),
            "caps them at 30",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield caps that are left out, where the truth divides before a tanh, and added ones."""
        if scene.calls("div") and scene.calls("tanh"):
            for where, change in scene.replaced(_left_out, each=False):
                yield Variant(f"{{side}} does not cap by tanh, the truth does{where}", change)
        for cap in (30.0, 50.0, 20.0, 10.0):
            words = f"{{side}} caps them at {cap:g} by tanh, the truth does not"
            yield Variant(words, adjust=partial(_capped, cap))
            for where, change in scene.replaced(partial(_scores, cap)):
                yield Variant(f"{words} (scores){where}", change)


def _left_out() -> Mapping[str, Handler]:
    divided: list[Any] = []

    def div(call: FunctionCall) -> Any:
        value = call.run()
        if isinstance(call.get(1, "other"), int | float):
            divided.append(value)
        return value

    def tanh(call: FunctionCall) -> Any:
        return call.args[0] if any(quotient is call.args[0] for quotient in divided) else call.run()

    return {"div": div, "tanh": tanh}


def _capped(cap: float, output: Array, _mine: Array) -> Array:
    return cap * np.tanh(output / cap)


def _scores(cap: float) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(0, "input", cap * torch.tanh(call.args[0] / cap)).run()

    return {"softmax": handle}


_NAMES = ("softmax", "log_softmax", "softmin")


def _softmax_axis_truth() -> nn.Module:
    return nn.Softmax(dim=1)


def _softmax_axis_faulty(twin: nn.Module) -> nn.Module:
    return nn.Softmax(dim=-1)


class SoftmaxAxis(Pattern):
    """Softmax over another axis.

    **What it is.** `jax.nn.softmax` goes over the last axis by default; torch's without `dim` guesses (1
    for two and for four axes, 0 for one and for three). With channels last the axis of the channels is
    another one.

    **What to do.** Give the axis on both sides, and move it with the layout.
    """

    name = "softmax-axis"
    examples = (
        FaultExample(
            _softmax_axis_truth,
            _softmax_axis_faulty,
            normal(2, 5, 7),
            "takes the softmax over axis 2, the truth over 1",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield all other axes."""
        axes = {
            (call.get(1, "dim") % call.args[0].ndim, call.args[0].ndim) for call in _calls(scene)
        }
        for old, count in sorted(axes):
            for new in (axis for axis in range(count) if axis != old):
                for where, change in scene.replaced(partial(_over, new)):
                    yield Variant(
                        f"{{side}} takes the softmax over axis {new}, the truth over {old}{where}",
                        change,
                    )


def _calls(scene: Scene) -> list[FunctionCall]:
    return [call for call in scene.calls(*_NAMES) if isinstance(call.get(1, "dim"), int)]


def _over(axis: int) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        return call.but(1, "dim", axis).run()

    return dict.fromkeys(_NAMES, handle)


def _dropout_on_truth() -> nn.Module:
    return nn.Dropout(0.1)


class _DropoutOnFaulty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.1, training=True)


class DropoutOn(Pattern):
    """Dropout is left on.

    **What it is.** Some values are zero, all others the truth's divided by one common share: the layer is
    in training mode. `F.dropout` has `training=True` by default, whatever the mode of the model; Flax's
    `Dropout` needs `deterministic=True`.

    **What to do.** `F.dropout(x, p, self.training)`; `deterministic=not train`, `model.eval()` in nnx.
    """

    name = "dropout-on"
    examples = (
        FaultExample(
            _dropout_on_truth, lambda twin: _DropoutOnFaulty(), normal(16, 64), "dropout is left on"
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the output with zeros where the side has them, and the factor of the others."""
        yield Variant("dropout is left on in {side}", adjust=_dropped)


def _dropped(output: Array, mine: Array) -> Array | None:
    if output.shape != mine.shape or output.dtype.kind != "f":
        return None
    zeros = (mine == 0) & (output != 0)
    share = zeros.mean() / max((output != 0).mean(), 1e-9)
    if not 0.005 < share < 0.95:
        return None
    kept = np.where(zeros, 0.0, output)
    factor = float((kept * mine).sum() / (kept * kept).sum())
    # Retained values are divided by 1 - p, and about the fraction p of all values is dropped.
    if abs((1 - 1 / factor) - share) > 0.02 + 4 * np.sqrt(share * (1 - share) / output.size):
        return None
    return factor * kept
