"""Settings of a model, and the numbers computed from them.

A number is followed through the original's constructors: `self.scaling = head_dim ** -0.5` to `head_dim`, an
argument of a constructor to what the module above writes there, and so on, to an attribute of the model's
configuration or an argument of the model's own constructor. On the way every expression must have the value
that the module has, or it is not believed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from converters.graph.expression import INDEX, SettingFloat, SettingInt
from converters.graph.ir import Frame
from converters.graph.writing.original import constructors, names
from converters.graph.writing.original.turns import (
    Entries,
    Index,
    entry_of,
    entry_text,
    joined_first,
    length_of,
    loops_over,
    place_in_turn,
    text_at,
    turned,
    variables,
)
from converters.layers.reparametrized import class_before

# Attributes with such names hold sizes and factors; others (a layer's index) meet a value by chance.
_SIZES = re.compile(
    r"dim|size|head|width|height|channel|feature|group|patch|window|vocab|embed|hidden|inner|intermediate|"
    r"rank|state|kernel|stride|experts?|top_?k|num_|n_|_len|length|positions|groups|repeats|rep$|planes|factor|"
    r"bucket|distance|chunk"
)
_FACTORS = re.compile(
    r"eps|scal|factor|theta|temperature|alpha|beta|gamma|cap|std|limit|slope|momentum|mult"
)
_NO_SETTING = re.compile(r"idx|index|_id$|token_id|layer_id|training|_version")
# By what a number may be another one that was kept in float32.
_ROUNDING = 1.2e-7
# What the object with the sizes is called.
_CONFIGURATIONS = (
    *("config", "cfg", "args", "hparams", "params", "opt", "options"),
    *("configs", "conf", "hps", "hp", "h"),
)
# How far a number is followed.
_DEPTH = 24
_OPERATORS: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Div: ("/", operator.truediv),
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Pow: ("**", operator.pow),
}

# Functions of the module `math`.
_REAL: Mapping[str, Callable[[float], float]] = {
    name: getattr(math, name) for name in ("sqrt", "exp", "log", "log2", "log10", "cos", "sin")
}
_COMPARED: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

# Functions that make an integer of a number → how the port spells them, and what they do.
_ROUNDED: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "int": ("int", int),
    "round": ("round", round),
    "ceil": ("math.ceil", math.ceil),
    "floor": ("math.floor", math.floor),
}


@dataclass(frozen=True)
class _Said:
    """Origin of a number: an expression of settings, and their values (none: a constant).

    Attributes:
        text: the expression.
        parts: settings in it, with their values.
        local: see `SettingInt`.
        holder: see `SettingInt`.
        place: see `SettingInt`.
    """

    text: str
    parts: Mapping[str, Any]
    local: str = ""
    holder: str = ""
    place: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether no setting gives the number, nor its place in a list."""
        return not self.parts and not self.holder


def _said_of(text: str, origins: Iterable[_Said]) -> _Said | None:
    """Origin of what is computed from others; None if these are of the members of different lists."""
    origins = list(origins)
    holders = {origin.holder for origin in origins} - {""}
    if len(holders) > 1:
        return None
    parts = {name: value for origin in origins for name, value in origin.parts.items()}
    held = next((origin for origin in origins if origin.holder), _Said("", {}))
    return _Said(text, parts, holder=held.holder, place=held.place)


@dataclass(frozen=True)
class _Made:
    """Creation of a module: the path of the module above, and its attribute there.

    The attribute is `MEMBERS` for a member of a list whose constructor makes its members.
    """

    above: str
    attribute: str


class Settings:
    """The settings of a model.

    Args:
        root: the model.
        arguments: what the constructors of its modules were called with, as far as that was seen: path →
            name → value.
    """

    def __init__(
        self, root: torch.nn.Module, arguments: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.root = root
        self._arguments = arguments or {}
        self.modules = dict(root.named_modules())
        self.paths = {id(module): path for path, module in self.modules.items()}
        # Calls that create modules, with the variables of their turn: (path, path of the constructor, number
        # of the call) → the call itself, so that its number stays its own, and the one that is read.
        # None in its place: it makes another member of the list.
        self._turned: dict[tuple[str, str, int], tuple[ast.Call, ast.Call | None]] = {}
        # Whether a number may follow from the place of a module in its list. Small numbers equal that by
        # chance: only arguments of layers and rates do.
        self._listed = False
        self.choices = (
            0  # of the expressions that are being followed, those that are one of several
        )

    @property
    def order(self) -> tuple[str, ...]:
        """Names of settings as the original's configuration or constructor has them, in their order."""
        config = configuration_of(self.root)
        of_config = config if isinstance(config, Mapping) else vars(config) if config else ()
        named = (*map(str, of_config), *constructors.arguments(_class(self.root)))
        return tuple(dict.fromkeys(named))

    # What is asked.

    def arguments_with(self, paths: Sequence[str], values: Sequence[Any]) -> list[str]:
        """Arguments of the constructors of modules that these were called with: one value for each module."""
        first = self._arguments.get(paths[0], {})
        return [
            name
            for name in first
            if all(
                type(passed := self._arguments.get(path, {}).get(name)) is type(value)
                and passed == value
                for path, value in zip(paths, values, strict=True)
            )
        ]

    @contextmanager
    def _in_lists(self) -> Iterator[None]:
        before, self._listed = self._listed, True
        try:
            yield
        finally:
            self._listed = before

    def of_rate(self, value: float, module: Any, frames: Sequence[Frame]) -> Any:
        """A rate of dropout in a module's forward as a setting; itself if nothing says what gives it."""
        with self._in_lists():
            setting = self.on_lines(value, module, frames)
            return self.of_number(value, module, frames) if setting is None else setting

    def on_lines(self, value: Any, module: Any, frames: Sequence[Frame]) -> Any:
        """A number of a module's forward as a setting, if a line of the source that ran says it.

        Args:
            value: the number.
            module: whose forward it stands in.
            frames: the lines, the innermost last.

        Returns:
            The number, a setting or (where the line says the number itself) not; None: it says nothing.
        """
        path = self.paths.get(id(module))
        for frame in reversed(frames) if path is not None else ():
            with self._in_lists() if _is_fraction(value) else nullcontext():
                said = self._on_line(str(path), value, frame)
            if said is not None:
                return _number(value, said)
        return None

    def of_expression(self, node: ast.expr, module: Any) -> Any:
        """The number of an expression in a module's forward, as a setting; None if no module shows it."""
        path = self.paths.get(id(module))
        number = None if path is None else self._evaluated(path, node, 0)
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        said = self._resolve(str(path), node, number, 0)
        return None if said is None else _number(number, said)

    def on_cuts(self, value: Any, module: Any, frames: Sequence[Frame]) -> Any:
        """A bound of a slice as a setting, if the slice on a line that ran says it; else None."""
        path = self.paths.get(id(module))
        for frame in reversed(frames) if path is not None else ():
            said = self._of_nodes(str(path), value, names.cuts(frame))
            if said is not None:
                return _number(value, said)
        return None

    def of_number(self, value: Any, module: Any, frames: Sequence[Frame] = ()) -> Any:
        """A number of a module's forward as a setting, if an attribute that ran code reads has this value.

        Args:
            value: the number.
            module: whose forward it stands in.
            frames: the lines of the source that were running, the innermost last.
        """
        path = self.paths.get(id(module))
        if isinstance(value, bool) or not isinstance(value, int | float) or path is None:
            return value
        if value in (0, 1, -1, 2, 0.5):
            return value
        for name in self._attributes(value, module, frames):
            with self._in_lists() if _is_fraction(value) else nullcontext():
                said = self._attribute(path, name, value, 0)
            if said is not None and not said.is_constant:
                return _number(value, said)
        return value

    def of_layer(self, layer: Any, argument: str, value: Any) -> Any:
        """A size of a layer as a setting, by what the original's constructor writes there.

        Args:
            layer: the layer.
            argument: of the layer's constructor ("out_features", "eps").
            value: what it is; a tuple: of several axes.
        """
        path = self.paths.get(id(layer))
        if path is None or isinstance(value, bool):
            return value
        if isinstance(value, tuple):
            return tuple(
                self._of_argument(path, argument, side, index) for index, side in enumerate(value)
            )
        return self._of_argument(path, argument, value, None)

    def of_parameter(self, owner: Any, name: str, axis: int, value: int) -> Any:
        """A side of a parameter as a setting, by what the original's constructor writes there."""
        path = self.paths.get(id(owner))
        if path is None:
            return value
        said = ""
        for expression in constructors.assigned(_class(owner), name):
            for node in ast.walk(expression):
                if not isinstance(node, ast.Call):
                    continue
                sides = node.args or [
                    keyword.value for keyword in node.keywords if keyword.arg == "size"
                ]
                if sides and isinstance(sides[0], ast.Tuple | ast.List):  # torch.full((dim,), 0.1)
                    sides = sides[0].elts
                if len(sides) > axis:
                    side_said = self._resolve(path, sides[axis], value, 0)
                    if side_said is not None:
                        return _number(value, side_said)
                    said = said or constructors.last(sides[axis])
        for argument in constructors.arguments(
            _class(owner)
        ):  # of a layer of torch's that it derives from
            if _is(getattr(owner, argument, None), value):
                side_said = self._argument(path, argument, value, 0)
                if side_said is not None and side_said.parts:
                    return _number(value, replace(side_said, local=argument))
        side_said = self.of_number(value, owner)
        named = said and not isinstance(side_said, SettingInt) and value > 1
        return SettingInt(value, local=said) if named else side_said

    def of_buffer(self, owner: Any, name: str, value: int | float) -> Any:
        """Value of a buffer's elements as a setting, from the constructor's source."""
        path = self.paths.get(id(owner))
        for expression in constructors.assigned(_class(owner), name) if path is not None else ():
            inner = expression
            while isinstance(inner, ast.Call) and inner.args:  # nn.Buffer(torch.tensor(scale))
                inner = inner.args[0]
                said = self._resolve(str(path), inner, value, 0)
                if said is not None:
                    return _number(value, said)
        return value

    def of_buffer_side(self, owner: Any, name: str, value: int) -> Any:
        """A side of a buffer as a setting: an argument of what the constructor computes it with.

        A buffer that is made as large as another one (`torch.zeros(self.ids.size())`) has that one's.
        """
        path, seen = self.paths.get(id(owner)), [name]
        for buffer in seen if path is not None and value > 1 else ():
            for expression in constructors.assigned(_class(owner), buffer):
                for node in ast.walk(expression):
                    for argument in node.args if isinstance(node, ast.Call) else ():
                        said = self._resolve(str(path), argument, value, 0)
                        if said is not None and said.parts:
                            return _number(value, said)
                        length = self._length(str(path), argument, 0)
                        if length is not None and length[0] == value:
                            return _number(value, length[1])
                    if isinstance(node, ast.Attribute) and node.attr in owner._buffers:
                        seen += [] if node.attr in seen else [node.attr]
        return self.of_number(value, owner)

    def of_count(self, owner: Any, name: str, value: int) -> Any:
        """The length of a list of modules as a setting: the original's `range(config.num_hidden_layers)`."""
        held = getattr(owner, "_modules", {}).get(name)
        if held is not None and constructors.fills_itself(held):
            owner, name = held, constructors.MEMBERS
        path = self.paths.get(id(owner))
        for expression in constructors.assigned(_class(owner), name) if path is not None else ():
            for node in ast.walk(expression):
                if isinstance(node, ast.comprehension):
                    said = self._of_length(str(path), node.iter, value)
                    if said is not None:
                        return _number(value, said)
                    if isinstance(node.iter, ast.Call) and node.iter.args:
                        return _called(value, node.iter.args[-1])
        for iterable in (
            constructors.appending_loops(_class(owner), name) if path is not None else ()
        ):
            said = self._of_length(str(path), iterable, value)
            if said is not None:
                return _number(value, said)
        return value

    def _of_length(self, path: str, iterable: ast.expr, value: int) -> _Said | None:
        """Origin of the number of turns of a constructor's loop."""
        return self._first(path, length_of(iterable), value, 0, None)

    def of_local(self, owner: Any, name: str, value: int | float) -> Any:
        """A number that some method of the owner calls `name` on the way."""
        path = self.paths.get(id(owner))
        for tree in constructors.methods(_class(owner)) if path is not None else ():
            for expression in names.assigned(tree).get(name, ()):
                said = self._resolve(str(path), expression, value, 0)
                if said is not None and said.parts:
                    return _number(value, said)
        return value

    def of_attribute(self, owner: Any, name: str, value: int | float) -> Any:
        """An attribute of a module, or an argument of its constructor, as a setting."""
        path = self.paths.get(id(owner))
        if path is None:
            return value
        cls, said = _class(owner), None
        passed = name in constructors.arguments(cls)
        # torch's own layers do not show what they do with an argument: they keep it by its name.
        shown = not passed or bool(constructors.assigned(cls, name))
        if shown and _is(getattr(owner, name, None), value):
            said = self._attribute(path, name, value, 0)
        if said is None and passed:
            said = self._argument(path, name, value, 0)
        return value if said is None else _number(value, said)

    def called_in(
        self, holder: Any, name: str, value: int | float
    ) -> tuple[str, Mapping[str, Any]] | None:
        """Setting name of an attribute of a configuration; None if it is not the model's, or the
        values differ.
        """
        whole = configuration_of(self.root)
        parts = [] if whole is None or isinstance(whole, Mapping) else list(vars(whole).values())
        for config in (whole, *parts):
            same = config is holder or (config is not None and type(config) is type(holder))
            if same and _is(read_setting(config, name), value):
                named = f"{self._prefix(config)}{name}"
                return named, {named: value}
        return None

    # Numbers in a forward.

    def _on_line(self, path: str, value: int | float, frame: Frame) -> _Said | None:
        """Origin of a number on a running line; without settings if the line has the number itself."""
        axes = names.axes_named(frame)
        nodes = [node for node in names.reached(frame) if node not in axes]
        return self._of_nodes(path, value, nodes) or self._of_entries(path, value, frame, nodes)

    def _of_entries(
        self, path: str, value: int | float, frame: Frame, nodes: Sequence[ast.AST]
    ) -> _Said | None:
        """Origin of a number in a loop over a sequence of settings: that of its only entry that gives it."""
        function = names.function_at(frame)
        if function is None or not _is_fraction(value):
            return None
        for name in dict.fromkeys(node.id for node in nodes if isinstance(node, ast.Name)):
            for over in loops_over(function, name):
                joined = self._sequence(path, over, {}, 0)
                count = 0 if joined is None else sum(len(entry.values) for entry in joined[0])
                entries = [ast.Subscript(over, ast.Constant(at), ast.Load()) for at in range(count)]
                for node in nodes:
                    if not isinstance(node, ast.BinOp | ast.Name) or not _reads(node, name):
                        continue
                    turns = [turned(node, {name: entry}) for entry in entries]
                    said = [self._resolve(path, turn, value, 0) for turn in turns]
                    origins = [origin for origin in said if origin is not None and origin.parts]
                    if len(origins) == 1:
                        return origins[0]
        return None

    def _of_nodes(self, path: str, value: int | float, nodes: Sequence[ast.AST]) -> _Said | None:
        wanted = (type(value), value)
        exponents = {
            inner
            for node in nodes
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
            for inner in ast.walk(node.right)
        }
        for node in nodes:
            if node in exponents:
                continue
            if isinstance(node, ast.Constant) and (type(node.value), node.value) == wanted:
                return _Said(repr(value), {})
        for node in nodes:
            if isinstance(node, ast.BinOp | ast.UnaryOp) or (
                isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            ):
                said = self._resolve(path, node, value, 0)
                if said is not None and not said.is_constant:
                    return said
        return None

    def _attributes(
        self, value: int | float, module: Any, frames: Sequence[Frame]
    ) -> Iterator[str]:
        """Attributes of a module that have this value and are read in what ran."""
        pattern = _SIZES if isinstance(value, int) else _FACTORS
        read = {name for frame in frames for name in constructors.read(names.function_at(frame))}
        read |= constructors.read_outside_of_constructors(_class(module))
        for name, held in vars(module).items():
            plain = isinstance(held, int | float) and not isinstance(held, bool)
            if not plain or type(held) is not type(value) or held != value or name not in read:
                continue
            if pattern.search(name.lower()) and not _NO_SETTING.search(name):
                yield name

    # Following a number.

    def _of_argument(self, path: str, argument: str, value: Any, index: int | None) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        with self._in_lists():
            said = self._argument(path, argument, value, 0, index)
        if said is not None:
            return _number(value, said)
        _, expression = next(self._given(path, argument), ("", None))
        return _called(value, expression)

    def _made(self, path: str) -> _Made | None:
        """Creation of a module. Lists and dicts of modules are skipped."""
        if not path:
            return None
        above, _, attribute = path.rpartition(".")
        while above and isinstance(self.modules.get(above), constructors.CONTAINERS):
            module = self.modules[above]
            if constructors.fills_itself(module):
                written = constructors.assigned(_class(module), attribute)
                return _Made(above, attribute if written else constructors.MEMBERS)
            above, _, attribute = above.rpartition(".")
        return _Made(above, attribute)

    def _argument(
        self, path: str, name: str, value: int | float, depth: int, index: int | None = None
    ) -> _Said | None:
        """Origin of an argument of a module's constructor."""
        creation = self._made(path)
        if depth > _DEPTH:
            return None
        if creation is None:
            return self._of_root(name, value, index)
        expressions = list(self._given(path, name))
        for above, expression in expressions:
            said = self._resolve(above, expression, value, depth + 1, index)
            if said is not None:
                return said
        usual = constructors.default(_class(self.modules[path]), name)
        return _Said(repr(value), {}) if not expressions and _is(usual, value) else None

    def _of_root(self, name: str, value: int | float, index: int | None) -> _Said | None:
        """An argument that the model itself was made with."""
        named = name.strip("_")
        if _NO_SETTING.search(named):
            return None
        passed = self._arguments.get("", {})
        if name in passed:
            return _element_of(named, passed[name], value, index)
        config = configuration_of(self.root)
        held = read_setting(config, name)
        if held is None:
            held = getattr(self.root, name, None)
        if isinstance(held, int | float | tuple | list):
            return _element_of(named, held, value, index)
        # What is made of an argument may have its name. Another object, as a configuration, is the argument.
        if index is not None or not isinstance(held, torch.nn.Module | torch.Tensor | None):
            return None
        return _Said(named, {named: value})

    def _given(self, path: str, name: str, depth: int = 0) -> Iterator[tuple[str, ast.expr]]:
        """Expressions that are passed for an argument where a module is created, each with the path of the
        module in whose constructor it stands.
        """
        order = constructors.arguments(_class(self.modules[path]))
        for above, node in self._calls(path, depth):
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            if name in named:
                yield above, named[name]
            elif name in order and order.index(name) < len(node.args):
                argument = node.args[order.index(name)]
                if not isinstance(argument, ast.Starred):
                    yield above, argument

    def _calls(self, path: str, depth: int) -> Iterator[tuple[str, ast.Call]]:
        """Calls that create a module, each with the path of the module in whose constructor it stands."""
        creation = self._made(path)
        if creation is None:
            return
        name = _class(self.modules[path]).__name__
        within = path.removeprefix(f"{creation.above}.").split(".")
        if creation.attribute != constructors.MEMBERS:
            within = within[1:]
        for assigned in constructors.assigned(
            _class(self.modules[creation.above]), creation.attribute
        ):
            for above, expression in self._handed(creation.above, assigned, depth):
                part = constructors.member(expression, within) or expression
                nodes = [node for node in ast.walk(part) if isinstance(node, ast.Call)]
                # A class may be called by another name (`norm_layer(dim)`).
                known = [node for node in nodes if constructors.last(node.func) == name]
                for node in known or [node for node in nodes if node is part]:
                    key = path, above, id(node)
                    if key not in self._turned:
                        turn = self._turn(creation, within, above, expression, node)
                        other = turned(node, turn) if turn else node
                        self._turned[key] = node, None if turn is None else other
                    if (call := self._turned[key][1]) is not None:
                        yield above, call

    def _turn(
        self,
        creation: _Made,
        within: Sequence[str],
        above: str,
        expression: ast.expr,
        call: ast.Call,
    ) -> Mapping[str, ast.expr] | None:
        """Values of the variables of the loop in which a constructor makes a member of a list; None if the
        call makes another member.
        """
        if len(within) != 1 or not within[0].isdigit():
            return {}
        path = f"{creation.above}.{creation.attribute}".strip(".")
        trees = constructors.constructors(_class(self.modules[above]))
        place = int(within[0])
        turn = place_in_turn((expression, *trees), expression, call, place)
        if turn is None or turn[0] < 0:
            return None
        index = Index(turn[0], path if turn[1] else "")
        return variables((expression, *trees), call, index)

    def _handed(
        self, path: str, expression: ast.expr, depth: int
    ) -> Iterator[tuple[str, ast.expr]]:
        """An expression of a module's constructor; where it is an argument, what was passed for that.

        Modules are made elsewhere than where they are kept: `Residual(Attention(dim))`, `self.fn = fn`.
        """
        if not isinstance(expression, ast.Name) or depth > _DEPTH:
            yield path, expression
            return
        cls, name = _class(self.modules[path]), expression.id
        for tree in constructors.constructors(cls):
            for value in names.assigned(tree).get(name, ()):
                if not isinstance(value, ast.Name):
                    yield path, value
        if name in constructors.arguments(cls):
            for above, passed in self._given(path, name, depth + 1):
                yield from self._handed(above, passed, depth + 1)

    def _passed(self, path: str, name: str, index: int | None) -> Any:
        """Value that a constructor was called with for an argument.

        None: that was not seen, is no number, or the constructor assigns another value to the name.
        """
        passed = self._arguments.get(path, {})
        if name not in passed:
            return None
        trees = constructors.constructors(_class(self.modules[path]))
        if any(name in names.assigned(tree) for tree in trees):
            return None
        value = _element(passed[name], index)
        return value if isinstance(value, int | float) else None

    @cached_property
    def _arguments_of_root(self) -> dict[str, int | float]:
        """Arguments that the model was made with, as far as what it holds shows them."""
        numbers: dict[str, int | float] = {}
        wanted = constructors.arguments(_class(self.root))
        for name in wanted:
            held = getattr(self.root, name, None)
            if isinstance(held, int | float) and not isinstance(held, bool):
                numbers[name] = held
        for path, module in self.modules.items():
            creation = self._made(path)
            if creation is None or creation.above:
                continue
            for name in constructors.arguments(_class(module)):
                held = getattr(module, name, None)
                if not isinstance(held, int | float) or isinstance(held, bool):
                    continue
                for above, expression in self._given(path, name):
                    if not above and isinstance(expression, ast.Name) and expression.id in wanted:
                        numbers.setdefault(expression.id, held)
        return numbers

    def _attribute(self, path: str, name: str, value: int | float, depth: int) -> _Said | None:
        """Origin of an attribute of a module; the attribute itself if its constructor does not show
        it.
        """
        if depth > _DEPTH:
            return None
        said = constructors.assigned(_class(self.modules[path]), name)
        named = name.strip("_")
        for expression in said:
            origin = self._resolve(path, expression, value, depth + 1)
            if origin is not None:
                return replace(origin, local=named)
        return None if _NO_SETTING.search(named) else _Said(named, {named: value}, named)

    def _resolve(
        self, path: str, node: ast.expr, value: int | float, depth: int, index: int | None = None
    ) -> _Said | None:
        """Origin of an expression's value in the constructor of a module; None if the values
        differ.
        """
        if depth > _DEPTH:
            return None
        match node:
            case Index():
                if not node.holder:
                    return _Said(repr(value), {}) if _is(node.number, value) else None
                same = self._listed and _is(node.number, value)
                return _Said(INDEX, {}, holder=node.holder, place=node.number) if same else None
            case ast.Constant():
                same = node.value == value and not isinstance(node.value, bool)
                return _Said(repr(value), {}) if same else None
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return _Said(repr(value), {}) if _is(-number, value) else None
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                origin = self._resolve(path, inner, -value, depth + 1, index)
                return origin and replace(origin, text=_negative(origin.text))
            case ast.Attribute(value=ast.Name(id="self" | "module"), attr=name):
                held_value = _element(getattr(self.modules[path], name, None), index)
                if not _is(held_value, value):
                    return None
                if index is not None and not _is(getattr(self.modules[path], name), value):
                    return self._first(
                        path,
                        constructors.assigned(_class(self.modules[path]), name),
                        value,
                        depth,
                        index,
                    )
                return self._attribute(path, name, value, depth)
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=child), attr=name
            ) if child in self.modules[path]._modules:
                below = f"{path}.{child}".lstrip(".")
                held = getattr(self.modules[below], name, None)
                if not _is(held, value):
                    return None
                said = None
                if type(self.modules[below]).__module__.startswith("torch."):
                    said = self._argument(below, name, value, depth + 1)
                return said or self._attribute(below, name, value, depth)
            case ast.Attribute(value=ast.Name(id=holder), attr=name) if self._config(path) is None:
                return self._of_object(path, holder, name, value, index)
            case ast.Attribute(attr=name):
                return self._configured(path, name, value, index)
            case ast.Name(id=name):
                return self._name(path, name, value, depth, index)
            case ast.BinOp():
                return self._binary(path, node, value, depth)
            case ast.IfExp():
                entry = joined_first(node)
                origin = None if entry is None else self._resolve(path, entry, value, depth + 1)
                branches = self._branches(path, node, depth)
                return origin or self._first(path, branches, value, depth, index)
            case ast.BoolOp():
                return self._first(path, node.values, value, depth, index)
            case ast.Tuple() | ast.List():
                element = _element(tuple(node.elts), index) if index is not None else None
                return None if element is None else self._resolve(path, element, value, depth + 1)
            case ast.Subscript(value=inner, slice=at) if (place := names.integer(at)) is not None:
                origin = self._joined(path, inner, place, value, depth)
                return origin or self._resolve(path, inner, value, depth + 1, place)
            case ast.Subscript(
                value=inner,
                slice=ast.BinOp(
                    left=Index() as at,
                    op=ast.Add() | ast.Sub() as sign,
                    right=ast.Constant(value=int(step)),
                ),
            ):
                step = step if isinstance(sign, ast.Add) else -step
                return self._joined(path, inner, at, value, depth, step)
            case ast.Subscript(value=inner, slice=Index() as at):
                origin = self._first(path, self._entries(path, inner, at), value, depth, None)
                origin = origin or self._joined(path, inner, at, value, depth)
                return origin or self._resolve(path, inner, value, depth + 1, at.number)
            case ast.Call(func=ast.Attribute(value=inner, attr="item"), args=[], keywords=[]):
                return self._resolve(path, inner, value, depth + 1, index)
            case ast.Call():
                return self._call(path, node, value, depth, index)
        return None

    def _entries(self, path: str, node: ast.expr, at: Index) -> list[ast.expr]:
        """Expressions of an entry of a list of numbers that a constructor computes."""
        match node:
            case ast.Name(id=name):
                held = [
                    expression
                    for tree in constructors.constructors(_class(self.modules[path]))
                    for expression in names.assigned(tree).get(name, ())
                ]
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                held = list(constructors.assigned(_class(self.modules[path]), name))
            case _:
                return [entry] if (entry := entry_of(node, at)) is not None else []
        return [entry for each in held if (entry := entry_of(each, at)) is not None]

    def _branches(self, path: str, node: ast.IfExp, depth: int) -> list[ast.expr]:
        """The branches of a choice that may have given its value: one, if the test is known."""
        test = self._evaluated(path, node.test, depth + 1)
        both = [node.body, node.orelse]
        return both if not isinstance(test, bool) else [both[not test]]

    def _joined(
        self,
        path: str,
        node: ast.expr,
        at: Index | int,
        value: int | float,
        depth: int,
        step: int = 0,
    ) -> _Said | None:
        """Entry of a list that is put together of settings: `(channels, *widths)[i]`, `widths[-1]`.

        `step`: so many entries further on (`widths[i + 1]`).
        """
        parts: dict[str, Any] = {}
        joined = self._sequence(path, node, parts, depth + 1)
        if joined is None or not parts:
            return None
        entries, shift = joined
        values = [number for entry in entries for number in entry.values][shift:]
        if isinstance(at, int):
            return self._joined_at(entries, shift, at, values, value, parts)
        place = at.number + step
        if not 0 <= place < len(values) or not _is(values[place], value):
            return None
        text = entry_text(entries, shift + step)
        if not self._listed or not at.holder:
            return _Said(text_at(text, at.number), parts)
        return _Said(text, parts, holder=at.holder, place=at.number)

    def _length(self, path: str, node: ast.expr, depth: int) -> tuple[int, _Said] | None:
        """The length of a sequence of settings: `len(widths)`; None if no setting gives it."""
        match node:
            case ast.Subscript(
                value=inner,
                slice=ast.Slice(
                    lower=None,
                    upper=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(left_out))),
                    step=None,
                ),
            ):
                whole = self._length(path, inner, depth + 1)
                if whole is None:
                    return None
                return whole[0] - left_out, replace(whole[1], text=f"{whole[1].text} - {left_out}")
        parts: dict[str, Any] = {}
        joined = self._sequence(path, node, parts, depth + 1)
        if joined is None or not parts:
            return None
        entries, shift = joined
        count = sum(len(entry.values) for entry in entries) - shift
        rest = sum(not entry.whole for entry in entries) - shift
        text = " + ".join(f"len({entry.text})" for entry in entries if entry.whole)
        if not text or count < 0:
            return None
        text += f" {'+' if rest > 0 else '-'} {abs(rest)}" if rest else ""
        return count, _Said(text, parts)

    @staticmethod
    def _joined_at(
        entries: Sequence[Entries],
        shift: int,
        at: int,
        values: Sequence[int | float],
        value: int | float,
        parts: Mapping[str, Any],
    ) -> _Said | None:
        """Entry of such a list at a number: the setting that it is of, counted from the nearer end."""
        if not -len(values) <= at < len(values) or not _is(values[at], value):
            return None
        if at < 0 and entries[-1].whole:
            return _Said(f"{entries[-1].text}[{at}]", parts)
        return _Said(text_at(entry_text(entries, shift), at % len(values)), parts)

    def _sequence(
        self, path: str, node: ast.expr, parts: dict[str, Any], depth: int
    ) -> tuple[list[Entries], int] | None:
        """Entries of a sequence of settings, and how many of them it leaves out at its beginning.

        Args:
            path: path of the module in whose constructor the expression stands.
            node: the expression.
            parts: receives the settings, with their values.
            depth: how far it was followed.
        """
        if depth > _DEPTH:
            return None
        match node:
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
                return self._sequence(path, inner, parts, depth + 1)
            case ast.Subscript(
                value=inner, slice=ast.Slice(lower=ast.Constant(value=int(start)), upper=None)
            ) if start >= 0 and node.slice.step is None:  # type: ignore[attr-defined]
                joined = self._sequence(path, inner, parts, depth + 1)
                return joined and (joined[0], joined[1] + start)
            case ast.Subscript(
                value=inner, slice=ast.Slice(lower=None, upper=ast.UnaryOp(), step=None)
            ):  # all but the last: those that a shorter list beside it needs
                return self._sequence(path, inner, parts, depth + 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._concatenated(path, [left, right], parts, depth)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._concatenated(path, elements, parts, depth, single=True)
            case ast.Starred(value=inner):
                return self._sequence(path, inner, parts, depth + 1)
            case ast.Name(id=name):
                trees = constructors.constructors(_class(self.modules[path]))
                said = [each for tree in trees for each in names.assigned(tree).get(name, ())]
                if len(said) == 1:
                    return self._sequence(path, said[0], parts, depth + 1)
                if said:
                    return None
                for above, argument in self._given(path, name):
                    if (joined := self._sequence(above, argument, parts, depth + 1)) is not None:
                        return joined
                return self._setting_sequence(path, node, parts)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                said = list(constructors.assigned(_class(self.modules[path]), name))
                if len(said) == 1:
                    return self._sequence(path, said[0], parts, depth + 1)
                return None
            case ast.Attribute():
                return self._setting_sequence(path, node, parts)
        return None

    def _concatenated(
        self,
        path: str,
        nodes: Sequence[ast.expr],
        parts: dict[str, Any],
        depth: int,
        *,
        single: bool = False,
    ) -> tuple[list[Entries], int] | None:
        """Sequences one after the other; `single`: elements, but for the starred ones."""
        entries: list[Entries] = []
        for node in nodes:
            if single and not isinstance(node, ast.Starred):
                number = self._evaluated(path, node, depth + 1)
                if isinstance(number, bool) or not isinstance(number, int | float):
                    return None
                said = self._resolve(path, node, number, depth + 1)
                if said is None or said.holder:
                    return None
                parts |= said.parts
                entries.append(Entries(said.text, (number,)))
                continue
            joined = self._sequence(path, node, parts, depth + 1)
            if joined is None or joined[1]:
                return None
            entries += joined[0]
        return entries, 0

    def _setting_sequence(
        self, path: str, node: ast.expr, parts: dict[str, Any]
    ) -> tuple[list[Entries], int] | None:
        """A setting that is a sequence of numbers, as the only entries."""
        name = constructors.last(node)
        if isinstance(node, ast.Name):
            config: Any = self._arguments.get(path, {})
            if self._made(path) is not None:
                return None
        else:
            config = self._config(path)
        if config is None and isinstance(node, ast.Attribute):
            config = self._arguments.get("", {}).get(constructors.last(node.value))
        held = read_setting(config, name)
        if not isinstance(held, tuple | list) or not held:
            return None
        if not all(type(number) in (int, float) for number in held):
            return None
        prefix = "" if isinstance(node, ast.Name) else self._prefix(config)
        named = f"{prefix}{name.strip('_')}"
        parts[named] = tuple(held)
        return [Entries(named, tuple(held), whole=True)], 0

    def _first(
        self,
        path: str,
        nodes: Sequence[ast.expr],
        value: int | float,
        depth: int,
        index: int | None,
    ) -> _Said | None:
        self.choices += len(nodes) > 1
        origins = (self._resolve(path, expression, value, depth + 1, index) for expression in nodes)
        first = next((origin for origin in origins if origin is not None), None)
        self.choices -= len(nodes) > 1
        return first

    def _call(
        self, path: str, node: ast.Call, value: int | float, depth: int, index: int | None
    ) -> _Said | None:
        """Functions of numbers, `getattr(config, "head_dim", …)`, and those that make a pair of a number."""
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *rest]
            ):
                origin = self._configured(path, name, value, index)
                return origin or self._first(path, rest, value, depth, index)
            case ast.Call(func=function, args=[inner], keywords=[]) if spelled := _ROUNDED.get(
                constructors.last(function)
            ):
                origin = self._resolve(path, inner, value, depth + 1, index)
                if origin is not None:
                    return origin
                real = self._evaluated(path, inner, depth + 1, index)
                if not isinstance(real, float) or spelled[1](real) != value:
                    return None
                origin = self._resolve(path, inner, real, depth + 1, index)
                return origin and replace(origin, text=f"{spelled[0]}({origin.text})")
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, _, *_], keywords=[]):
                numbers = [self._evaluated(path, each, depth + 1) for each in node.args]
                if not all(isinstance(number, int | float) for number in numbers):
                    return None
                if not _is((max if name == "max" else min)(numbers), value):
                    return None
                said = [
                    self._resolve(path, each, number, depth + 1)
                    for each, number in zip(node.args, numbers, strict=True)
                ]
                known = [origin for origin in said if origin is not None]
                if len(known) < len(said):
                    return None
                return _said_of(f"{name}({', '.join(origin.text for origin in known)})", known)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math" | "np"), attr=name),
                args=[inner],
                keywords=[],
            ) if name in _REAL:
                real = self._evaluated(path, inner, depth + 1)
                if not isinstance(real, int | float) or not _is(_of(_REAL[name], real), value):
                    return None
                origin = self._resolve(path, inner, real, depth + 1)
                return origin and replace(origin, text=f"math.{name}({origin.text})")
            case ast.Call(func=ast.Name(id="len"), args=[inner], keywords=[]):
                length = self._length(path, inner, depth + 1)
                return None if length is None or not _is(length[0], value) else length[1]
            case ast.Call(args=[inner], keywords=[]) if index is not None:
                return self._resolve(path, inner, value, depth + 1, index)
        return None

    def _name(
        self, path: str, name: str, value: int | float, depth: int, index: int | None
    ) -> _Said | None:
        """A local variable or an argument of a constructor."""
        cls = _class(self.modules[path])
        for tree in constructors.constructors(cls):
            said = [
                expression
                for expression in names.assigned(tree).get(name, ())
                if not (isinstance(expression, ast.Name) and expression.id == name)
            ]
            origin = self._first(path, said, value, depth, index)
            if origin is not None:
                return origin
            # Behind a loop its variable has the last entry.
            for over in loops_over(tree, name):
                origin = self._resolve(
                    path, ast.Subscript(over, ast.Constant(-1), ast.Load()), value, depth + 1
                )
                if origin is not None:
                    return origin
        if name in constructors.arguments(cls):
            held = self._passed(path, name, index)
            held = getattr(self.modules[path], name, None) if held is None else held
            if isinstance(held, int | float) and not _is(held, value):
                return None
            origin = self._argument(path, name, value, depth + 1, index)
            return None if origin is None else replace(origin, local=name)
        return None

    def _configured(
        self, path: str, name: str, value: int | float, index: int | None = None
    ) -> _Said | None:
        """An attribute of the configuration that a module or one above it has."""
        if _NO_SETTING.search(name):
            return None
        config = self._config(path)
        return _element_of(
            f"{self._prefix(config)}{name}", read_setting(config, name), value, index
        )

    def _of_object(
        self, path: str, holder: str, name: str, value: int | float, index: int | None
    ) -> _Said | None:
        """An attribute of an object that the model's constructor is given, which no module keeps."""
        if holder not in constructors.arguments(_class(self.modules[path])):
            return None
        creation = self._made(path)
        if creation is None:
            passed = self._arguments.get("", {}).get(holder)
            if passed is not None:
                return _element_of(name.strip("_"), read_setting(passed, name), value, index)
            return self._of_root(name, value, index)
        for above, expression in self._given(path, holder):
            if isinstance(expression, ast.Name):
                return self._of_object(above, expression.id, name, value, index)
        return None

    def _config(self, path: str) -> Any:
        while True:
            config = configuration_of(self.modules[path])
            if config is not None or not path:
                return config
            path = path.rpartition(".")[0]

    def _prefix(self, config: Any) -> str:
        """ "text_" for the part `text_config` of the model's configuration."""
        whole = configuration_of(self.root)
        if config is whole or whole is None or isinstance(whole, Mapping):
            return ""
        for name, part in vars(whole).items():
            if part is config:
                return f"{name.removesuffix('_config').removesuffix('config')}_".lstrip("_")
        return ""

    def _binary(self, path: str, node: ast.BinOp, value: int | float, depth: int) -> _Said | None:
        if type(node.op) not in _OPERATORS:
            return None
        symbol, compute = _OPERATORS[type(node.op)]
        sides = [
            self._evaluated(path, side_node, depth + 1) for side_node in (node.left, node.right)
        ]
        known = [isinstance(side, int | float) for side in sides]
        if known.count(False) == 1 and not self.choices:  # of the one that ran, the result is known
            at = known.index(False)
            sides[at] = _other_side(type(node.op), at, sides[1 - at], value)
        numbers = [side for side in sides if isinstance(side, int | float)]
        if len(numbers) != 2 or not _is(_computed(compute, *numbers), value):
            return None
        said = [
            self._resolve(path, side_node, side, depth + 1)
            for side_node, side in zip((node.left, node.right), numbers, strict=True)
        ]
        if said[0] is None or said[1] is None:
            return None
        origins = [origin for origin in said if origin]
        texts = [_bracketed(origin.text, symbol, at) for at, origin in enumerate(origins)]
        return _said_of(f"{texts[0]} {symbol} {texts[1]}", origins)

    def _evaluated(self, path: str, node: ast.expr, depth: int, index: int | None = None) -> Any:
        """The value of an expression in a constructor, as far as the modules show it."""
        if depth > _DEPTH:
            return None
        match node:
            case Index():
                return node.number
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Attribute(value=ast.Name(id="self" | "module"), attr=name):
                return _element(getattr(self.modules[path], name, None), index)
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=child), attr=name
            ) if child in self.modules[path]._modules:
                return _element(getattr(self.modules[path]._modules[child], name, None), index)
            case ast.Attribute(attr=name):
                return _element(read_setting(self._config(path), name), index)
            case ast.Name(id=name):
                passed = self._passed(path, name, index)
                if passed is not None:
                    return passed
                held = getattr(self.modules[path], name, None)
                if isinstance(held, int | float | tuple):
                    return _element(held, index)
                return self._evaluated_name(path, name, depth, index)
            case ast.BinOp():
                sides = [
                    self._evaluated(path, side_node, depth + 1)
                    for side_node in (node.left, node.right)
                ]
                if type(node.op) in _OPERATORS and all(isinstance(s, int | float) for s in sides):
                    return _computed(_OPERATORS[type(node.op)][1], *sides)
            case ast.BoolOp(op=ast.Or()):
                for alternative in node.values:
                    if real := self._evaluated(path, alternative, depth + 1, index):
                        return real
            case ast.Subscript(value=inner, slice=at) if (place := names.integer(at)) is not None:
                return self._evaluated(path, inner, depth + 1, place)
            case ast.Subscript(value=inner, slice=Index() as at):
                for entry in self._entries(path, inner, at):
                    if (real := self._evaluated(path, entry, depth + 1)) is not None:
                        return real
                return self._evaluated(path, inner, depth + 1, at.number)
            case ast.Call(func=ast.Attribute(value=inner, attr="item"), args=[], keywords=[]):
                return self._evaluated(path, inner, depth + 1, index)
            case ast.IfExp() | ast.Tuple() | ast.List():
                return self._evaluated_choice(path, node, depth, index)
            case ast.Call(func=function, args=[inner], keywords=[]) if spelled := _ROUNDED.get(
                constructors.last(function)
            ):
                real = self._evaluated(path, inner, depth + 1)
                return spelled[1](real) if isinstance(real, int | float) else None
            case ast.Call(func=ast.Name(id="len"), args=[inner], keywords=[]):
                length = self._length(path, inner, depth + 1)
                return None if length is None else length[0]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math" | "np"), attr=name),
                args=[inner],
                keywords=[],
            ) if name in _REAL:
                real = self._evaluated(path, inner, depth + 1)
                return _of(_REAL[name], real) if isinstance(real, int | float) else None
            case ast.Compare(left=left, ops=[compared], comparators=[right]):
                sides = [self._evaluated(path, side, depth + 1) for side in (left, right)]
                compare = _COMPARED.get(type(compared))
                known = compare is not None and all(isinstance(side, int | float) for side in sides)
                return compare(*sides) if compare is not None and known else None
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[_, _, *_], keywords=[]):
                numbers = [self._evaluated(path, each, depth + 1) for each in node.args]
                known = all(isinstance(number, int | float) for number in numbers)
                return (max if name == "max" else min)(numbers) if known else None
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                return read_setting(self._config(path), name)
        return None

    def _evaluated_choice(self, path: str, node: ast.expr, depth: int, index: int | None) -> Any:
        if isinstance(node, ast.Tuple | ast.List):
            element = None if index is None else _element(tuple(node.elts), index)
            return None if element is None else self._evaluated(path, element, depth + 1)
        assert isinstance(node, ast.IfExp)
        test = self._evaluated(path, node.test, depth + 1)
        if isinstance(test, bool):
            return self._evaluated(path, node.body if test else node.orelse, depth + 1, index)
        numbers = [
            self._evaluated(path, branch, depth + 1, index) for branch in (node.body, node.orelse)
        ]
        numbers = [number for number in numbers if isinstance(number, int | float)]
        return numbers[0] if len(set(numbers)) == 1 else None

    def _evaluated_name(self, path: str, name: str, depth: int, index: int | None) -> Any:
        cls = _class(self.modules[path])
        for tree in constructors.constructors(cls):
            said = [
                self._evaluated(path, expression, depth + 1, index)
                for expression in names.assigned(tree).get(name, ())
                if not (isinstance(expression, ast.Name) and expression.id == name)
            ]
            said = [number for number in said if isinstance(number, int | float)]
            if said:
                return said[0] if len(set(said)) == 1 else None
        if self._made(path) is None:
            return self._arguments_of_root.get(name)
        if name in constructors.arguments(cls):
            numbers = [
                self._evaluated(above, expression, depth + 1, index)
                for above, expression in self._given(path, name)
            ]
            if not numbers:
                return constructors.default(cls, name)
            numbers = [number for number in numbers if isinstance(number, int | float)]
            if len(set(numbers)) == 1:
                return numbers[0]
        return None


def _called(value: Any, expression: ast.expr | None) -> Any:
    """A number that no setting gives, with the name that the source has for it."""
    named = "" if expression is None else constructors.last(expression)
    if not named or isinstance(value, bool):
        return value
    return SettingInt(value, local=named) if isinstance(value, int) else value


def _number(value: int | float, said: _Said) -> Any:
    if said.is_constant or (said.holder and INDEX in said.parts):
        return value
    number: SettingInt | SettingFloat
    if isinstance(value, int):
        number = SettingInt(value, said.text, said.parts, said.local, said.holder)
    else:
        number = SettingFloat(value, said.text, said.parts, said.local, said.holder)
    number.place = said.place
    return number


def _negative(text: str) -> str:
    return f"-{text}" if text.isidentifier() else f"-({text})"


def _class(module: Any) -> Any:
    return class_before(module)


def _reads(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _is_fraction(value: Any) -> bool:
    """Whether a number is no whole one: by chance, no place in a list gives it."""
    return isinstance(value, float) and math.isfinite(value) and not value.is_integer()


def _is(held: Any, value: int | float) -> bool:
    if isinstance(held, bool) or not isinstance(held, int | float):
        return False
    if isinstance(value, int):
        return isinstance(held, int) and held == value
    return math.isclose(held, value, rel_tol=_ROUNDING) and (held == 0) == (value == 0)


def _computed(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    try:
        return compute(left, right)
    except (ArithmeticError, ValueError):
        return None


def _of(function: Callable[[float], float], number: float) -> float | None:
    try:
        return function(number)
    except (ArithmeticError, ValueError):
        return None


def _other_side(operator: type, at: int, known: float, result: float) -> float | None:
    """The left (0) or right (1) side of an operation that, with the known one, gives a result; None if
    several numbers do.
    """
    whole = isinstance(known, int) and isinstance(result, int)
    try:
        if operator is ast.Mult:
            return result // known if whole and result % known == 0 else result / known
        if operator is ast.Add:
            return result - known
        if operator is ast.Sub:
            return result + known if at == 0 else known - result
        if operator is ast.Div:
            side = result * known if at == 0 else known / result
        elif operator is ast.Pow and at == 0:
            side = result ** (1 / known)
        else:
            return None
    except ArithmeticError:
        return None
    if isinstance(side, complex):
        return None
    # What a constructor divides or takes a root of is mostly a size.
    return round(side) if math.isclose(side, round(side), rel_tol=1e-9) else side


def _element(value: Any, index: int | None) -> Any:
    if index is not None and isinstance(value, tuple | list):
        return value[index] if -len(value) <= index < len(value) else None
    return value


def _element_of(named: str, held: Any, value: int | float, index: int | None) -> _Said | None:
    """A setting that is a number, or an element of a sequence of numbers."""
    if _is(held, value):
        return _Said(named, {named: value})
    if index is None or not isinstance(held, tuple | list) or not _is(_element(held, index), value):
        return None
    if not all(isinstance(element, int | float) for element in held):
        return None
    return _Said(f"{named}[{index}]", {named: tuple(held)})


def configuration_of(module: Any) -> Any:
    """The object with the sizes that a module was made with, under one of its usual names."""
    configs = (vars(module).get(name) for name in _CONFIGURATIONS)
    return next(
        (
            config
            for config in configs
            if isinstance(config, Mapping) or hasattr(config, "__dict__")
        ),
        None,
    )


def read_setting(config: Any, name: str) -> Any:
    """An attribute of a configuration; None where it has none."""
    if isinstance(config, Mapping):
        return config.get(name)
    try:
        return None if config is None else getattr(config, name, None)
    except (
        Exception
    ):  # what another's configuration raises: Gemma 4 has one for each layer, and says so
        return None


def _bracketed(text: str, symbol: str, side: int) -> str:
    """An operand of an operator, in brackets where needed."""
    called = isinstance(ast.parse(text, mode="eval").body, ast.Call)
    plain = called or not re.search(r"[-+*/ ]", text.strip())
    alike = symbol == "*" and side == 0 and not re.search(r"[-+/]", text)
    return text if plain or alike or (symbol in "+-" and side == 0) else f"({text})"
