"""Statements of a forward: operators, calls of modules, and functions of the original."""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy
import torch

from converters.graph.caches import cache_code, is_cache_operator
from converters.graph.choices import SPREAD, is_choice
from converters.graph.draws import draws, dropout_rate, is_dropout
from converters.graph.expression import (
    Hole,
    Rng,
    SettingFloat,
    SettingInt,
    as_code,
    call,
    code,
    dtype_name,
    method,
)
from converters.graph.ir import (
    COMPUTE,
    Apply,
    Call,
    Fact,
    Frame,
    Free,
    Held,
    Item,
    Op,
    Ref,
    references,
)
from converters.graph.ops import lowerings
from converters.graph.ops.functions import functions
from converters.graph.ops.networks.matmul import is_usual
from converters.graph.ops.registry import Result, Size, Tensor
from converters.graph.recording.trace import GraphError
from converters.graph.writing.draft import Draft, Drafter, Missing, attended, is_fused, is_inlined
from converters.graph.writing.forms.options import choice, guard, spread
from converters.graph.writing.forms.sequences import Part, sequence
from converters.graph.writing.forms.turns import Over, Scan, with_scans
from converters.graph.writing.holes import fill, refs
from converters.graph.writing.layers import Layer, weight_of
from converters.graph.writing.layout import LAST, Flat, as_flat, as_flax, as_torch, moved, stays
from converters.graph.writing.naming import Scope, named
from converters.graph.writing.original import names
from converters.graph.writing.original.comments import commented, of
from converters.graph.writing.original.functions import (
    argument_names,
    outs,
    own_frames,
    with_functions,
    within,
)
from converters.graph.writing.precision import dtypes
from converters.graph.writing.statements import (
    Statement,
    inlined,
    place_on_line,
    targets,
    unturned,
)
from converters.graph.writing.training import MODE, in_mode, mode_keyword
from converters.mapping.paths import has_layers, is_container


def drafted(
    drafter: Drafter, module_call: Call, arguments: Sequence[tuple[str, int]] | None = None
) -> Draft:
    """The draft of a call. Calls within it are written only if they dissolve."""
    return _Writer(drafter, module_call).write(arguments)


# Operators whose result keeps sides of the tensor beside those that they join or split.
_KEEPING_SIDES = frozenset({"aten.flatten.using_ints", "aten.unflatten.int"})
# Numbers that need no setting, as a person writes them.
_PLAIN_NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5)
# Operators of the original that are followed in a forward, and how deep.
_COMPUTED: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Pow: operator.pow,
}
_RESHAPES = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_COMPUTED_DEPTH = 6


@dataclass(frozen=True)
class _Function:
    """A written function.

    Attributes:
        name: its name.
        order: positions of its arguments among those of the item.
        sizes: sizes that follow the arguments.
        numbers: settings that follow the sizes.
        dtype: the dtype that the model computes in, if the function takes it.
        keys: random keys, which follow these.
        dropouts: rate, axes and operator of the dropouts that come last.
    """

    name: str
    order: tuple[int, ...]
    sizes: tuple[sympy.Expr, ...]
    numbers: tuple[SettingInt | SettingFloat, ...]
    dtype: tuple[Hole, ...]
    keys: tuple[Rng, ...]
    dropouts: tuple[tuple[float, tuple[int, ...], Op], ...] = ()


def _function(writer: _Writer, item: Apply, scan: Scan | None = None) -> _Function:
    """The function for a recorded item, written if there is none yet.

    Args:
        writer: writer of the caller.
        item: the recorded item.
        scan: the loop of which it is a turn.
    """
    drafter = writer.drafter
    inner = (
        _StepWriter(drafter, writer, item, scan) if scan else _FunctionWriter(drafter, writer, item)
    )
    function = inner.write_function()
    # A turn of a loop is given the state first; what other functions are given may come in any order.
    count = 0 if scan else len(inner.order)
    places = _by_use(function, count)
    form = _form(function, places)
    called = f"{item.frame.function}_step" if scan else item.frame.function
    origin = (item.frame.file, called)
    forms = drafter.forms.setdefault(origin, {})
    if form not in forms:
        name = names.clean(called.strip("_") or "function")
        taken = {*functions(), *(written_function.name for written_function in drafter.functions)}
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        function.name = unique
        forms[form] = unique, places
        source = names.function_at(item.frame)
        doc = "" if scan else names.docstring(source, item.frame.file)
        if doc:
            function.body.insert(0, ast.Expr(ast.Constant(doc)))
        drafter.functions.append(function)
    numbers = tuple(inner.numbers.values())
    dtype = (Hole(dtypes.ComputeDtype()),) if inner.dtype_given else ()
    drawn = tuple((rate, axes, op) for (rate, axes), (_, op) in inner.dropouts.items())
    called, first = forms[form]
    order = list(inner.order)
    for place, other in zip(first, places, strict=True):
        order[place] = inner.order[other]
    sizes, keys = tuple(inner.sizes), tuple(inner.keys)
    return _Function(called, tuple(order), sizes, numbers, dtype, keys, drawn)


def _by_use(function: ast.FunctionDef, count: int) -> tuple[int, ...]:
    """Positions of a function's first arguments, in the order in which its body reads them."""
    arguments = {argument.arg: place for place, argument in enumerate(function.args.args[:count])}
    read: dict[str, None] = {}

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node.id in arguments:
            read.setdefault(node.id)
        for child in ast.iter_child_nodes(node):
            look(child)

    for statement in function.body:
        look(statement)
    return tuple(arguments[name] for name in {**read, **dict.fromkeys(arguments)})


def _form(function: ast.FunctionDef, places: Sequence[int] = ()) -> str:
    """The form of a function, independent of the names of its values.

    Args:
        function: the function.
        places: the order in which its first arguments are read.
    """
    arguments = function.args.args
    function = fill(function, lambda hole: hole)
    function.args.args = [*(arguments[place] for place in places), *arguments[len(places) :]]
    names_of: dict[str, str] = {}
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            names_of[node.arg] = f"v{len(names_of)}"
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names_of.setdefault(node.id, f"v{len(names_of)}")

    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name(names_of.get(node.id, node.id), ast.Load())

        def visit_arg(self, node: ast.arg) -> ast.arg:
            return ast.arg(names_of.get(node.arg, node.arg), node.annotation)

    return ast.dump(Renamed().visit(fill(function, lambda hole: hole)))


class _Writer:
    def __init__(self, drafter: Drafter, module_call: Call) -> None:
        self.drafter = drafter
        self.facts = drafter.graph.facts
        self.call = module_call
        self.module = drafter.modules[module_call.path]
        self.forward = drafter.forward(module_call)
        self.made = Draft(module_call.path, self.module)
        self.same: dict[int, Any] = {}
        self.statements: list[Statement] = []
        self.arguments: list[tuple[str, int]] = []
        self.layouts = drafter.layouts
        self.lying: set[int] = set()
        self.sizes: dict[sympy.Expr, str] = {}
        # What tensors of a loop over data are called.
        self.called: dict[int, str] = {}
        self.prefix = f"{module_call.path}." if module_call.path else ""
        # Tensors that may be None here: what gives nothing else is called only where they are not.
        self.maybe = drafter.graph.maybe
        if module_call.path and module_call.outs and set(module_call.outs) <= self.maybe:
            self.maybe = frozenset()
        # Whether whoever calls it can give it sizes that none of its tensors shows.
        self.sizes_given = bool(module_call.path)
        # Whether it is given the dtype that the model computes in, as none of its tensors shows it.
        self.dtype_given = False

    # From items to statements.

    def write(self, arguments: Sequence[tuple[str, int]] | None) -> Draft:
        if arguments is None:
            arguments = self._arguments()
        self.arguments = list(arguments)
        results = self._results()
        later = {reference.id for reference in references(results)}
        items = [
            (item, self._own(item))
            for item in self.call.body
            if not (isinstance(item, Call) and item.is_entry)
        ]
        whole = [item for item, _ in with_functions(items, later)]
        self._items(self._scanned(whole, later))
        results = self._results()
        self._name(results)
        self.made.sizes = tuple(self.sizes.values())
        if self.dtype_given:
            self.made.sizes += (dtypes.ARGUMENT,)
            self.drafter.dtype_given.add((self.call.path, self.call.number))
        self.made.labels = tuple(result.label for result in self.call.taken)
        self.drafter.sizes[self.call.path, self.call.number] = list(self.sizes)
        return self.made

    def _scanned(self, items: Sequence[Item], later: set[int]) -> Sequence[Item | Scan]:
        """Items with loops over data as scans; one that draws is written turn by turn, as each draws anew."""
        return items if any(map(draws, items)) else with_scans(items, later, self.facts)

    def _name(self, results: Any) -> None:
        shown = self._dtype_shown()
        facts = dict(self.facts)
        for number, (a, b) in unturned(self.statements, results).items():
            shape = list(facts[number].shape)
            shape[a], shape[b] = shape[b], shape[a]
            facts[number] = replace(facts[number], shape=tuple(shape))
        graph = self.drafter.graph
        statements, placed = inlined(self.statements, results, self.maybe, graph.otherwise)
        placed = guard(statements, placed, self.maybe)
        written = {function.name for function in self.drafter.functions}
        scope = Scope(
            self.call.path or "the model",
            self.forward,
            self.arguments,
            facts,
            self.layouts,
            self.lying,
            placed,
            {*functions(), *written, *self._reserved()},
            self.wanted,
            self._held,
            self.size_argument if self.sizes_given else None,
            self.maybe,
        )
        self.made.arguments = tuple(name for name, _ in self.arguments)
        kinds = graph.kinds
        self.made.kinds = {name: kinds[at] for name, at in self.arguments if at in kinds}
        self.made.result_kinds = {
            place: kinds[result.id]
            for place, result in enumerate(results if isinstance(results, tuple) else (results,))
            if isinstance(result, Ref) and result.id in kinds
        }
        self.made.nullable = frozenset(name for name, at in self.arguments if at in self.maybe)
        self.made.spared = (
            self.made.nullable & {*graph.optional} if not self.call.path else frozenset()
        )
        self.made.absent = frozenset(
            place
            for place, result in enumerate(results if isinstance(results, tuple) else (results,))
            if isinstance(result, Ref) and result.id in self.maybe
        )
        body, result = named(scope, statements, results)
        if not self.call.path and not self.call.number:
            result = in_mode(result, graph.of_mode)
        if shown:
            taken = {*scope.taken, *self.made.arguments}
            *body, last = dtypes.read_from(
                [*body, ast.Expr(result)],
                shown,
                taken,
                names.source_tree(self.forward),
            )
            assert isinstance(last, ast.Expr)
            result = last.value
        self.made.body, self.made.result = body, result

    def _dtype_shown(self) -> str:
        """Fill the holes for the dtype that the model computes in.

        Returns:
            The argument whose dtype it is, where these are still to be filled.
        """
        if not any(dtypes.needs(statement.value) for statement in self.statements):
            return ""
        for name, number in self.arguments:
            if self.facts[number].dtype == COMPUTE and number not in self.maybe:
                return name
        out = dtypes.shown_by(self.statements, self.facts, self.maybe)
        if out is not None:
            dtype: ast.expr = ast.Attribute(Hole(Ref(out)), "dtype", ast.Load())
        elif self.sizes_given:
            self.dtype_given, dtype = True, code(dtypes.ARGUMENT)
        else:
            dtype = code("self.dtype or self.param_dtype")
        for statement in self.statements:
            statement.value = dtypes.filled(statement.value, dtype)
        return ""

    def _reserved(self) -> set[str]:
        """Names that no value may have, as they are training's."""
        return {MODE, "partial"} if self.drafter.training.any else set()

    def _arguments(self) -> list[tuple[str, int]]:
        named_arguments = []
        for argument in self.call.arguments:
            name, place = names.argument_name(argument.label, self.forward)
            named_arguments.append((place, name, argument.inside))
        named_arguments.sort(key=lambda entry: entry[0])
        taken: Counter[str] = Counter()
        arguments = []
        for _, name, number in named_arguments:
            name = name or f"x{number}"
            taken[name] += 1
            arguments.append((name if taken[name] == 1 else f"{name}_{taken[name]}", number))
        return arguments

    def wanted(self, statement: Statement, place: int) -> str:
        """The original's name of a tensor that a statement gives; "" if it has none."""
        own = self.drafter.graph.named
        if place < len(statement.outs) and (known := own.get(statement.outs[place])):
            return known
        if not statement.single and (known := self.called.get(statement.outs[place])):
            return known
        target_names = targets(statement.frames)
        if len(statement.outs) > 1 and statement.frames and isinstance(statement.value, ast.Call):
            spread = names.spread_call(statement.frames[-1])[1]
            if spread and spread == names.last_name(statement.value.func):
                return ""  # the line names what another function makes of them: `y, z = f(*g(x))`
        if len([out for out in statement.outs if out not in own]) == 1 < len(statement.outs):
            # All else that it gives is a cache, which the original changes in place.
            first = target_names[0] if target_names else ""
            return names.clean(first) if first and first != "_" else ""
        if statement.places and len(target_names) > max(statement.places):
            target_names = tuple(target_names[at] for at in statement.places)
        label = statement.labels[place] if place < len(statement.labels) else ""
        if part := names.part_of(target_names, label):
            return part
        if statement.frames and (part := names.target_at(statement.frames[-1], label)):
            return part
        if statement.unplaced or (any(statement.labels) and not label):
            return ""  # which of the names is its own is not known
        if len(target_names) == 1 and not statement.single:
            target_names = names.parts_of(target_names[0], self.forward) or names.elements_of(
                target_names[0], len(statement.outs), statement.frames[-1]
            )
        if not target_names:
            return ""
        name = target_names[min(place, len(target_names) - 1)]
        return names.clean(name) if name and name != "_" else ""

    def size_argument(self, size: sympy.Expr) -> str:
        """An argument for a size that none of the tensors shows."""
        if size not in self.sizes:
            symbols = size.free_symbols
            wanted = self.drafter.symbols.get(*symbols) if len(symbols) == 1 else None
            taken = set(self.sizes.values())
            free = wanted is not None and wanted not in taken
            self.sizes[size] = wanted if free and wanted else f"size_{len(self.sizes)}"
        return self.sizes[size]

    def value_name(self, value: Any) -> str:
        """The name of a value in this method; "" if unknown."""
        if isinstance(value, Held):
            return value.key.rpartition(".")[2]
        if value.id in self.called:
            return self.called[value.id]
        for name, number in self.arguments:
            if number == value.id:
                return name
        for statement in self.statements:
            if value.id in statement.outs:
                place = statement.outs.index(value.id)
                if statement.single and not statement.places:
                    place = place_on_line(statement, self.statements)
                return self.wanted(statement, place)
        return ""

    def _results(self) -> Any:
        if not self.call.path:
            return self._resolved(self.drafter.graph.entry(self.call.number).outputs)
        refs = [self._resolved(Ref(result.inside)) for result in self.call.taken]
        for result, ref in zip(self.call.taken, refs, strict=True):
            if self.layouts.get(result.outside) is not None:
                self.lying.add(ref.id)
        return refs[0] if len(refs) == 1 else tuple(refs)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Ref):
            other = self.same.get(value.id, value)
            return other if other == value else self._resolved(other)
        if isinstance(value, tuple | list):
            return tuple(self._resolved(element) for element in value)
        if isinstance(value, Mapping):
            return {key: self._resolved(element) for key, element in value.items()}
        return value

    def _own(self, item: Item) -> tuple[Frame, ...]:
        return own_frames(self._frames(item.frames))

    def _items(self, items: Sequence[Item | Scan]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._op(item)
            elif isinstance(item, Scan):
                self._scan(item)
            elif isinstance(item, Apply):
                self._apply(item)
            elif self.drafter.dissolves(item):
                for argument in item.arguments:
                    if argument.value != Ref(argument.inside):  # as it is where nothing marks it
                        self.same[argument.inside] = argument.value
                self._dissolved(item)
                for taken in item.taken:
                    if taken.outside != taken.inside:
                        self.same[taken.outside] = Ref(taken.inside)
            else:
                self._call(item)

    def _dissolved(self, item: Call) -> None:
        """Write a call that dissolves. A whole Sequential is one call, if it can be."""
        module, first = self.drafter.modules[item.path], len(self.statements)
        plain = isinstance(module, torch.nn.Sequential) and item.path.startswith(self.prefix)
        inner = [inner_item for inner_item in item.body if isinstance(inner_item, Call)]
        if not plain or len(inner) != len(item.body):
            self._items(item.body)
            return
        parts: list[Part] = []
        for inner_call in inner:
            start = len(self.statements)
            self._items([inner_call])
            owned = inner_call.path.startswith(f"{item.path}.")
            parts.append(
                (
                    inner_call,
                    self._where(inner_call.path) if owned else None,
                    self.statements[start:],
                )
            )
        whole = sequence(module, item, parts, self.facts, self.layouts)
        if whole is not None:
            argument, out, members, takes_mode = whole
            for key, function in members.items():
                self.drafter.members[f"{item.path}.{key}"] = function
            keywords = [mode_keyword()] if takes_mode else []
            self.drafter.training.sequentials |= {item.path} if takes_mode else set()
            value = ast.Call(self._where(item.path), [argument], keywords)
            self.statements[first:] = [Statement((out,), value, self._frames(item.frames))]

    def _op(self, item: Op) -> None:
        if is_dropout(item):
            self._dropout(item)
            return
        if is_choice(item):
            chosen = choice(
                *(as_code(self._operand(argument, item)) for argument in item.arguments)
            )
            self.statements.append(Statement(item.outs, chosen, self._frames(item.frames)))
            return
        if is_cache_operator(item):
            operands = [self._operand(argument, item) for argument in item.arguments]
            frames = self._frames(item.frames)
            self.statements.append(Statement(item.outs, cache_code(item, operands), frames))
            return
        if item.target == SPREAD:
            mask = self._operand(item.arguments[0], item)
            wide = spread(mask, mask.dtype == torch.bool)
            self.statements.append(Statement(item.outs, wide, self._frames(item.frames)))
            return
        laid_out = stays(item, self.layouts, self.facts, self.drafter.constants)
        if laid_out is not None and laid_out[0] != self.layouts.get(item.outs[0]):
            laid_out = None  # in a function all is in torch's order
        written = (
            laid_out[1](lambda argument: self._lying(argument, item))
            if laid_out
            else self._attended(item) or self._shaped_as(item)
        )
        if written is not None:
            if self.drafter.graph.narrow is not None:
                written = dtypes.marked(written)
            frames = self._frames(item.frames)
            self.statements.append(Statement(item.outs, written, frames, item.single))
            return
        lowering = lowerings().get(item.target)
        outs = [self._fact(self.facts[out]) if out >= 0 else None for out in item.outs]
        arguments = tuple(self._operand(argument, item) for argument in item.arguments)
        if item.target in _KEEPING_SIDES:
            arguments = (self._with_sides(item.arguments[0], arguments[0]), *arguments[1:])
        if item.target == "aten.expand.default":
            arguments = (arguments[0], self._expanded(*arguments[:2]), *arguments[2:])
        if item.target == "aten.slice.Tensor":
            bounds = [self._bound(bound, item) for bound in arguments[2:4]]
            arguments = (*arguments[:2], *bounds, *arguments[4:])
        named = {key: self._operand(argument, item) for key, argument in item.named.items()}
        try:
            if dropout_rate(item) and not self.drafter.training.modes.refused:
                lowering = self._dropping(item)
            if lowering is None:
                raise NotImplementedError("no lowering is registered")
            value = lowering(arguments, named, outs[0] if item.single else tuple(outs))
        except (ValueError, TypeError, NotImplementedError) as error:
            value = self._stub(item, arguments, named, str(error))
        if self.drafter.graph.narrow is not None:
            value = dtypes.marked(value)
        value = self._keyed(value)
        self.statements.append(Statement(item.outs, value, self._frames(item.frames), item.single))

    def _dropout(self, item: Op) -> None:
        """A dropout: a module of the original's, or one that stands for what its forward does."""
        value, rate, axes, path = item.arguments
        x = self._resolved(value)
        layout = self.layouts.get(x.id) if isinstance(x, Ref) else None
        operand: Any = self._operand(x, item)
        if layout is not None and self.layouts.get(item.outs[0]) == layout:
            rank = len(self.facts[x.id].shape)
            axes = tuple(sorted(moved(axis, rank) for axis in axes)) if axes else ()
            operand = Hole(x)
        layer = self.drafter.training.dropouts.get(path)
        if layer is not None and path.startswith(self.prefix):
            layer.axes[:] = layer.axes or [axes]
            if layer.axes[0] != axes:
                raise GraphError(f"{path}: drops along other axes in each call", "report it")
            dropped = layer.applied(self.access(path), as_code(operand))
        else:
            dropped = self._dropped(rate, axes, item, as_code(operand))
        self.statements.append(Statement(item.outs, dropped, self._frames(item.frames)))

    def _dropped(self, rate: float, axes: tuple[int, ...], item: Op, x: ast.expr) -> ast.expr:
        """A tensor after a dropout that the original has as a function."""
        return ast.Call(self._dropout_layer(rate, axes, item), [x], [mode_keyword()])

    def _dropout_function(self, rate: float, axes: tuple[int, ...], item: Op) -> ast.expr:
        """A function of a tensor that drops, for a function that is given it."""
        layer = self._dropout_layer(rate, axes, item)
        return ast.Call(ast.Name("partial", ast.Load()), [layer], [mode_keyword()])

    def _dropout_layer(self, rate: float, axes: tuple[int, ...], item: Op) -> ast.expr:
        """The dropout of what the original does by a function: one whose rate it reads, or a new one."""
        read = {
            node.value.attr  # `self.dropout.p`
            for frame in self._frames(item.frames)
            for node in names.reached(frame)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
        }
        for name, child in self.module._modules.items():
            same = isinstance(child, torch.nn.modules.dropout._DropoutNd) and child.p == rate
            if not same or axes or name not in read:
                continue
            layer = self.drafter.training.dropouts.get(f"{self.prefix}{name}")
            if layer is None:
                setting = self.drafter.settings.of_layer(child, "p", rate)
                self.made.dropouts[name] = (setting, ())
                return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
            if layer.axes in ([], [()]):
                layer.axes[:] = [()]
                return self.access(f"{self.prefix}{name}")
        name = self._dropout_name(rate, axes, item)
        return ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())

    def _dropout_name(self, rate: float, axes: tuple[int, ...], item: Op) -> str:
        """The attribute of a dropout that the original has none for."""
        frames = self._frames(item.frames)
        setting = self.drafter.settings.of_rate(rate, self.module, frames)
        usual = "attn_dropout" if not is_dropout(item) else "drop_path" if axes else "dropout"
        if is_dropout(item) and not self.facts[item.outs[0]].shape:
            usual = "layer_drop"  # one number for a whole layer
        held = self.made.dropouts
        taken = {*vars(self.module), *self.module._modules, *self.module._parameters}
        taken |= set(self.module._buffers)
        for number in range(1, 1000):
            name = usual if number == 1 else f"{usual}_{number}"
            if name not in taken and held.setdefault(name, (setting, axes)) == (setting, axes):
                return name
        raise AssertionError("no name is free")

    def _dropping(self, item: Op) -> Any:
        """The lowering of an attention that drops weights."""
        drop = self._dropout_function(dropout_rate(item), (), item)

        def lowering(arguments: Sequence[Any], named: Mapping[str, Any], out: Any) -> ast.expr:
            names_of = ("attn_mask", "dropout_p", "is_causal")
            options = dict(zip(names_of, arguments[3:], strict=False)) | dict(named)
            keywords = {
                "mask": options.get("attn_mask"),
                "is_causal": options.get("is_causal") or None,
                "scale": options.get("scale"),
            }
            usual = keywords["scale"] is not None and is_usual(keywords["scale"], arguments[0])
            keywords = {
                k: v for k, v in keywords.items() if v is not None and (k != "scale" or not usual)
            }
            return call("dropout_attention", *arguments[:3], drop, **keywords)

        return lowering

    def _keyed(self, value: ast.expr) -> ast.expr:
        """An expression with the keys that it draws with."""

        def key(hole: Hole) -> ast.expr:
            return self._key(hole.value) if isinstance(hole.value, Rng) else hole

        return fill(value, key)

    def _key(self, key: Rng) -> ast.expr:
        """A new key of a stream: the module's."""
        self.drafter.streams.add(key.stream)
        return key.code

    @staticmethod
    def _expanded(x: Tensor, sides: Sequence[Any]) -> list[Any]:
        """The sides that a tensor is repeated to: one that stays is that of the tensor, whatever it is."""
        sizes = list(sides)
        first = len(sizes) - x.ndim
        for at, side in enumerate(x.shape):
            if sizes[first + at] == -1 and isinstance(side, int) and side > 1:
                sizes[first + at] = Size(code("{x}.shape[{i}]", x=x, i=at), side)
        return sizes

    def _apply(self, item: Apply) -> None:
        """A call of a function of the original, which is written beside the classes."""
        function = _function(self, item)
        operands = [as_code(self._operand(value, _NO_OP)) for value in item.arguments]
        needed: list[ast.expr] = [Hole(Free(size, 0)) for size in function.sizes]
        numbers = [as_code(number) for number in function.numbers]
        keys = [self._key(Rng(rng.stream)) for rng in function.keys]
        drawn = [self._dropout_function(*dropout) for dropout in function.dropouts]
        plain = [operands[index] for index in function.order]
        arguments = [*plain, *needed, *numbers, *function.dtype, *keys, *drawn]
        value = ast.Call(ast.Name(function.name, ast.Load()), arguments, [])
        frames = self._frames(item.frames)[:-1] or item.frames[:-1]
        places = _places(item)
        unplaced = not places and len(names.returned(item.frame)) > len(item.outs)
        single = len(item.outs) == 1
        self.statements.append(
            Statement(item.outs, value, frames, single, places=places, unplaced=unplaced)
        )

    def _scan(self, scan: Scan) -> None:
        """A loop over data: `jax.lax.scan` of a function that is a turn."""
        lines = {out: self._frames(op.frames) for op in scan.body for out in op.outs}
        for (before, now), final in zip(scan.carried, scan.finals, strict=True):
            name = names.clean((targets(lines[now]) or ("state",))[-1])
            self.called |= dict.fromkeys((before, now, final), name)
        for over in scan.over:
            self.called[over.part] = self.value_name(over.array) or "part"
        for stack in scan.stacked:
            name = names.clean((targets(lines.get(stack.turn, ())) or ("result",))[-1])
            self.called.setdefault(stack.turn, name)
        states = [Ref(number) for number, _ in scan.carried]
        parts = [Ref(over.part) for over in scan.over]
        results = (*(now for _, now in scan.carried), *(stack.turn for stack in scan.stacked))
        own = self._frames(scan.frames)
        item = Apply(
            (own or scan.frames)[0],
            (*states, *parts, *scan.arguments),
            results,
            scan.body,
            scan.frames,
        )
        function = _function(self, item, scan)
        taken = {name for name, _ in self.arguments}
        state, turn = (f"{local}_" if local in taken else local for local in ("state", "turn"))
        rest = len(states) + len(parts)
        step = ast.Call(
            ast.Name(function.name, ast.Load()),
            [
                _all_of(state, len(states)),
                _all_of(turn, len(parts)),
                *(
                    as_code(self._operand(scan.arguments[index - rest], _NO_OP))
                    for index in function.order
                    if index >= rest
                ),
                *(Hole(Free(size, 0)) for size in function.sizes),
                *(as_code(number) for number in function.numbers),
                *function.dtype,
            ],
            [],
        )
        signature = ast.arguments([], [ast.arg(state), ast.arg(turn)], None, [], [], None, [])
        starts = [
            code("{start}.astype(jnp.float32)", start=self._operand(start, _NO_OP))
            if widened
            else self._operand(start, _NO_OP)
            for start, widened in zip(scan.starts, scan.widened, strict=True)
        ]
        arrays = [self._gone_over(over, scan.count) for over in scan.over]
        value = code(
            "jax.lax.scan({step}, {starts}, {arrays})",
            step=ast.Lambda(signature, step),
            starts=starts[0] if len(starts) == 1 else tuple(starts),
            arrays=arrays[0] if len(arrays) == 1 else tuple(arrays),
        )
        for stack in scan.stacked:
            fact = self.facts[stack.turn]
            self.facts = {**self.facts, stack.turn: replace(fact, shape=(scan.count, *fact.shape))}
        outs = (*scan.finals, *(stack.turn for stack in scan.stacked))
        shape = (_nest(len(scan.finals)), _nest(len(scan.stacked)))
        outs = outs if scan.stacked else (*outs, -1)
        self.statements.append(Statement(outs, value, own, False, shape))
        for stack in scan.stacked:
            whole = _axis_moved(Hole(Ref(stack.turn)), 0, stack.axis)
            self.statements.append(Statement((stack.whole,), whole, self._frames(stack.frames)))

    def _gone_over(self, over: Over, count: int) -> ast.expr:
        """An array as a scan goes over it: its turns first."""
        value = as_code(self._operand(over.array, _NO_OP))
        side = self.facts[over.array.id].shape[over.axis]
        if over.first or side != count:
            last = over.first + count
            value = call("jax.lax.slice_in_dim", value, over.first, last, axis=over.axis)
        return _axis_moved(value, over.axis, 0)

    def _stub(
        self, item: Op, arguments: Sequence[Any], named: Mapping[str, Any], reason: str
    ) -> ast.expr:
        """The call of a function that is still to be written, for an operator that nobody can write."""
        line = str(item.frames[-1]) if item.frames else ""
        self.drafter.missing.append(Missing(item.target, reason, self.call.path, line))
        name = names.clean(item.target.replace(".", "_"))
        self.drafter.stubs.setdefault(name, f"{item.target}: {reason}")
        operands = [_told(argument) for argument in arguments]
        keywords = [ast.keyword(key, _told(argument)) for key, argument in named.items()]
        return ast.Call(ast.Name(name, ast.Load()), operands, keywords)

    def _operand(self, value: Any, item: Op) -> Any:
        value = self._resolved(value)
        match value:
            case Ref():
                fact = self._fact(self.facts[value.id])
                layout = self.layouts.get(value.id)
                return Tensor(fact.shape, fact.dtype, as_torch(Hole(value), layout, fact.ndim))
            case Held():
                return self._held(value)
            case Free():
                return Size(Hole(value), value.hint)
            case tuple():
                if item.target in _RESHAPES:
                    return self._sides_of_reshape(value, item)
                return [self._operand(element, item) for element in value]
            case bool():
                return value
            case int() | float():
                return self._number(value, item)
        return value

    def _sides_of_reshape(self, sides: Sequence[Any], item: Op) -> list[Any]:
        """The sides that a tensor gets: those that a flattening leaves as they are are read from the tensor,
        and one that nothing gives is what the others leave, -1.
        """
        plain = [isinstance(side, int) and not isinstance(side, bool) for side in sides]
        known = [
            self._followed_number(side, item) if is_plain else self._operand(side, item)
            for side, is_plain in zip(sides, plain, strict=True)
        ]
        frames = self._frames(item.frames)
        written = names.sides_written(frames[-1]) if frames else ()
        if written and isinstance(written[0], ast.Starred):
            written = written[1:]
        elif len(written) != len(sides):
            written = ()
        for axis, node in enumerate(written, len(sides) - len(written)):
            # Another number of the line may be equal; a local variable may have a setting's name by chance.
            if plain[axis] and (type(known[axis]) is int or not isinstance(node, ast.Name)):
                number = self.drafter.settings.of_expression(node, self.module)
                known[axis] = number if number == sides[axis] else known[axis]
        for axis, read in self._kept_sides(sides, item).items():
            if plain[axis] and sides[axis] > 1:
                known[axis] = read
        if known.count(None) == 1 and -1 not in sides:
            return [-1 if side is None else side for side in known]
        return [
            self._unfollowed(side, item) if value is None else value
            for side, value in zip(sides, known, strict=True)
        ]

    def _kept_sides(self, sides: Sequence[Any], item: Op) -> dict[int, Size]:
        """Axis → side of the operand, for the axes that a flattening leaves as they are.

        Axes before and behind those that become one; where several ways fit the sizes, what they share.
        """
        of, frames = self._resolved(item.arguments[0]), self._frames(item.frames)
        if not isinstance(of, Ref) or self.layouts.get(of.id) not in (None, LAST):
            return {}
        if not frames or not names.flattens(frames[-1]):
            return {}
        old, new = self.facts[of.id].shape, tuple(map(self._resolved, sides))
        fewer = len(old) - len(new)
        ways = [
            {axis: axis + fewer * (axis > merged) for axis in range(len(new)) if axis != merged}
            for merged in range(len(new) if fewer > 0 else 0)
        ]
        fitting = [way for way in ways if all(new[to] == old[axis] for to, axis in way.items())]
        return {
            to: self._side(of.id, axis, new[to])
            for to, axis in (fitting[0].items() if fitting else ())
            if all(way.get(to) == axis for way in fitting)
        }

    def _with_sides(self, argument: Any, operand: Any) -> Any:
        """The operand with its fixed sides read from it, as other sizes of the model have others."""
        value = self._resolved(argument)
        if not isinstance(value, Ref) or not isinstance(operand, Tensor):
            return operand
        sides = (
            self._side(value.id, axis, side) if isinstance(side, int) and side > 1 else side
            for axis, side in enumerate(operand.shape)
        )
        return replace(operand, shape=tuple(sides))

    def _shaped_as(self, item: Op) -> ast.expr | None:
        """A reshape to a tensor's whole shape, where the original's line says so: `y.view_as(x)`."""
        frames = self._frames(item.frames) if item.target in _RESHAPES else ()
        name = names.shape_taken_of(frames[-1]) if frames else ""
        sides, of = self._resolved(item.arguments[1]) if name else (), item.arguments[0]
        for number in self._called(name) if name else ():
            same = self.facts[number].shape == tuple(map(self._resolved, sides))
            if same and number not in self.maybe and number not in self.layouts:
                x = self._operand(of, item)
                return code("{x}.reshape({y}.shape)", x=x, y=Hole(Ref(number)))
        return self._unflattened(item, frames) if frames else None

    def _unflattened(self, item: Op, frames: tuple[Frame, ...]) -> ast.expr | None:
        """A reshape that was an `unflatten`, beside whose parts all sides stay as they are."""
        split = names.unflattened(frames[-1])
        value = self._resolved(item.arguments[0])
        if split is None or not isinstance(value, Ref) or value.id in self.layouts:
            return None
        before, after = self.facts[value.id].shape, self.facts[item.outs[0]].shape
        at, count = split[0] % len(before), len(split[1])
        rest = (*after[:at], *after[at + count :])
        if len(after) != len(before) - 1 + count or rest != (*before[:at], *before[at + 1 :]):
            return None
        x = self._with_sides(value, self._operand(value, item))
        sizes = self._operand(item.arguments[1], item)[at : at + count]
        parts = [
            size if number is None else number for number, size in zip(split[1], sizes, strict=True)
        ]
        return method(x, "reshape", *x.shape[:at], *parts, *x.shape[at + 1 :])

    def _attended(self, item: Op) -> ast.expr | None:
        """A Linear without bias whose weight is an embedding's: the embedding's `attend`."""
        if item.target != "aten.linear.default" or len(item.arguments) != 2:
            return None
        weight = self._resolved(item.arguments[1])
        if not isinstance(weight, Held) or not weight.key.startswith(self.prefix):
            return None
        owner = weight.key.rpartition(".")[0]
        layer = self.drafter.layer(owner)
        if layer is None or not isinstance(layer.module, torch.nn.Embedding):
            return None
        x = self._operand(item.arguments[0], item)
        return code("{e}.attend({x})", e=self.access(owner), x=x)

    def _lying(self, value: Any, item: Op) -> Any:
        """The operand of `_operand` in its own layout, including its shape."""
        value = self._resolved(value)
        if not isinstance(value, Ref):
            return self._operand(value, item)
        fact = self._fact(self.facts[value.id])
        shape = fact.shape
        if self.layouts.get(value.id) == LAST:
            shape = (shape[0], *shape[2:], shape[1])
        return Tensor(shape, fact.dtype, Hole(value))

    def _bound(self, value: Any, item: Op) -> Any:
        """A bound of a slice: a setting, half of a side, or a number."""
        if not isinstance(value, int) or not 1 < value < 2**31:
            return value
        frames = self._frames(item.frames)
        said = self.drafter.settings.on_cuts(value, self.module, frames)
        if said is None:
            said = self._half(value, item)
        return value if said is None else said

    def _half(self, value: int, item: Op) -> Size | None:
        """Half of a tensor's side as a bound, if the original's slice halves something."""
        frames = self._frames(item.frames)
        cuts = names.cuts(frames[-1]) if frames else ()
        if cuts and not any(map(_halves, cuts)):
            return None
        x, axis = self._resolved(item.arguments[0]), item.arguments[1]
        if not isinstance(x, Ref) or self.facts[x.id].shape[axis] != 2 * value:
            return None
        rank = len(self.facts[x.id].shape)
        shown = -1 if axis % rank == rank - 1 else axis
        whole = as_torch(Hole(x), self.layouts.get(x.id), rank)
        return Size(code("{x}.shape[{axis}] // 2", x=whole, axis=shown), value)

    def _number(self, value: Any, item: Op) -> Any:
        number = self._followed_number(value, item)
        return self._unfollowed(value, item) if number is None else number

    def _unfollowed(self, value: int, item: Op) -> Any:
        """A size that nothing gives: a side of what is given, as nothing else would give it for other sizes;
        else the number, which is noted.
        """
        frames = self._frames(item.frames)
        sides = [*self._behind(item, frames), *(number for _, number in self.arguments)]
        for number in (number for number in sides if number not in self.maybe):
            for axis, side in enumerate(self.facts[number].shape):
                if side == value:
                    return self._side(number, axis, value)
        self._bake(value, frames)
        return value

    def _followed_number(self, value: Any, item: Op) -> Any:
        """A number as what gives it, or as it is if it has no size; None for a size that nothing gives."""
        sized, counted = _sized(item.target, value), _counted(item.target, value)
        if not sized and not counted:
            return value
        frames = self._frames(item.frames)
        said = self.drafter.settings.on_lines(value, self.module, frames)
        if said is not None:
            return said
        if isinstance(value, int) and value > 1:
            read = self._side_read(value, frames)
            if read is not None:
                return read
        if not sized:
            return value
        setting = self.drafter.settings.of_number(value, self.module, frames)
        if isinstance(setting, SettingInt | SettingFloat):
            return setting
        computed = self._computed(value, frames)
        if computed is not None:
            return computed
        if isinstance(value, float) and value not in _PLAIN_NUMBERS:
            self._bake(value, frames)
        return setting if not isinstance(value, int) or value < 4 else None

    def _bake(self, value: int | float, frames: Sequence[Frame]) -> None:
        """Note a number that stays as it was recorded."""
        where = self.call.path
        if frames:
            where = f"{type(self.module).__name__}, {Path(frames[-1].file).name}:{frames[-1].line}"
        self.drafter.baked.setdefault(f"{value} in {where}")

    def _computed(self, value: int | float, frames: Sequence[Frame]) -> Size | None:
        """A number that a running line computes from settings and sides: `dim // self.heads`."""
        for frame in reversed(frames):
            for node in names.reached(frame):
                if isinstance(node, ast.BinOp | ast.Call | ast.UnaryOp):
                    known = self._followed(node, _COMPUTED_DEPTH, frame)
                    if known is not None and math.isclose(known[0], value, rel_tol=1e-12):
                        same = type(known[0]) is type(value)
                        if same and not isinstance(known[1], ast.Constant):
                            return Size(known[1], value)  # type: ignore[arg-type]
        return None

    def _followed(
        self, node: ast.expr, depth: int, frame: Frame
    ) -> tuple[int | float, ast.expr] | None:
        """The value of an expression of the original, and the expression in the port."""
        if depth == 0:
            return None
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return number, as_code(number)
            case ast.Attribute():
                number = self.drafter.settings.of_expression(node, self.module)
                return None if number is None else (number + 0, as_code(number))
            case (
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id=name), attr="shape")
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]),
                    slice=inner,
                )
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[inner])
            ) if (axis := names.integer(inner)) is not None:
                return self._followed_side(names.clean(name), axis)
            case ast.Name(id=name):
                values = names.assigned(names.function_at(frame)).get(name, ())
                return self._followed(values[0], depth - 1, frame) if len(values) == 1 else None
            case ast.BinOp(op=op) if type(op) in _COMPUTED:
                sides = [self._followed(side, depth - 1, frame) for side in (node.left, node.right)]
                if sides[0] is None or sides[1] is None:
                    return None
                try:
                    number = _COMPUTED[type(op)](sides[0][0], sides[1][0])
                except ArithmeticError:
                    return None
                return number, ast.BinOp(sides[0][1], op, sides[1][1])
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="sqrt"), args=[inner]):
                of = self._followed(inner, depth - 1, frame)
                if of is None or of[0] < 0:
                    return None
                return math.sqrt(of[0]), ast.BinOp(of[1], ast.Pow(), ast.Constant(0.5))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Call() | ast.BinOp() as inner):
                of = self._followed(inner, depth - 1, frame)
                return of and (-of[0], ast.UnaryOp(ast.USub(), of[1]))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr="log" | "log2" | "exp" as name),
                args=[inner],
            ):
                of = self._followed(inner, depth - 1, frame)
                try:
                    return of and (getattr(math, name)(of[0]), call(f"math.{name}", of[1]))
                except (ArithmeticError, ValueError):
                    return None
        return None

    def _followed_side(self, name: str, axis: int) -> tuple[int | float, ast.expr] | None:
        """A side of the tensor that the original calls so, if all tensors of the name have the same."""
        for number in self._called(name):
            shape = self.facts[number].shape
            if number in self.maybe or not -len(shape) <= axis < len(shape):
                return None
            side = shape[axis]
            if not isinstance(side, int):
                return None
            return side, self._side(number, axis % len(shape), side).code
        return None

    def _behind(self, item: Op, frames: Sequence[Frame]) -> list[int]:
        """The tensor that an operator shapes, or what that was made of on this line: a tensor with a name."""
        operand = self._resolved(item.arguments[0]) if item.arguments else None
        arguments = {number for _, number in self.arguments}
        line = frames[-1] if frames else None
        for _ in range(_STEPS):
            if not isinstance(operand, Ref):
                break
            of = next(
                (statement for statement in self.statements if operand.id in statement.outs), None
            )
            if operand.id in arguments:
                return [operand.id]
            if of is None:
                break
            if targets(of.frames) and of.frames[-1] != line:
                return [operand.id]
            behind = list(dict.fromkeys(refs(of.value)))
            operand = Ref(behind[0]) if len(behind) == 1 else None
        return []

    def _side_read(self, value: int, frames: Sequence[Frame]) -> Size | None:
        """A number as the side of a tensor, where a line of the source that ran reads it."""
        for frame in reversed(frames):
            for name, axis in names.sides_read(frame):
                for number in self._called(name):
                    if number in self.maybe:
                        continue
                    shape = self.facts[number].shape
                    if -len(shape) <= axis < len(shape) and shape[axis] == value:
                        return self._side(number, axis % len(shape), value)
        return None

    def _called(self, name: str) -> Iterator[int]:
        """The tensors that the original calls so, the last first."""
        for statement in reversed(self.statements):
            for place, out in enumerate(statement.outs):
                if out >= 0 and self.wanted(statement, place) == name:
                    yield out
        yield from (number for argument, number in self.arguments if argument == name)

    def _side(self, number: int, axis: int, value: int) -> Size:
        rank = len(self.facts[number].shape)
        at = moved(axis, rank) if self.layouts.get(number) == LAST else axis
        return Size(code("{x}.shape[{i}]", x=Hole(Ref(number)), i=at), value)

    def _fact(self, fact: Fact) -> Result:
        return Result(
            tuple(Size(Hole(s), s.hint) if isinstance(s, Free) else s for s in fact.shape),
            fact.dtype,
        )

    def _held(self, value: Held) -> Tensor:
        tensor = self.drafter.constants.get(value.key)
        if tensor is None:
            raise GraphError(f"{value.key}: not a tensor of the model", "report it")
        owner, _, name = value.key.rpartition(".")
        shape, dtype = tuple(tensor.shape), self.drafter.graph.dtype_of(value.key, tensor)
        if value.key in self.drafter.graph_constants:
            return Tensor(shape, dtype, _literal(tensor))
        between = "." if self.drafter.api == "nnx" else "_"  # nnx has lists of parameters
        while is_container(self.drafter.modules[owner]):
            owner, _, last = owner.rpartition(".")
            name = f"{last}{between}{name}"
        self.drafter.read.add(value.key)
        if owner == self.call.path:
            placed = weight_of(self.module, name)
            attribute = placed.linen if placed else name
            self.made.held[attribute] = value.key
            own = _attribute(ast.Name("self", ast.Load()), attribute)
            return Tensor(shape, dtype, placed.turned(own) if placed else own)
        if value.key.startswith(self.prefix) and (layer := self.drafter.layer(owner)):
            access = layer.weight(self.access(owner), name, self.drafter.settings)
            if access is not None:
                return Tensor(shape, dtype, self.drafter.in_dtype(value.key, access))
        if value.key.startswith(self.prefix):
            inner = self.drafter.modules[owner]
            below = self.access(owner)
            if not is_container(inner):
                placed = weight_of(inner, name)
                attribute = placed.linen if placed else name
                self.drafter.lent.setdefault(owner, {})[attribute] = value.key
                lent = _attribute(below, attribute)
                return Tensor(shape, dtype, placed.turned(lent) if placed else lent)
        raise GraphError(
            f"{value.key}: is used by {self.call.path or 'the model'}, which does not hold it",
            "see docs/port.md, 'What it does not do'",
        )

    def _call(self, item: Call) -> None:
        frames = self._frames(item.frames)
        layer = self.drafter.layer(item.path)
        if layer is not None and layer.gives is not None:
            self._several(item, layer, frames)
            return
        if layer is not None and isinstance(layer.module, torch.nn.MultiheadAttention):
            value = self._attention(item, layer)
            self.statements.append(Statement(item.outs, value, frames))
            return
        if layer is not None and len(item.arguments) == 1 and len(item.taken) == 1:
            value = self._layer(item, layer)
            self.statements.append(Statement(item.outs, value, frames))
            return
        module = self.drafter.modules[item.path]
        runs = self.drafter.forward(item)
        ordered = sorted(
            item.arguments, key=lambda argument: names.argument_name(argument.label, runs)[1]
        )
        values = [self._crossing(argument.value, argument.inside) for argument in ordered]
        sizes = self.drafter.sizes.get((item.path, item.number), [])
        values += [Hole(Free(size, 0)) for size in sizes]
        if (item.path, item.number) in self.drafter.dtype_given:
            values.append(Hole(dtypes.ComputeDtype()))
        function: ast.expr = self.access(item.path)
        name = self.drafter.methods.get((item.path, item.number), "__call__")
        if name != "__call__":
            function = ast.Attribute(function, name, ast.Load())
        takes_mode = self.drafter.is_told(type(module))
        keywords = [mode_keyword()] if takes_mode else []
        value = ast.Call(function, [as_code(passed_value) for passed_value in values], keywords)
        labels = tuple(result.label for result in item.taken)
        self.statements.append(
            Statement(item.outs, value, frames, len(item.taken) == 1, labels=labels)
        )

    def _several(self, item: Call, layer: Layer, frames: tuple[Frame, ...]) -> None:
        """The call of a layer that takes and gives several tensors, as torch's does."""
        ordered = [
            (
                *names.argument_name(argument.label, type(layer.module).forward),
                self._operand(argument.value, _NO_OP),
            )
            for argument in item.arguments
        ]
        ordered.sort(key=lambda entry: entry[1])
        named: dict[str, Any] = {}
        for name, _, value in ordered:
            base = name.removesuffix("_0").removesuffix("_1")
            if base != name:  # an LSTM's two states
                named[base] = (*named.get(base, ()), value)
            else:
                named[name] = value
        first = named.pop(next(iter(named)))
        labels = {names.label_path(result.label): result.outside for result in item.taken}
        weights = labels.get((1,))
        if isinstance(layer.module, torch.nn.MultiheadAttention):
            if weights is None and is_fused(item):
                named["need_weights"] = False
            elif weights is not None and (
                len(self.facts[weights].shape)
                == len(self.facts[labels.get((0,), weights)].shape) + 1
            ):
                named["average_attn_weights"] = False
        value = layer.applied(self.access(item.path), as_code(first), **named)
        outs: list[int] = []

        def place(gives: Any, path: tuple[Any, ...]) -> Any:
            if gives is None:
                outs.append(labels.get(path, -1))
                return None
            return tuple(place(element, (*path, index)) for index, element in enumerate(gives))

        shape = place(layer.gives, ())
        self.statements.append(Statement(tuple(outs), value, frames, False, shape))

    def _attention(self, item: Call, layer: Layer) -> ast.expr:
        """The call of Flax's own attention; what is the same as the argument before it goes unsaid."""
        operands = [self._resolved(argument.value) for argument in attended(item, layer.module)]
        while len(operands) > 1 and operands[-1] == operands[-2]:
            operands.pop()
        first, *more = (as_code(self._operand(operand, _NO_OP)) for operand in operands)
        applied = layer.applied(self.access(item.path), first)
        assert isinstance(applied, ast.Call)
        return ast.Call(applied.func, [*applied.args, *more], applied.keywords)

    def _layer(self, item: Call, layer: Layer) -> ast.expr:
        """The call of a layer of Flax's."""
        value = self._resolved(item.arguments[0].value)
        fact = self.facts[value.id] if isinstance(value, Ref) else None
        if fact is None:
            return layer.applied(self.access(item.path), as_code(self._operand(value, _NO_OP)))
        layout, rank = self.layouts.get(value.id), len(fact.shape)
        flat = self.drafter.flattened.get(item.path)
        if layer.flax.channels_last:
            x = as_flax(
                as_torch(Hole(value), layout, rank) if layout != LAST else Hole(value), layout, rank
            )
        elif flat is not None and flat.order:
            x = as_flat(
                as_torch(Hole(value), layout, rank) if layout != Flat(flat.sides) else Hole(value),
                layout,
                flat.sides,
            )
        else:
            x = as_torch(Hole(value), layout, rank)
        return layer.applied(self.access(item.path), x)

    def _crossing(self, value: Any, target: int) -> Any:
        """An argument of a module's call, in the order that the module takes it in."""
        value = self._resolved(value)
        layout = self.layouts.get(target)
        if not isinstance(value, Ref) or layout is None:
            return self._operand(value, _NO_OP)
        if layout == LAST and self.layouts.get(value.id) is None:
            return as_flax(Hole(value), None, len(self.facts[value.id].shape))
        return Hole(value)

    def access(self, path: str) -> ast.expr:
        """`self.layers[0].mlp` for a module below this one, which is held from now on."""
        expression, holder, attribute = self._way(path)
        holder.setdefault(attribute, path)
        return expression

    def _where(self, path: str) -> ast.expr:
        """The expression of `access`, without holding the module."""
        return self._way(path)[0]

    def _way(self, path: str) -> tuple[ast.expr, dict[str, str], str]:
        """An expression for a module below this one, and who holds it under which attribute."""
        at, prefix = self.module, self.call.path
        expression: ast.expr = ast.Name("self", ast.Load())
        attribute, holder = "", self.made.children
        for part in path.removeprefix(self.prefix).split("."):
            prefix = f"{prefix}.{part}" if prefix else part
            if has_layers(at):
                index = list(at._modules).index(part)
                expression = code("{f}.layers[{i}]", f=expression, i=index)
            elif is_container(at):
                listed = isinstance(at, torch.nn.ModuleList)
                index = list(at._modules).index(part)
                expression = code("{f}[{i}]", f=expression, i=index if listed else part)
            elif part.isidentifier():
                expression = ast.Attribute(expression, part, ast.Load())
            else:
                expression = call("getattr", expression, part)
            attribute = f"{attribute}.{part}" if attribute else part
            at = at._modules[part]
            inside = is_container(at) or is_inlined(at)
            if prefix != path and not inside:  # it holds what is called
                holder.setdefault(attribute, prefix)
                attribute, holder = "", self.drafter.reached.setdefault(prefix, {})
        return expression, holder, attribute

    def _frames(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The frames of the module's forward and of functions that it calls."""
        return within(self.forward, frames, self.call.frames)

    # Which expressions stand within others.


class _FunctionWriter(_Writer):
    """Writes a function: it holds nothing, so what it needs are arguments; sizes are those of these."""

    def __init__(self, drafter: Drafter, above: _Writer, item: Apply) -> None:
        super().__init__(drafter, above.call)
        self.item = item
        self.sizes_given = True
        self.maybe = frozenset() if set(item.outs) <= above.maybe else above.maybe
        # What settings of the model it is given, by name.
        self.numbers: dict[str, SettingInt | SettingFloat] = {}
        # Rate and axes of the dropouts that it is given → what they are called, and an operator.
        self.dropouts: dict[tuple[float, tuple[int, ...]], tuple[str, Op]] = {}
        # The keys that it draws with, by name.
        self.keys: dict[Rng, str] = {}
        self.stored: set[str] = set()
        self.same = above.same
        values = [above._resolved(value) for value in item.arguments]
        called = [above.value_name(value) for value in values]
        frames = above._own(item)
        order = [value.id if isinstance(value, Ref) else -1 for value in values]
        given_names = argument_names(frames[:-1] or frames, item.frame, called, order)
        parameters = names.function_parameters(item.frame)
        self.order = sorted(
            (
                index
                for index, value in enumerate(values)
                if not isinstance(value, Held) or value.key not in drafter.graph_constants
            ),
            key=lambda index: self._place(given_names[index], parameters),
        )
        # A number for each: its own, or one below zero for what a module holds.
        self.layouts = {}
        self.passed: dict[Any, tuple[str, int]] = {}
        for index in self.order:
            value = values[index]
            key, number = (
                (value.key, -2 - index) if isinstance(value, Held) else (value.id, value.id)
            )
            self.passed[key] = (given_names[index], number)

    def write_function(self) -> ast.FunctionDef:
        for key, (_, number) in self.passed.items():
            if isinstance(key, str):
                tensor = self.drafter.constants[key]
                kind = self.drafter.graph.dtype_of(key, tensor)
                self.facts = {**self.facts, number: Fact(tuple(tensor.shape), kind)}
        self.arguments = list(self.passed.values())
        self._items(self._scanned(self.item.body, set(self.item.outs)))
        refs = tuple(self._resolved(Ref(out)) for out in self.item.outs)
        results = self._returned(refs)
        self._name(results)
        self.stored = {
            node.id
            for statement in self.made.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name)
        }
        self.made.body = [fill(statement, self._argument) for statement in self.made.body]
        self.made.result = fill(self.made.result, self._argument)
        kind = code("jax.Array")
        return ast.FunctionDef(
            "_",
            ast.arguments(
                [],
                [
                    *(
                        ast.arg(
                            argument,
                            code("jax.Array | None") if argument in self.made.nullable else kind,
                        )
                        for argument in self.made.arguments
                    ),
                    *(ast.arg(size, code("int")) for size in self.sizes.values()),
                    *(
                        ast.arg(name, code("int" if isinstance(number, int) else "float"))
                        for name, number in self.numbers.items()
                    ),
                    *([ast.arg(dtypes.ARGUMENT, code("DTypeLike"))] * self.dtype_given),
                    *(ast.arg(key, kind) for key in self.keys.values()),
                    *(
                        ast.arg(name, code("Callable[[jax.Array], jax.Array]"))
                        for name, _ in self.dropouts.values()
                    ),
                ],
                None,
                [],
                [],
                None,
                [],
            ),
            [*self.made.body, commented(ast.Return(self.made.result), of(self.made.result))],
            [],
            _kind(results),
        )

    def _returned(self, refs: tuple[Any, ...]) -> Any:
        return refs[0] if len(refs) == 1 else refs

    def _reserved(self) -> set[str]:
        return super()._reserved() | {name for name, _ in self.dropouts.values()}

    def _dropped(self, rate: float, axes: tuple[int, ...], item: Op, x: ast.expr) -> ast.expr:
        return ast.Call(self._dropout_function(rate, axes, item), [x], [])

    def _dropout_function(self, rate: float, axes: tuple[int, ...], item: Op) -> ast.expr:
        """The dropout argument of the function."""
        number = len(self.dropouts)
        name = f"dropout_{number + 1}" if number else "dropout"
        return ast.Name(self.dropouts.setdefault((rate, axes), (name, item))[0], ast.Load())

    def _place(self, name: str, parameters: Sequence[str]) -> int:
        """Position of an argument among the original's."""
        return parameters.index(name) if name in parameters else 99

    def _key(self, key: Rng) -> ast.expr:
        """A new key: the function is given it."""
        return Hole(key)

    def _argument(self, hole: Hole) -> ast.expr:
        """A setting of the model, or a key, which the function is given."""
        value = hole.value
        if isinstance(value, Rng):
            if value not in self.keys:
                number = len(self.keys) + 1
                taken = {*self.made.arguments, *self.sizes.values(), *self.stored}
                name = "key" if number == 1 else f"key_{number}"
                self.keys[value] = f"{name}_" if name in taken else name
            return ast.Name(self.keys[value], ast.Load())
        if not isinstance(value, SettingInt | SettingFloat):
            return hole
        wanted = names.clean(value.local or (value.text if value.text.isidentifier() else "size"))
        taken = {*self.made.arguments, *self.sizes.values(), *self.stored}
        number, name = 1, wanted
        while name in taken or (name in self.numbers and self.numbers[name].text != value.text):
            number += 1
            name = f"{wanted}_{number}"
        self.numbers[name] = value
        return ast.Name(name, ast.Load())

    def _held(self, value: Held) -> Tensor:
        if value.key in self.passed:
            number = self.passed[value.key][1]
            fact = self._fact(self.facts[number])
            return Tensor(fact.shape, fact.dtype, Hole(Ref(number)))
        return super()._held(value)

    def _frames(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The frames from the function inwards."""
        own = own_frames(super()._frames(frames))
        for index, frame in enumerate(own):
            if (frame.file, frame.function) == (self.item.frame.file, self.item.frame.function):
                return own[index:]
        return own


class _StepWriter(_FunctionWriter):
    """Writes a turn of a loop over data: it returns what goes on to the next turn, and what it gives."""

    def __init__(self, drafter: Drafter, above: _Writer, item: Apply, scan: Scan) -> None:
        super().__init__(drafter, above, item)
        self.carried = len(scan.carried)

    def _place(self, name: str, parameters: Sequence[str]) -> int:
        """Position of an argument: the state, the parts of the arrays of the loop, and the rest, in
        this order.
        """
        return 0

    def _returned(self, refs: tuple[Any, ...]) -> Any:
        state, results = refs[: self.carried], refs[self.carried :]
        return _one_or_all(state), _one_or_all(results)


def _one_or_all(values: tuple[Any, ...]) -> Any:
    return (values or (None,))[0] if len(values) < 2 else values


def _kind(results: Any) -> ast.expr:
    """The type of what a function returns."""
    if isinstance(results, tuple):
        return code("tuple[{*k}]", k=[_kind(result) for result in results])
    return ast.Constant(None) if results is None else code("jax.Array")


def _all_of(name: str, count: int) -> ast.expr:
    """A name as an argument, or as so many of them."""
    return ast.Starred(code(name), ast.Load()) if count > 1 else code(name)


def _nest(count: int) -> Any:
    return None if count < 2 else (None,) * count


def _axis_moved(value: ast.expr, start: int, end: int) -> ast.expr:
    """An array with an axis brought to the first place, or from it to another."""
    if start == end:
        return value
    if {start, end} == {0, 1}:
        return method(value, "swapaxes", 0, 1)
    return call("jnp.moveaxis", value, start, end)


def _places(item: Apply) -> tuple[int, ...]:
    """Positions of the tensors in the returned value of the original's function; () if its source
    does not show them.
    """
    returned = names.returned(item.frame)
    made_on = {
        out: targets(op.frames)
        for op in item.body
        if isinstance(op, Op | Apply)
        for out in outs(op)
    }
    called = [made_on.get(out, ()) for out in item.outs]
    if any(len(out_names) != 1 or out_names[0] not in returned for out_names in called):
        return _places_by_names(item)
    places = tuple(returned.index(out_names[0]) for out_names in called)
    return places if len(set(places)) == len(places) else ()


def _places_by_names(item: Apply) -> tuple[int, ...]:
    """The same by the variables that each is computed of where it is returned: `return a.exp(), b * 2`."""
    read_ids: dict[int, list[int]] = {}
    assigned: dict[int, tuple[str, ...]] = {}
    for op in item.body:
        if isinstance(op, Op) and op.frames:
            read = [ref.id for ref in references((op.arguments, op.named))]
            read_ids |= dict.fromkeys(outs(op), read)
            assigned |= dict.fromkeys(outs(op), names.targets(op.frames[-1]))

    def variables(out: int, steps: int = _STEPS) -> set[str]:
        if (known_names := assigned.get(out, ())) or not steps:
            return set(known_names)
        return {name for source in read_ids.get(out, ()) for name in variables(source, steps - 1)}

    elements = names.variables_returned(item.frame)
    places: list[int] = []
    for out in item.outs:
        mine = variables(out)
        fits = [at for at, read in enumerate(elements) if mine and mine <= read]
        if len(fits) != 1:
            return ()
        places += fits
    return tuple(places) if len(set(places)) == len(places) else ()


# How many operators of a line are followed back to a tensor with a name.
_STEPS = 4
_NO_OP = Op("", (), {}, (), True, ())


def _told(value: Any) -> ast.expr:
    """An argument of a stub; what has no form in JAX (a device) as its name."""
    if isinstance(value, list):
        return ast.List([_told(element) for element in value], ast.Load())
    try:
        return as_code(value)
    except TypeError:
        return as_code(str(value))


def _sized(target: str, value: Any) -> bool:
    """Whether a number at this operator may be a setting: sizes of shapes, and factors."""
    packet = target.split(".")[1] if "." in target else ""
    if isinstance(value, float):
        return packet in {
            "add",
            "mul",
            "div",
            "sub",
            "clamp",
            "pow",
            "scaled_dot_product_attention",
        }
    return packet in {
        "view",
        "reshape",
        "expand",
        "unflatten",
        "_unsafe_view",
        "split",
        "split_with_sizes",
        "repeat",
        "topk",
        "chunk",
        "repeat_interleave",
        "new_zeros",
        "zeros",
        "full",
    }


# Operators at which an integer is a setting only where the line itself reads one.
_COUNTED = frozenset(
    {
        *("floor_divide", "remainder", "div", "mul", "histc", "one_hot", "linspace", "arange"),
        *("add", "sub", "clamp", "clamp_min", "clamp_max", "minimum", "maximum"),
    }
)


def _halves(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.FloorDiv() | ast.Div(), right=ast.Constant(value=2)):
            return True
    return False


def _counted(target: str, value: Any) -> bool:
    """Whether an integer at this operator is a setting or a side where the line itself reads it."""
    packet = target.split(".")[1] if "." in target else ""
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) > 1
        and packet in _COUNTED
    )


def _literal(tensor: torch.Tensor) -> ast.expr:
    """A constant of the graph as source."""
    if tensor.dim() == 0:
        value = tensor.item()
        kind = dtype_name(tensor.dtype).split(".")
        dtype = ast.Attribute(ast.Name(kind[0], ast.Load()), kind[1], ast.Load())
        return code("jnp.array({v}, {d})", v=value, d=dtype)
    kind = dtype_name(tensor.dtype).split(".")
    dtype = ast.Attribute(ast.Name(kind[0], ast.Load()), kind[1], ast.Load())
    return code("jnp.array({v}, {d})", v=tensor.tolist(), d=dtype)


def _attribute(of: ast.expr, name: str) -> ast.expr:
    """An attribute; "scales.0" is an entry of a list or dict."""
    first, *keys = name.split(".")
    whole: ast.expr = ast.Attribute(of, first, ast.Load())
    for key in keys:
        whole = code("{x}[{k}]", x=whole, k=int(key) if key.isdigit() else key)
    return whole
