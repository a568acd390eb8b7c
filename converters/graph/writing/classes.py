"""Classes of a port: one for each class of the original whose forwards did the same.

Instances of one torch class are one Flax class if their sources differ in numbers only. Numbers
that a setting of the model gives are read from the configuration. Other numbers that differ are
fields of the class.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from converters.graph.expression import (
    Hole,
    SettingFloat,
    SettingInt,
    as_code,
    call,
    code,
)
from converters.graph.ir import CALLS, Call
from converters.graph.recording.libraries import is_user_file
from converters.graph.recording.trace import GraphError
from converters.graph.writing.body import drafted
from converters.graph.writing.draft import Draft, Drafter
from converters.graph.writing.forms import calls, lists, sizes
from converters.graph.writing.forms.asserted import asserted
from converters.graph.writing.forms.branches import Way, together
from converters.graph.writing.forms.caches import gathered
from converters.graph.writing.forms.convolutions import as_usual, spelled_out
from converters.graph.writing.forms.elements import kept_together
from converters.graph.writing.forms.form import Form
from converters.graph.writing.forms.loops import rolled
from converters.graph.writing.forms.options import paddings_named, tidied
from converters.graph.writing.forms.repeats import repeated
from converters.graph.writing.forms.steps import stepped
from converters.graph.writing.holes import fill
from converters.graph.writing.layers import weight_of
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.original.comments import (
    above,
    commented,
    on_header,
    speaks_of_axes,
)
from converters.graph.writing.original.constants import computed
from converters.graph.writing.original.constructors import MEMBERS
from converters.graph.writing.original.forwarding import without_forwarding
from converters.graph.writing.original.names import (
    aliases,
    attribute_lines,
    documented,
    numbers_begun,
    source_file,
    statement,
)
from converters.graph.writing.original.turns import text_at
from converters.graph.writing.precision.numerics import (
    BASE,
    NUMERICS,
    PARAM,
    READ,
    reads_numerics,
    with_numerics,
)
from converters.graph.writing.training import dropout_made
from converters.layers.layout import firsts
from converters.layers.registry import find_entry
from converters.mapping.paths import has_layers

_CONFIG = "config"
_FIELD = re.compile(rf"\bself\.{_CONFIG}\.")
# What functions of numbers in an expression of settings are of.
_MODULES = ("math", "int", "round", "max", "min", "len")
# Up to how many forms of a class every choice of them is tried, and every two; of more only all.
_TRIED, _PAIRS = 5, 8
# Names of a Flax module that no field can have.
_OF_FLAX = ("name", "parent", "scope", "variables", "path", _CONFIG, *READ)
_OF_NNX = ("rngs", "deterministic", "cast", "train", "eval", "sow", "perturb", "set_attributes")


@dataclass
class _Instance:
    """A module of the model, as it would be written alone."""

    path: str
    module: torch.nn.Module
    setup: list[ast.stmt]
    methods: dict[str, Method]
    over: set[str] = field(default_factory=set)  # lists that a loop goes over


def classes(drafter: Drafter) -> Model:
    """The classes of a graph."""
    return _Classes(drafter).run()


class _Classes:
    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.initial = drafter.initial
        self.drafts: dict[str, list[Draft]] = defaultdict(list)
        self.methods: dict[str, dict[str, Method]] = defaultdict(dict)
        self.forms: dict[tuple[str, str], dict[Any, str]] = defaultdict(dict)
        self.made: dict[str, tuple[Class, dict[str, Any]]] = {}
        self.classes: list[Class] = []
        self.of_flax = {*_OF_FLAX, *(_OF_NNX if drafter.api == "nnx" else ())}
        self.settings: dict[str, Any] = {}
        # Name and value of a setting → what it is called in the configuration.
        self.named: dict[tuple[str, Any], str] = {}
        # What a setting is called in the configuration → in the original, and by which modules.
        self.sources: dict[str, tuple[str, tuple[str, ...]]] = {}

    def run(self) -> Model:
        for module_call in self._written(self.drafter.graph.root):
            if not (module_call.path and self.drafter.dissolves(module_call)):
                inputs = (
                    None
                    if module_call.path
                    else self.drafter.graph.entry(module_call.number).inputs
                )
                self._draft(module_call, inputs)
        for path in (*self.drafter.reached, *self.drafter.lent):  # some are never called themselves
            if self.drafter.layer(path) is None:
                self.drafts.setdefault(path, [])
        instances = {path: self._instance(path) for path in self.drafts}
        heights = self._heights()
        for instance in instances.values():
            self._setup(instance)
            instance.setup = [spelled_out(statement) for statement in instance.setup]
            _roll(instance)
        self._configure(instances)
        for height in sorted({heights[path] for path in instances}):
            groups: dict[Any, list[_Instance]] = defaultdict(list)
            for path, instance in instances.items():
                if heights[path] == height:
                    self._children(instance)
                    groups[type(instance.module), _form(instance)].append(instance)
            forms: dict[type, list[list[_Instance]]] = defaultdict(list)
            for (cls, _), group in groups.items():
                self._merge(cls, group)
                forms[cls].append(group)
            for several in forms.values():
                if len(several) > 1 and several[0][0].path:
                    self._together(several, instances)
        for cls in self.classes:
            for name, method in cls.methods.items():
                body, result = calls.tidied(method.body, method.result)
                body, _ = asserted(body, (method.optional | method.maybe) - method.nullable)
                body, result = paddings_named(tidied(body), result, method.arguments)
                body, result = kept_together(body, result, method.parameters())
                cls.methods[name] = replace(method, body=body, result=result)
        for function in self.drafter.functions:
            parameters = [parameter.arg for parameter in function.args.args]
            nothing = ast.Constant(None)
            function.body, _ = kept_together(tidied(function.body), nothing, parameters)
        self._without_forwarding()
        names = {path: cls.name for path, (cls, _) in self.made.items()}
        used = self._used()
        return Model(
            tuple(self.classes),
            used,
            self.sources,
            instances=names,
            order=self.drafter.settings.order,
            layer_sizes=dict(self._layer_sizes(used.keys())),
        )

    def _layer_sizes(self, used: Set[str]) -> Iterator[tuple[str, dict[str, str]]]:
        """The numbers on which the arrangement of a layer's weights depends, by the configuration's names."""
        for path, module in self.drafter.modules.items():
            entry, _ = find_entry(module)
            sizes = {}
            weights = () if entry is None else entry.weights_of(module)
            for name in {name for weight in weights for name in firsts(weight.layout)}:
                number = self.drafter.settings.of_layer(module, name, getattr(module, name))
                spelled = self._spelled(number)
                if spelled is None:
                    continue
                text = _FIELD.sub("", ast.unparse(ast.fix_missing_locations(spelled)))
                nodes = ast.walk(ast.parse(text, mode="eval"))
                if {node.id for node in nodes if isinstance(node, ast.Name)} <= {*used, *_MODULES}:
                    sizes[name] = text
            if sizes:
                yield path, sizes

    def _without_forwarding(self) -> None:
        """Leave out the functions that only call another one."""
        methods = [method for cls in self.classes for method in cls.methods.values()]
        blocks: list[ast.AST] = [
            ast.Module([*method.body, ast.Return(method.result)], []) for method in methods
        ]
        self.drafter.functions, blocks = without_forwarding(self.drafter.functions, blocks)
        for method, block in zip(methods, blocks, strict=True):
            assert isinstance(block, ast.Module)
            *method.body, last = block.body
            assert isinstance(last, ast.Return)
            assert last.value is not None
            method.result = last.value

    def _written(self, outer: Call) -> Iterator[Call]:
        """The calls that have a class of their own, or dissolve; the innermost first."""
        if (
            outer.path
            and not self.drafter.dissolves(outer)
            and self.drafter.layer(outer.path) is not None
        ):
            return
        for item in outer.body:
            if isinstance(item, Call):
                yield from self._written(item)
        yield outer

    def _draft(self, module_call: Call, inputs: Any) -> None:
        """Write a call; the first of those of a module that do the same gives the method its name."""
        draft = drafted(self.drafter, module_call, inputs)
        method = Method(
            draft.arguments,
            draft.sizes,
            draft.body,
            draft.result,
            draft.labels,
            absent=draft.absent,
            nullable=draft.nullable,
            spared=draft.spared,
            kinds=draft.kinds,
            result_kinds=draft.result_kinds,
        )
        if method.kinds or method.result_kinds:
            method.body = gathered(method.body, method.result)
        method.of = module_call.method
        forward = self.drafter.forward(module_call)
        # What a library says of its forward is on arguments of its own.
        if module_call.method != "forward" or is_user_file(source_file(inspect.unwrap(forward))):
            method.doc = documented(forward)
            method.comments = on_header(forward)
            turned = self.drafter.layouts.keys() & {
                argument.inside for argument in module_call.arguments
            }
            if turned and speaks_of_axes(method.doc):
                method.doc = ""
            results = self.drafter.layouts.keys() & {result.inside for result in module_call.taken}
            if (turned or results) and any(map(speaks_of_axes, method.comments)):
                method.comments = ()
        form = (draft.arguments, _dump(_all(method)), _numbers(method))
        forms = self.forms[module_call.path, module_call.method]
        others = (
            f"{module_call.method}_{len(forms) + 1}"
            if module_call.method != "forward"
            else self._unlike(module_call, forms)
        )
        first = "__call__" if module_call.method == "forward" else module_call.method
        name = forms.setdefault(form, others if forms else first)
        self.drafter.methods[module_call.path, module_call.number] = name
        self.drafts[module_call.path].append(draft)
        self.methods[module_call.path].setdefault(name, method)

    def _unlike(self, module_call: Call, forms: Mapping[Any, str]) -> str:
        """The name of a method for a call that does something else than the calls before it."""
        within = module_call.number // CALLS
        if within and self.drafter.graph.kinds:
            name = self.drafter.graph.methods[within - 1].method
            if name not in forms.values() and not hasattr(
                self.drafter.modules[module_call.path], name
            ):
                return name
        return f"call_{len(forms)}"

    def _instance(self, path: str) -> _Instance:
        methods = self.methods[path]
        first = {name: method for name, method in methods.items() if name == "__call__"}
        return _Instance(path, self.drafter.modules[path], [], first | methods)

    def _heights(self) -> dict[str, int]:
        """Height of each module: above all modules that it holds, even if others call these."""
        heights: dict[str, int] = {}
        changed = True
        while changed:
            changed = False
            for path, drafts in self.drafts.items():
                held = [below for draft in drafts for below in draft.children.values()]
                held += self.drafter.reached.get(path, {}).values()
                wanted = max([heights.get(path, 0), *(heights.get(child, 0) + 1 for child in held)])
                changed = changed or wanted > heights.get(path, -1)
                heights[path] = wanted
            if changed:
                continue
            # Forms of one class are put together before what holds them is written.
            for paths in self._of_class():
                wanted = max(heights[path] for path in paths)
                changed = changed or any(heights[path] < wanted for path in paths)
                heights |= dict.fromkeys(paths, wanted)
        return heights

    def _of_class(self) -> list[list[str]]:
        """The modules of each class, but of those that hold modules of their own class."""
        paths_by_class: dict[type, list[str]] = defaultdict(list)
        for path in self.drafts:
            paths_by_class[type(self.drafter.modules[path])].append(path)
        return [
            paths
            for paths in paths_by_class.values()
            if not any(
                path.startswith(f"{other}.") or not other for path in paths for other in paths
            )
        ]

    # The constructors.

    def _setup(self, instance: _Instance) -> None:
        """Write the module's children as holes, and its parameters."""
        children: dict[str, str] = {}
        held: dict[str, str] = {}
        for draft in self.drafts[instance.path]:
            children |= draft.children
            held |= draft.held
        held |= self.drafter.lent.get(instance.path, {})
        children |= self.drafter.reached.get(instance.path, {})
        several: dict[str, dict[str, ast.expr]] = {}
        for name, key in held.items():
            first, _, rest = name.partition(".")
            if rest:  # of a list or dict of parameters
                several.setdefault(first, {})[rest] = self._parameter(instance, name, key)
            else:
                instance.setup.append(_assign(name, self._parameter(instance, name, key)))
        for name, arrays in several.items():
            instance.setup.append(_assign(name, _listed(arrays)))
        dropouts = [each for draft in self.drafts[instance.path] for each in draft.dropouts.items()]
        for name, (rate, axes) in dict(dropouts).items():
            instance.setup.append(_assign(name, dropout_made(rate, axes)))
        tree: dict[str, Any] = {}
        for attribute, path in children.items():
            at = tree
            *parts, last = attribute.split(".")
            for part in parts:
                at = at.setdefault(part, {})
            at[last] = path
        prefix = f"{instance.path}." if instance.path else ""
        if has_layers(instance.module):  # a Sequential or list with a forward of its own
            if not tree:
                return  # what it holds has no weights, and is written where it is called
            inner = [
                self._held(instance.module, key, f"{prefix}{key}", child, tree[key])
                if key in tree
                else self._placeholder(f"{prefix}{key}", child)
                for key, child in instance.module._modules.items()
            ]
            count = self.drafter.settings.of_count(instance.module, MEMBERS, len(inner))
            instance.setup.append(_assign("layers", lists.made(inner, count)))
            return
        for name in sorted(tree, key=list(instance.module._modules).index):
            child = instance.module._modules[name]
            instance.setup.append(
                _assign(
                    name, self._held(instance.module, name, f"{prefix}{name}", child, tree[name])
                )
            )

    def _held(self, parent: Any, name: str, path: str, module: Any, below: Any) -> ast.expr:
        if isinstance(below, str):
            layer = self.drafter.layer(path)
            if layer is not None:
                typed = self.drafter.graph.narrow is not None
                single = parent._modules.get(name) is module
                return self.initial.layer(path, layer, single, typed)
            return Hole(_Child(path))
        takes_mode = path in self.drafter.training.sequentials
        inner = [
            self._held(parent, f"{name}.{key}", f"{path}.{key}", inner_module, below[key])
            if key in below
            else self._placeholder(f"{path}.{key}", inner_module, takes_mode)
            for key, inner_module in module._modules.items()
        ]
        if isinstance(module, torch.nn.ModuleDict):
            return ast.Dict([ast.Constant(key) for key in module._modules], inner)
        if isinstance(module, torch.nn.Sequential):
            count = self.drafter.settings.of_count(parent, name, len(inner))
            listed = ast.List(inner, ast.Load())
            whole = lists.made(inner, count) if getattr(count, "text", "") else listed
            return call("Sequential" if takes_mode else "nn.Sequential", whole)
        if isinstance(module, torch.nn.ModuleList):
            while list(module._modules)[len(inner) - 1] not in below:
                inner.pop()  # what is behind the last that is called
            count = self.drafter.settings.of_count(parent, name, len(inner))
            return lists.made(inner, count)
        raise GraphError(
            f"{path}: a module whose parts are called from outside of it",
            "see docs/port.md, 'What it does not do'",
        )

    def _placeholder(self, path: str, module: Any, takes_mode: bool = False) -> ast.expr:
        """The placeholder in a list for a module that holds nothing, or that is never called.

        Args:
            path: its path.
            module: the module.
            takes_mode: whether the sequence around it passes it the mode, in each call.
        """
        if path in self.drafter.members:
            return self.drafter.members[path]
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            rate = self.drafter.settings.of_layer(module, "p", module.p)
            return call("nn.Dropout", rate, **({} if takes_mode else {"deterministic": True}))
        return code("lambda x: x") if isinstance(module, torch.nn.Identity) else ast.Constant(None)

    def _parameter(self, instance: _Instance, name: str, key: str) -> ast.expr:
        tensor = self.drafter.constants[key]
        placed = weight_of(instance.module, key.rpartition(".")[2])
        sides = tuple(tensor.shape) if placed is None else placed.shape(tuple(tensor.shape))
        settings = self.drafter.settings
        shape = tuple(
            settings.of_parameter(instance.module, name, axis, side)
            for axis, side in enumerate(sides)
        )
        start = self.initial
        if placed is not None and placed.collection != "params":
            array = start.variable(
                placed.collection, instance.module, instance.path, name, key, shape
            )
            return self.drafter.in_dtype(key, array)
        if key in self.drafter.volatile:
            again = computed(tensor, instance.module, name, settings)
            if again is not None:
                self.drafter.recomputed.add(key)
                return again
        if key in self.drafter.buffers:
            array = start.variable("buffers", instance.module, instance.path, name, key, shape)
            return self.drafter.in_dtype(key, array)
        axes = None if placed is None else placed.axes
        init = start.parameter(instance.module, instance.path, name, key, axes)
        if self.drafter.in_compute_dtype(key):
            return call(f"self.{PARAM}", name, init, shape)
        kind = [code("self.param_dtype")] if key in (self.drafter.graph.narrow or ()) else []
        return call("self.param", name, init, shape, *kind)

    def _children(self, instance: _Instance) -> None:
        """The holes of the children as calls of their classes."""

        def made(hole: Hole) -> ast.expr:
            if not isinstance(hole.value, _Child):
                return hole
            cls, fields = self.made[hole.value.path]
            first = [ast.Attribute(ast.Name("self", ast.Load()), _CONFIG, ast.Load())]
            named = {key: as_code(value) for key, value in fields.items()}
            expression = call(cls.name, *(first if cls.configured else []), **named)
            return with_numerics(expression, NUMERICS) if cls.typed else expression

        instance.setup = _with_comments(
            [
                lists.together(fill(each, made), instance.over, instance.path)
                for each in instance.setup
            ],
            type(instance.module),
        )

    # The configuration.

    def _configure(self, instances: Mapping[str, _Instance]) -> None:
        """Names of the settings: each name has one value, or one in each part of the model."""
        paths: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
        for path, instance in instances.items():
            for slot in _slots(instance):
                if isinstance(slot, SettingInt | SettingFloat):
                    for name, value in slot.parts.items():
                        paths[name][value].append(path)
        for name, values in paths.items():
            if name.isidentifier():
                for value, prefix in _told_apart(values).items():
                    self.named[name, value] = f"{prefix}{name}"
                    self.sources[f"{prefix}{name}"] = name, tuple(dict.fromkeys(values[value]))
        self.settings = {named: value for (_, value), named in self.named.items()}

    def _spelled(self, slot: Any) -> ast.expr | None:
        """A number by the settings of the model; None where they do not give it."""
        if not isinstance(slot, SettingInt | SettingFloat) or not slot.text:
            return None
        known = {name: self.named.get((name, value)) for name, value in slot.parts.items()}
        if None in known.values():
            return None
        return _FromSettings(known).visit(ast.parse(slot.text, mode="eval").body)

    def _used(self) -> dict[str, Any]:
        read = {
            node.attr
            for cls in self.classes
            for statement in (*cls.setup, *(s for m in cls.methods.values() for s in _all(m)))
            for node in ast.walk(statement)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == _CONFIG
        }
        return {name: value for name, value in self.settings.items() if name in read}

    # Merging.

    def _merge(self, cls: type, group: Sequence[_Instance]) -> None:
        slots = [list(_slots(instance)) for instance in group]
        hints = [hint for tree in _trees(group[0]) for hint in _hints(tree, "")]
        fields: dict[str, list[Any]] = {}
        written: list[Any] = []
        called: list[str] = []
        configured = False
        for place in range(len(slots[0])):
            called.append("")
            values = [
                _in_list(instance_slots[place], instance.path)
                for instance, instance_slots in zip(group, slots, strict=True)
            ]
            spelled = [self._spelled(value) for value in values]
            if (
                spelled[0] is not None
                and not any(getattr(value, "holder", "") for value in values)
                and len({expression and ast.dump(expression) for expression in spelled}) == 1
            ):
                written.append(spelled[0])
                called[-1] = _attribute_of(group, values, self.of_flax)
                configured = True
                continue
            bare = [_bare(slot) for slot in values]
            if all(
                bare_value == bare[0] and type(bare_value) is type(bare[0]) for bare_value in bare
            ) and not any(spelled):
                written.append(as_code(bare[0]))
                continue
            name = self._field(values, hints[place], group, fields)
            fields[name] = [
                value if expression is not None else _bare(value)
                for value, expression in zip(values, spelled, strict=True)
            ]
            written.append(ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load()))
        first_instance = group[0]
        called = ["" if name in fields else name for name in called]
        first, written = sizes.named(written, called)
        fill_in = iter(written)
        setup = [as_usual(_slotted(statement, fill_in)) for statement in first_instance.setup]
        setup = [*first, *setup]
        methods = {
            name: replace(
                method,
                body=[_slotted(statement, fill_in) for statement in method.body],
                result=_slotted(method.result, fill_in),
                nullable=frozenset().union(*(each.methods[name].nullable for each in group)),
                absent=frozenset().union(*(each.methods[name].absent for each in group)),
            )
            for name, method in first_instance.methods.items()
        }
        # The model itself is always made of its sizes, even if it reads none.
        configured = (
            configured
            or not group[0].path
            or any(
                isinstance(node, ast.Attribute) and node.attr == _CONFIG
                for statement in setup
                for node in ast.walk(statement)
            )
        )
        merged_class = Class(
            self._name(cls),
            cls,
            {name: type(_bare(values[0])).__name__ for name, values in fields.items()},
            configured,
            setup,
            methods,
            typed=reads_numerics([*setup, *(s for m in methods.values() for s in _all(m))]),
            takes_mode=self.drafter.is_told(cls),
        )
        self.classes.append(merged_class)
        for index, instance in enumerate(group):
            self.made[instance.path] = (
                merged_class,
                {name: values[index] for name, values in fields.items()},
            )

    def _together(
        self, groups: Sequence[Sequence[_Instance]], instances: Mapping[str, _Instance]
    ) -> None:
        """Forms of one class of the original as one class, where that can be, called as it is."""
        left = list(groups)
        while len(left) > 1:
            joined = self._first_together(left, instances)
            left = [group for group in left if group not in joined] if len(groups) <= _PAIRS else []
        joined_classes = list(
            {id(cls): cls for group in groups for cls in [self.made[group[0].path][0]]}.values()
        )
        for cls in joined_classes:
            cls.name = ""
        for cls in joined_classes:
            cls.name = self._name(cls.origin)

    def _first_together(
        self, groups: Sequence[Sequence[_Instance]], instances: Mapping[str, _Instance]
    ) -> list[Sequence[_Instance]]:
        """Put forms together: all, else as many of them with the first as will; these are returned."""
        if self._are_together(groups, instances):
            return list(groups)
        few = range(len(groups) - 1, 1, -1) if len(groups) <= _TRIED else [2]
        for size in few if len(groups) <= _PAIRS else []:
            for others in itertools.combinations(groups[1:], size - 1):
                if self._are_together([groups[0], *others], instances):
                    return [groups[0], *others]
        return [groups[0]]

    def _are_together(
        self, groups: Sequence[Sequence[_Instance]], instances: Mapping[str, _Instance]
    ) -> bool:
        forms = [
            Form(
                self.made[group[0].path][0],
                tuple(instance.module for instance in group),
                tuple(self.made[instance.path][1] for instance in group),
            )
            for group in groups
        ]
        module = groups[0][0].module
        held = {
            name for instance in instances.values() for name in _held_names(instance, type(module))
        }
        joined = together(forms, {*self.of_flax, *held}, self.settings)
        if joined is None:
            return False
        ways = {
            id(instance.module): way
            for group, way in zip(groups, joined.ways, strict=True)
            for instance in group
        }
        paths = {id(instance.module): instance.path for group in groups for instance in group}
        rewired = self._rewired(ways, paths, instances)
        if rewired is None:
            return False
        for (path, name), method in rewired.items():
            instances[path].methods[name] = method
        olds = [form.cls for form in forms]
        at = self.classes.index(olds[0])
        self.classes[at] = joined.cls
        self.classes = [
            written_class
            for written_class in self.classes
            if all(written_class is not old for old in olds)
        ]
        for group, each in zip(groups, joined.fields, strict=True):
            for instance, fields in zip(group, each, strict=True):
                self.made[instance.path] = joined.cls, fields
        return True

    def _rewired(
        self, ways: Mapping[int, Way], paths: Mapping[int, str], instances: Mapping[str, _Instance]
    ) -> dict[tuple[str, str], Method] | None:
        """The methods that call these modules, in the new way; None if a call is not found in the source."""
        count: Counter[int] = Counter()
        rewired_methods = {}
        for path, instance in instances.items():
            for name, method in instance.methods.items():
                try:
                    body, result, called = calls.rewired(
                        instance.module, method.body, method.result, ways
                    )
                except calls.OtherWayError:
                    return None
                if any(module_id in ways for module_id in called):
                    count += called
                    rewired_methods[path, name] = replace(method, body=body, result=result)
        if any(count[module_id] != len(self.drafts[path]) for module_id, path in paths.items()):
            return None
        return rewired_methods

    def _field(
        self,
        values: list[Any],
        hint: str,
        group: Sequence[_Instance],
        fields: Mapping[str, list[Any]],
    ) -> str:
        """The field name of a number that differs, from an attribute of the original."""
        bare = [_bare(value) for value in values]
        said = {getattr(value, "local", "") for value in values}
        candidates = list(said) if len(said) == 1 and "" not in said else []
        for attribute in vars(group[0].module):
            if all(
                type(vars(instance.module).get(attribute)) is type(value)
                and vars(instance.module).get(attribute) == value
                for instance, value in zip(group, bare, strict=True)
            ):
                candidates.append(attribute.strip("_"))
        candidates += self.drafter.settings.arguments_with(
            [instance.path for instance in group], bare
        )
        texts = {value.text for value in values if isinstance(value, SettingInt | SettingFloat)}
        candidates += [text for text in sorted(texts) if text.isidentifier() and len(texts) == 1]
        alike = [name for name, other in fields.items() if list(map(_bare, other)) == bare]
        candidates += alike if not candidates and len(set(bare)) > 1 else []
        candidates += [hint] if hint else []
        rest = hint or "value"
        candidates += [f"{rest}_{number}" for number in range(2 if hint else 1, len(fields) + 9)]
        module = group[0].module
        taken = {*self.of_flax, *module._modules, *module._parameters, *module._buffers}
        taken |= set(group[0].methods)
        return next(
            candidate
            for candidate in candidates
            if candidate not in taken
            and candidate.isidentifier()
            and (
                candidate not in fields
                or list(map(_same, fields[candidate])) == list(map(_same, values))
            )
        )

    def _name(self, cls: type) -> str:
        taken = {BASE, *(written_class.name for written_class in self.classes)}
        if cls.__name__ not in taken:
            return cls.__name__
        first = f"{cls.__name__}_" if cls.__name__[-1].isdigit() else cls.__name__
        return next(name for number in range(2, 1000) if (name := f"{first}{number}") not in taken)


def _held_names(instance: _Instance, cls: Any) -> Iterator[str]:
    """Attributes of the modules of a class, which no field may be named after."""
    if type(instance.module) is cls:
        yield from (
            *instance.module._modules,
            *instance.module._parameters,
            *instance.module._buffers,
        )


def _listed(arrays: Mapping[str, ast.expr]) -> ast.expr:
    """Parameters of one list or dict, by their keys there."""
    if all(key.isdigit() for key in arrays):
        last = max(map(int, arrays))
        entries = [arrays.get(str(at), ast.Constant(None)) for at in range(last + 1)]
        return ast.List(entries, ast.Load())
    return ast.Dict([ast.Constant(key) for key in arrays], list(arrays.values()))


def _attribute_of(group: Sequence[_Instance], values: Sequence[Any], of_flax: Set[str]) -> str:
    """The original's attribute name of a setting, if the class of the port may have it too."""
    name: str = values[0].local
    module = group[0].module
    taken = {*of_flax, *module._modules, *module._parameters, *module._buffers}
    taken |= set(group[0].methods)
    held = all(
        value.local == name and _bare(vars(instance.module).get(name)) == _bare(value)
        for instance, value in zip(group, values, strict=True)
    )
    return name if held and name.isidentifier() and name not in taken else ""


def _roll(instance: _Instance) -> None:
    """Calls of the modules of a list as loops over it."""
    lengths = lists.lengths(instance.setup)
    for name, method in instance.methods.items():
        forward = getattr(type(instance.module), method.of)
        body, over = rolled(
            method.body, lengths, aliases(forward), method.kinds, numbers_begun(forward)
        )
        # Who calls a module takes its results apart one by one; the model's may be a list's.
        body, result = repeated(body, method.result, forward, not instance.path)
        body, result = stepped(body, result, forward)
        instance.methods[name] = replace(method, body=body, result=result)
        instance.over |= over
    trees = [tree for method in instance.methods.values() for tree in _all(method)]
    instance.over |= lists.called_whole(instance.setup, trees)


@dataclass(frozen=True)
class _Child:
    """The module at a position in a constructor."""

    path: str


def _told_apart(values: Mapping[Any, list[str]]) -> dict[Any, str]:
    """Value of a setting → what is put before its name: the part of the model that has this value."""
    if len(values) == 1:
        return dict.fromkeys(values, "")
    common = {
        value: _beginning([path.split(".") for path in paths]) for value, paths in values.items()
    }
    for at in range(min(map(len, common.values()))):
        words = {value: path[at] for value, path in common.items()}
        if len(set(words.values())) == len(words):
            if all(word.isidentifier() for word in words.values()):
                return {value: f"{word}_" for value, word in words.items()}
            return {}
    return {}


def _beginning(paths: Sequence[Sequence[str]]) -> list[str]:
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return common


def _in_list(value: Any, path: str) -> Any:
    """A number of a module; one by the module's place in a list only below that list, which then gives it.

    Elsewhere an entry of a setting is the entry of this place.
    """
    holder = getattr(value, "holder", "")
    if not holder or path.startswith(f"{holder}."):
        return value
    if "[" not in value.text:
        return _bare(value)
    return type(value)(_bare(value), text_at(value.text, value.place), value.parts, value.local)


def _same(value: Any) -> Any:
    """Key by which two values of a field are equal.

    An expression of a member's number is that of this member: `widths[i]` of the first is `widths[0]`.
    """
    text = getattr(value, "text", "")
    if text and getattr(value, "holder", ""):
        text = text_at(text, value.place)
    return (_bare(value), text)


class _FromSettings(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, str | None]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return code(f"self.{_CONFIG}.{self.known[node.id]}") if node.id in self.known else node


def _bare(value: Any) -> Any:
    return value + 0 if isinstance(value, SettingInt | SettingFloat) else value


def _with_comments(setup: Sequence[ast.stmt], of: type) -> list[ast.stmt]:
    """The statements of a `setup` with what the original's constructor says above its own, each once."""
    lines, written, result = attribute_lines(of), set[Any](), []
    for each in setup:
        match each:
            case ast.Assign(targets=[ast.Attribute(attr=name)]) if name in lines:
                source = statement(lines[name])
                if source not in written:
                    each = commented(each, above(lines[name]))
                written.add(source)
        result.append(each)
    return result


def _assign(name: str, value: ast.expr) -> ast.stmt:
    if not name.isidentifier():
        return ast.Expr(call("setattr", ast.Name("self", ast.Load()), name, value))
    return ast.Assign([ast.Attribute(ast.Name("self", ast.Load()), name, ast.Store())], value)


def _all(method: Method) -> list[ast.AST]:
    return [*method.body, method.result]


def _trees(instance: _Instance) -> list[ast.AST]:
    return [
        *instance.setup,
        *(tree for method in instance.methods.values() for tree in _all(method)),
    ]


def _is_slot(node: ast.AST) -> bool:
    if isinstance(node, Hole):
        return isinstance(node.value, SettingInt | SettingFloat)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _walk_slots(tree: ast.AST) -> Iterator[Any]:
    if _is_slot(tree):
        yield tree.value  # type: ignore[attr-defined]
        return
    for child in ast.iter_child_nodes(tree):
        yield from _walk_slots(child)


def _hints(tree: Any, hint: str) -> Iterator[str]:
    """Argument names of a tree's slots, in the order of the slots."""
    if _is_slot(tree):
        yield hint
        return
    match tree:
        case ast.keyword(arg=name, value=value):
            yield from _hints(value, name or "")
        case ast.Call(func=ast.Attribute(value=ast.Name(id="nn" | "nnx")) as function, args=given):
            yield from _hints(function, "")
            for argument in given:
                yield from _hints(argument, "rate" if function.attr == "Dropout" else "features")
            for keyword in tree.keywords:
                yield from _hints(keyword, "")
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr="param" | "cast_param"), args=given
        ):
            for argument in given:
                yield from _hints(argument, "features")
        case _:
            inner = hint if isinstance(tree, ast.Tuple | ast.List) else ""
            for child in ast.iter_child_nodes(tree):
                yield from _hints(child, inner)


def _slots(instance: _Instance) -> Iterator[Any]:
    for tree in _trees(instance):
        yield from _walk_slots(tree)


def _numbers(method: Method) -> tuple[Any, ...]:
    return tuple(slot for tree in _all(method) for slot in _walk_slots(tree))


def _form(instance: _Instance) -> str:
    arguments = [(name, method.arguments) for name, method in instance.methods.items()]
    return f"{arguments} {_dump(_trees(instance))}"


def _dump(trees: Sequence[ast.AST]) -> str:
    return " ".join(map(_shape, trees))


def _shape(node: Any) -> str:
    """The structure of a tree: numbers are all alike."""
    if isinstance(node, list):
        return f"[{','.join(map(_shape, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if _is_slot(node):
        return "#"
    if isinstance(node, Hole):
        return f"?{node.value}"
    return (
        f"{type(node).__name__}({','.join(_shape(getattr(node, f, None)) for f in node._fields)})"
    )


class _Slotted(ast.NodeTransformer):
    def __init__(self, values: Iterator[Any]) -> None:
        self.values = values

    def visit(self, node: ast.AST) -> Any:
        if _is_slot(node):
            return next(self.values)
        return super().generic_visit(node)


def _slotted(tree: Any, values: Iterator[Any]) -> Any:
    return _Slotted(values).visit(fill(tree, lambda hole: hole))
