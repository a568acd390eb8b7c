"""How a torch layer is written in Flax: a class, its arguments, and what stands around its call, as data.

From it are derived what `migrate weights` says of a layer, the layers' pages, and source. The forward cases
build their modules from that source, so that what it says is proven.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Api = Literal["linen", "nnx"]

_OURS = "converters.modules"
# Where a name is looked up in source, and the import that it needs.
_MODULES = {
    "flax.linen": ("nn", "from flax import linen as nn"),
    "flax.nnx": ("nnx", "from flax import nnx"),
    "converters.modules.linen": ("modules", "from converters.modules import linen as modules"),
    "converters.modules.nnx": ("modules", "from converters.modules import nnx as modules"),
    "jax.numpy": ("jnp", "import jax.numpy as jnp"),
}


@dataclass(frozen=True)
class Variable:
    """A name that whoever writes the call has: `rngs`, `deterministic`."""

    name: str


RNGS = Variable("rngs")  # an `nnx.Rngs`
DETERMINISTIC = Variable("deterministic")  # a bool: False in training


@dataclass(frozen=True)
class Name:
    """Something importable that stands for itself: a dtype ("jax.numpy.bfloat16")."""

    of: str


@dataclass(frozen=True)
class SourceCall:
    """A call of something importable.

    Attributes:
        of: module and name ("flax.linen.Conv", "jax.numpy.pad").
        named: its arguments by name.
        first: those before them.
    """

    of: str
    named: Mapping[str, Value] = field(default_factory=dict)
    first: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Maker:
    """A function without arguments, which gives what the call gives each time."""

    call: SourceCall


Value: TypeAlias = (
    "bool | int | float | str | Variable | Name | SourceCall | Maker | tuple[Value, ...] | None"
)


@dataclass(frozen=True)
class FlaxCall:
    """A Flax module that computes as a torch layer does, and how it is called.

    Attributes:
        of: its class ("flax.linen.LayerNorm", "converters.modules.nnx.LSTM").
        sizes: those of its arguments that the weights show: features, whether there is a bias.
        settings: the others.
        before: what the first input goes through on its way, each with the input as its first argument.
        options: what every call is given beside the inputs.
        channels_last: whether the axis of the channels, torch's 1, is the last of input and output.
        called_otherwise: how its inputs or outputs differ else from the torch layer's; "": they do not.
        differs: where its forward pass does, because Flax has no form for it.
        remarks: what else to know.
    """

    of: str
    sizes: Mapping[str, Value]
    settings: Mapping[str, Value] = field(default_factory=dict)
    before: tuple[SourceCall, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    channels_last: bool = False
    called_otherwise: str = ""
    differs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def construction(self) -> SourceCall:
        """The call that makes the module."""
        return SourceCall(self.of, {**self.sizes, **self.settings})

    def source(self, **more: Value) -> str:
        """The expression that makes the module; `more` are further arguments (a linen module's name)."""
        return written(SourceCall(self.of, {**self.sizes, **self.settings, **more}))

    def applied(self, layer: str, first: str, *inputs: str) -> str:
        """The expression that calls the module of this name on these inputs."""
        for call in self.before:
            first = _called(call, first)
        options = (f"{name}={written(value)}" for name, value in self.options.items())
        return f"{layer}({', '.join((first, *inputs, *options))})"

    @property
    def imports(self) -> tuple[str, ...]:
        """The statements that both expressions need."""
        return imports_of(self.construction, *self.before)

    @property
    def note(self) -> str:
        """What to know when one writes it, in a few words; "" where the weights say it all."""
        told = (
            [f"converters.modules: {self.of.rpartition('.')[2]}"]
            if self.of.startswith(_OURS)
            else []
        )
        told += [f"{_called(call, 'x')} first" for call in self.before]
        told += [
            f"{name}={written(value)}"
            for name, value in self.settings.items()
            if not isinstance(value, Variable)
        ]
        notes = (", ".join(told), self.called_otherwise, *self.remarks, *self.differs)
        return "; ".join(filter(None, notes))


def own(api: Api, name: str, sizes: Mapping[str, Value], **rest: Any) -> FlaxCall:
    """A class of Flax itself; `rest` is as in `FlaxCall`."""
    return _made(f"flax.{api}.{name}", api, sizes, **rest)


def ours(api: Api, name: str, sizes: Mapping[str, Value], **rest: Any) -> FlaxCall:
    """A class of `converters.modules`; `rest` is as in `FlaxCall`."""
    return _made(f"{_OURS}.{api}.{name}", api, sizes, **rest)


def _made(of: str, api: Api, sizes: Mapping[str, Value], **rest: Any) -> FlaxCall:
    given = {"rngs": RNGS} if api == "nnx" and of not in _WITHOUT_RNGS else {}
    return FlaxCall(of, sizes, {**rest.pop("settings", {}), **given}, **rest)


# What draws nothing and has no such argument.
_WITHOUT_RNGS = {
    "flax.nnx.PReLU",
    "converters.modules.nnx.WeightNorm",
    "converters.modules.nnx.SpectralNorm",
    "converters.modules.nnx.TransformerEncoder",
    "converters.modules.nnx.TransformerDecoder",
}


def changed(**arguments: tuple[Value, Value]) -> dict[str, Value]:
    """Of arguments with their defaults those that differ from them."""
    return {name: value for name, (value, default) in arguments.items() if value != default}


def features(api: Api, inputs: int, outputs: int) -> dict[str, Value]:
    """The sizes of a layer from features to features: linen finds out the inputs' by itself."""
    return {"features": outputs} if api == "linen" else _both(inputs, outputs)


def _both(inputs: int, outputs: int) -> dict[str, Value]:
    return {"in_features": inputs, "out_features": outputs}


def num_features(api: Api, number: int) -> dict[str, Value]:
    """The size of a norm, which linen finds out by itself."""
    return {} if api == "linen" else {"num_features": number}


def has(layer: Any, name: str) -> bool:
    """Whether a torch layer has this parameter, without a look at a value that it may compute."""
    held = layer._parameters if name in layer._parameters else vars(layer)
    return held.get(name, True) is not None


def use_bias(layer: Any) -> dict[str, Value]:
    """What says that there is no bias."""
    return changed(use_bias=(has(layer, "bias"), True))


def use_scale(layer: Any) -> dict[str, Value]:
    """What says that there is no scale."""
    return changed(use_scale=(has(layer, "weight"), True))


def written(value: Value) -> str:
    """A value as source."""
    match value:
        case Variable():
            return value.name
        case Name():
            return _spelled(value.of)[0]
        case SourceCall():
            return _called(value)
        case Maker():
            return f"lambda: {_called(value.call)}"
        case tuple():
            return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
        case _:
            return repr(value)


def imports_of(*values: Value) -> tuple[str, ...]:
    """The statements that these values need as source."""
    return tuple(sorted({_spelled(of)[1] for value in values for of in _names(value)}))


def _called(call: SourceCall, *before: str) -> str:
    named = (f"{key}={written(value)}" for key, value in call.named.items())
    arguments = (*before, *map(written, call.first), *named)
    return f"{_spelled(call.of)[0]}({', '.join(arguments)})"


def _spelled(of: str) -> tuple[str, str]:
    """A name as it stands in source, and the import that it needs."""
    module = next(module for module in _MODULES if of.startswith(f"{module}."))
    alias, statement = _MODULES[module]
    return f"{alias}{of.removeprefix(module)}", statement


def _names(value: Value) -> Iterator[str]:
    """The importable names in a value."""
    match value:
        case Name():
            yield value.of
        case SourceCall():
            yield value.of
            for part in (*value.first, *value.named.values()):
                yield from _names(part)
        case Maker():
            yield from _names(value.call)
        case tuple():
            for part in value:
                yield from _names(part)
