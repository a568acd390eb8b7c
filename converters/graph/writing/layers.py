"""Layers of torch that Flax has: how one is made, called, and where its weights are."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from converters.graph.expression import as_code, call, code
from converters.graph.writing.original.settings import Settings
from converters.graph.writing.precision.numerics import with_numerics
from converters.layers.flax_call import Api, FlaxCall, Maker, Name, SourceCall, Variable
from converters.layers.join import ALONE
from converters.layers.layout import UNCHANGED, Permute
from converters.layers.registry import find_entry, flax_calls
from converters.layers.reparametrized import (
    CannotComputeError,
    is_computed_before,
    is_reparametrized,
    reparametrized,
)

# Argument of a Flax layer → the attribute of torch's that it comes from.
_FROM = {
    "features": ("out_features", "out_channels", "embedding_dim"),
    "in_features": ("in_features", "in_channels", "embed_dim"),
    "out_features": ("out_features", "out_channels"),
    "num_features": ("num_features", "num_channels", "normalized_shape"),
    "in1_features": ("in1_features",),
    "in2_features": ("in2_features",),
    "input_size": ("input_size",),
    "kdim": ("kdim",),
    "vdim": ("vdim",),
    "num_embeddings": ("num_embeddings",),
    "padding_idx": ("padding_idx",),
    "epsilon": ("eps",),
    "num_groups": ("num_groups",),
    "kernel_size": ("kernel_size",),
    "strides": ("stride",),
    "kernel_dilation": ("dilation",),
    "feature_group_count": ("groups",),
    "groups": ("groups",),
    "num_heads": ("num_heads",),
    "embed_dim": ("embed_dim",),
    "hidden_size": ("hidden_size",),
    "num_layers": ("num_layers",),
    "num_parameters": ("num_parameters",),
    "dropout_rate": ("dropout",),
    "dropout": ("dropout",),
    "momentum": ("momentum",),
}
# Layers that give several tensors, and how these are nested; Flax's own differ in it, ours do not.
_GIVES: Mapping[str, Any] = {
    "MultiheadAttention": (None, None),
    "LSTM": (None, (None, None)),
    "GRU": (None, None),
    "RNN": (None, None),
}
# The short source of a recurrent layer, and what it can be told.
_PLAIN = "converters.modules.{api}.plain.{name}"
# An embedding with a row of padding, which takes no gradient.
_PADDED = "converters.modules.{api}.embedding.PaddedEmbed"
_PLAIN_OPTIONS = ("input_size", "hidden_size", "num_layers", "bidirectional", "dropout", "rngs")
# Arguments that are given by position, and those of layers whose first arguments are others.
_FIRST: Mapping[Api, tuple[str, ...]] = {
    "linen": ("num_embeddings", "features"),
    "nnx": ("num_embeddings", "in_features", "features", "out_features", "num_features"),
}
_NAMED = {"num_heads", "in1_features"}


@dataclass(frozen=True)
class Layer:
    """A layer of Flax's own that computes as a torch one.

    Attributes:
        module: the torch layer.
        flax: how Flax's is made and called.
        trains: whether it computes otherwise in training: its calls are told `deterministic`.
    """

    module: torch.nn.Module
    flax: FlaxCall
    trains: bool = False

    @property
    def api(self) -> Api:
        """The API of Flax that its class is of."""
        return "nnx" if "nnx" in self.flax.of.split(".") else "linen"

    @property
    def ours(self) -> type | None:
        """The layer's class in `converters.modules`, whose source is copied into the port; None if
        it is Flax's.
        """
        place, _, name = self.flax.of.rpartition(".")
        if not place.startswith("converters."):
            return None
        cls: type = getattr(importlib.import_module(place), name)
        return cls

    @property
    def gives(self) -> Any:
        """Form of the result: None for one tensor, a tuple of these for several."""
        return _GIVES.get(type(self.module).__name__) if self.ours else None

    def made(self, settings: Settings, typed: bool = False) -> ast.expr:
        """The expression that makes it; sizes are settings of the model.

        Args:
            settings: of the model.
            typed: whether it is given the dtypes and the precision of the module that holds it.
        """
        named = {**self.flax.sizes, **self.flax.settings}
        written = {name: self._argument(settings, name, value) for name, value in named.items()}
        if self.trains and "dropout_rate" in written:
            written["broadcast_dropout"] = False  # torch drops each weight by itself
        for name, value in named.items():
            if isinstance(value, SourceCall):  # a layer around another one (weight_norm)
                inner = {key: self._argument(settings, key, of) for key, of in value.named.items()}
                layer = call(_spelled(value.of), *map(_value, value.first), **inner)
                written[name] = with_numerics(layer, _fields_of(value.of)) if typed else layer
        keys = () if _NAMED & written.keys() else _FIRST[self.api]
        first = [written.pop(key) for key in keys if key in written]
        name = self.flax.of.rpartition(".")[2]
        layer_call = call(name if self.ours else _spelled(self.flax.of), *first, **written)
        return with_numerics(layer_call, _fields_of(self.flax.of)) if typed else layer_call

    def _argument(self, settings: Settings, name: str, value: Any) -> Any:
        for torch_name in _FROM.get(name, ()):
            if hasattr(self.module, torch_name):
                if torch_name == "normalized_shape" and isinstance(value, int):  # of one axis
                    plain = settings.of_layer(self.module, torch_name, value)
                    listed = settings.of_layer(self.module, torch_name, (value,))[0]
                    return plain if getattr(plain, "text", "") else listed
                return settings.of_layer(self.module, torch_name, value)
        return _value(self._padding(settings, value) if name == "padding" else value)

    def _padding(self, settings: Settings, value: Any) -> Any:
        """The padding of a convolution: pairs of settings where its constructor computes the sides."""
        plain = getattr(self.module, "padding", None)
        if not isinstance(plain, tuple) or self.flax.before:
            return value
        sides = settings.of_layer(self.module, "padding", plain)
        if not any(getattr(side, "text", "") for side in sides):
            return value
        if value not in (
            "VALID",
            tuple((side, side) for side in plain),
        ):  # a transposed convolution
            return value
        return tuple((side, side) for side in sides)

    def applied(self, layer: ast.expr, x: ast.expr, **more: Any) -> ast.expr:
        """The expression that calls it, on a tensor in Flax's order; `more` are other arguments."""
        array = x
        for before in self.flax.before:
            named = {name: _value(value) for name, value in before.named.items()}
            array = call(_spelled(before.of), array, *map(_value, before.first), **named)
        own_options = {name: self._option(value) for name, value in self.flax.options.items()}
        options = {**more, **own_options}
        keywords = [ast.keyword(name, as_code(value)) for name, value in options.items()]
        return ast.Call(layer, [array], keywords)

    def _option(self, value: Any) -> Any:
        """An option of a call; `deterministic` is the caller's own."""
        mode = self.trains and isinstance(value, Variable)
        return code(value.name) if mode else _value(value)

    def weight(self, layer: ast.expr, name: str, settings: Settings) -> ast.expr | None:
        """The torch tensor `name` of the layer, as an expression; None if it is not one array of Flax's."""
        placed = weight_of(self.module, name)
        if placed is None:
            return None
        if self.api == "nnx":
            return placed.turned(code(f"{{layer}}.{placed.linen}[...]", layer=layer))
        if placed.linen == "embedding":
            return placed.turned(ast.Attribute(layer, "embedding", ast.Load()))
        sides = self._input_sides(settings)
        if placed.collection == "params" and sides:
            held = call("weights_of", layer, 1, *sides)
            return placed.turned(code("{held}[{name}]", held=held, name=placed.linen))
        return placed.turned(
            code(
                "{layer}.variables[{collection}][{name}]",
                layer=layer,
                collection=placed.collection,
                name=placed.linen,
            )
        )

    def _input_sides(self, settings: Settings) -> tuple[Any, ...]:
        """Sides of an input for one item, in Flax's order; () where the layer's type does not say them."""
        if self.ours is not None or self.flax.before or self.flax.options:
            return ()
        module: Any = self.module
        match module:
            case torch.nn.Linear():
                return (settings.of_layer(module, "in_features", module.in_features),)
            case torch.nn.Conv1d() | torch.nn.Conv2d() | torch.nn.Conv3d():
                pairs = zip(module.kernel_size, module.dilation, strict=True)
                sides = (1 + (side - 1) * step for side, step in pairs)
                return (*sides, settings.of_layer(module, "in_channels", module.in_channels))
            case torch.nn.LayerNorm() | torch.nn.RMSNorm():
                return tuple(module.normalized_shape)
            case torch.nn.GroupNorm():
                return (settings.of_layer(module, "num_channels", module.num_channels),)
        return ()


@dataclass(frozen=True)
class Placed:
    """Position of a layer's tensor in the weights of `migrate weights`.

    Attributes:
        linen: its name.
        collection: "params" or "batch_stats".
        axes: torch's order of its axes, by those in Flax; None if it is the same.
    """

    linen: str
    collection: str
    axes: tuple[int, ...] | None

    def turned(self, array: ast.expr) -> ast.expr:
        """The torch tensor, given Flax's array."""
        if self.axes is None:
            return array
        if self.axes == (1, 0):
            return ast.Attribute(array, "T", ast.Load())
        return code("{x}.transpose({axes})", x=array, axes=self.axes)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Flax's shape of a tensor of this torch shape."""
        if self.axes is None:
            return shape
        turned = [0] * len(shape)
        for torch_axis, axis in enumerate(self.axes):
            turned[axis] = shape[torch_axis]
        return tuple(turned)


def _fields_of(of: str) -> Set[str]:
    """Arguments of the class of a layer."""
    place, _, name = of.rpartition(".")
    return takes(getattr(importlib.import_module(place), name))


def takes(cls: type | None) -> Set[str]:
    """The fields of a linen module, or the arguments of an nnx module's constructor."""
    fields = set(getattr(cls, "__dataclass_fields__", ()))
    return fields or set() if cls is None or fields else set(_arguments(cls))


def _arguments(cls: type) -> Iterator[str]:
    """Arguments of a constructor, and those of its base's that it passes on."""
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        yield from (each.name for each in parameters)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            return


def weight_of(module: torch.nn.Module, name: str) -> Placed | None:
    """Position of a layer's tensor; None if it has parts, or the module is not a known layer."""
    entry, _ = find_entry(module)
    if entry is None:
        return None
    weights = entry.weights_of(module)
    if is_reparametrized(module):
        try:
            weights = tuple(
                weight for weight in reparametrized(module, weights) if weight.join == ALONE
            )
        except CannotComputeError:
            return None
    places = [weight for weight in weights if weight.torch == name]
    if len(places) != 1 or places[0].part is not None or "/" in places[0].linen:
        return None
    layout = places[0].layout.inverse
    if isinstance(layout, Permute):
        return Placed(places[0].linen, places[0].collection, layout.axes)
    return Placed(places[0].linen, places[0].collection, None) if layout == UNCHANGED else None


def layer_of(
    module: torch.nn.Module, called: bool = True, plain: bool = False, api: Api = "linen"
) -> Layer | None:
    """The Flax layer that a module is; None where it is the user's own, or Flax has none.

    Args:
        module: any module.
        called: whether it is called; else it only holds weights, and what its forward does is nothing.
        plain: whether an attention is given query, key and value (batch first) and nothing else, and only its
            output is read: Flax's own does the same then. Whether a recurrent layer is given one tensor
            (batch first) and has none but the usual weights: a short source does then.
        api: of the layer.
    """
    entry, _ = find_entry(module)
    if entry is None or (called and type(module).forward is not _forward_of(module)):
        return None
    if entry.kind.startswith("Transformer"):
        return None  # made of layers that are known
    if is_computed_before(module, entry.weights_of(module)):
        return None  # its weight is computed at each call
    several = type(module).__name__ in _GIVES
    for flax_call in flax_calls(module, api):
        if plain and isinstance(module, torch.nn.RNNBase):
            settings, sizes = (
                {key: held[key] for key in _PLAIN_OPTIONS if key in held}
                for held in (flax_call.settings, flax_call.sizes)
            )
            kinds = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
            name = next(kind.__name__ for kind in kinds if isinstance(module, kind))
            of = _PLAIN.format(api=api, name=name)
            return Layer(module, FlaxCall(of, sizes, settings, options=flax_call.options))
        if several and not flax_call.of.startswith("converters."):
            if plain:
                return Layer(module, flax_call)
            continue
        if not flax_call.called_otherwise and not flax_call.differs:
            return Layer(module, _padded(module, _frozen(flax_call), api))
    return None


def _frozen(flax: FlaxCall) -> FlaxCall:
    """The call of nnx's own BatchNorm, whose statistics stay whatever `model.train()` says."""
    if flax.of != "flax.nnx.BatchNorm":
        return flax
    return replace(flax, options={"use_running_average": True})


def _padded(module: torch.nn.Module, flax: FlaxCall, api: Api) -> FlaxCall:
    """Return the call of `PaddedEmbed` for an embedding with a row of padding; `flax` for other layers."""
    if not isinstance(module, torch.nn.Embedding) or module.padding_idx is None:
        return flax
    settings = {**flax.settings, "padding_idx": module.padding_idx}
    return replace(flax, of=_PADDED.format(api=api), settings=settings)


def _forward_of(module: torch.nn.Module) -> Any:
    """The forward of the nearest class of torch itself."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn.modules.") and "forward" in vars(cls):
            return vars(cls)["forward"]
    return None


def _value(value: Any) -> Any:
    """A value of a `FlaxCall` as an expression."""
    match value:
        case Variable(name="rngs"):
            return code("rngs")
        case Variable():
            # Nothing is drawn and statistics stay.
            return True
        case Name():
            return code(_spelled(value.of))
        case SourceCall():
            named: Mapping[str, Any] = {n: _value(v) for n, v in value.named.items()}
            return call(_spelled(value.of), *map(_value, value.first), **named)
        case Maker():
            return code("lambda: {c}", c=_value(value.call))
        case tuple():
            return tuple(_value(element) for element in value)
    return value


def _spelled(of: str) -> str:
    short = of.replace("jax.numpy.", "jnp.").replace("flax.linen.", "nn.")
    return short.replace("flax.nnx.", "nnx.")
