"""Flax source of a torch layer as data: a class, its arguments, and the code around its call.

`migrate weights` notes, the layers' pages, and source code are derived from it. The forward cases
build their modules from that source, which proves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Api = Literal["linen", "nnx"]

_OURS = "converters.modules"
# Names in source, and the import that each needs.
_MODULES = {
    "flax.linen": ("nn", "from flax import linen as nn"),
    "flax.nnx": ("nnx", "from flax import nnx"),
    "converters.modules.linen": ("modules", "from converters.modules import linen as modules"),
    "converters.modules.nnx": ("modules", "from converters.modules import nnx as modules"),
    "jax.numpy": ("jnp", "import jax.numpy as jnp"),
}


@dataclass(frozen=True)
class Variable:
    """Variable of the surrounding code: `rngs`, `deterministic`."""

    name: str


RNGS = Variable("rngs")  # an `nnx.Rngs`
DETERMINISTIC = Variable("deterministic")  # a bool: False in training


@dataclass(frozen=True)
class Name:
    """Importable name that is a value itself: a dtype ("jax.numpy.bfloat16")."""

    of: str


@dataclass(frozen=True)
class SourceCall:
    """Call of an importable name.

    Attributes:
        of: module and name ("flax.linen.Conv", "jax.numpy.pad").
        named: the keyword arguments.
        first: the positional arguments.
    """

    of: str
    named: Mapping[str, Value] = field(default_factory=dict)
    first: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Maker:
    """Function without arguments that returns the result of the call each time."""

    call: SourceCall


Value: TypeAlias = (
    "bool | int | float | str | Variable | Name | SourceCall | Maker | tuple[Value, ...] | None"
)


@dataclass(frozen=True)
class FlaxCall:
    """Flax module that computes the same as a torch layer, and how to call it.

    Attributes:
        of: its class ("flax.linen.LayerNorm", "converters.modules.nnx.LSTM").
        sizes: the arguments that the weights determine: features, whether there is a bias.
        settings: the other arguments.
        before: calls that transform the first input, each with the input as its first argument.
        options: further arguments of every call.
        channels_last: whether the channel axis, torch's axis 1, is the last axis of input and output.
        called_otherwise: other differences of its inputs or outputs from the torch layer's, or "".
        differs: differences of its forward pass, for options that Flax lacks.
        remarks: further notes.
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
        """Call that creates the module."""
        return SourceCall(self.of, {**self.sizes, **self.settings})

    def source(self, **more: Value) -> str:
        """Return the expression that creates the module; `more` are further arguments (a linen
        module's name)."""
        return written(SourceCall(self.of, {**self.sizes, **self.settings, **more}))

    def applied(self, layer: str, first: str, *inputs: str) -> str:
        """Return the expression that calls the module of this name on these inputs."""
        for call in self.before:
            first = _called(call, first)
        options = (f"{name}={written(value)}" for name, value in self.options.items())
        return f"{layer}({', '.join((first, *inputs, *options))})"

    @property
    def imports(self) -> tuple[str, ...]:
        """Return the import statements that both expressions need."""
        return imports_of(self.construction, *self.before)

    @property
    def note(self) -> str:
        """Return notes for a user who writes the call, or "" if the weights determine everything."""
        settings = (
            [f"converters.modules: {self.of.rpartition('.')[2]}"]
            if self.of.startswith(_OURS)
            else []
        )
        settings += [f"{_called(call, 'x')} first" for call in self.before]
        settings += [
            f"{name}={written(value)}"
            for name, value in self.settings.items()
            if not isinstance(value, Variable)
        ]
        notes = (", ".join(settings), self.called_otherwise, *self.remarks, *self.differs)
        return "; ".join(filter(None, notes))


def own(
    api: Api, name: str, sizes: Mapping[str, Value], *, takes_rngs: bool = True, **rest: Any
) -> FlaxCall:
    """Create the call of a class of Flax.

    Args:
        api, name: the package and the class in it.
        sizes: as in `FlaxCall`.
        takes_rngs: whether the class of nnx has the argument `rngs`.
        rest: other fields of `FlaxCall`.
    """
    return _made(f"flax.{api}.{name}", api, sizes, takes_rngs, **rest)


def ours(
    api: Api, name: str, sizes: Mapping[str, Value], *, takes_rngs: bool = True, **rest: Any
) -> FlaxCall:
    """Create the call of a class of `converters.modules`; the arguments are those of `own`."""
    return _made(f"{_OURS}.{api}.{name}", api, sizes, takes_rngs, **rest)


def _made(of: str, api: Api, sizes: Mapping[str, Value], takes_rngs: bool, **rest: Any) -> FlaxCall:
    rngs = {"rngs": RNGS} if api == "nnx" and takes_rngs else {}
    return FlaxCall(of, sizes, {**rest.pop("settings", {}), **rngs}, **rest)


def changed(**arguments: tuple[Value, Value]) -> dict[str, Value]:
    """Return the arguments that differ from their defaults."""
    return {name: value for name, (value, default) in arguments.items() if value != default}


def features(api: Api, inputs: int, outputs: int) -> dict[str, Value]:
    """Return the sizes of a layer from features to features; linen infers the inputs."""
    return {"features": outputs} if api == "linen" else _both(inputs, outputs)


def _both(inputs: int, outputs: int) -> dict[str, Value]:
    return {"in_features": inputs, "out_features": outputs}


def num_features(api: Api, number: int) -> dict[str, Value]:
    """Return the size of a norm, which linen infers."""
    return {} if api == "linen" else {"num_features": number}


def has(layer: Any, name: str) -> bool:
    """Whether a torch layer has this parameter, without reading a value that it may compute."""
    held = layer._parameters if name in layer._parameters else vars(layer)
    return held.get(name, True) is not None


def use_bias(layer: Any) -> dict[str, Value]:
    """Return the argument that turns off the bias."""
    return changed(use_bias=(has(layer, "bias"), True))


def use_scale(layer: Any) -> dict[str, Value]:
    """Return the argument that turns off the scale."""
    return changed(use_scale=(has(layer, "weight"), True))


def written(value: Value) -> str:
    """Return a value as source."""
    match value:
        case Variable():
            return value.name
        case Name():
            return _source_name(value.of)[0]
        case SourceCall():
            return _called(value)
        case Maker():
            return f"lambda: {_called(value.call)}"
        case tuple():
            return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
        case _:
            return repr(value)


def imports_of(*values: Value) -> tuple[str, ...]:
    """Return the import statements that these values need."""
    return tuple(sorted({_source_name(of)[1] for value in values for of in _names(value)}))


def _called(call: SourceCall, *before: str) -> str:
    named = (f"{key}={written(value)}" for key, value in call.named.items())
    arguments = (*before, *map(written, call.first), *named)
    return f"{_source_name(call.of)[0]}({', '.join(arguments)})"


def _source_name(of: str) -> tuple[str, str]:
    """Return a name as source, and the import that it needs."""
    module = next(module for module in _MODULES if of.startswith(f"{module}."))
    alias, statement = _MODULES[module]
    return f"{alias}{of.removeprefix(module)}", statement


def _names(value: Value) -> Iterator[str]:
    """Return the importable names in a value."""
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
