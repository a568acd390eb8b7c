"""Distributions and sequences as Flax initializers."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

import torch

from converters.graph.expression import as_code, call, code
from converters.graph.starts.law import (
    Draw,
    Formula,
    Law,
    Number,
    Sequence,
    product,
    sequence,
    total,
)
from converters.graph.writing.initial_numbers import InitialNumbers, copied_tree
from converters.graph.writing.original.settings import Settings

# What a normal draw of float32 does not reach.
_FAR = 6.0
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


class UnknownLawError(Exception):
    """An array starts in a way that no port has."""


def asks_fans(law: Draw) -> bool:
    """Whether a draw follows from the numbers of a weight's inputs and outputs."""
    return bool(law.rule) or (law.named is not None and law.named[0] in _SCALES)


class InitialLaws:
    """Initializers by the laws of the original's arrays.

    Args:
        settings: the settings of the port.
        numbers: writes the numbers.
    """

    def __init__(self, settings: Settings, numbers: InitialNumbers) -> None:
        self._settings, self._number = settings, numbers.number

    def constant(self, number: Number) -> ast.expr:
        """The initializer of an array with one value."""
        if number.value == 0:
            return code("nn.initializers.zeros")
        if number.value == 1:
            return code("nn.initializers.ones")
        value = self._number(number, "value")
        if number.literal and number.origin is not None:  # `math.log(10.0)`
            value = copied_tree(number.origin)
        return code("nn.initializers.constant({v})", v=value)

    def draw(
        self, law: Draw, module: Any, name: str, axes: tuple[int, ...] | None, parts: int
    ) -> ast.expr:
        """The initializer of an array that is drawn.

        Args:
            law: the distribution.
            module: the module that holds the array.
            name: its name in the module.
            axes: torch's order of its axes, by those in Flax; None: the same.
            parts: number of Flax arrays into which its first axis is cut.

        Raises:
            UnknownLawError: if no initializer draws from it.
        """
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
        nearest = min(-law.first.value, law.second.value)
        far = nearest > _FAR and not getattr(std, "parts", ())
        if (far or math.isinf(nearest)) and not law.shift.value:
            return code("nn.initializers.normal({s})", s=std)
        if law.named is not None and law.named[0] == "trunc_normal_":
            arguments = law.named[1]
            if law.factor != Number(1.0, literal=True) and not law.shift.value:
                before = replace(law, scale=arguments["std"], factor=Number(1.0, literal=True))
                factor = self._number(law.factor, "scale")
                return call("scaled_by", self._truncated(before), factor)
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
        settings = self._settings
        if isinstance(module, torch.nn.Linear):
            return code(
                "{n} ** -0.5", n=settings.of_layer(module, "in_features", module.in_features)
            )
        if isinstance(module, torch.nn.modules.conv._ConvNd):
            # torch takes the weight's second axis, also of a transposed convolution.
            transposed = module.transposed
            attribute = "out_channels" if transposed else "in_channels"
            channels = settings.of_layer(module, attribute, getattr(module, attribute))
            area = self._area(module)
            if module.groups != 1:
                groups = settings.of_layer(module, "groups", module.groups)
                if getattr(channels, "text", "") == getattr(groups, "text", "") != "":
                    channels, groups = 1, 1  # each channel alone, at every size
                elif not getattr(channels, "text", "") and not getattr(groups, "text", ""):
                    channels, groups = module.in_channels // module.groups, 1
                if groups != 1:
                    return code("({n} // {g} * {a}) ** -0.5", n=channels, g=groups, a=area)
                if channels == 1:
                    return code("{a} ** -0.5", a=area)
            if area == 1:
                return code("{n} ** -0.5", n=channels)
            return code("({n} * {a}) ** -0.5", n=channels, a=area)
        return None

    def _area(self, module: Any) -> Any:
        """Product of the sides of a convolution's kernel: a number, or an expression of settings."""
        sides = self._settings.of_layer(module, "kernel_size", module.kernel_size)
        said = [getattr(side, "text", "") for side in sides]
        if not any(said):
            return math.prod(sides)
        if len(set(said)) == 1 and len(sides) > 1:
            return code("{k} ** {n}", k=sides[0], n=len(sides))
        area = as_code(sides[0])
        for side in sides[1:]:
            area = code("{a} * {b}", a=area, b=side)
        return area

    def formula(self, law: Formula) -> ast.expr:
        """Operators on draws: a function of the key."""
        names: dict[int, str] = {}
        inner = self._applied(law, names)
        return code("lambda key, shape, dtype: {made}", made=_shared(inner))

    def along(self, law: Law, shape: ast.expr) -> ast.expr:
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
                drawn = self.draw(law, None, "", None, 1)
                return code("{draw}(key, shape, dtype)", draw=drawn)
        raise UnknownLawError("drawn of several distributions")


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


def _shared(tree: ast.expr) -> ast.expr:
    """An expression in which the largest part that stands twice is computed once: `(x := …)`."""
    counted: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp):
            counted.setdefault(ast.dump(plain_tree(node)), []).append(node)
    twice = [text for text, nodes in counted.items() if len(nodes) > 1]
    if not twice:
        return tree
    largest = max(twice, key=len)
    return _Once(largest).visit(tree)


def plain_tree(node: ast.AST) -> ast.AST:
    """A tree in which holes are names, so that it can be compared."""
    return _Plain().visit(copied_tree(node))


class _Plain(ast.NodeTransformer):
    def visit_Hole(self, node: Any) -> ast.AST:
        return ast.Name(f"{node.value!r}", ast.Load())


class _Once(ast.NodeTransformer):
    """Name an expression where it stands first, and use the name from there on."""

    def __init__(self, text: str) -> None:
        self.text, self.seen = text, False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and ast.dump(plain_tree(node)) == self.text:
            if self.seen:
                return ast.Name("x", ast.Load())
            self.seen = True
            return ast.NamedExpr(ast.Name("x", ast.Store()), node)
        return super().generic_visit(node)


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


def flax_axis(axes: tuple[int, ...] | None, axis: int, module: Any, name: str) -> int:
    """Position of torch's axis of a parameter in Flax, counted from the end."""
    return _at(axes, axis, _dims(module, name, axes))


def _neat(value: float) -> float:
    """A number without the rounding of squares: 2.0 for 2.0000000000000004."""
    near = float(f"{value:.12g}")
    return near if math.isclose(near, value, rel_tol=1e-12) else value
