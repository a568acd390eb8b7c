"""Construction of the `torch.nn` layer of a guess on the meta device, without allocation.

Real layers make everything after an inference the same as with the user's own module. Settings that
a checkpoint does not contain (epsilon, strides, padding) keep their defaults, and a note says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from converters.checkpoint.reader import TensorInfo
from converters.inference.groups import Group
from converters.inference.guess import BATCH_NORM, NORM, Guess

Shapes = Mapping[str, tuple[int, ...]]
Options = Mapping[str, int]

_UNTOLD = {
    NORM: "epsilon is not in a checkpoint",
    BATCH_NORM: "epsilon and momentum are not in a checkpoint",
    "Conv": "strides, padding and dilation are not in a checkpoint",
}


def unknown_settings(kind: str) -> str:
    """Return the settings that the user must give to the Flax layer, or ""."""
    return _UNTOLD["Conv"] if kind.startswith("Conv") and kind[-1] == "d" else _UNTOLD.get(kind, "")


def make_layer(group: Group, guess: Guess) -> Any:
    """Return the layer, with tensors named and shaped as in the group.

    Raises:
        ValueError: no such layer has these tensors; the message names the differences.
    """
    import torch

    shapes = {name: info.shape for name, info in group.plain.items()}
    maker = _MAKERS.get(guess.kind) or _convolution(guess.kind)
    if maker is None:
        raise ValueError(f"a {guess.kind} cannot be built")
    try:
        # The older forms of weight_norm and spectral_norm are deprecated, but still in checkpoints.
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            layer = _normed(maker(torch.nn, shapes, guess.options), group)
    except (RuntimeError, AssertionError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it does not fit a {guess.kind} ({error})") from None
    _require_same(layer, group.tensors, guess.kind)
    return layer


def _require_same(layer: Any, tensors: Mapping[str, TensorInfo], kind: str) -> None:
    has = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    has.setdefault("num_batches_tracked", ())
    for name, info in tensors.items():
        if has.get(name) != info.shape:
            raise ValueError(f"{name} of shape {info.shape} is not a {kind}'s")
    lacking = set(has) - set(tensors) - {"num_batches_tracked"}
    if lacking:
        raise ValueError(f"a {kind} has {', '.join(sorted(lacking))} too")


def _normed(layer: Any, group: Group) -> Any:
    """Apply the weight_norm or spectral_norm that the group's names show."""
    from torch.nn import utils

    if group.normed.endswith("spectral_norm"):
        if group.normed == "spectral_norm":
            return utils.spectral_norm(layer)
        return utils.parametrizations.spectral_norm(layer)
    if group.normed.endswith("weight_norm"):
        names = ("weight_g", "parametrizations.weight.original0")
        gain = next(group.tensors[name].shape for name in names if name in group.tensors)
        long = [axis for axis, side in enumerate(gain) if side > 1]
        dim = (long[0] if len(gain) else None) if long else (0 if len(gain) else None)
        make = utils.weight_norm if group.normed == "weight_norm" else None
        return (make or utils.parametrizations.weight_norm)(layer, dim=dim)
    return layer


def _linear(nn: Any, shapes: Shapes, options: Options) -> Any:
    rows, columns = shapes["weight"]
    return nn.Linear(columns, rows, bias="bias" in shapes)


def _embedding(nn: Any, shapes: Shapes, options: Options) -> Any:
    import torch

    # With a given weight: drawing one on the meta device makes torch import its compiler, for
    # seconds.
    return nn.Embedding(*shapes["weight"], _weight=torch.empty(shapes["weight"]))


def _embedding_bag(nn: Any, shapes: Shapes, options: Options) -> Any:
    return nn.EmbeddingBag(*shapes["weight"])


def _bilinear(nn: Any, shapes: Shapes, options: Options) -> Any:
    outputs, first, second = shapes["weight"]
    return nn.Bilinear(first, second, outputs, bias="bias" in shapes)


def _norm(nn: Any, shapes: Shapes, options: Options) -> Any:
    return nn.LayerNorm(shapes["weight"], bias="bias" in shapes)


def _batch_norm(nn: Any, shapes: Shapes, options: Options) -> Any:
    (channels,) = shapes["running_mean"]
    layer = nn.BatchNorm1d(channels, affine="weight" in shapes)
    if "weight" in shapes and "bias" not in shapes:
        layer.bias = None
    return layer


def _prelu(nn: Any, shapes: Shapes, options: Options) -> Any:
    return nn.PReLU(*shapes["weight"])


def _attention(nn: Any, shapes: Shapes, options: Options) -> Any:
    channels = shapes["out_proj.weight"][0]
    return nn.MultiheadAttention(
        channels,
        options["heads"],
        bias="in_proj_bias" in shapes,
        add_bias_kv="bias_k" in shapes,
        kdim=shapes["k_proj_weight"][1] if "k_proj_weight" in shapes else None,
        vdim=shapes["v_proj_weight"][1] if "v_proj_weight" in shapes else None,
    )


def _recurrent(kind: str) -> Callable[[Any, Shapes, Options], Any]:
    def make(nn: Any, shapes: Shapes, options: Options) -> Any:
        more = {"proj_size": options["projection"]} if options["projection"] else {}
        return getattr(nn, kind)(
            options["input"],
            options["hidden"],
            options["layers"],
            bias=bool(options["bias"]),
            bidirectional=bool(options["bidirectional"]),
            **more,
        )

    return make


def _cell(kind: str) -> Callable[[Any, Shapes, Options], Any]:
    def make(nn: Any, shapes: Shapes, options: Options) -> Any:
        return getattr(nn, kind)(options["input"], options["hidden"], bias=bool(options["bias"]))

    return make


def _convolution(kind: str) -> Callable[[Any, Shapes, Options], Any] | None:
    transposed = kind.startswith("ConvTranspose")
    if not kind.startswith("Conv") or kind[-2:] not in ("1d", "2d", "3d"):
        return None

    def make(nn: Any, shapes: Shapes, options: Options) -> Any:
        first, second, *kernel = shapes["weight"]
        cls = getattr(nn, kind)
        if not transposed:  # groups change neither shapes nor layout
            return cls(second, first, tuple(kernel), bias="bias" in shapes)
        groups = options.get("groups", 1)
        outputs = second * groups
        return cls(first, outputs, tuple(kernel), groups=groups, bias="bias" in shapes)

    return make


_MAKERS: dict[str, Callable[[Any, Shapes, Options], Any]] = {
    "Linear": _linear,
    "Embedding": _embedding,
    "EmbeddingBag": _embedding_bag,
    "Bilinear": _bilinear,
    NORM: _norm,
    BATCH_NORM: _batch_norm,
    "PReLU": _prelu,
    "MultiheadAttention": _attention,
    **{kind: _recurrent(kind) for kind in ("LSTM", "GRU", "RNN")},
    **{f"{kind}Cell": _cell(f"{kind}Cell") for kind in ("LSTM", "GRU", "RNN")},
}
