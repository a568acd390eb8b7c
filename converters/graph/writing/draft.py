"""A module's forward as statements: expressions put together as the original's lines have them, and named."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from converters.graph.expression import Hole, as_code, call, code
from converters.graph.ir import (
    Apply,
    Call,
    Fact,
    Frame,
    Free,
    Graph,
    Held,
    Item,
    Op,
    Ref,
    calls,
    references,
)
from converters.graph.ops import lowerings
from converters.graph.ops.functions import functions
from converters.graph.ops.registry import Result, Size, Tensor
from converters.graph.recording.shared import first_names, with_shared
from converters.graph.recording.trace import GraphError
from converters.graph.writing import names, settings
from converters.graph.writing.functions import argument_names, own_frames, with_functions
from converters.graph.writing.layers import Layer, layer_of, weight_of
from converters.graph.writing.layout import (
    LAST,
    Flat,
    as_flat,
    as_flax,
    as_torch,
    layouts,
    moved,
    stays,
)
from converters.graph.writing.place import buffer_path
from converters.graph.writing.tidy import tidied
from converters.mapping.flatten import flattened_inputs

# How long an expression may be that is put into another one of the same line.
_LONG = 88
# How many elements a constant may have that is written down.
_WRITTEN = 64


@dataclass(frozen=True)
class Missing:
    """An operator that nobody can write in JAX.

    Attributes:
        op: its name.
        reason: why not.
        path: the module that needs it.
        line: "file.py:12", the line of the original.
    """

    op: str
    reason: str
    path: str
    line: str


@dataclass
class Statement:
    """`outs = value`.

    Attributes:
        outs: the tensors that it gives; several are unpacked.
        value: the expression; tensors in it are holes.
        frames: the lines of the original, from the module's forward inwards.
        single: whether the value is one tensor.
        nested: how the tensors are nested, where they are.
    """

    outs: tuple[int, ...]
    value: ast.expr
    frames: tuple[Frame, ...]
    single: bool = True
    nested: Any = None


@dataclass
class Draft:
    """What is written for one call of a module.

    Attributes:
        path: of the module.
        module: the torch module.
        arguments: names of what the call takes.
        sizes: names of sizes that come after them.
        body: statements.
        result: what it returns.
        children: attribute path → the module's path below, in the order of their first use.
        held: own parameters and buffers that are used, by name.
    """

    path: str
    module: torch.nn.Module
    arguments: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    body: list[ast.stmt] = field(default_factory=list)
    result: ast.expr = field(default_factory=lambda: ast.Constant(None))
    children: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)


class Drafter:
    """Writes the calls of a graph."""

    def __init__(self, graph: Graph, root: torch.nn.Module, constants: Mapping[str, Any]) -> None:
        self.graph = graph
        self.root = root
        self.constants = constants
        self.missing: list[Missing] = []
        self.modules = dict(root.named_modules(remove_duplicate=False))
        self.layers: dict[str, Layer] = {}
        self.buffers = {
            f"{path}.{name}" if path else name
            for path, module in self.modules.items()
            for name in module._buffers
        }
        self.volatile = {
            f"{path}.{name}" if path else name
            for path, module in self.modules.items()
            for name in module._non_persistent_buffers_set
        }
        # Constants of the graph that stand in no module: small ones are written down, others stored.
        loose = {
            key
            for key in constants
            if key not in self.buffers and key.rpartition(".")[0] not in self._owners(key)
        }
        self.graph_constants = {key for key in loose if constants[key].numel() <= _WRITTEN}
        self.volatile |= loose - self.graph_constants
        self.buffers |= loose - self.graph_constants
        self.read: set[str] = set()
        self.first = first_names(root)
        self.called = {one.path for one in calls(graph.root)}
        self.graph = graph = with_shared(graph, constants, self.dissolves, self.graph_constants)
        shapes = [
            tuple(_hint(side) for side in graph.facts[number].shape) for _, number in graph.inputs
        ]
        # As `migrate weights` is told by whoever writes the folder: the shapes say it for images only.
        images = all(graph.facts[number].dtype.is_floating_point for _, number in graph.inputs)
        self.flattened = flattened_inputs(root, shapes if images else None)
        self.layouts = layouts(graph, self._channels_last, self._in_function)
        # Which method of a module a call of it is.
        self.methods: dict[tuple[str, int], str] = {}
        # Sizes that a call is given, as none of its tensors shows them.
        self.sizes: dict[tuple[str, int], list[sympy.Expr]] = {}
        self.symbols: dict[sympy.Expr, str] = {}
        for _, number in graph.inputs:
            for side in graph.facts[number].shape:
                if isinstance(side, Free):
                    usual = ("batch_size", "length", "width", "depth")
                    number_of = len(self.symbols)
                    name = usual[number_of] if number_of < 4 else f"size_{number_of}"
                    self.symbols.setdefault(side.expression, name)
        # Name of a function that is still to be written → what for.
        self.stubs: dict[str, str] = {}
        self.functions: list[ast.FunctionDef] = []
        self.forms: dict[tuple[str, str], dict[str, str]] = {}
        self.recomputed: set[str] = set()
        # Path of a module → modules below it that others call, by attribute.
        self.reached: dict[str, dict[str, str]] = {}
        # Path of a module → what others read of it, by name.
        self.lent: dict[str, dict[str, str]] = {}

    def classes_of_ours(self) -> list[type]:
        """The classes of `converters.modules` that the layers are."""
        found = (layer.ours for layer in self.layers.values())
        return list(dict.fromkeys(one for one in found if one is not None))

    def _in_function(self, one: Call, item: Op) -> bool:
        """Whether an operator was recorded in a function that a module's forward calls."""
        return len(own_frames(_within(self.modules[one.path], item.frames, one.frames))) > 1

    def _channels_last(self, path: str) -> bool:
        layer = self.layer(path)
        return layer is not None and layer.flax.channels_last

    def _owners(self, key: str) -> set[str]:
        """The module that holds a parameter of this name, if there is one."""
        owner, _, name = key.rpartition(".")
        module = self.modules.get(owner)
        return {owner} if module is not None and name in module._parameters else set()

    def stored(self) -> dict[str, Any]:
        """Path in the port → values, of the buffers that it reads and no checkpoint has."""
        return {
            buffer_path(self.root, key): self.constants[key].detach().cpu().numpy()
            for key in sorted(self.read)
            if key in self.volatile and key not in self.recomputed
        }

    def draft(self, one: Call, arguments: Sequence[tuple[str, int]] | None = None) -> Draft:
        """What is written for a call; those within it are not looked into, but where they dissolve."""
        return _Writer(self, one).write(arguments)

    def function(self, writer: _Writer, item: Apply) -> tuple[str, list[int], list[sympy.Expr]]:
        """The function that does what was recorded, which is written where there is none yet.

        Returns:
            Its name, the positions of its arguments among those of the item, and sizes that come after them.
        """
        within = _FunctionWriter(self, writer, item)
        drafted = within.write_function()
        form = ast.dump(drafted)
        origin = (item.frame.file, item.frame.function)
        forms = self.forms.setdefault(origin, {})
        if form not in forms:
            name = names.clean(item.frame.function.strip("_") or "function")
            taken = {*functions(), *(one.name for one in self.functions)}
            number, unique = 1, name
            while unique in taken:
                number += 1
                unique = f"{name}_{number}"
            drafted.name = forms[form] = unique
            found = names.function_at(item.frame)
            doc = names.first_sentence(found)
            if doc:
                drafted.body.insert(0, ast.Expr(ast.Constant(doc)))
            self.functions.append(drafted)
        return forms[form], within.order, list(within.sizes)

    def layer(self, path: str) -> Layer | None:
        """The layer of Flax's that a module is, if it is one."""
        if path not in self.layers:
            found = layer_of(self.modules[path], path in self.called)
            if found is None or self._elsewhere(path):
                return None
            self.layers[path] = found
        return self.layers[path]

    def _elsewhere(self, path: str) -> bool:
        """Whether a module's weights are tied to those of one before it."""
        names_of = [f"{path}.{name}" for name in self.modules[path]._parameters]
        return any(self.first.get(key, key) != key for key in names_of)

    def dissolves(self, one: Call) -> bool:
        """Whether a module has no class of its own in the port: a Sequential, or one without weights."""
        module = self.modules[one.path]
        if self.layer(one.path) is not None:
            return False
        if isinstance(module, torch.nn.Sequential):
            return type(module).forward is torch.nn.Sequential.forward
        if self._elsewhere(one.path) and not module._modules and not module._buffers:
            keys = [f"{one.path}.{name}" for name in module._parameters]
            return all(self.first.get(key, key) != key for key in keys if key in self.first)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            return False
        plain = type(module).__module__.startswith("torch.nn.modules.")
        return plain or (
            len(one.body) <= 8 and not any(isinstance(item, Call) for item in one.body)
        )


class _Writer:
    def __init__(self, drafter: Drafter, one: Call) -> None:
        self.drafter = drafter
        self.facts = drafter.graph.facts
        self.call = one
        self.module = drafter.modules[one.path]
        self.made = Draft(one.path, self.module)
        self.same: dict[int, Any] = {}
        self.statements: list[Statement] = []
        self.arguments: list[tuple[str, int]] = []
        self.layouts = drafter.layouts
        self.lying: set[int] = set()
        self.sizes: dict[sympy.Expr, str] = {}
        self.prefix = f"{one.path}." if one.path else ""

    # From items to statements.

    def write(self, arguments: Sequence[tuple[str, int]] | None) -> Draft:
        if arguments is None:
            arguments = self._arguments()
        self.arguments = list(arguments)
        results = self._results()
        later = {one.id for one in references(results)}
        items = [(item, self._own(item)) for item in self.call.body]
        self._items([item for item, _ in with_functions(items, later)])
        results = self._results()
        self._inline(results)
        _Naming(self, list(arguments), results).run()
        self.made.sizes = tuple(self.sizes.values())
        self.drafter.sizes[self.call.path, self.call.number] = list(self.sizes)
        return self.made

    def _arguments(self) -> list[tuple[str, int]]:
        found = []
        for given in self.call.given:
            name, place = names.argument_name(given.label, self.module)
            found.append((place, name, given.inside))
        found.sort(key=lambda one: one[0])
        taken: Counter[str] = Counter()
        made = []
        for _, name, number in found:
            name = name or f"x{number}"
            taken[name] += 1
            made.append((name if taken[name] == 1 else f"{name}_{taken[name]}", number))
        return made

    def wanted(self, one: Statement, place: int) -> str:
        """What the original calls one of the tensors that a statement gives; "" if it does not say."""
        found = _targets(one.frames)
        if len(found) == 1 and not one.single:
            found = names.parts_of(found[0], type(self.module).forward) or tuple(
                f"{found[0]}_{number}" for number in range(len(one.outs))
            )
        if not found:
            return ""
        name = found[min(place, len(found) - 1)]
        return names.clean(name) if name and name != "_" else ""

    def size_argument(self, symbol: sympy.Expr) -> str:
        """An argument for a size that none of the tensors shows."""
        names_of = self.drafter.symbols
        return self.sizes.setdefault(symbol, names_of.get(symbol, f"size_{len(self.sizes)}"))

    def value_name(self, value: Any) -> str:
        """What a value is called here; "" if nothing says it."""
        if isinstance(value, Held):
            return value.key.rpartition(".")[2]
        for name, number in self.arguments:
            if number == value.id:
                return name
        for one in self.statements:
            if value.id in one.outs:
                return self.wanted(one, one.outs.index(value.id))
        return ""

    def _results(self) -> Any:
        if not self.call.path:
            return self._resolved(self.drafter.graph.outputs)
        refs = [self._resolved(Ref(one.inside)) for one in self.call.taken]
        for one, ref in zip(self.call.taken, refs, strict=True):
            if self.layouts.get(one.outside) is not None:
                self.lying.add(ref.id)
        return refs[0] if len(refs) == 1 else tuple(refs)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Ref):
            found = self.same.get(value.id, value)
            return found if found == value else self._resolved(found)
        if isinstance(value, tuple | list):
            return tuple(self._resolved(one) for one in value)
        if isinstance(value, Mapping):
            return {key: self._resolved(one) for key, one in value.items()}
        return value

    def _own(self, item: Item) -> tuple[Frame, ...]:
        return own_frames(self._frames(item.frames))

    def _items(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._op(item)
            elif isinstance(item, Apply):
                self._apply(item)
            elif self.drafter.dissolves(item):
                for given in item.given:
                    if given.value != Ref(given.inside):  # as it is where nothing marks it
                        self.same[given.inside] = given.value
                self._items(item.body)
                for taken in item.taken:
                    if taken.outside != taken.inside:
                        self.same[taken.outside] = Ref(taken.inside)
            else:
                self._call(item)

    def _op(self, item: Op) -> None:
        made = stays(item, self.layouts, self.facts)
        if made is not None and made[0] != self.layouts.get(item.outs[0]):
            made = None  # in a function all is in torch's order
        written = made[1](lambda one: self._lying(one, item)) if made else self._attended(item)
        if written is not None:
            frames = self._frames(item.frames)
            self.statements.append(Statement(item.outs, written, frames, item.single))
            return
        lowering = lowerings().get(item.target)
        outs = [self._fact(self.facts[one]) if one >= 0 else None for one in item.outs]
        arguments = tuple(self._operand(one, item) for one in item.arguments)
        named = {key: self._operand(one, item) for key, one in item.named.items()}
        try:
            if lowering is None:
                raise NotImplementedError("no lowering is registered")
            value = lowering(arguments, named, outs[0] if item.single else tuple(outs))
        except (ValueError, TypeError, NotImplementedError) as error:
            value = self._stub(item, arguments, named, str(error))
        self.statements.append(Statement(item.outs, value, self._frames(item.frames), item.single))

    def _apply(self, item: Apply) -> None:
        """A call of a function of the original, which is written beside the classes."""
        name, order, sizes = self.drafter.function(self, item)
        given = [as_code(self._operand(value, _NO_OP)) for value in item.given]
        needed: list[ast.expr] = [Hole(Free(one, 0)) for one in sizes]
        arguments = [*(given[index] for index in order), *needed]
        value = ast.Call(ast.Name(name, ast.Load()), arguments, [])
        frames = self._frames(item.frames)[:-1] or item.frames[:-1]
        self.statements.append(Statement(item.outs, value, frames, len(item.outs) == 1))

    def _stub(
        self, item: Op, arguments: Sequence[Any], named: Mapping[str, Any], reason: str
    ) -> ast.expr:
        """The call of a function that is still to be written, for an operator that nobody can write."""
        line = str(item.frames[-1]) if item.frames else ""
        self.drafter.missing.append(Missing(item.target, reason, self.call.path, line))
        name = names.clean(item.target.replace(".", "_"))
        self.drafter.stubs.setdefault(name, f"{item.target}: {reason}")
        given = [_told(one) for one in arguments]
        keywords = [ast.keyword(key, _told(one)) for key, one in named.items()]
        return ast.Call(ast.Name(name, ast.Load()), given, keywords)

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
                return [self._operand(one, item) for one in value]
            case bool():
                return value
            case int() | float():
                half = self._half(value, item)
                return half if half is not None else self._number(value, item)
        return value

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
        """As `_operand`; a tensor as it lies, its shape too."""
        value = self._resolved(value)
        if not isinstance(value, Ref):
            return self._operand(value, item)
        fact = self._fact(self.facts[value.id])
        shape = fact.shape
        if self.layouts.get(value.id) == LAST:
            shape = (shape[0], *shape[2:], shape[1])
        return Tensor(shape, fact.dtype, Hole(value))

    def _half(self, value: Any, item: Op) -> Size | None:
        """Where a tensor is cut in the middle, half of its side."""
        if item.target != "aten.slice.Tensor" or not isinstance(value, int) or value < 2:
            return None
        x, axis = self._resolved(item.arguments[0]), item.arguments[1]
        if not isinstance(x, Ref) or self.facts[x.id].shape[axis] != 2 * value:
            return None
        if value not in item.arguments[2:4]:
            return None
        rank = len(self.facts[x.id].shape)
        shown = -1 if axis % rank == rank - 1 else axis
        whole = as_torch(Hole(x), self.layouts.get(x.id), rank)
        return Size(code("{x}.shape[{axis}] // 2", x=whole, axis=shown), value)

    def _number(self, value: Any, item: Op) -> Any:
        return settings.of_number(value, self.module) if _sized(item.target, value) else value

    def _fact(self, fact: Fact) -> Result:
        return Result(
            tuple(Size(Hole(s), s.hint) if isinstance(s, Free) else s for s in fact.shape),
            fact.dtype,
        )

    def _held(self, value: Held) -> Tensor:
        tensor = self.drafter.constants.get(value.key)
        if tensor is None:
            raise GraphError(f"{value.key}: is no tensor of the model", "report it")
        owner, _, name = value.key.rpartition(".")
        shape, dtype = tuple(tensor.shape), tensor.dtype
        if value.key in self.drafter.graph_constants:
            return Tensor(shape, dtype, _literal(tensor))
        while names_container(self.drafter.modules[owner]):
            owner, _, last = owner.rpartition(".")
            name = f"{last}_{name}"
        self.drafter.read.add(value.key)
        if owner == self.call.path:
            found = weight_of(self.module, name)
            attribute = found.linen if found else name
            self.made.held[attribute] = value.key
            own: ast.expr = ast.Attribute(ast.Name("self", ast.Load()), attribute, ast.Load())
            return Tensor(shape, dtype, found.turned(own) if found else own)
        if value.key.startswith(self.prefix) and (layer := self.drafter.layer(owner)):
            access = layer.weight(self.access(owner), name)
            if access is not None:
                return Tensor(shape, dtype, access)
        if value.key.startswith(self.prefix):
            inner = self.drafter.modules[owner]
            below = self.access(owner)
            if not names_container(inner):
                found = weight_of(inner, name)
                attribute = found.linen if found else name
                self.drafter.lent.setdefault(owner, {})[attribute] = value.key
                lent = ast.Attribute(below, attribute, ast.Load())
                return Tensor(shape, dtype, found.turned(lent) if found else lent)
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
        if layer is not None and len(item.given) == 1 and len(item.taken) == 1:
            value = self._layer(item, layer)
            self.statements.append(Statement(item.outs, value, frames))
            return
        module = self.drafter.modules[item.path]
        ordered = sorted(item.given, key=lambda one: names.argument_name(one.label, module)[1])
        given = [self._crossing(one.value, one.inside) for one in ordered]
        sizes = self.drafter.sizes.get((item.path, item.number), [])
        given += [Hole(Free(one, 0)) for one in sizes]
        function: ast.expr = self.access(item.path)
        name = self.drafter.methods.get((item.path, item.number), "__call__")
        if name != "__call__":
            function = ast.Attribute(function, name, ast.Load())
        value = ast.Call(function, [as_code(one) for one in given], [])
        self.statements.append(Statement(item.outs, value, frames, len(item.taken) == 1))

    def _several(self, item: Call, layer: Layer, frames: tuple[Frame, ...]) -> None:
        """The call of a layer that takes and gives several tensors, as torch's does."""
        ordered = [
            (*names.argument_name(one.label, layer.module), self._operand(one.value, _NO_OP))
            for one in item.given
        ]
        ordered.sort(key=lambda one: one[1])
        named: dict[str, Any] = {}
        for name, _, value in ordered:
            base = name.removesuffix("_0").removesuffix("_1")
            if base != name:  # an LSTM's two states
                named[base] = (*named.get(base, ()), value)
            else:
                named[name] = value
        first = named.pop(next(iter(named)))
        labels = {names.label_path(one.label): one.outside for one in item.taken}
        weights = labels.get((1,))
        if (
            isinstance(layer.module, torch.nn.MultiheadAttention)
            and weights is not None
            and (
                len(self.facts[weights].shape)
                == len(self.facts[labels.get((0,), weights)].shape) + 1
            )
        ):
            named["average_attn_weights"] = False
        value = layer.applied(self.access(item.path), as_code(first), **named)
        outs: list[int] = []

        def place(gives: Any, path: tuple[Any, ...]) -> Any:
            if gives is None:
                outs.append(labels.get(path, -1))
                return None
            return tuple(place(one, (*path, index)) for index, one in enumerate(gives))

        shape = place(layer.gives, ())
        self.statements.append(Statement(tuple(outs), value, frames, False, shape))

    def _layer(self, item: Call, layer: Layer) -> ast.expr:
        """The call of a layer of Flax's."""
        value = self._resolved(item.given[0].value)
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
        if isinstance(value, Ref) and self.layouts.get(target) is not None:
            return Hole(value)
        return self._operand(value, _NO_OP)

    def access(self, path: str) -> ast.expr:
        """`self.layers[0].mlp` for a module below this one."""
        at, prefix = self.module, self.call.path
        found: ast.expr = ast.Name("self", ast.Load())
        attribute, holder = "", self.made.children
        for part in path.removeprefix(self.prefix).split("."):
            prefix = f"{prefix}.{part}" if prefix else part
            if isinstance(at, torch.nn.Sequential):
                index = list(at._modules).index(part)
                found = code("{f}.layers[{i}]", f=found, i=index)
            elif isinstance(at, torch.nn.ModuleList):
                found = code("{f}[{i}]", f=found, i=list(at._modules).index(part))
            elif isinstance(at, torch.nn.ModuleDict):
                found = code("{f}[{i}]", f=found, i=part)
            elif part.isidentifier():
                found = ast.Attribute(found, part, ast.Load())
            else:
                found = call("getattr", found, part)
            attribute = f"{attribute}.{part}" if attribute else part
            at = at._modules[part]
            if prefix != path and not isinstance(at, _CONTAINERS):  # it holds what is called
                holder.setdefault(attribute, prefix)
                attribute, holder = "", self.drafter.reached.setdefault(prefix, {})
        holder.setdefault(attribute, path)
        return found

    def _frames(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Those of the module's forward and of what it calls."""
        return _within(self.module, frames, self.call.frames)

    # Which expressions stand within others.

    def _inline(self, results: Any) -> None:
        count: Counter[int] = Counter()
        consumer: dict[int, int] = {}
        for index, one in enumerate(self.statements):
            for number in _refs(one.value):
                count[number] += 1
                consumer[number] = index
        for ref in references(results):
            count[ref.id] += 2 if not isinstance(results, Ref) else 1
            consumer[ref.id] = -1
        held: dict[int, ast.expr] = {}
        kept = []
        for one in self.statements:
            one.value = _filled(one.value, held)
            if not any(count[out] for out in one.outs):
                continue
            if len(one.outs) == 1 and one.single and count[one.outs[0]] == 1:
                at = consumer[one.outs[0]]
                user = self.statements[at] if at >= 0 else None
                if self._together(one, user):
                    held[one.outs[0]] = one.value
                    continue
            kept.append(one)
        self.statements = kept
        self.held_results = held

    def _together(self, one: Statement, user: Statement | None) -> bool:
        if user is not None and _is_turn(one.value) and any(map(_is_turn, ast.walk(user.value))):
            return False  # turns of a loop
        length = len(_text(one.value))
        if user is None:
            return not _targets(one.frames) and length <= 2 * _LONG
        if not _targets(one.frames):
            return length <= _LONG
        # The line that names it: what it goes into may be of functions that are called on that line.
        line = next(frame for frame in reversed(one.frames) if names.targets(frame))
        return line in user.frames and length <= _LONG


class _FunctionWriter(_Writer):
    """Writes a function: it holds nothing, so what it needs are arguments; sizes are those of these."""

    def __init__(self, drafter: Drafter, above: _Writer, item: Apply) -> None:
        super().__init__(drafter, above.call)
        self.item = item
        self.same = above.same
        values = [above._resolved(value) for value in item.given]
        called = [above.value_name(value) for value in values]
        frames = above._own(item)
        made = argument_names(frames[:-1] or frames, item.frame, called)
        parameters = names.function_parameters(item.frame)
        self.order = sorted(
            range(len(values)),
            key=lambda index: parameters.index(made[index]) if made[index] in parameters else 99,
        )
        # A number for each: its own, or one below zero for what a module holds.
        self.layouts = {}
        self.given: dict[Any, tuple[str, int]] = {}
        for index in self.order:
            value = values[index]
            key, number = (
                (value.key, -2 - index) if isinstance(value, Held) else (value.id, value.id)
            )
            self.given[key] = (made[index], number)

    def write_function(self) -> ast.FunctionDef:
        for key, (_, number) in self.given.items():
            if isinstance(key, str):
                tensor = self.drafter.constants[key]
                self.facts = {**self.facts, number: Fact(tuple(tensor.shape), tensor.dtype)}
        self.arguments = list(self.given.values())
        self._items(self.item.body)
        refs = tuple(self._resolved(Ref(one)) for one in self.item.outs)
        results = refs[0] if len(refs) == 1 else refs
        self._inline(results)
        _Naming(self, list(self.given.values()), results).run()
        kind = code("jax.Array")
        parts = len(refs)
        returns = kind if parts == 1 else code("tuple[{*k}]", k=[kind] * parts)
        return ast.FunctionDef(
            "_",
            ast.arguments(
                [],
                [
                    *(ast.arg(one, kind) for one in self.made.arguments),
                    *(ast.arg(one, code("int")) for one in self.sizes.values()),
                ],
                None,
                [],
                [],
                None,
                [],
            ),
            [*self.made.body, ast.Return(self.made.result)],
            [],
            returns,
        )

    def _held(self, value: Held) -> Tensor:
        if value.key in self.given:
            number = self.given[value.key][1]
            fact = self._fact(self.facts[number])
            return Tensor(fact.shape, fact.dtype, Hole(Ref(number)))
        return super()._held(value)

    def _number(self, value: Any, item: Op) -> Any:
        """A size as that of an argument which has it."""
        if isinstance(value, int) and _sized(item.target, value) and value > 4:
            for _, number in self.given.values():
                for axis, side in enumerate(self.facts[number].shape):
                    if side == value:
                        # A function is given all in torch's order.
                        return Size(code("{x}.shape[{i}]", x=Hole(Ref(number)), i=axis), value)
        return value

    def _frames(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Those from the function inwards."""
        own = own_frames(super()._frames(frames))
        for index, one in enumerate(own):
            if (one.file, one.function) == (self.item.frame.file, self.item.frame.function):
                return own[index:]
        return own


_CONTAINERS = (
    torch.nn.ModuleList,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.Sequential,
)
_NO_OP = Op("", (), {}, (), True, ())


def _is_turn(value: ast.AST) -> bool:
    """Whether this is a call of a module in a list: `self.layers[0](x)`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Subscript)
        and isinstance(value.func.value, ast.Attribute)
        and isinstance(value.func.value.value, ast.Name)
        and value.func.value.value.id == "self"
    )


def names_container(module: Any) -> bool:
    """Whether a module is a list or dict, which is no module in linen."""
    return isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict | torch.nn.ParameterList)


def _told(value: Any) -> ast.expr:
    """An argument of a stub; what has no form in JAX (a device) as its name."""
    if isinstance(value, list):
        return ast.List([_told(one) for one in value], ast.Load())
    try:
        return as_code(value)
    except TypeError:
        return as_code(str(value))


def _hint(side: int | Free) -> int:
    return side.hint if isinstance(side, Free) else side


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


def _targets(frames: Sequence[Frame]) -> tuple[str, ...]:
    for frame in reversed(frames):
        if found := names.targets(frame):
            return found
    return ()


def _text(value: ast.expr) -> str:
    class Shown(ast.NodeTransformer):
        def visit_Hole(self, node: Hole) -> ast.expr:
            return ast.Name("xxxxxxxx", ast.Load())

    return ast.unparse(ast.fix_missing_locations(Shown().visit(_copy_holes(value))))


def _copy_holes(tree: Any) -> Any:
    if isinstance(tree, Hole):
        return Hole(tree.value)
    if isinstance(tree, ast.AST):
        made = type(tree).__new__(type(tree))
        ast.AST.__init__(made)
        for name in tree._fields:
            setattr(made, name, _copy_holes(getattr(tree, name, None)))
        return made
    return [_copy_holes(one) for one in tree] if isinstance(tree, list) else tree


def _refs(value: ast.AST) -> Iterator[int]:
    for node in holes(value):
        if isinstance(node.value, Ref):
            yield node.value.id


def holes(value: ast.AST) -> Iterator[Hole]:
    """The holes in a tree, from left to right."""
    if isinstance(value, Hole):
        yield value
        return
    for child in ast.iter_child_nodes(value):
        yield from holes(child)


class _Filler(ast.NodeTransformer):
    def __init__(self, fill: Callable[[Hole], ast.expr]) -> None:
        self.fill = fill

    def visit_Hole(self, node: Hole) -> ast.expr:
        return self.fill(node)


def fill(value: Any, how: Callable[[Hole], ast.expr]) -> Any:
    """A tree with each of its holes as `how` says; the tree itself stays."""
    return _Filler(how).visit(_copy_holes(value))


def _filled(value: ast.expr, held: Mapping[int, ast.expr]) -> ast.expr:
    def one(hole: Hole) -> ast.expr:
        if isinstance(hole.value, Ref) and hole.value.id in held:
            return held[hole.value.id]
        return hole

    return fill(value, one)


def _within(module: Any, frames: tuple[Frame, ...], called: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames from a module's forward inwards, of one that was called at others."""
    where = _extent(type(module))
    inside = [
        index
        for index, one in enumerate(frames)
        if one.file == where[0] and where[1] <= one.line <= where[2]
    ]
    return frames[inside[-1] :] if inside else frames[len(called) :]


def _extent(cls: type) -> tuple[str, int, int]:
    return _extent_of(inspect.unwrap(cls.forward))  # type: ignore[attr-defined]


def _extent_of(function: Any) -> tuple[str, int, int]:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return "", 0, 0
    return function.__code__.co_filename, first, first + len(lines) - 1


def _literal(tensor: torch.Tensor) -> ast.expr:
    """A constant of the graph as source."""
    from converters.graph.expression import dtype_name

    if tensor.dim() == 0:
        value = tensor.item()
        kind = dtype_name(tensor.dtype).split(".")
        dtype = ast.Attribute(ast.Name(kind[0], ast.Load()), kind[1], ast.Load())
        return code("jnp.array({v}, {d})", v=value, d=dtype)
    kind = dtype_name(tensor.dtype).split(".")
    dtype = ast.Attribute(ast.Name(kind[0], ast.Load()), kind[1], ast.Load())
    return code("jnp.array({v}, {d})", v=tensor.tolist(), d=dtype)


class _Naming:
    """Sizes, and then names: as in the original, where two values do not need one name at one time."""

    def __init__(self, writer: _Writer, arguments: list[tuple[str, int]], results: Any) -> None:
        self.writer = writer
        self.facts = writer.facts
        self.arguments = arguments
        self.results = results

    def run(self) -> None:
        statements = self.writer.statements
        known = [number for _, number in self.arguments]
        for one in statements:
            one.value = self._sized(one.value, known)
            known += [out for out in one.outs if out >= 0]
        result = self._sized(self._result(self.results), known)
        last: dict[int, int] = {}
        for index, one in enumerate(statements):
            for ref in _refs(one.value):
                last[ref] = index
        for ref in _refs(result):
            last[ref] = len(statements)
        names_of = {number: name for name, number in self.arguments}
        holder = dict(self.arguments)
        body: list[ast.stmt] = []
        for index, one in enumerate(statements):
            value = self._named(one.value, names_of)
            targets: list[ast.expr] = []
            for place, out in enumerate(one.outs):
                if out not in last:
                    targets.append(ast.Name("_", ast.Store()))
                    continue
                wanted = self._wanted(one, place)
                kept = self._kept(wanted, index, holder, last)
                if kept:
                    body.append(
                        ast.Assign([ast.Name(kept, ast.Store())], ast.Name(wanted, ast.Load()))
                    )
                    holder[kept] = holder.pop(wanted)
                    names_of[holder[kept]] = kept
                name = self._free_name(wanted, index, holder, last)
                holder[name] = out
                names_of[out] = name
                targets.append(ast.Name(name, ast.Store()))
            single = one.single and len(targets) == 1
            target = (
                targets[0]
                if single
                else _nested(iter(targets), one.nested or (None,) * len(targets))
            )
            body.append(ast.Assign([target], value))
        final = self._named(result, names_of)
        if body and isinstance(final, ast.Name) and isinstance(body[-1], ast.Assign):
            last_one = body[-1]
            target = last_one.targets[0]
            same = isinstance(target, ast.Name) and target.id == final.id
            if same and not any(map(_is_turn, ast.walk(last_one.value))):
                body.pop()
                final = last_one.value
        body = [tidied(one) for one in body]
        final = tidied(final)
        self.writer.made.arguments = tuple(name for name, _ in self.arguments)
        self.writer.made.body = body
        self.writer.made.result = final

    def _result(self, results: Any) -> ast.expr:
        match results:
            case Ref():
                value = _filled(Hole(results), self.writer.held_results)
                if results.id in self.writer.lying:
                    return value
                rank = len(self.facts[results.id].shape)
                return as_torch(value, self.writer.layouts.get(results.id), rank)
            case Held():
                return as_code(self.writer._held(results))
            case tuple():
                return ast.Tuple([self._result(one) for one in results], ast.Load())
            case dict():
                keys: list[ast.expr | None] = [ast.Constant(key) for key in results]
                return ast.Dict(keys, [self._result(one) for one in results.values()])
            case Free():
                return Hole(results)
        return as_code(results)

    def _wanted(self, one: Statement, place: int) -> str:
        return self.writer.wanted(one, place) or ("hidden" if list(_refs(one.value)) else "x")

    def _kept(
        self, wanted: str, index: int, holder: Mapping[str, int], last: Mapping[int, int]
    ) -> str:
        """The name that the original keeps a value under whose own is needed now, if it does."""
        if wanted not in holder or last.get(holder[wanted], -1) <= index:
            return ""
        found = names.other_name(wanted, type(self.writer.module).forward)
        if not found or (found in holder and last.get(holder[found], -1) >= index):
            return ""
        return found

    def _free_name(
        self, wanted: str, index: int, holder: Mapping[str, int], last: Mapping[int, int]
    ) -> str:
        if wanted in functions() or wanted in {one.name for one in self.writer.drafter.functions}:
            wanted = f"{wanted}_"
        name, number = wanted, 1
        while name in holder and last.get(holder[name], -1) > index:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def _named(self, value: ast.expr, names_of: Mapping[int, str]) -> ast.expr:
        def one(hole: Hole) -> ast.expr:
            if isinstance(hole.value, Ref):
                return ast.Name(names_of[hole.value.id], ast.Load())
            return hole

        return fill(value, one)

    def _sized(self, value: ast.expr, known: Sequence[int]) -> ast.expr:
        near = [number for number in dict.fromkeys(_refs(value)) if number in set(known)]
        order = [*near, *known]

        def one(hole: Hole) -> ast.expr:
            if isinstance(hole.value, Free):
                return self._size(hole.value.expression, order)
            return hole

        return fill(value, one)

    def _size(self, expression: sympy.Expr, order: Sequence[int]) -> ast.expr:
        for number in order:
            for axis, side in enumerate(self.facts[number].shape):
                if isinstance(side, Free) and side.expression == expression:
                    if self.writer.layouts.get(number) == LAST:
                        axis = moved(axis, len(self.facts[number].shape))
                    return code("{x}.shape[{i}]", x=Hole(Ref(number)), i=axis)
        if expression.is_Integer:
            return as_code(int(expression))
        parts = [self._size(one, order) for one in expression.args]
        if expression.is_Add:
            return _joined("+", parts)
        if expression.is_Mul:
            return _joined("*", parts)
        kind = type(expression).__name__
        binary = {
            "FloorDiv": "//",
            "CleanDiv": "//",
            "Mod": "%",
            "PythonMod": "%",
            "IntTrueDiv": "/",
        }
        if kind in binary:
            return code(f"{{a}} {binary[kind]} {{b}}", a=parts[0], b=parts[1])
        if kind in ("Max", "Min"):
            return call(kind.lower(), *parts)
        if expression.is_Pow and expression.args[1].is_Integer and int(expression.args[1]) > 0:
            return code("{a} ** {b}", a=parts[0], b=parts[1])
        if expression.is_Symbol and (
            self.writer.call.path or isinstance(self.writer, _FunctionWriter)
        ):
            return ast.Name(self.writer.size_argument(expression), ast.Load())
        raise GraphError(
            f"{self.writer.call.path or 'the model'}: the size {expression} cannot be told from its inputs",
            "see docs/port.md, 'Models that do not export'",
        )


def _nested(targets: Iterator[ast.expr], shape: Any) -> ast.expr:
    if shape is None:
        return next(targets)
    return ast.Tuple([_nested(targets, one) for one in shape], ast.Store())


def _joined(operator: str, parts: Sequence[ast.expr]) -> ast.expr:
    # Numbers last, as one writes it; a negative one is subtracted.
    ordered = sorted(parts, key=lambda one: isinstance(one, ast.Constant | ast.UnaryOp))
    found = ordered[0]
    for one in ordered[1:]:
        if operator == "+" and isinstance(one, ast.UnaryOp):
            found = code("{a} - {b}", a=found, b=one.operand)
        else:
            found = code(f"{{a}} {operator} {{b}}", a=found, b=one)
    return found
