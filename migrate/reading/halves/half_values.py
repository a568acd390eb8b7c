"""Values that an autocast region makes float16 on CUDA, and bfloat16 on XLA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import libcst as cst

from migrate.catalogue.words import CALLED_MODEL, DESCRIBES, DESCRIBING_METHODS
from migrate.errors import MigrateError
from migrate.model.calls.kind import Kind
from migrate.model.facts import ModuleCalls
from migrate.reading.facts import Facts
from migrate.reading.halves.operations import (
    COMPUTING,
    EQUAL_PARTS,
    FLOATS,
    LISTS,
    MAKING,
    MODULES,
    NARROW,
    NARROW_MODULES,
    PARAMETERS,
    PARTS,
    RANKING,
    REARRANGING,
    ROOTS,
    SAME_MODULES,
    TWO_SIDED,
    WIDE,
    WIDE_MODULES,
)
from migrate.reading.halves.regions import AutocastRegion, region_around
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import code, is_attribute_of_self, keyword, last_part, string_value

DEEPEST = 40


class Half(IntEnum):
    """Whether a value is half precision."""

    NO = 0
    UNKNOWN = 1  # nothing indicates it
    POSSIBLE = 2  # possible
    SURE = 3


@dataclass(frozen=True)
class Precision:
    """Precision of a value, as far as it is known.

    Args:
        half: whether the value is half precision.
        region: the region that makes the value so.
        wide: whether the value is float32: surely if it is not half, or in a branch if it may be half.
    """

    half: Half
    region: AutocastRegion | None = None
    wide: bool = False


NO = Precision(Half.NO)
FLOAT32 = Precision(Half.NO, wide=True)
UNKNOWN = Precision(Half.UNKNOWN)


@lru_cache(maxsize=2)
def half_values_of(facts: Facts) -> HalfValues:
    """Return the half values of a script."""
    return HalfValues(facts)


@lru_cache(maxsize=2)
def narrow_values_of(facts: Facts) -> HalfValues:
    """Return the half values of a script, including those that are bfloat16 on CUDA."""
    return HalfValues(facts, narrow=True)


@lru_cache(maxsize=8)
def _elsewhere(path: Path, narrow: bool = False) -> HalfValues | None:
    """Return the half values of another file of the project, without following calls to further files."""
    try:
        source = parse(path.read_bytes(), path)
    except (OSError, MigrateError, RecursionError):
        return None
    return HalfValues(Facts(Script(source, ModuleCalls())), follows=False, narrow=narrow)


class HalfValues:
    """Search that follows values back to the autocast regions that computed them.

    Args:
        facts: the script.
        follows: whether functions of other files are followed.
        narrow: whether bfloat16 regions count, too.
    """

    def __init__(self, facts: Facts, *, follows: bool = True, narrow: bool = False) -> None:
        self._narrow = narrow
        self._facts = facts
        self._follows = follows
        self._context = facts.context
        self._under_way: set[tuple[int, int]] = set()

    def of(self, node: cst.BaseExpression, around: AutocastRegion | None = None) -> Precision:
        """Return the precision of `node`: a tensor, or a container of tensors.

        Args:
            node: the expression.
            around: the region that the function around `node` is called in.
        """
        key = (id(node), id(around))
        if key in self._under_way or len(self._under_way) > DEEPEST:
            return UNKNOWN
        self._under_way.add(key)
        try:
            return self._of(node, around)
        finally:
            self._under_way.discard(key)

    def _of(self, node: cst.BaseExpression, around: AutocastRegion | None) -> Precision:
        if isinstance(node, cst.Call):
            return self._of_call(node, around)
        if isinstance(node, cst.Name):
            return self._of_name(node, around)
        if isinstance(node, cst.Attribute):
            return self._of_attribute(node, around)
        if isinstance(node, cst.Subscript):
            return self._of_item(node, around)
        if isinstance(node, cst.IfExp):
            return either(self.of(side, around) for side in (node.body, node.orelse))
        if isinstance(node, cst.NamedExpr):
            return self.of(node.value, around)
        if isinstance(node, cst.UnaryOperation):
            negates = isinstance(node.operator, cst.Minus | cst.Plus)
            return self.of(node.expression, around) if negates else NO
        if isinstance(node, cst.BinaryOperation):
            return self._of_operation(node, around)
        if isinstance(node, cst.List | cst.Tuple):
            return every(self.of(element.value, around) for element in node.elements)
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            return self.of(node.elt, around)
        return NO

    def _region(self, node: cst.CSTNode, around: AutocastRegion | None) -> AutocastRegion | None:
        """Return the region that counts for `node`."""
        region = region_around(node, self._context) or around
        counts = region is not None and (region.narrow if self._narrow else region.half)
        return region if counts else None

    def _of_name(self, name: cst.Name, around: AutocastRegion | None) -> Precision:
        parameter = self._facts.bindings.parameter(name)
        assignments = self._facts.bindings.reaching(name)
        if not assignments and parameter is not None:
            function, param = parameter
            passed = list(self._facts.bindings.passed(function, param.name.value))
            return either(self.of(value) for value in passed) if passed else UNKNOWN
        put = [put.value for put in self._facts.bindings.put_into(name)]
        if put and all(_is_empty(assignment.value) for assignment in assignments):
            return some(self.of(value, around) for value in put)
        return (
            either(self._of_given(assignment, around) for assignment in assignments)
            if assignments
            else UNKNOWN
        )

    def _of_given(self, assignment: Assignment, around: AutocastRegion | None) -> Precision:
        value = assignment.value
        if value is None or assignment.how in (How.COUNTER, How.OTHER):
            return NO
        if assignment.how is How.PART:
            return self._part(value, assignment, around)
        if assignment.how is How.ADDED:
            precision = self.of(value, around)
            return UNKNOWN if precision.half else precision
        return self.of(value, around)

    def _part(
        self, value: cst.BaseExpression, assignment: Assignment, around: AutocastRegion | None
    ) -> Precision:
        """Return the precision of one element of the tuple `value` that a call or method returns."""
        if not isinstance(value, cst.Call):
            precision = self.of(value, around)
            return UNKNOWN if isinstance(value, cst.Tuple) else precision
        ranked = self._ranked(value)
        if ranked is not None:
            return self.of(ranked, around) if assignment.index == 0 else NO  # indices
        if last_part(value.func) in EQUAL_PARTS and self._computes(value):
            return self.of(value, around)
        followed = self._followed(value)
        if not followed:
            # A model that returns several values: the others may be losses, masks or indices.
            return Precision(Half.UNKNOWN if self.of(value, around).half else Half.NO)
        region = self._region(value, around)
        return either(
            part
            for half_values, function in followed
            for part in half_values.part_returned(function, assignment, region)
        )

    def part_returned(
        self, function: cst.FunctionDef, assignment: Assignment, around: AutocastRegion | None
    ) -> Iterator[Precision]:
        """Yield the precision of one element of the tuples that a function of the script returns.

        Args:
            function: the function.
            assignment: the assignment whose name gets the element.
            around: the region that the function is called in.
        """
        for returned in self._facts.bindings.returns[id(function)]:
            part = UNKNOWN
            if isinstance(returned, cst.Tuple) and assignment.index is not None:
                elements = returned.elements
                if assignment.index < len(elements) == assignment.count:
                    part = self.of(elements[assignment.index].value, around)
            yield part

    def returned(
        self, function: cst.FunctionDef, around: AutocastRegion | None
    ) -> Iterator[Precision]:
        """Yield the precision of the values that a function of the script, called in `around`, returns."""
        for value in self._facts.bindings.returns[id(function)]:
            yield self.of(value, around)

    def _ranked(self, call: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the tensor whose values and indices `call` gives: `x` of `x.max(1)`, `x.topk(5)`."""
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return None
        if call.func.attr.value not in RANKING or not call.args:
            return None
        if self._function(call) is None:
            return call.func.value
        return call.args[0].value if len(call.args) > 1 else None

    def _of_attribute(self, node: cst.Attribute, around: AutocastRegion | None) -> Precision:
        if node.attr.value in PARTS:
            return self.of(node.value, around)
        if node.attr.value in DESCRIBES or self._context.qualified_name(node):
            return NO
        ranked = self._ranked(node.value)
        if ranked is not None:
            return self.of(ranked, around) if node.attr.value == "values" else NO
        if is_attribute_of_self(node):
            put = [put.value for put in self._facts.bindings.put_into(node)]
            values = self._assigned(node)
            if put:
                return some(self.of(value) for value in put)
            return either(self.of(value) for value in values) if values else UNKNOWN
        precision = self.of(node.value, around)
        # Attributes of an output: `out.logits`, `out.loss`, `out.ids`.
        return Precision(Half.UNKNOWN) if precision.half else NO

    def _assigned(self, node: cst.Attribute) -> list[cst.BaseExpression]:
        """Return the values that the class around assigns to its attribute."""
        around = self._context.class_around(node)
        return [
            value
            for target, value in self._context.attributes.get(node.attr.value, ())
            if value is not None and self._context.class_around(target) is around
        ]

    def _of_item(self, node: cst.Subscript, around: AutocastRegion | None) -> Precision:
        index = node.slice[0].slice if len(node.slice) == 1 else None
        ranked = self._ranked(node.value)
        if ranked is not None:
            first = isinstance(index, cst.Index) and code(index.value) == "0"
            return self.of(ranked, around) if first else NO
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        if key is None:
            return self.of(node.value, around)
        if not isinstance(node.value, cst.Name | cst.Attribute):
            return UNKNOWN
        put = [stored for stored in self._facts.bindings.put_into(node.value) if stored.key == key]
        if put:
            return some(self.of(stored.value, around) for stored in put)
        values: list[cst.BaseExpression | None] = []
        if isinstance(node.value, cst.Name):
            values = [assignment.value for assignment in self._facts.bindings.reaching(node.value)]
        entries = [
            element.value
            for value in values
            if isinstance(value, cst.Dict)
            for element in value.elements
            if isinstance(element, cst.DictElement) and string_value(element.key) == key
        ]
        return either(self.of(entry, around) for entry in entries) if entries else UNKNOWN

    def _of_operation(self, node: cst.BinaryOperation, around: AutocastRegion | None) -> Precision:
        region = self._region(node, around)
        if isinstance(node.operator, cst.MatrixMultiply) and region is not None:
            return Precision(Half.SURE, region)
        if isinstance(node.operator, cst.Power):
            return FLOAT32 if region is not None else self.of(node.left, around)
        return self._of_sides(node.left, node.right, around)

    def _of_sides(
        self, left: cst.BaseExpression, right: cst.BaseExpression, around: AutocastRegion | None
    ) -> Precision:
        """Return the precision of an operation that takes the wider type of its two sides."""
        sides = [self.of(left, around), self.of(right, around)]
        if FLOAT32 in sides:
            return FLOAT32
        if all(side.half for side in sides):
            return min(sides, key=lambda side: side.half)
        half, other = (0, right) if sides[0].half else (1, left)
        plain = isinstance(other, cst.BaseNumber)
        if not plain and self._facts.values.is_tensor(other):
            return NO  # one operand is most likely float32, which decides
        precision = sides[half]
        return precision if plain or not precision.half else Precision(Half.UNKNOWN)

    def _computes(self, call: cst.Call) -> bool:
        """Whether `call` is a function of torch or a method, none of the project."""
        return self._function(call) is not None or not self._context.run_by(call)

    def _of_call(self, call: cst.Call, around: AutocastRegion | None) -> Precision:
        region = self._region(call, around)
        name = self._function(call)
        if name is not None:
            return self._of_torch(name, call, region, around)
        followed = self._followed(call)
        if followed:
            return either(
                part
                for half_values, function in followed
                for part in half_values.returned(function, region)
            )
        qualified = self._context.qualified_name(call.func)
        if qualified in PARAMETERS:
            return FLOAT32
        if qualified in REARRANGING and call.args:
            return self.of(call.args[0].value, around)
        if isinstance(call.func, cst.Name) and call.func.value in LISTS and call.args:
            return self.of(call.args[0].value, around)
        if qualified is None and isinstance(call.func, cst.Attribute):
            precision = self._of_method(call, call.func, region, around)
            if precision is not None:
                return precision
        if self._is_model(call):
            return self._of_model(call, region, around)
        if isinstance(call.func, cst.Attribute) and qualified is None:
            # Another method of a tensor: `argmax`, `eq`, `tolist`.
            return NO if self.of(call.func.value, around).half >= Half.POSSIBLE else UNKNOWN
        return UNKNOWN

    def _function(self, call: cst.Call) -> str | None:
        """Return the last part of the name of the torch function that `call` calls."""
        name = self._context.qualified_name(call.func) or ""
        for root in ROOTS:
            if name.startswith(root):
                rest = name[len(root) :]
                return rest if "." not in rest else None
        return None

    def _of_torch(
        self,
        name: str,
        call: cst.Call,
        region: AutocastRegion | None,
        around: AutocastRegion | None,
    ) -> Precision:
        if region is not None and name in NARROW:
            return Precision(Half.SURE, region)
        asked = keyword(call, "dtype")
        if asked is not None:
            return self._of_type(asked)
        if name in MAKING or (region is not None and name in WIDE):
            return FLOAT32
        if name not in COMPUTING and name != "where":
            return NO
        args = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
        if name == "where":
            return every(self.of(arg, around) for arg in args[1:3])
        return self.of(args[0], around) if args else UNKNOWN

    def _of_method(
        self,
        call: cst.Call,
        func: cst.Attribute,
        region: AutocastRegion | None,
        around: AutocastRegion | None,
    ) -> Precision | None:
        """Return the precision of a tensor method's result; None for a method that may be a model's."""
        name = func.attr.value
        if name in ("to", "type"):
            moves = name == "to" and all(self._is_place(arg) for arg in call.args)
            if moves:
                return self.of(func.value, around)
            return FLOAT32 if any(self._of_type(arg) is FLOAT32 for arg in call.args) else NO
        if is_attribute_of_self(func) or name in DESCRIBING_METHODS:
            return None
        if name == "float":
            return FLOAT32
        if name in ("type_as", "double", "half", "bfloat16"):
            return NO
        if name in ("copy", "values"):
            return self.of(func.value, around)
        if name in ("max", "min", "median") and not call.args:
            return self.of(func.value, around)
        if name in COMPUTING:
            if region is not None and name in NARROW:
                return Precision(Half.SURE, region)
            asked = keyword(call, "dtype")
            if asked is not None:
                return self._of_type(asked)
            if region is not None and name in WIDE:
                return FLOAT32
            if name in TWO_SIDED and call.args:
                return self._of_sides(func.value, call.args[0].value, around)
            return self.of(func.value, around)
        return None

    def _of_type(self, arg: cst.Arg) -> Precision:
        """Return the precision of a value converted to the type `arg`."""
        return FLOAT32 if self._context.qualified_name(arg.value) in FLOATS else NO

    def _is_place(self, arg: cst.Arg) -> bool:
        """Whether an argument of `x.to(…)` is neither a dtype nor a tensor."""
        if arg.keyword is not None:
            return arg.keyword.value in ("device", "non_blocking", "copy", "memory_format")
        name = self._context.qualified_name(arg.value) or ""
        if name.startswith("torch."):
            return name == "torch.device" or isinstance(arg.value, cst.Call)
        if string_value(arg.value) is not None or isinstance(arg.value, cst.FormattedString):
            return True
        if last_part(arg.value) in ("True", "False"):
            return True  # `non_blocking`
        return self._facts.values.device(arg.value) is not Kind.UNKNOWN

    def _followed(self, call: cst.Call) -> list[tuple[HalfValues, cst.FunctionDef]]:
        """Return the functions that `call` runs, with their files' values; empty if a file is not read."""
        functions: list[tuple[HalfValues, cst.FunctionDef]] = []
        for definition in self._context.run_by(call):
            values: HalfValues | None = self
            if definition.path != self._context.file:
                values = _elsewhere(definition.path, self._narrow) if self._follows else None
            function = values.function_at(definition.line) if values is not None else None
            if values is None or function is None or not values.has_result(function):
                return []
            functions.append((values, function))
        if not functions and is_attribute_of_self(call.func):
            around = self._context.class_around(call)
            for method in around.body.body if around is not None else ():
                named = isinstance(method, cst.FunctionDef) and method.name.value == last_part(
                    call.func
                )
                if isinstance(method, cst.FunctionDef) and named and self.has_result(method):
                    functions.append((self, method))
        return functions

    def function_at(self, line: int) -> cst.FunctionDef | None:
        """Return the function of the script whose `def` stands in `line`."""
        return self._context.function_at(line)

    def has_result(self, function: cst.FunctionDef) -> bool:
        """Whether a function of the script returns something."""
        return bool(self._facts.bindings.returns[id(function)])

    def _is_model(self, call: cst.Call) -> bool:
        named = last_part(call.func)
        if "criterion" in named or "loss" in named:
            return False
        if is_attribute_of_self(call.func) and not CALLED_MODEL.fullmatch(named):
            return bool(self._layers(call.func))
        return (
            self._facts.values.calls_model(call) or self._facts.values.kind(call.func) is Kind.MODEL
        )

    def _layers(self, func: cst.BaseExpression) -> list[cst.Call]:
        """Return the calls that create the module `func`."""
        values: list[cst.BaseExpression | None] = []
        if is_attribute_of_self(func):
            values = list(self._assigned(cst.ensure_type(func, cst.Attribute)))
        elif isinstance(func, cst.Name):
            values = [assignment.value for assignment in self._facts.bindings.given(func)]
        for value in values:
            if isinstance(value, cst.IfExp):
                values += [value.body, value.orelse]
        return [value for value in values if isinstance(value, cst.Call)]

    def _of_model(
        self, call: cst.Call, region: AutocastRegion | None, around: AutocastRegion | None
    ) -> Precision:
        """Return the precision of the output of a module whose `forward` is not in the script."""
        argument = call.args[0].value if call.args else None
        layers = self._layers(call.func)
        precisions = [self._of_layer(layer, argument, region, around) for layer in layers]
        known = [precision for precision in precisions if precision is not None]
        if known and len(known) == len(precisions):
            return either(known)
        return Precision(Half.SURE, region) if region is not None else UNKNOWN

    def _of_layer(
        self,
        layer: cst.Call,
        argument: cst.BaseExpression | None,
        region: AutocastRegion | None,
        around: AutocastRegion | None,
    ) -> Precision | None:
        """Return the precision of the output of a torch layer; None for another module."""
        name = self._context.qualified_name(layer.func) or self._given_class(layer.func)
        if not name.startswith(MODULES):
            return None
        kind = name.rpartition(".")[2]
        if kind == "Sequential":
            last = layer.args[-1].value if layer.args and not layer.args[-1].star else None
            return (
                self._of_layer(last, argument, region, around)
                if isinstance(last, cst.Call)
                else None
            )
        if kind in NARROW_MODULES:
            return Precision(Half.SURE, region) if region is not None else UNKNOWN
        if kind in SAME_MODULES and argument is not None:
            return self.of(argument, around)
        return FLOAT32 if kind in WIDE_MODULES and region is not None else NO

    def _given_class(self, func: cst.BaseExpression) -> str:
        """Return the class that the name `func` holds: `norm_layer=nn.LayerNorm`; empty if it is no class."""
        if not isinstance(func, cst.Name):
            return ""
        names = {self._context.qualified_name(value) for value in self._facts.values.given_to(func)}
        return (names.pop() or "") if len(names) == 1 else ""


def either(precisions: Iterable[Precision]) -> Precision:
    """Return the precision of a value that is one of several: sure if no other is known."""
    parts = list(precisions)
    best = max(parts, key=lambda part: part.half, default=NO)
    others = [part for part in parts if part.half is Half.NO]
    if best.half is Half.SURE and others:
        return Precision(Half.POSSIBLE, best.region, any(other.wide for other in others))
    if best.half is Half.NO:
        return FLOAT32 if parts and all(part.wide for part in parts) else NO
    return best


def some(precisions: Iterable[Precision]) -> Precision:
    """Return the precision of a list of values that become one tensor: the surest."""
    return max(precisions, key=lambda precision: precision.half, default=NO)


def every(precisions: Iterable[Precision]) -> Precision:
    """Return the precision of several values that may each differ: the least sure."""
    return min(precisions, key=lambda precision: precision.half, default=NO)


def _is_empty(value: cst.BaseExpression | None) -> bool:
    """Whether `value` is a container without elements."""
    if isinstance(value, cst.Call):
        return not value.args and last_part(value.func) in ("list", "deque", "dict", "set")
    return isinstance(value, cst.List | cst.Dict) and not value.elements
