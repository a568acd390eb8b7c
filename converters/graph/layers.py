"""Layers of torch that Flax has: how one is made, called, and where its weights are."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from converters.graph import settings
from converters.graph.expression import as_code, call, code
from converters.layers.flax_call import Call, FlaxCall, Maker, Name, Variable
from converters.layers.registry import find_entry, flax_calls

# Argument of a Flax layer → the attribute of torch's that it comes from.
_FROM = {
    "features": ("out_features", "out_channels", "embedding_dim"),
    "num_embeddings": ("num_embeddings",),
    "epsilon": ("eps",),
    "num_groups": ("num_groups",),
}
# Flax's name for a weight, and how torch's tensor is had from it.
_BACK = {
    ("Linear", "weight"): ("kernel", "{w}.T"),
    ("Embedding", "weight"): ("embedding", "{w}"),
}


@dataclass(frozen=True)
class Layer:
    """A layer of Flax's own that computes as a torch one.

    Attributes:
        module: the torch layer.
        flax: how Flax's is made and called.
    """

    module: torch.nn.Module
    flax: FlaxCall

    def made(self, parent: Any, attribute: str) -> ast.expr:
        """The expression that makes it; sizes are settings of the model."""
        named = {**self.flax.sizes, **self.flax.settings}
        written = {
            name: self._argument(parent, attribute, name, value) for name, value in named.items()
        }
        first = [written.pop(one) for one in ("num_embeddings", "features") if one in written]
        return call(f"nn.{self.flax.of.rpartition('.')[2]}", *first, **written)

    def _argument(self, parent: Any, attribute: str, name: str, value: Any) -> Any:
        for torch_name in _FROM.get(name, ()):
            if hasattr(self.module, torch_name):
                return settings.of_layer(parent, attribute, self.module, torch_name, value)
        return _value(value)

    def applied(self, layer: ast.expr, x: ast.expr) -> ast.expr:
        """The expression that calls it, on a tensor in Flax's order."""
        given = x
        for before in self.flax.before:
            named = {name: _value(value) for name, value in before.named.items()}
            given = call(_spelled(before.of), given, *map(_value, before.first), **named)
        options = {name: _value(value) for name, value in self.flax.options.items()}
        keywords = [ast.keyword(name, as_code(value)) for name, value in options.items()]
        return ast.Call(layer, [given], keywords)

    def weight(self, layer: ast.expr, name: str) -> ast.expr | None:
        """The torch tensor `name` of the layer, as an expression."""
        entry, _ = find_entry(self.module)
        found = _BACK.get((entry.kind, name)) if entry else None
        if found is None and name != "bias":
            return None
        flax, text = found or ("bias", "{w}")
        if flax == "embedding":
            return code("{layer}.embedding", layer=layer)
        weight = code("{layer}.variables['params'][{name}]", layer=layer, name=flax)
        return code(text, w=weight)


def layer_of(module: torch.nn.Module) -> Layer | None:
    """The Flax layer that a module is; None where it is the user's own, or Flax has none."""
    entry, _ = find_entry(module)
    if entry is None or type(module).forward is not _forward_of(module):
        return None
    for one in flax_calls(module, "linen"):
        if one.of.startswith("flax.linen.") and not one.called_otherwise and not one.differs:
            return Layer(module, one)
    return None


def _forward_of(module: torch.nn.Module) -> Any:
    """The forward of the nearest class of torch itself."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith("torch.nn.modules.") and "forward" in vars(cls):
            return vars(cls)["forward"]
    return None


def _value(value: Any) -> Any:
    """A value of a `FlaxCall` as an expression."""
    match value:
        case Variable():
            # The port runs in inference: nothing is drawn and statistics stay.
            return True
        case Name():
            return code(_spelled(value.of))
        case Call():
            named: Mapping[str, Any] = {n: _value(v) for n, v in value.named.items()}
            return call(_spelled(value.of), *map(_value, value.first), **named)
        case Maker():
            return code("lambda: {c}", c=_value(value.call))
        case tuple():
            return tuple(_value(one) for one in value)
    return value


def _spelled(of: str) -> str:
    return of.replace("jax.numpy.", "jnp.").replace("flax.linen.", "nn.")
