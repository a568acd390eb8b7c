"""Expressions of a file whose kind rules may ask for: a device, a module, or a declared tensor."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.drawing import COMPOSED, HOST_TRANSFORMS
from migrate.catalogue.prescan import concerns_rules
from migrate.catalogue.words import DESCRIBING, MODULE_BASE
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.devices import (
    follows_from_index,
    kind_of,
    type_before_colon,
    type_with_index,
)
from migrate.model.calls.kind import Kind
from migrate.model.calls.kinds import (
    MODULES,
    MOVES_INPUTS,
    ON_SOME,
    TRAITS,
    UNKNOWN,
    ClassInstance,
    DeviceValue,
    External,
    Result,
    Value,
    class_around,
)
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, ModuleScope, Scope, ValueBinding
from migrate.model.objects.device_numbers import device_numbers, may_be_number
from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.walk_ast import walk

# Methods and functions that take a device.
TAKE = frozenset({"to", "cuda", "device", "to_empty", "set_device", "set_default_device", "str"})
KEYWORDS = re.compile("dev|gpu|location|rank", re.IGNORECASE)
# Methods and functions whose argument is a device and nothing else.
MOVE = frozenset({"to", "cuda", "to_empty", "set_default_device"})
# Calls that have rules of their own, whatever device they get.
OTHERS = ("torch.cuda.", "torch.Generator", "torch.autocast", "torch.amp.", "torch.distributed.")
GENERATOR = "torch.Generator"
# Methods by which a class passes the arguments of its constructor to its base.
CONSTRUCTORS = frozenset({"__new__", "__init__"})
# Maximum number of assignments followed from a move to the number that it takes.
DEEPEST = 5
# Names under which scripts keep a device.
NAMES = re.compile("dev|gpu|cuda|acc|rank|local", re.IGNORECASE)

# Types of tensors, by the last part of their name.
TENSOR = re.compile(r"\w*Tensor")

# Names of transforms that draw on the host, for a quick check.
TRANSFORMS = re.compile(rb"Mix(up)?\b|Jitter|Random[A-Z]|Augment|RandAug")

Asked = ast.Name | ast.Attribute | ast.Subscript | ast.Call


def devices_of(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.expr, Kind]]:
    """Yield the expressions of a file that are devices, each with its kind."""
    evaluator = analysis.evaluator
    seen: set[int] = set()
    for node, scope in _candidates(analysis, top):
        for part in _parts(node):
            if id(part) not in seen:
                seen.add(id(part))
                kind = kind_of(evaluator.values(part, scope))
                if kind is not Kind.UNKNOWN:
                    yield part, kind
    for node, scope in top.tested:
        # Whether there is a device at all is a different question from which replica this is.
        if id(node) not in seen and kind_of(evaluator.values(node, scope)) is Kind.INDEX:
            seen.add(id(node))
            yield node, Kind.INDEX


def devices_or_numbers(analysis: Analysis, top: ModuleScope) -> Iterator[ast.expr]:
    """Yield the devices of a file that may also be an index which stays a number."""
    for node, scope in _candidates(analysis, top) if device_numbers(analysis) else ():
        yield from (part for part in _parts(node) if may_be_number(part, scope, analysis))


def indices_of(analysis: Analysis, top: ModuleScope) -> Iterator[ast.expr]:
    """Yield the names, attributes, items and calls that a file computes with, or gives to a call or takes
    as a position, and that are the index of a replica, or a number that is computed from it.
    """
    evaluator = analysis.evaluator
    for node, scope in _computed_with(analysis, top):
        if isinstance(node, Asked) and follows_from_index(evaluator.values(node, scope)):
            yield node


def held_by_some(analysis: Analysis, top: ModuleScope) -> Iterator[ast.expr]:
    """Yield the names, attributes and calls that a file tests and that are None on some replicas only."""
    compared = ((test.left, scope) for test, scope in top.compared)
    for node, scope in (*top.tested, *compared):
        if isinstance(node, Asked) and ON_SOME in analysis.evaluator.values(node, scope):
            yield node


def declared_tensors(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Attribute, bool]]:
    """Yield the attributes that a file reads and that their class declares as tensors: `mask: BoolTensor`.

    With each comes whether it is a tensor of truth values.
    """
    for name in sorted(_declared_tensors(analysis) & top.taken.keys()):
        for node, scope in top.taken[name]:
            values = analysis.evaluator.values(node.value, scope) - {UNKNOWN}
            types = {_declared_by(value, name, analysis) for value in values}
            if len(types) == 1 and (boolean := types.pop()) is not None:
                yield node, boolean


def _declared_by(value: Value, name: str, analysis: Analysis) -> bool | None:
    """Return whether the class of `value` declares `name` to be a mask, None if it declares no tensor."""
    if not isinstance(value, ClassInstance):
        return None
    ancestors = analysis.evaluator.ancestors(value.of)
    types = (a.declared[name] for a in ancestors if name in a.declared)
    return _is_mask_type(next(types, None))


@lru_cache(maxsize=2)
def _declared_tensors(analysis: Analysis) -> frozenset[str]:
    """Return the names that some class of the project declares to be tensors."""
    return frozenset(
        name
        for top in analysis.scopes.values()
        for class_ in top.classes
        for name, declared in class_.declared.items()
        if _is_mask_type(declared) is not None
    )


def _is_mask_type(declared: ast.expr | None) -> bool | None:
    """Return whether a declared type is a tensor of truth values, None if it is no tensor."""
    match declared:
        case ast.Constant(value=str(text)):
            return _is_mask_type(_type_of(text)) if "Tensor" in text else None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            types = {_is_mask_type(left), _is_mask_type(right)} - {None}
            return True in types if types else None
        case ast.Subscript(
            value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner
        ):
            return _is_mask_type(inner)
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=[inner, *_])) if (
            _is_mask_type(inner) is not None  # `Bool[Tensor, "batch time"]`
        ):
            return getattr(outer, "attr", getattr(outer, "id", "")) == "Bool"
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "BoolTensor" if TENSOR.fullmatch(name) else None
    return None


def _type_of(text: str) -> ast.expr | None:
    """Return the type that a text declares: `mask: "torch.Tensor | None"`."""
    try:
        statements = syntax_tree(text).body
    except (SyntaxError, ValueError):
        return None
    match statements:
        case [ast.Expr(value=declared)] if not isinstance(declared, ast.Constant):
            return declared
    return None


def _computed_with(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.expr, Scope]]:
    yield from top.computed
    for compared, scope in top.compared:
        yield from ((side, scope) for side in (compared.left, *compared.comparators))
    for call, scope in analysis.calls_in(top):
        yield from ((arg, scope) for arg in call.args)
        yield from ((keyword.value, scope) for keyword in call.keywords)


def is_module(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether all known values of `node` are modules."""
    values = analysis.evaluator.values(node, scope) - TRAITS
    return bool(values) and all(_is_one(value, analysis) for value in values)


def only_asks(call: ast.Call, analysis: Analysis) -> bool:
    """Whether `call` runs functions, named like a model, that only ask about their argument.

    Example: `get_module(model)`, which returns `model.module` if there is one.
    """
    functions = analysis.running[call].functions
    return bool(functions) and all(
        function.name == last_part(call.func)
        and all(
            last_part(inner.func) in DESCRIBING
            for region in analysis.regions(function.region)
            for inner, _ in region.calls
        )
        for function in functions
    )


def models_of(analysis: Analysis, top: ModuleScope) -> Iterator[ast.expr]:
    """Yield the expressions of a file that create, call, test or pass a module."""
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                for node in (call, *_in_call(call)):
                    if is_module(node, scope, analysis):
                        yield node


def moved_inputs(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls in a file to models that move their inputs to the GPU themselves."""
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                if MOVES_INPUTS in analysis.evaluator.values(call.func, scope):
                    yield call


def given_moving_models(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls in a file that pass a model which moves its inputs to the GPU itself."""
    for root in top.all_roots if _wraps_models(analysis) else ():
        for region in analysis.regions(root):
            for call, scope in region.calls:
                values = (*call.args, *(keyword.value for keyword in call.keywords))
                if any(
                    isinstance(value, ast.Name | ast.Attribute)
                    and MOVES_INPUTS in analysis.evaluator.values(value, scope)
                    for value in values
                ):
                    yield call


@lru_cache(maxsize=2)
def _wraps_models(analysis: Analysis) -> bool:
    return any(
        b"DistributedDataParallel" in module.data for module in analysis.project.modules.values()
    )


def host_transforms(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in a file to transforms that draw on the host, each with the call that makes one."""
    transforms = _host_transforms(analysis)
    if not transforms:
        return
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                if not call.args or analysis.running[call].functions:
                    continue
                values = analysis.evaluator.values(call.func, scope)
                names = {value.name for value in values if isinstance(value, Result)} & transforms
                if names:  # perhaps from an import and an annotation: the same order in each run
                    yield call, min(names)
                    continue
                name = _composed_of(call.func, scope, transforms, analysis)
                if name is not None:
                    yield call, name


@lru_cache(maxsize=2)
def _host_transforms(analysis: Analysis) -> frozenset[str]:
    """Return the qualified names of such transforms that a project creates or names in annotations."""
    if not any(TRANSFORMS.search(module.data) for module in analysis.project.modules.values()):
        return frozenset()
    transforms: dict[str, bool] = {}
    for call, scope in analysis.evaluator.calls():
        for name in _named(call.func, scope, analysis):
            transforms[name] = transforms.get(name, False) or _cuts(call)
    # A single file may only name, in an annotation, a transform that another file creates.
    unmade = {f"timm.data.{name}" for name in ("Mixup", "mixup.Mixup")} - transforms.keys()
    return frozenset(name for name, cuts in transforms.items() if cuts) | unmade


def _named(node: ast.expr, scope: Scope, analysis: Analysis) -> list[str]:
    """Return the qualified names of `node` that are transforms drawing on the host."""
    if not TRANSFORMS.search(_last(node).encode()):
        return []
    values = analysis.evaluator.values(node, scope)
    names = sorted({value.name for value in values if isinstance(value, External)})
    return [name for name in names if HOST_TRANSFORMS.fullmatch(name)]


def _last(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return str(getattr(node, "attr", None) or getattr(node, "id", ""))


def _cuts(call: ast.Call) -> bool:
    """Whether the transform that `call` makes draws more than a factor: a Mixup may do CutMix."""
    if _last(call.func) != "Mixup":
        return True
    arguments = [
        keyword.value for keyword in call.keywords if (keyword.arg or "cutmix").startswith("cutmix")
    ]
    arguments += call.args[1:3]
    return any(
        not (isinstance(argument, ast.Constant) and not argument.value) for argument in arguments
    )


def _composed_of(
    node: ast.expr, scope: Scope, names: frozenset[str], analysis: Analysis
) -> str | None:
    """Return the transform among `names` in a composition of transforms that is called as `node`."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    for binding in analysis.evaluator.origins(node, scope):
        value = binding.value
        if not isinstance(value, ast.Call):
            continue
        values = analysis.evaluator.values(value.func, binding.scope)
        if any(isinstance(value, External) and COMPOSED.fullmatch(value.name) for value in values):
            for part in walk(value):
                if isinstance(part, ast.Call):
                    for name in _named(part.func, binding.scope, analysis):
                        return name if name in names else None
    return None


@lru_cache(maxsize=2)
def spelled_devices(analysis: Analysis) -> Mapping[Path, frozenset[tuple[int, int]]]:
    """Return the strings and numbers of each file that become the device of some move.

    A number counts if the move takes a name or an attribute that is assigned it: `config.device`.
    """
    locations: dict[Path, set[tuple[int, int]]] = defaultdict(set)
    modules = {top.module.path: top.module for top in analysis.scopes.values()}
    others = {path for path, module in modules.items() if not concerns_rules(module.data)}
    for call, scope in analysis.evaluator.calls():
        if scope.module.path in others:
            continue  # also a file of another framework, whose tensors are moved as those of torch
        last = getattr(call.func, "attr", "")
        arguments = call.args[:1] if last in MOVE else []
        named = [k.value for k in call.keywords if k.arg == "device"]
        if named and not _is_of_others(call, scope, analysis):
            arguments = [*arguments, *named]
        for arg in arguments:
            for value in analysis.evaluator.values(arg, scope):
                if isinstance(value, DeviceValue) and value.spelled is not None:
                    locations[value.spelled[0]].add(value.spelled[1])
            for number, at in _numbers_of(arg, scope, analysis):
                locations[at.module.path].add(_end_of(number, at))
    for top in analysis.scopes.values():  # a value compared in a test is a number to the script
        for compared, scope in top.compared:
            for side in (compared.left, *compared.comparators):
                for number, at in _numbers_of(side, scope, analysis):
                    locations[at.module.path].discard(_end_of(number, at))
    return {path: frozenset(places) for path, places in locations.items() if places}


def _end_of(number: ast.Constant, scope: Scope) -> tuple[int, int]:
    line = number.end_lineno or 0
    return line, scope.module.column(line, number.end_col_offset or 0)


def _numbers_of(
    node: ast.expr, scope: Scope, analysis: Analysis, depth: int = DEEPEST
) -> Iterator[tuple[ast.Constant, Scope]]:
    """Yield the possible integers of `node`: its own, those of a choice, and those assigned to it."""
    if depth == 0:
        return
    parts: list[ast.expr] = []
    match node:
        case ast.Constant(value=int()) if not isinstance(node.value, bool):
            yield node, scope
        case ast.IfExp(body=body, orelse=orelse):
            parts = [body, orelse]
        case ast.Subscript(value=ast.List(elts=elements) | ast.Tuple(elts=elements)):
            parts = elements
        case ast.Subscript(value=ast.Dict(values=elements)):
            parts = elements
        case ast.Name() | ast.Attribute():
            for binding in analysis.evaluator.origins(node, scope):
                if binding.value is not None:
                    yield from _numbers_of(binding.value, binding.scope, analysis, depth - 1)
    for part in parts:
        yield from _numbers_of(part, scope, analysis, depth - 1)


def generators_of(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls in a file that make a torch generator by another name, such as a derived class.

    For a class with its own `__new__`, they are the calls of its base there: the device argument of the base
    decides.
    """
    if not _speaks_of_generators(analysis):
        return
    for call, scope in analysis.calls_in(top):
        if _makes_generator(call, scope, analysis):
            yield call


@lru_cache(maxsize=2)
def _speaks_of_generators(analysis: Analysis) -> bool:
    return any(b"Generator" in module.data for module in analysis.project.modules.values())


def _makes_generator(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    evaluator = analysis.evaluator
    node: ast.expr = call.func
    own = class_around(scope)
    if isinstance(node, ast.Attribute) and node.attr in CONSTRUCTORS:
        by_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        if own is None or not _derives_from_generator(own, analysis):
            return False
        base = External(GENERATOR)
        return by_super or base in evaluator.values(node.value, scope)
    if own is not None and ast.unparse(node) in ("cls", "self.__class__", "type(self)"):
        return _is_made_by_generator(own, analysis)
    values = evaluator.values(node, scope)
    if any(isinstance(value, External) and value.name == "functools.partial" for value in values):
        values = evaluator.values(call.args[0], scope) if call.args else frozenset()
    return any(
        value == External(GENERATOR)
        or (isinstance(value, Class) and _is_made_by_generator(value, analysis))
        for value in values
    )


def _derives_from_generator(class_: Class, analysis: Analysis) -> bool:
    return GENERATOR in analysis.evaluator.external_bases(class_)


def _is_made_by_generator(class_: Class, analysis: Analysis) -> bool:
    """Whether a call of `class_` passes its arguments unchanged to the constructor of torch's generator."""
    return (
        _derives_from_generator(class_, analysis)
        and analysis.evaluator.method(class_, "__new__") is None
    )


def _is_of_others(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    values = analysis.evaluator.values(call.func, scope)
    return any(isinstance(value, External) and value.name.startswith(OTHERS) for value in values)


def _candidates(analysis: Analysis, top: ModuleScope) -> Iterator[tuple[ast.expr, Scope]]:
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                function = call.func
                last = getattr(function, "attr", None) or getattr(function, "id", "")
                if last in TAKE:
                    yield from ((arg, scope) for arg in call.args)
                elif (device := type_before_colon(call)) is not None:
                    yield device, scope
                for keyword in call.keywords:
                    if KEYWORDS.search(keyword.arg or ""):
                        yield keyword.value, scope
    for compared, scope in top.compared:
        yield from ((side, scope) for side in (compared.left, *compared.comparators))
    yield from _bound(top)


def _bound(top: ModuleScope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the values assigned and returned under names that may be a device's."""
    scopes: list[dict[str, list[ValueBinding]]] = [top.bindings]
    for class_ in top.classes:
        scopes += [class_.bindings, class_.attributes]
    for function in top.functions:
        scopes.append(function.bindings)
        if NAMES.search(function.name):
            yield from ((value, function) for value in function.returns)
    for bindings in scopes:
        for name, name_bindings in bindings.items():
            if NAMES.search(name):
                for binding in name_bindings:
                    if binding.value is not None and binding.kind == "value":
                        yield binding.value, binding.scope


def _parts(node: ast.expr) -> Iterator[Asked | ast.JoinedStr]:
    """Yield the parts whose kind rules may ask for: itself, both sides of a choice, `x` of `x.type`."""
    first = type_with_index(node)
    if first is not None:
        yield from _parts(first)
    match node:
        case ast.JoinedStr():
            yield node
        case ast.IfExp(body=one, orelse=other):
            yield from _parts(one)
            yield from _parts(other)
        case ast.Attribute(value=inner, attr="type" | "index"):
            yield node
            yield from _parts(inner)
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
            yield node


def _in_call(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the callee, the object of its attribute, and the arguments."""
    for node in (call.func, *call.args, *(keyword.value for keyword in call.keywords)):
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute | ast.Subscript):
            yield inner
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner


def _is_one(value: Value, analysis: Analysis) -> bool:
    if not isinstance(value, ClassInstance):
        return value in MODULES
    return any(MODULE_BASE.match(base) for base in analysis.evaluator.external_bases(value.of))
