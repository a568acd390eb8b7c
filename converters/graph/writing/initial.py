"""Initial arrays of a port: the observed initialization of the original, as Flax initializers."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch

from converters.graph.expression import SettingFloat, SettingInt, as_code, call, code, dtype_name
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
    product,
    sequence,
    serials,
    total,
)
from converters.graph.starts.watch import Start, Starts
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
    torch.nn.EmbeddingBag,
)
# What a normal draw of float32 does not reach.
_FAR = 6.0
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

    def layer(self, path: str) -> Layer | None:
        """The layer of Flax's that a module is."""


class UnknownLawError(Exception):
    """An array starts in a way that no port has."""


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

    def unwritten(self) -> dict[str, str]:
        """Arrays that start otherwise, with those for which no initializer was written."""
        names = dict(self.drafter.root.named_parameters())
        why = "its Flax layer starts in a way of its own"
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
            key, placed = f"{path}.{name}", weight_of(layer.module, name)
            start = (self.starts or _NONE).get(key)
            argument = "" if placed is None else f"{placed.linen.partition('_l')[0]}_init"
            keys.setdefault(argument, []).append(key)
            if start is not None and _is_default(start.law):
                self._written.add(key)
                written.setdefault(argument, set()).add("")
                continue
            try:
                if placed is None or argument not in arguments:
                    raise UnknownLawError("the layer has no initializer for it")
                tree = self._initializer(key, layer.module, name, placed.axes, "")
                written.setdefault(argument, set()).add(ast.dump(_plain(tree)))
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
        kind = () if tensor.dtype == torch.float32 else (code(dtype_name(tensor.dtype)),)
        start = (self.starts or _NONE).get(key)
        values = _values(tensor) if start is None or key in self.drafter.volatile else start.values
        how: tuple[Any, ...]
        if start is not None and is_drawn(start.law) and key not in self.drafter.volatile:
            try:
                drawn = self._law(start, start.law, key, module, name, None, path)
                array = code(
                    '{init}(self.make_rng("params"), {shape}, jnp.float32)', init=drawn, shape=shape
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
            if again is not None:
                how = (code("lambda: {made}", made=again),)
            else:
                self._store(key, name, path, values)
                how = (code("stored"), code("self.path"), name, shape)
        array = call("self.variable", collection, name, *how)
        return ast.Attribute(array, "value", ast.Load())

    def _counted(
        self, start: Start | None, values: np.ndarray[Any, Any], shape: Any
    ) -> ast.expr | None:
        """A buffer that follows from a sequence, by what its constructor was seen to compute."""
        if start is None or values.dtype != np.float32 or not _agrees_with(start.law, values):
            return None
        try:
            array = self._along(start.law, as_code(shape))
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
        match law:
            case Constant(value=number):
                return self._constant(number)
            case Draw():
                return self._draw(law, module, name, axes, parts)
            case Orthogonal(gain=gain):
                column = _axis(axes, 0, start, module, name)
                options = {} if column == -1 else {"column_axis": column}
                arguments = () if gain.value == 1 else (self._number(gain, "gain"),)
                return call("nn.initializers.orthogonal", *arguments, **options)
            case Patched():
                return self._patched(start, law, key, module, name, axes, path)
            case Formula() if is_drawn(law):
                return self._formula(law)
            case Sequence() | Formula() if axes is None and _agrees_with(law, start.values):
                array = self._along(law, code("shape"))
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

    def _constant(self, number: Number) -> ast.expr:
        if number.value == 0:
            return code("nn.initializers.zeros")
        if number.value == 1:
            return code("nn.initializers.ones")
        return code("nn.initializers.constant({v})", v=self._number(number, "value"))

    def _draw(
        self, law: Draw, module: Any, name: str, axes: tuple[int, ...] | None, parts: int
    ) -> ast.expr:
        if law.named is not None and law.named[0] in _SCALES and not law.shift.value:
            return self._scaled(law, module, name, axes, parts)
        if law.rule == "fan" and law.scale.value == 1 and not law.shift.value:
            bound = self._fan(module)
            if bound is not None:
                return code("uniform_within({b})", b=bound)
        scale, shift = law.scale, law.shift
        if law.named is not None and law.named[0] == "fans" and shift.value == 0:
            return self._scaled(law, module, name, axes, parts)
        first, second = law.first, law.second
        if law.kind == "truncated":
            return self._truncated(law)
        if law.kind == "uniform":
            if scale.value == 1 and shift.value == 0:
                low, high = first, second
            else:
                low, high = (
                    _scaled_number(first, scale, shift),
                    _scaled_number(second, scale, shift),
                )
            if math.isclose(low.value, -high.value, rel_tol=1e-6):
                return code("uniform_within({b})", b=self._number(high, "bound"))
            return code(
                "uniform_between({a}, {b})",
                a=self._number(low, "low"),
                b=self._number(high, "high"),
            )
        std = _scaled_number(second, scale, Number(0.0, literal=True))
        mean = _scaled_number(first, scale, shift)
        if mean.value == 0:
            return code("nn.initializers.normal({s})", s=self._number(std, "std"))
        return code(
            "normal_around({m}, {s})", m=self._number(mean, "mean"), s=self._number(std, "std")
        )

    def _truncated(self, law: Draw) -> ast.expr:
        """A truncated normal: torch's has bounds as they are, others in standard deviations.

        Bounds that no draw reaches, whatever the settings are, are left out.
        """
        std = self._number(law.scale, "std")
        far = min(-law.first.value, law.second.value) > _FAR
        if far and not law.shift.value and not getattr(std, "text", ""):
            return code("nn.initializers.normal({s})", s=std)
        if law.named is not None and law.named[0] == "trunc_normal_":
            arguments = law.named[1]
            plain = law.scale == arguments["std"] and law.shift == arguments["mean"]
            if plain:
                named: dict[str, Any] = {}
                usual = {"mean": 0.0, "a": -2.0, "b": 2.0}
                words = {"mean": "mean", "a": "low", "b": "high"}
                for word, value in usual.items():
                    if arguments[word].value != value:
                        named[words[word]] = self._number(arguments[word], words[word])
                return call("trunc_normal", self._number(arguments["std"], "std"), **named)
        std = self._number(law.scale, "std")
        if law.shift.value:
            low, high = (
                bound.value * law.scale.value + law.shift.value for bound in (law.first, law.second)
            )
            mean = self._number(law.shift, "mean")
            return call("trunc_normal", std, mean, low, high)
        low, high = law.first.value, law.second.value
        if min(-low, high) > _FAR:
            # The bounds are as they are, whatever the standard deviation.
            ends = [round(bound * law.scale.value, 6) for bound in (low, high)]
            named = {} if ends == [-2.0, 2.0] else {"low": ends[0], "high": ends[1]}
            return call("trunc_normal", std, **named)
        rounded = [round(bound, 4) for bound in (low, high)]
        given_ends = {} if rounded == [-2.0, 2.0] else {"lower": rounded[0], "upper": rounded[1]}
        return call("nn.initializers.truncated_normal", std, **given_ends)

    def _scaled(
        self, law: Draw, module: Any, name: str, axes: tuple[int, ...] | None, parts: int
    ) -> ast.expr:
        """torch's initializers by the numbers of inputs and outputs."""
        assert law.named is not None
        function, options = law.named
        average = function.startswith("xavier")
        gain = (
            1.0
            if function == "fans"
            else (
                options.get("gain", 1.0)
                if average
                else torch.nn.init.calculate_gain(options["nonlinearity"], options["a"])
            )
        )
        mode = "fan_avg" if average else options["mode"]
        kind = "uniform" if "uniform" in function else "normal"
        variance = options.get("variance", float(gain) ** 2)
        if law.kind == "truncated":
            raise UnknownLawError("a truncated normal by the number of inputs")
        dims = _dims(module, name, axes)
        inner, outer = (None, None) if dims < 2 else (_at(axes, 1, dims), _at(axes, 0, dims))
        if parts > 1:  # Flax has each part by itself: torch's fans are those of the whole
            if not average:
                if mode != "fan_in":
                    raise UnknownLawError(f"drawn by {function} for several arrays")
            else:
                variance = variance * 2 / (1 + parts)
        plain = (inner, outer) == (-2, -1)
        if law.scale.value != 1:
            scale = self._number(law.scale, "scale")
            spread: Any = code("{v} * {s} ** 2", v=_neat(variance), s=scale)
        else:
            spread = _neat(variance)
        if plain and law.scale.value == 1:
            third = math.isclose(variance, 1 / 3, rel_tol=1e-6)
            if (mode, kind) == ("fan_in", "uniform") and third:
                return code("torch_uniform")
            if (mode, variance) == ("fan_avg", 1.0):
                return (
                    call(f"nn.initializers.xavier_{kind}")
                    if kind == "uniform"
                    else code('nn.initializers.variance_scaling(1.0, "fan_avg", "normal")')
                )
        if isinstance(spread, float) and math.isclose(spread, 1 / 3, rel_tol=1e-6):
            spread = code("1 / 3")
        more = {} if plain else {"in_axis": inner, "out_axis": outer}
        return call("nn.initializers.variance_scaling", spread, mode, kind, **more)

    def _fan(self, module: Any) -> ast.expr | None:
        """1 / sqrt(fan_in), torch's bound of a bias."""
        settings = self.drafter.settings
        if isinstance(module, torch.nn.Linear):
            return code(
                "{n} ** -0.5", n=settings.of_layer(module, "in_features", module.in_features)
            )
        if isinstance(module, torch.nn.modules.conv._ConvNd):
            # torch takes the weight's second axis, also of a transposed convolution.
            transposed = module.transposed
            attribute = "out_channels" if transposed else "in_channels"
            channels = settings.of_layer(module, attribute, getattr(module, attribute))
            area = math.prod(module.kernel_size)
            if module.groups != 1:
                groups = settings.of_layer(module, "groups", module.groups)
                text = "({n} // {g} * {a}) ** -0.5"
                return code(text, n=channels, g=groups, a=area)
            if area == 1:
                return code("{n} ** -0.5", n=channels)
            return code("({n} * {a}) ** -0.5", n=channels, a=area)
        return None

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

    def _formula(self, law: Formula) -> ast.expr:
        """Operators on draws: a function of the key."""
        names: dict[int, str] = {}
        inner = self._applied(law, names)
        return code("lambda key, shape, dtype: {made}", made=_shared(inner))

    def _along(self, law: Law, shape: ast.expr) -> ast.expr:
        """An array that follows from a sequence along one axis."""
        held = sequence(law)
        assert held is not None
        side = code("{s}[{a}]", s=shape, a=held.axis)
        if isinstance(shape, ast.Tuple):
            side = shape.elts[held.axis]
        start, step = (self._number(number, "value") for number in (held.start, held.step))
        plain = held.start.value == 0 and held.step.value == 1
        text = "jnp.arange({n})" if plain else "{a} + {b} * jnp.arange({n})"
        if held.step.value == 1 and not plain:
            text = "jnp.arange({a}, {n} + {a})"
        whole = [_as_integer(number) for number in (start, step)]
        array = self._applied(law, {}, code(text, n=side, a=whole[0], b=whole[1]))
        dims = len(held.shape)
        if dims == 1:
            return array
        if held.axis != -1:
            array = code("{m}[{i}]", m=array, i=_spread_to(dims, held.axis))
        return code("jnp.broadcast_to({m}, {s})", m=array, s=shape)

    def _applied(
        self, law: Law | Number, names: dict[int, str], base: ast.expr | None = None
    ) -> ast.expr:
        match law:
            case Sequence() if base is not None:
                return base
            case Number():
                return as_code(self._number(law, "value"))
            case Formula(operator=operator, inputs=inputs):
                text = _WRITTEN.get((operator, len(inputs)))
                if text is None:
                    raise UnknownLawError(f"drawn by {operator}")
                operands = {
                    f"x{at}": self._applied(operand, names, base)
                    for at, operand in enumerate(inputs)
                }
                return code(text, **operands)
            case Draw():
                if len(names.setdefault(law.serial, "")) or len(names) > 1:
                    raise UnknownLawError("drawn of several distributions")
                drawn = self._draw(law, None, "", None, 1)
                return code("{draw}(key, shape, dtype)", draw=drawn)
        raise UnknownLawError("drawn of several distributions")

    def _computed(
        self, start: Start, module: Any, name: str, axes: tuple[int, ...] | None, path: str
    ) -> ast.expr:
        """An array that no chance has a part in."""
        if start.values is None:
            raise UnknownLawError("its values are not known")
        values = start.values if axes is None else np.transpose(start.values, np.argsort(axes))
        if values.size and bool((values == values.flat[0]).all()):
            return self._constant(Number(float(values.flat[0]), literal=True))
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

    # Numbers.

    def _number(self, number: Number, local: str) -> Any:
        """A number as the original's settings give it; else itself."""
        value = number.value
        if number.origin is not None:
            parts: dict[str, Any] = {}
            tree = _NamedOrigin(self, parts).visit(_copied(number.origin))
            text = None if tree is None else ast.unparse(ast.fix_missing_locations(tree))
            if text is not None and parts and _agrees(text, parts, value):
                return SettingFloat(value, text, parts, local)
            if text is not None and not parts and _agrees(text, {}, value):
                return value
        if not number.literal:
            said = f"{value:g}: the {local} of an initializer, which no setting gives"
            self.drafter.baked[said] = None
        return SettingFloat(value, local=local)

    def leaf(self, leaf: Leaf) -> tuple[str, Mapping[str, Any]] | None:
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


_SCALES = ("fans", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_")
# Operators by what torch calls them and how many inputs they have.
_WRITTEN = {
    **{
        (operator_name, 2): f"{{x0}} {sign} {{x1}}"
        for operator_name, sign in (
            ("add", "+"),
            ("sub", "-"),
            ("mul", "*"),
            ("div", "/"),
            ("pow", "**"),
        )
    },
    **{
        (function_name, 1): f"jnp.{function_name}({{x0}})"
        for function_name in (
            "exp",
            "log",
            "log1p",
            "expm1",
            "sqrt",
            "sin",
            "cos",
            "tanh",
            "abs",
            "square",
            "log2",
            "exp2",
            "sign",
        )
    },
    ("rsub", 2): "{x1} - {x0}",
    ("neg", 1): "-{x0}",
    ("reciprocal", 1): "1.0 / {x0}",
    ("rsqrt", 1): "jax.lax.rsqrt({x0})",
    ("sigmoid", 1): "jax.nn.sigmoid({x0})",
    ("softplus", 1): "jax.nn.softplus({x0})",
    ("logit", 1): "jax.scipy.special.logit({x0})",
    ("erfinv", 1): "jax.lax.erf_inv({x0})",
    ("clamp_min", 2): "jnp.maximum({x0}, {x1})",
    ("clamp_max", 2): "jnp.minimum({x0}, {x1})",
    ("clamp", 3): "jnp.clip({x0}, {x1}, {x2})",
}


def _spread_to(dims: int, axis: int) -> ast.expr:
    """The index that puts one axis among others: `[:, None]`."""
    parts: list[ast.expr] = [
        ast.Slice() if at - dims == axis else ast.Constant(None) for at in range(dims)
    ]
    return ast.Tuple(parts, ast.Load())


def _as_integer(value: Any) -> Any:
    """A number of a sequence as torch has it: 1, not 1.0."""
    plain = value + 0
    whole = isinstance(plain, float) and plain.is_integer() and not getattr(value, "text", "")
    return int(plain) if whole else value


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


def _shared(tree: ast.expr) -> ast.expr:
    """An expression in which the largest part that stands twice is computed once: `(x := …)`."""
    counted: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp):
            counted.setdefault(ast.dump(_plain(node)), []).append(node)
    twice = [text for text, nodes in counted.items() if len(nodes) > 1]
    if not twice:
        return tree
    largest = max(twice, key=len)
    return _Once(largest).visit(tree)


def _plain(node: ast.AST) -> ast.AST:
    """A tree in which holes are names, so that it can be compared."""
    return _Plain().visit(_copied(node))


class _Plain(ast.NodeTransformer):
    def visit_Hole(self, node: Any) -> ast.AST:
        return ast.Name(f"{node.value!r}", ast.Load())


class _Once(ast.NodeTransformer):
    """Name an expression where it stands first, and use the name from there on."""

    def __init__(self, text: str) -> None:
        self.text, self.seen = text, False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and ast.dump(_plain(node)) == self.text:
            if self.seen:
                return ast.Name("x", ast.Load())
            self.seen = True
            return ast.NamedExpr(ast.Name("x", ast.Store()), node)
        return super().generic_visit(node)


class _NamedOrigin(ast.NodeTransformer):
    """An origin with the names of settings for its leaves."""

    def __init__(self, initial: Initial, parts: dict[str, Any]) -> None:
        self.initial, self.parts = initial, parts
        self.failed = False

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, Leaf):
            renamed = super().generic_visit(node)
            return None if self.failed else renamed
        setting = self.initial.leaf(node)
        if setting is None and node.inner is not None and node.inner.origin is not None:
            return self.visit(_copied(node.inner.origin))
        if setting is None and node.inner is not None and node.inner.literal:
            return ast.Constant(node.inner.value)
        if setting is None:
            self.failed = True
            return None
        text, parts = setting
        self.parts |= parts
        return ast.parse(text, mode="eval").body


def _copied(tree: Any) -> Any:
    """A copy of a tree; leaves and holes stay the same objects."""
    if isinstance(tree, Leaf) or (isinstance(tree, ast.AST) and not tree._fields):
        return tree
    if isinstance(tree, ast.AST):
        copied_tree = type(tree).__new__(type(tree))
        ast.AST.__init__(
            copied_tree, **{name: _copied(getattr(tree, name, None)) for name in tree._fields}
        )
        return copied_tree
    return [_copied(element) for element in tree] if isinstance(tree, list) else tree


def _agrees(text: str, parts: Mapping[str, Any], value: float) -> bool:
    """Whether an expression of settings has a value."""
    try:
        result = eval(
            compile(text, "", "eval"),
            {"__builtins__": {}, "math": math, "int": int, "max": max, "min": min, "float": float},
            dict(parts),
        )
    except (ArithmeticError, ValueError, TypeError, NameError):
        return False
    return isinstance(result, int | float) and math.isclose(result, value, rel_tol=1e-6)


def _scaled_number(number: Number, scale: Number, shift: Number) -> Number:
    return total(product(number, scale), shift)


def _dims(module: Any, name: str, axes: tuple[int, ...] | None) -> int:
    """Number of axes of a parameter; if they lie in another order, it may have another name in the
    port.
    """
    if axes is not None:
        return len(axes)
    held = module
    for step in name.split("."):
        held = getattr(held, step, None)
    if held is None:  # a layer with a forward of its own has Flax's names
        name = "weight" if name in ("kernel", "embedding", "scale") else name.rpartition(".")[2]
        held = getattr(module, name, None)
    return 0 if held is None else int(held.dim())


def _at(axes: tuple[int, ...] | None, axis: int, dims: int) -> int:
    """Position of torch's axis in Flax, counted from the end."""
    return (axis if axes is None else axes[axis]) - dims


def _axis(axes: tuple[int, ...] | None, axis: int, start: Start, module: Any, name: str) -> int:
    return _at(axes, axis, _dims(module, name, axes))


def _neat(value: float) -> float:
    """A number without the rounding of squares: 2.0 for 2.0000000000000004."""
    near = float(f"{value:.12g}")
    return near if math.isclose(near, value, rel_tol=1e-12) else value


def _values(tensor: Any) -> np.ndarray[Any, Any] | None:
    if tensor.device.type == "meta":
        return None
    plain = tensor.detach().cpu()
    return np.array((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy())


def _is_default(law: Law) -> bool:
    """Whether a parameter starts as torch's own layer makes it."""
    return isinstance(law, Draw) and bool(law.rule) and law.scale.value == 1 and not law.shift.value


def _guessed(tensor: Any) -> ast.expr:
    """The initializer of a parameter whose creation was not observed, by its values."""
    if tensor.numel() and tensor.device.type != "meta":
        if bool((tensor == 1).all()):
            return code("nn.initializers.ones")
        if not bool((tensor == 0).all()):
            return code("nn.initializers.normal(0.02)")
    return code("nn.initializers.zeros")


def copied_starts(starts: Mapping[str, Start], first: Mapping[str, str]) -> list[str]:
    """Notes on tensors that start as copies of others: a port draws each by itself.

    Args:
        starts: of the model.
        first: name of a tied tensor → its first name.
    """
    drawn: dict[int, str] = {}
    copies: dict[str, str] = {}
    for key, start in starts.items():
        if first.get(key, key) != key:
            continue
        for serial in serials(start.law):
            if drawn.setdefault(serial, key) != key:
                copies[key] = drawn[serial]
    named = [f"{key} as a copy of {other}" for key, other in copies.items()]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    said = f"arrays start as copies in the original, and `init` draws each by itself: {', '.join(named[:3])}"
    return [f"{said}{more}"] if named else []
