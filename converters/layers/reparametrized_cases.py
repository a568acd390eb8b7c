"""Forward cases of `converters.layers.reparametrized`: layers that compute a weight from other tensors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from converters.layers.entry import ForwardCase

_Norm = Callable[[Any], Any]


def _linear(name: str, norm: _Norm) -> ForwardCase:
    """Create a case of a Linear."""
    return ForwardCase(
        f"{name} of a Linear",
        torch=lambda nn: norm(nn.Linear(5, 3)),
        input_shape=(7, 5),
    )


def _conv(name: str, norm: _Norm) -> ForwardCase:
    """Create a case of a convolution with groups."""
    return ForwardCase(
        f"{name} of a Conv2d",
        torch=lambda nn: norm(nn.Conv2d(10, 4, (2, 3), groups=2)),
        input_shape=(3, 10, 6, 7),
    )


def _transposed(name: str, norm: _Norm, groups: int = 1) -> Any:
    """Create a case of a transposed convolution, whose dim 0 is the input."""

    return ForwardCase(
        f"{name} of a ConvTranspose1d" + (", groups" if groups > 1 else ""),
        torch=lambda nn: norm(nn.ConvTranspose1d(6, 4, 3, groups=groups)),
        input_shape=(2, 6, 7),
    )


def _computed(name: str, norm: _Norm) -> ForwardCase:
    """Create a case of a weight that torch computes, for a plain Dense."""
    return ForwardCase(
        name,
        torch=lambda nn: norm(nn.Linear(5, 3)),
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
            # `torch.nn.utils.weight_norm` is deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            return getattr(import_module("torch.nn.utils"), norm)(layer, **options)

    return apply


def _pruned(layer: Any) -> Any:
    from torch.nn.utils import prune

    prune.l1_unstructured(layer, "weight", amount=4)
    return layer


_RECURRENT = ForwardCase(
    "weight_norm of an LSTM's hidden weights",
    torch=lambda nn: _new("weight_norm", name="weight_hh_l0")(nn.LSTM(5, 3)),
    input_shape=(7, 2, 5),
)

EXACT = (
    _linear("weight_norm", _new("weight_norm")),
    _linear("weight_norm, old form,", _old("weight_norm")),
    _linear("weight_norm, dim None,", _new("weight_norm", dim=None)),
    _linear("weight_norm, dim 1,", _old("weight_norm", dim=1)),
    _conv("weight_norm", _new("weight_norm")),
    _conv("weight_norm, dim 3, old form,", _old("weight_norm", dim=3)),
    _transposed("weight_norm", _new("weight_norm")),
    _linear("spectral_norm", _new("spectral_norm")),
    _linear("spectral_norm, old form,", _old("spectral_norm")),
    _conv("spectral_norm", _new("spectral_norm")),
    _conv("spectral_norm, dim 1, old form,", _old("spectral_norm", dim=1)),
    _transposed("spectral_norm", _new("spectral_norm")),
    _RECURRENT,
)
COMPUTED = (
    _transposed("weight_norm", _new("weight_norm"), groups=2),
    _transposed("spectral_norm, old form,", _old("spectral_norm"), groups=2),
    _computed("orthogonal", _new("orthogonal")),
    _computed("orthogonal, cayley", _new("orthogonal", orthogonal_map="cayley")),
    _computed("pruning", _pruned),
    _computed(
        "spectral_norm twice", lambda layer: _new("spectral_norm")(_new("spectral_norm")(layer))
    ),
)
