"""The forward cases of `converters.layers.reparametrized`: layers that compute a weight from others."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from converters.layers.entry import ForwardCase, ours

_Norm = Callable[[Any], Any]


def _linear(name: str, norm: _Norm, around: str, **options: Any) -> ForwardCase:
    """Of a Linear."""
    return ForwardCase(
        f"{name} of a Linear",
        torch=lambda nn: norm(nn.Linear(5, 3)),
        linen=lambda nn: getattr(ours("linen"), around)(nn.Dense(3), **options),
        nnx=lambda nnx, rngs: getattr(ours("nnx"), around)(nnx.Linear(5, 3, rngs=rngs), **options),
        input_shape=(7, 5),
    )


def _conv(name: str, norm: _Norm, around: str, **options: Any) -> ForwardCase:
    """Of a convolution with groups."""
    return ForwardCase(
        f"{name} of a Conv2d",
        torch=lambda nn: norm(nn.Conv2d(10, 4, (2, 3), groups=2)),
        linen=lambda nn: getattr(ours("linen"), around)(
            nn.Conv(4, (2, 3), padding="VALID", feature_group_count=2), **options
        ),
        nnx=lambda nnx, rngs: getattr(ours("nnx"), around)(
            nnx.Conv(10, 4, (2, 3), padding="VALID", feature_group_count=2, rngs=rngs), **options
        ),
        input_shape=(3, 10, 6, 7),
        channels_last=True,
    )


def _transposed(name: str, norm: _Norm, around: str, groups: int = 1, **options: Any) -> Any:
    """Of a transposed convolution, whose dim 0 is the input."""

    def wrap(api: str, layer: Any) -> Any:
        return getattr(ours(api), around)(layer, **options) if around else layer

    return ForwardCase(
        f"{name} of a ConvTranspose1d" + (", groups" if groups > 1 else ""),
        torch=lambda nn: norm(nn.ConvTranspose1d(6, 4, 3, groups=groups)),
        linen=lambda nn: wrap("linen", ours("linen").ConvTranspose(4, (3,), groups=groups)),
        nnx=lambda nnx, rngs: wrap(
            "nnx", ours("nnx").ConvTranspose(6, 4, (3,), groups=groups, rngs=rngs)
        ),
        input_shape=(2, 6, 7),
        channels_last=True,
    )


def _computed(name: str, norm: _Norm) -> ForwardCase:
    """What torch computes, for a plain Dense."""
    return ForwardCase(
        name,
        torch=lambda nn: norm(nn.Linear(5, 3)),
        linen=lambda nn: nn.Dense(3),
        nnx=lambda nnx, rngs: nnx.Linear(5, 3, rngs=rngs),
        input_shape=(7, 5),
    )


def _new(norm: str, **options: Any) -> _Norm:
    def apply(layer: Any) -> Any:
        module = import_module("torch.nn.utils.parametrizations")
        return getattr(module, norm)(layer, **options)

    return apply


def _old(norm: str, **options: Any) -> _Norm:
    def apply(layer: Any) -> Any:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch.nn.utils.weight_norm is old
            return getattr(import_module("torch.nn.utils"), norm)(layer, **options)

    return apply


def _pruned(layer: Any) -> Any:
    from torch.nn.utils import prune

    prune.l1_unstructured(layer, "weight", amount=4)
    return layer


_RECURRENT = ForwardCase(
    "weight_norm of an LSTM's hidden weights",
    torch=lambda nn: _new("weight_norm", name="weight_hh_l0")(nn.LSTM(5, 3)),
    linen=lambda nn: ours("linen").WeightNorm(ours("linen").LSTM(3), names=("hidden_kernel_l0",)),
    nnx=lambda nnx, rngs: ours("nnx").WeightNorm(
        ours("nnx").LSTM(5, 3, rngs=rngs), names=("hidden_kernel_l0",)
    ),
    input_shape=(7, 2, 5),
)

EXACT = (
    _linear("weight_norm", _new("weight_norm"), "WeightNorm"),
    _linear("weight_norm, old form,", _old("weight_norm"), "WeightNorm"),
    _linear("weight_norm, dim None,", _new("weight_norm", dim=None), "WeightNorm", axis=None),
    _linear("weight_norm, dim 1,", _old("weight_norm", dim=1), "WeightNorm", axis=0),
    _conv("weight_norm", _new("weight_norm"), "WeightNorm"),
    _conv("weight_norm, dim 3, old form,", _old("weight_norm", dim=3), "WeightNorm", axis=1),
    _transposed("weight_norm", _new("weight_norm"), "WeightNorm", axis=-2),
    _linear("spectral_norm", _new("spectral_norm"), "SpectralNorm"),
    _linear("spectral_norm, old form,", _old("spectral_norm"), "SpectralNorm", first="v"),
    _conv("spectral_norm", _new("spectral_norm"), "SpectralNorm"),
    _conv("spectral_norm, dim 1, old form,", _old("spectral_norm", dim=1), "SpectralNorm", axis=-2),
    _transposed("spectral_norm", _new("spectral_norm"), "SpectralNorm"),
    _RECURRENT,
)
COMPUTED = (
    _transposed("weight_norm", _new("weight_norm"), "", groups=2),
    _transposed("spectral_norm, old form,", _old("spectral_norm"), "", groups=2),
    _computed("orthogonal", _new("orthogonal")),
    _computed("orthogonal, cayley", _new("orthogonal", orthogonal_map="cayley")),
    _computed("pruning", _pruned),
    _computed(
        "spectral_norm twice", lambda layer: _new("spectral_norm")(_new("spectral_norm")(layer))
    ),
)
