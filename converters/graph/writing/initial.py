"""Initial arrays of a port: the observed initialization of the original, as Flax initializers."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from converters.graph.expression import SettingFloat, SettingInt, as_code, call, code, dtype_name
from converters.graph.ir import Graph
from converters.graph.starts.law import (
    Computed,
    Constant,
    Draw,
    Formula,
    Law,
    Leaf,
    Norm,
    Number,
    Orthogonal,
    Other,
    Patched,
    Sequence,
    Unset,
    is_drawn,
    sequence,
    serials,
)
from converters.graph.starts.watch import Start, Starts
from converters.graph.writing.initial_laws import (
    InitialLaws,
    UnknownLawError,
    asks_fans,
    flax_axis,
    plain_tree,
)
from converters.graph.writing.initial_numbers import InitialNumbers
from converters.graph.writing.layers import Layer, Placed, takes, weight_of
from converters.graph.writing.original.constants import computed
from converters.graph.writing.original.settings import Settings
from converters.graph.writing.place import buffer_path
from converters.layers.reparametrized import is_reparametrized
from converters.mapping.module_tree import BUFFERS
from converters.mapping.paths import Api

# What the constructor of a Flax layer calls the initializer of an array.
_ARGUMENTS = {
    "kernel": "kernel_init",
    "bias": "bias_init",
    "scale": "scale_init",
    "embedding": "embedding_init",
}
# What Flax does where nothing is said.
_USUAL = {"bias_init": "nn.initializers.zeros", "scale_init": "nn.initializers.ones"}
_LAYERS = frozenset(
    [
        "Dense",
        "Linear",
        "Conv",
        "ConvTranspose",
        "Embed",
        "PaddedEmbed",
        "EmbeddingBag",
        "LayerNorm",
        "GroupNorm",
        "RMSNorm",
        "BatchNorm",
        "InstanceNorm",
    ]
)
# Layers of torch whose counterparts of ours start by default as they do.
_AS_TORCH = (
    torch.nn.RNNBase,
    torch.nn.RNNCellBase,
    torch.nn.modules.conv._ConvTransposeNd,
    torch.nn.Bilinear,
)
_NONE: Mapping[str, Start] = {}


class ModelFacts(Protocol):
    """Facts about a model that initializers need (a `Drafter` has them)."""

    root: torch.nn.Module
    settings: Settings
    modules: dict[str, torch.nn.Module]
    constants: Mapping[str, Any]
    volatile: set[str]
    baked: dict[str, None]
    api: Api
    graph: Graph

    def layer(self, path: str) -> Layer | None:
        """The layer of Flax's that a module is."""


class Initial:
    """The initializers of a model.

    Attributes:
        otherwise: arrays that start otherwise than the original's: their key, and why.
        values: arrays that are stored, by their path in the port.
    """

    def __init__(self, drafter: ModelFacts, starts: Starts | None) -> None:
        self.drafter = drafter
        self.starts = starts
        self.otherwise: dict[str, str] = {}
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        self._written: set[str] = set()
        self._numbers = InitialNumbers(self._setting, drafter.baked, self._places)
        self._laws = InitialLaws(drafter.settings, self._numbers)

    def unwritten(self) -> dict[str, str]:
        """Arrays that start otherwise, with those for which no initializer was written."""
        names = dict(self.drafter.root.named_parameters())
        why = "no initializer was written for its Flax layer"
        rest = [key for key in names if key in (self.starts or _NONE) and key not in self._written]
        return {**dict.fromkeys(rest, why), **self.otherwise}

    # Layers of Flax.

    def layer(self, path: str, layer: Layer, single: bool, typed: bool) -> ast.expr:
        """The expression that makes a layer, with its initializers.

        Args:
            path: of the torch layer.
            layer: it.
            single: whether its parent holds it by itself, not in a list.
            typed: whether it is given the dtypes and the precision of the module that holds it.
        """
        expression = self._layer(path, layer, layer.made(self.drafter.settings, typed), single)
        if isinstance(expression, ast.Call):  # `**self.numerics` stands last
            expression.keywords.sort(key=lambda keyword: keyword.arg is None)
        return expression

    def _layer(self, path: str, layer: Layer, expression: ast.expr, single: bool) -> ast.expr:
        if self.starts is None or not isinstance(expression, ast.Call):
            return expression
        if isinstance(layer.module, torch.nn.MultiheadAttention):
            return self._attention(path, layer, expression)
        if isinstance(layer.module, torch.nn.PReLU):
            return self._slope(path, layer, expression)
        inner = next(
            (keyword.value for keyword in expression.keywords if keyword.arg == "layer"), None
        )
        if (
            isinstance(inner, ast.Call)
            and layer.ours is not None
            and is_reparametrized(layer.module)
        ):
            self._around(path, layer, expression, inner)
            return expression
        if layer.ours is not None and not {"scale_init", "embedding_init"} & takes(layer.ours):
            plain = isinstance(layer.module, _AS_TORCH) and not is_reparametrized(layer.module)
            return self._own(path, layer, expression) if plain else expression
        if layer.flax.of.rpartition(".")[2] not in _LAYERS:
            return expression
        for name, tensor in layer.module._parameters.items():
            if tensor is None:
                continue
            key = f"{path}.{name}"
            placed = weight_of(layer.module, name) or self._turned(key, layer.module, name)
            if placed is None or placed.linen not in _ARGUMENTS:
                self.otherwise.setdefault(key, "no initializer of Flax's layer is for it")
                continue
            argument = _ARGUMENTS[placed.linen]
            where = path if single else ""
            try:
                initializer = self._initializer(key, layer.module, name, placed.axes, where)
            except UnknownLawError as error:
                self.otherwise.setdefault(key, str(error))
                continue
            if ast.unparse(initializer) != _USUAL.get(argument):
                expression.keywords.append(ast.keyword(argument, initializer))
        return expression

    def _turned(self, key: str, module: Any, name: str) -> Placed | None:
        """Position of a transposed convolution's weight, if all its elements have one law.

        Its elements lie in reverse order, so only then an initializer fits.
        """
        start = (self.starts or _NONE).get(key)
        if start is None or not isinstance(start.law, Draw | Constant | Formula):
            return None
        if not isinstance(module, torch.nn.modules.conv._ConvTransposeNd) or name != "weight":
            return None
        if (
            module.groups > 1
        ):  # its axes are not torch's: only what counts no inputs and outputs fits
            iid = isinstance(start.law, Constant) or (
                isinstance(start.law, Draw) and not asks_fans(start.law)
            )
            return Placed("kernel", "params", None) if iid else None
        space = module.weight.dim() - 2
        return Placed("kernel", "params", (space, space + 1, *range(space)))

    def _own(self, path: str, layer: Layer, expression: ast.Call) -> ast.expr:
        """A layer whose source comes into the port: by default it starts as torch's own does."""
        arguments = takes(layer.ours)
        written: dict[str, set[str]] = {}
        trees: dict[str, ast.expr] = {}
        keys: dict[str, list[str]] = {}
        for name, tensor in layer.module._parameters.items():
            if tensor is None:
                continue
            key = f"{path}.{name}"
            placed = weight_of(layer.module, name) or self._turned(key, layer.module, name)
            start = (self.starts or _NONE).get(key)
            argument = "" if placed is None else f"{placed.linen.partition('_l')[0]}_init"
            keys.setdefault(argument, []).append(key)
            if start is not None and _is_default(start.law, layer.module, name):
                self._written.add(key)
                written.setdefault(argument, set()).add("")
                continue
            try:
                if placed is None or argument not in arguments:
                    raise UnknownLawError("the layer has no initializer for it")
                tree = self._initializer(key, layer.module, name, placed.axes, "")
                written.setdefault(argument, set()).add(ast.dump(plain_tree(tree)))
                trees[argument] = tree
            except UnknownLawError as error:
                self.otherwise.setdefault(key, str(error))
        for argument, tree in trees.items():
            if len(written[argument]) == 1:
                expression.keywords.append(ast.keyword(argument, tree))
                continue
            for key in keys[argument]:
                self.otherwise.setdefault(key, "arrays of one layer start in several ways")
        return expression

    def _around(self, path: str, layer: Layer, expression: ast.Call, inner: ast.Call) -> None:
        """Add initializers to a layer around another layer, which computes its weight.

        The inputs of that computation start as the weight of the inner layer does. The scale of
        weight_norm is the norm of that weight.
        """
        laws: list[Law] = []
        norms: dict[str, Law] = {}
        for name, _ in layer.module.named_parameters():
            key, placed = f"{path}.{name}", weight_of(layer.module, name)
            start = (self.starts or _NONE).get(key)
            array, _, part = ("", "", "") if placed is None else placed.linen.partition("_")
            argument = _ARGUMENTS.get(array, "")
            try:
                if start is None or placed is None or not argument:
                    raise UnknownLawError("no initializer of the layer is for it")
                if part == "g" and isinstance(start.law, Norm):
                    norms[key] = start.law.of
                    self._written.add(key)
                    continue
                if part == "g":
                    holder, argument = expression, "scale_init"
                else:
                    holder = inner
                    laws.append(start.law)
                initializer = self._initializer(key, layer.module, name, placed.axes, "")
            except UnknownLawError as error:
                self.otherwise.setdefault(key, str(error))
                continue
            if ast.unparse(initializer) != _USUAL.get(argument):
                holder.keywords.append(ast.keyword(argument, initializer))
        for key, law in norms.items():
            if law not in laws:
                self.otherwise.setdefault(key, "the norm of another tensor")
        inner.keywords.sort(key=lambda keyword: keyword.arg is None)

    def _attention(self, path: str, layer: Layer, expression: ast.Call) -> ast.expr:
        """Flax's attention: one initializer for query, key and value, one for the output."""
        kernels = {"in_proj_weight": "kernel_init", "out_proj.weight": "out_kernel_init"}
        biases = {"in_proj_bias": "bias_init", "out_proj.bias": "out_bias_init"}
        for name, argument in {**kernels, **biases}.items():
            key = f"{path}.{name}"
            start = (self.starts or _NONE).get(key)
            try:
                if start is None:
                    if (
                        name == "in_proj_weight"
                        or getattr(layer.module, "in_proj_bias", None) is None
                    ):
                        self.otherwise.setdefault(key, "was not seen to be made")
                    continue
                owner = layer.module.out_proj if "." in name else layer.module
                initializer = self._law(
                    start, start.law, key, owner, name, (1, 0), "", 3 if "in_proj" in name else 1
                )
            except UnknownLawError as error:
                self.otherwise.setdefault(key, str(error))
                continue
            self._written.add(key)
            if ast.unparse(initializer) != "nn.initializers.zeros":
                expression.keywords.append(ast.keyword(argument, initializer))
        return expression

    def _slope(self, path: str, layer: Layer, expression: ast.Call) -> ast.expr:
        """PReLU: its constructor takes the first slope as a number, not as an initializer."""
        key = f"{path}.weight"
        start = (self.starts or _NONE).get(key)
        if start is None:
            self.otherwise.setdefault(key, "was not seen to be made")
        elif not isinstance(start.law, Constant):
            self.otherwise.setdefault(key, "its Flax layer starts with one number for all slopes")
        else:
            self._written.add(key)
            self._numbers.key = key
            usual = inspect.signature(torch.nn.PReLU).parameters["init"].default
            slope = start.law.value
            slope = replace(slope, literal=slope.literal or slope.value == usual)
            number = as_code(self._numbers.number(slope, "negative_slope_init"))
            expression.keywords.append(ast.keyword("negative_slope_init", number))
        return expression

    # Arrays of a module's own.

    def parameter(
        self, module: Any, path: str, name: str, key: str, axes: tuple[int, ...] | None
    ) -> ast.expr:
        """The initializer of a parameter."""
        tensor = self.drafter.constants[key]
        if self.starts is None:
            return _guessed(tensor)
        try:
            return self._initializer(key, module, name, axes, path)
        except UnknownLawError as error:
            self.otherwise.setdefault(key, str(error))
            return _guessed(tensor)

    def variable(
        self, collection: str, module: Any, path: str, name: str, key: str, shape: Any
    ) -> ast.expr:
        """An array that is no parameter, with what the original has in it at first."""
        tensor = self.drafter.constants[key]
        # A buffer that torch saves follows the dtype of the weights; Flax's statistics stay float32.
        follows = collection == "buffers" and key in (self.drafter.graph.narrow or ())
        kind: tuple[Any, ...] = (code("self.param_dtype"),) if follows else ()
        if not follows and tensor.dtype != torch.float32:
            kind = (code(dtype_name(tensor.dtype)),)
        start = (self.starts or _NONE).get(key)
        values = _values(tensor) if start is None or key in self.drafter.volatile else start.values
        how: tuple[Any, ...]
        if start is not None and is_drawn(start.law) and key not in self.drafter.volatile:
            try:
                drawn = self._law(start, start.law, key, module, name, None, path)
                array = code(
                    '{init}(self.make_rng("params"), {shape}, {kind})',
                    init=drawn,
                    shape=shape,
                    kind=kind[0] if follows else code("jnp.float32"),
                )
                how = (code("lambda: {made}", made=array),)
            except UnknownLawError as error:
                self.otherwise.setdefault(key, str(error))
                how = (code("jnp.zeros"), shape, *kind)
        elif values is None:
            self.otherwise.setdefault(key, "its values are not known")
            how = (code("jnp.zeros"), shape, *kind)
        elif values.size and bool((values == values.flat[0]).all()):
            value = values.flat[0].item()
            if value in (0, 1) and not isinstance(value, bool):
                how = (code("jnp.ones" if value else "jnp.zeros"), shape, *kind)
            else:
                settings = self.drafter.settings
                said = value if isinstance(value, bool) else settings.of_buffer(module, name, value)
                how = (code("jnp.full"), shape, as_code(said), *kind)
        elif not values.size:
            how = (code("jnp.zeros"), shape, *kind)
        else:
            again = computed(torch.from_numpy(values), module, name, self.drafter.settings)
            again = again or self._counted(start, values, shape)
            cast = ".astype(self.param_dtype)" if follows else ""
            if again is not None:
                how = (code(f"lambda: {{made}}{cast}", made=again),)
            else:
                self._store(key, name, path, values)
                how = (code("stored"), code("self.path"), name, shape)
                if follows:
                    how = (code(f"lambda: {{made}}{cast}", made=call("stored", *how[1:])),)
        array = call("self.variable", collection, name, *how)
        return ast.Attribute(array, "value", ast.Load())

    def _counted(
        self, start: Start | None, values: np.ndarray[Any, Any], shape: Any
    ) -> ast.expr | None:
        """A buffer that follows from a sequence, by what its constructor was seen to compute."""
        if start is None or values.dtype != np.float32 or not _agrees_with(start.law, values):
            return None
        try:
            array = self._laws.along(start.law, as_code(shape))
        except UnknownLawError:
            return None
        return code("({made}).astype(jnp.float32)", made=array)

    def _store(self, key: str, name: str, path: str, values: np.ndarray[Any, Any]) -> None:
        """Put values into the file of a port; keep the dtypes that JAX has."""
        if self.drafter.api == "nnx":  # it is set in the model by its path
            placed = weight_of(self.drafter.modules[path], name)
            name = name if placed is None else placed.linen
        key = f"{path}.{name}" if path else name
        where = buffer_path(self.drafter.root, key, self.drafter.api)
        narrow = {"float64": np.float32, "int64": np.int32}.get(values.dtype.name)
        self.values[where.removeprefix(f"{BUFFERS}/")] = (
            values if narrow is None else values.astype(narrow)
        )

    # Laws.

    def _initializer(
        self, key: str, module: Any, name: str, axes: tuple[int, ...] | None, path: str
    ) -> ast.expr:
        start = (self.starts or _NONE).get(key)
        if start is None:
            raise UnknownLawError("was not seen to be made")
        initializer = self._law(start, start.law, key, module, name, axes, path)
        self._written.add(key)
        return initializer

    def _law(
        self,
        start: Start,
        law: Law,
        key: str,
        module: Any,
        name: str,
        axes: tuple[int, ...] | None,
        path: str,
        parts: int = 1,
    ) -> ast.expr:
        """A law as an initializer.

        Args:
            start: of the tensor.
            law: it, or that of a part of the tensor.
            key: of the tensor in the state dict.
            module: that holds it.
            name: what the module calls it.
            axes: torch's order of its axes, by those in Flax; None: the same.
            path: of the module; "": its values cannot be stored.
            parts: how many arrays of Flax's its first axis is cut into.
        """
        self._numbers.key = key
        match law:
            case Constant(value=number):
                return self._laws.constant(number)
            case Draw():
                return self._laws.draw(law, module, name, axes, parts)
            case Orthogonal(gain=gain):
                column = flax_axis(axes, 0, module, name)
                options = {} if column == -1 else {"column_axis": column}
                arguments = () if gain.value == 1 else (self._numbers.number(gain, "gain"),)
                return call("nn.initializers.orthogonal", *arguments, **options)
            case Patched():
                return self._patched(start, law, key, module, name, axes, path)
            case Formula() if is_drawn(law):
                return self._laws.formula(law)
            case Sequence() | Formula() if axes is None and _agrees_with(law, start.values):
                array = self._laws.along(law, code("shape"))
                return code("lambda key, shape, dtype: {made}", made=array)
            case Computed() | Sequence() | Formula():
                return self._computed(start, module, name, axes, path)
            case Norm():
                raise UnknownLawError("the norm of another tensor")
            case Unset():
                raise UnknownLawError("the original does not set it")
            case Other(why=why):
                raise UnknownLawError(f"drawn by {why}")
        raise UnknownLawError("of unknown law")

    def _patched(
        self,
        start: Start,
        law: Patched,
        key: str,
        module: Any,
        name: str,
        axes: tuple[int, ...] | None,
        path: str,
    ) -> ast.expr:
        if axes is not None and axes != tuple(range(len(axes))):
            raise UnknownLawError("parts of it start otherwise than the rest")
        base = (
            code("nn.initializers.zeros")
            if isinstance(law.law, Unset)
            else self._law(start, law.law, key, module, name, axes, path)
        )
        padding = getattr(module, "padding_idx", None)
        rows = [(first, last) for first, last, _ in law.patches]
        zeros = all(
            isinstance(patch_law, Constant) and patch_law.value.value == 0
            for *_, patch_law in law.patches
        )
        if padding is not None and zeros and set(rows) == {(padding, padding + 1)}:
            row = self.drafter.settings.of_layer(module, "padding_idx", padding)
            return code("zero_row({b}, {r})", b=base, r=row)
        slices = []
        for first, last, inner in dict.fromkeys(law.patches):
            if isinstance(inner, Computed):
                raise UnknownLawError("parts of it are computed")
            initializer = self._law(start, inner, key, module, name, None, "")
            slices.append(code("({a}, {b}, {i})", a=first, b=last, i=initializer))
        return call("with_slices", base, *slices)

    def _computed(
        self, start: Start, module: Any, name: str, axes: tuple[int, ...] | None, path: str
    ) -> ast.expr:
        """An array that no chance has a part in."""
        if start.values is None:
            raise UnknownLawError("its values are not known")
        values = start.values if axes is None else np.transpose(start.values, np.argsort(axes))
        if values.size and bool((values == values.flat[0]).all()):
            return self._laws.constant(Number(float(values.flat[0]), literal=True))
        if not path and path is not None and self.drafter.root is not module:
            raise UnknownLawError("its values are computed, and it stands in a list")
        holder = self.drafter.modules.get(path)
        if holder is not module or module is None:
            raise UnknownLawError("its values are computed")
        within = self.drafter.layer(path) if path else None
        self._store(f"{path}.{name}", name, path, values)
        if within is not None:
            attribute = path.rpartition(".")[2]
            return code(
                "lambda key, shape, dtype: stored((*self.path, {a}), {n}, shape).astype(dtype)",
                a=attribute,
                n=name,
            )
        return code(
            "lambda key, shape, dtype=jnp.float32: stored(self.path, {n}, shape).astype(dtype)",
            n=name,
        )

    def _places(self, key: str) -> Iterator[tuple[str, int]]:
        """The lists that the modules around a tensor stand in, the innermost first, and their places."""
        path = key.rpartition(".")[0]
        while path:
            above, _, name = path.rpartition(".")
            module = self.drafter.modules.get(above)
            if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential) and name.isdigit():
                yield above, int(name)
            path = above

    def _setting(self, leaf: Leaf) -> tuple[str, Mapping[str, Any]] | None:
        """The settings of the port that an attribute or argument of the original stands for."""
        settings = self.drafter.settings
        if not isinstance(leaf.holder, torch.nn.Module):
            return settings.called_in(leaf.holder, leaf.name, leaf.value)
        module = self.drafter.modules.get(
            (self.starts.paths if self.starts else {}).get(id(leaf.holder), "?")
        )
        if module is None:
            return None
        if leaf.axis is not None:
            setting = settings.of_parameter(module, leaf.name, leaf.axis, leaf.value)
        elif isinstance(leaf.value, int | float):
            setting = settings.of_attribute(module, leaf.name, leaf.value)
        else:
            return None
        if isinstance(setting, SettingInt | SettingFloat) and setting.text:
            return setting.text, setting.parts
        return None


def _agrees_with(law: Law, values: np.ndarray[Any, Any] | None) -> bool:
    """Whether a formula gives the values of the tensor but for rounding."""
    held = sequence(law)
    if held is None or values is None or values.shape != held.shape:
        return False

    def run(part: Law | Number) -> Any:
        match part:
            case Number(value=value):
                return value
            case Sequence():
                counted = torch.arange(part.shape[part.axis], dtype=torch.float64)
                return counted * part.step.value + part.start.value
            case Formula(operator=operator, inputs=inputs):
                return getattr(torch, operator)(*map(run, inputs))
        raise TypeError(part)

    try:
        result = run(law).numpy()
    except (TypeError, RuntimeError, AttributeError):
        return False
    result = result.reshape(
        [-1 if at - values.ndim == held.axis else 1 for at in range(values.ndim)]
    )
    return bool(np.allclose(values, np.broadcast_to(result, values.shape), rtol=1e-6, atol=0))


def _values(tensor: Any) -> np.ndarray[Any, Any] | None:
    if tensor.device.type == "meta":
        return None
    plain = tensor.detach().cpu()
    return np.array((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())


def _is_default(law: Law, module: Any, name: str) -> bool:
    """Whether a parameter of a layer starts as torch's own layer makes it."""
    if not isinstance(law, Draw) or law.scale.value != 1 or law.shift.value:
        return False
    if name == "weight" and isinstance(module, torch.nn.modules.conv._ConvNd):
        called, options = law.named or ("", {})
        usual = {"a": math.sqrt(5), "mode": "fan_in", "nonlinearity": "leaky_relu"}
        return called == "kaiming_uniform_" and usual.items() <= options.items()
    return bool(law.rule)


def _guessed(tensor: Any) -> ast.expr:
    """The initializer of a parameter whose creation was not observed, by its values."""
    if tensor.numel() and tensor.device.type != "meta":
        if bool((tensor == 1).all()):
            return code("nn.initializers.ones")
        if not bool((tensor == 0).all()):
            return code("nn.initializers.normal(0.02)")
    return code("nn.initializers.zeros")


def copied_starts(
    starts: Mapping[str, Start], first: Mapping[str, str], unread: Collection[str] = ()
) -> list[str]:
    """Notes on tensors that start as copies of others: a port draws each by itself.

    Args:
        starts: of the model.
        first: name of a tied tensor → its first name.
        unread: tensors that the port does not have.
    """
    drawn: dict[int, str] = {}
    copies: dict[str, str] = {}
    for key, start in starts.items():
        if key in unread or first.get(key, key) != key or isinstance(start.law, Norm):
            continue  # the norm of a weight is computed from it, or named as one that starts otherwise
        for serial in serials(start.law):
            if drawn.setdefault(serial, key) != key:
                copies[key] = drawn[serial]
    named = [f"{key} as a copy of {other}" for key, other in copies.items()]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    said = f"arrays start as copies in the original, and `init` draws each by itself: {', '.join(named[:3])}"
    return [f"{said}{more}"] if named else []
