"""Values that a loop iterates over, and whether the loop already ends its graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import STEPS
from migrate.model.calls.kind import Kind
from migrate.reading.names.bindings import How, passed_for
from migrate.syntax.tree import (
    base_name,
    code,
    is_attribute_of_self,
    last_part,
    nodes_of,
    string_value,
    targets,
)

if TYPE_CHECKING:
    from migrate.reading.script import Script

Loop = cst.For | cst.While
# Functions that yield the same numbers in another order, or show the progress.
HANDED_ON = frozenset({"cycle", "iter", "list", "reversed", "set", "sorted", "tqdm", "tuple"})
# Functions of NumPy whose result is numbers of the host.
COUNTING = frozenset(f"numpy.{name}" for name in ("arange", "geomspace", "linspace", "logspace"))
# Functions of torch whose arguments without a name are sizes, all of them or the first.
SIZED = frozenset({"zeros", "ones", "empty", "eye", "rand", "randn", "full", "arange"})
SEEDS = frozenset({"numpy.random.seed", "random.seed", "torch.manual_seed"})
TEXT = cst.SimpleString | cst.FormattedString | cst.ConcatenatedString


def loops(root: cst.CSTNode) -> Iterator[Loop]:
    """Return the loops at and below `root`."""
    return nodes_of(root, cst.For | cst.While)  # type: ignore[arg-type]


def has_sync(loop: Loop | cst.FunctionDef, context: Script) -> bool:
    """Whether the loop, a block around it, or a function that trains in it already ends its graphs.

    `MpDeviceLoader` ends the graph before it yields the next batch.
    """
    if isinstance(loop, cst.For) and context.values.kind(loop.iter) is Kind.DEVICE_LOADER:
        return True
    calls = list(nodes_of(loop, cst.Call))
    seen: set[int] = set()
    places: list[cst.CSTNode] = [loop]
    while places:
        for callee in context.effects.callees([places.pop()]):
            if id(callee) not in seen:
                seen.add(id(callee))
                places.append(callee.body)
                calls.extend(nodes_of(callee.body, cst.Call))
    for above in context.ancestors(loop):
        if isinstance(above, cst.With):
            calls.extend(item.item for item in above.items if isinstance(item.item, cst.Call))
    return any(context.qualified_name(call.func) in STEPS for call in calls)


def batch_names(loop: Loop, context: Script) -> list[str]:
    """Return the names that the loop binds to a batch.

    The counter of `enumerate`, or of a generator that counts, is left out, as is the key of a mapping's
    items. So are the numbers of a range or a list (`zip(x, reversed(range(10)))`, `LENGTHS`), names that
    the loop uses as sizes, and the parts of a host tensor: `for now, then in zip(times[:-1], times[1:])`.
    """
    names = [
        name
        for target, over in _bound(loop, context)
        if over is None or not _is_of_host(over, context)
        for name in _names(target)
        if name != "_"
    ]
    numbers = _used_as_numbers(loop, names, context)
    return [name for name in names if name not in numbers]


def numbers_of_host(loop: Loop, context: Script) -> list[str]:
    """Return the names that the loop binds to parts of host tensors."""
    return [
        name
        for target, over in _bound(loop, context)
        if over is not None and _is_of_host(over, context)
        for name in _names(target)
    ]


def on_device(loop: Loop, context: Script) -> set[str]:
    """Return the names that the loop binds to parts of device tensors."""
    return {
        name
        for target, over in _bound(loop, context)
        if over is not None and context.values.on_device(over)
        for name in _names(target)
    }


def _bound(
    loop: Loop, context: Script
) -> list[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Return what the loop binds besides a counter, with the iterable of each, if that is plain."""
    if not isinstance(loop, cst.For) or _called(loop.iter) in ("range", "trange"):
        return []
    target: cst.BaseExpression = loop.target
    over = context.values.bindings.iterated(loop.iter)
    if _called(over) == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        assert isinstance(over, cst.Call)
        target, over = target.elements[1].value, over.args[0].value if over.args else over
    elif (
        isinstance(target, cst.Tuple)
        and len(target.elements) == 2
        and (context.place(over) in context.calls.counted or _gives_items(over))
    ):
        items = over if _gives_items(over) and _counts(over, context) else None
        return [(target.elements[1].value, items)]
    if isinstance(over, cst.Call) and over.args and _called(over.args[0].value) == "zip":
        over = over.args[0].value  # tqdm(zip(...))
    zipped = over.args if isinstance(over, cst.Call) and _called(over) == "zip" else ()
    zipped = [arg for arg in zipped if arg.keyword is None]  # not `strict=True`
    if isinstance(target, cst.Tuple) and len(zipped) == len(target.elements):
        pairs = zip(target.elements, zipped, strict=True)
        return [(part.value, arg.value) for part, arg in pairs]
    return [(target, over if _counts(over, context) else None)]


def _gives_items(value: cst.BaseExpression) -> bool:
    """Whether `value` is `mapping.items()`."""
    return isinstance(value, cst.Call) and last_part(value.func) == "items" and not value.args


def _called(value: cst.BaseExpression) -> str | None:
    """Return the name of the called function without its module: `itertools.count()`."""
    func = value.func if isinstance(value, cst.Call) else None
    if isinstance(func, cst.Attribute) and code(func.value) == "itertools":
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else None


def _is_of_host(value: cst.BaseExpression, context: Script) -> bool:
    """Whether `value` counts, or is a part of a host value, such as a tensor that is not moved."""
    if _counts(value, context):
        return True
    return isinstance(value, cst.Subscript) and context.values.kind(value) is Kind.HOST


def _counts(value: cst.BaseExpression | None, context: Script, depth: int = 6) -> bool:
    """Whether `value` yields numbers or texts: a range, a list that is written out, keys of a mapping.

    It may be reversed, sliced, zipped, numbered, in a progress bar, under a name or in a configuration.
    """
    if value is None or not depth:
        return False
    depth -= 1
    while _called(value) in HANDED_ON:
        args = cst.ensure_type(value, cst.Call).args
        if not args:
            return False
        value = args[0].value
    if _called(value) in ("zip", "enumerate"):
        args = [arg for arg in cst.ensure_type(value, cst.Call).args if arg.keyword is None]
        args = args[:1] if _called(value) == "enumerate" else args
        return bool(args) and all(_counts(arg.value, context, depth) for arg in args)
    if isinstance(value, cst.Call):
        return _call_counts(value, context, depth)
    if isinstance(value, cst.BinaryOperation):
        return _counts(value.left, context, depth) and (
            context.values.is_number(value.right) or _counts(value.right, context, depth)
        )
    if isinstance(value, cst.IfExp):
        return _counts(value.body, context, depth) and _counts(value.orelse, context, depth)
    if isinstance(value, cst.Subscript):
        if any(isinstance(element.slice, cst.Slice) for element in value.slice):
            return _counts(value.value, context, depth)
        entries = _entries(value, context)
        return bool(entries) and all(_counts(entry, context, depth) for entry in entries)
    if isinstance(value, cst.Dict):
        return True  # a loop over it gets its keys
    if isinstance(value, cst.List | cst.Tuple | cst.Set):
        elements = [element.value for element in value.elements]
        return bool(elements) and _are_plain(elements, context)
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        turns = value.for_in
        names = {*_names(turns.target)} if _counts(turns.iter, context, depth) else set()
        return turns.inner_for_in is None and _is_computed_of(value.elt, names, context)
    values = _values_of(value, context)
    return bool(values) and all(_counts(source, context, depth) for source in values)


def _call_counts(call: cst.Call, context: Script, depth: int) -> bool:
    """Whether the result of `call` yields numbers or texts."""
    if _called(call) in ("range", "trange", "count"):
        return True
    if context.qualified_name(call.func) in COUNTING:
        return True
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("values", "keys", "items"):
        mappings = [call.func.value]
        if not isinstance(call.func.value, cst.Dict):
            mappings = [*_values_of(call.func.value, context)]
        listed = [mapping for mapping in mappings if isinstance(mapping, cst.Dict)]
        if not listed or len(listed) < len(mappings):
            return False
        return call.func.attr.value == "keys" or all(
            _are_plain(_dict_values(mapping), context) for mapping in listed
        )
    if context.qualified_name(call.func) in ("random.choices", "random.sample") and call.args:
        return _counts(call.args[0].value, context, depth)
    return False


def _entries(node: cst.Subscript, context: Script) -> list[cst.BaseExpression]:
    """Return the values of `mapping["key"]` in the dictionaries, written out, that `mapping` may be."""
    index = node.slice[0].slice
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    if key is None:
        return []
    entries: list[cst.BaseExpression] = []
    for mapping in _values_of(node.value, context):
        if not isinstance(mapping, cst.Dict):
            return []
        for element in mapping.elements:
            if isinstance(element, cst.DictElement) and string_value(element.key) == key:
                entries.append(element.value)
    return entries


def _dict_values(mapping: cst.Dict) -> list[cst.BaseExpression]:
    return [element.value for element in mapping.elements]


def _values_of(node: cst.BaseExpression, context: Script) -> list[cst.BaseExpression]:
    """Return the values of a variable, parameter, attribute of `self` or of a class; empty if one is unknown.

    So it is if something else is put into it: `lengths.append(x)`.
    """
    bindings = context.values.bindings
    if isinstance(node, cst.Name):
        if not _are_plain([put.value for put in bindings.put_into(node)], context):
            return []
        assignments = bindings.given(node)
        if not assignments:
            return passed_for(node, context)
        values = [a.value if a.how is How.VALUE else None for a in assignments]
        return [value for value in values if value is not None] if None not in values else []
    if not isinstance(node, cst.Attribute):
        return []
    if is_attribute_of_self(node):
        is_put = not _are_plain([put.value for put in bindings.put_into(node)], context)
        return [] if is_put else context.values.assigned(node)
    if isinstance(node.value, cst.Name) and node.value.value in bindings.classes:
        return _class_values(node.value.value, node.attr.value, context)
    attributes: list[cst.BaseExpression] = []
    for owner in _objects(node.value, context):
        if not isinstance(owner, cst.Call):
            return []
        maker = last_part(owner.func)
        if maker in bindings.classes:
            attributes += _class_values(maker, node.attr.value, context)
        elif maker == "parse_args":
            attributes += context.values.option_defaults(node.attr.value)
    return attributes


def _objects(node: cst.BaseExpression, context: Script, depth: int = 4) -> list[cst.BaseExpression]:
    """Return what `node` may be, each name followed to a value: `parser.parse_args()` of `args`."""
    if not depth or not isinstance(node, cst.Name):
        return [node]
    return [
        value
        for source in _values_of(node, context)
        for value in _objects(source, context, depth - 1)
    ]


def _class_values(class_: str, name: str, context: Script) -> list[cst.BaseExpression]:
    """Return the values that the body of a class of the script assigns to `name`."""
    values: list[cst.BaseExpression] = []
    for line in context.values.bindings.classes[class_].body.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if not isinstance(statement, cst.Assign | cst.AnnAssign) or statement.value is None:
                continue
            if name in [base_name(target) for target in targets(statement)]:
                values.append(statement.value)
    return values


def _are_plain(values: Iterable[cst.BaseExpression], context: Script) -> bool:
    """Whether all `values` are numbers or texts, or tuples of these."""
    return all(
        _are_plain([element.value for element in value.elements], context)
        if isinstance(value, cst.List | cst.Tuple)
        else isinstance(value, TEXT)
        or (isinstance(value, cst.Name) and value.value == "None")
        or context.values.is_number(value)
        for value in values
    )


def _is_computed_of(value: cst.BaseExpression, names: set[str], context: Script) -> bool:
    """Whether `value` is computed from numbers, of which `names` are some."""
    if isinstance(value, cst.Name) and value.value in names:
        return True
    if isinstance(value, cst.BinaryOperation):
        sides = (value.left, value.right)
        return all(_is_computed_of(side, names, context) for side in sides)
    return context.values.is_number(value)


def _used_as_numbers(loop: Loop, names: Collection[str], context: Script) -> set[str]:
    """Return the `names` that are sizes, bounds of a range or seeds in the loop: `torch.randn(8, length)`."""
    if not names:
        return set()
    used: set[str] = set()
    for call in context.below(loop.body, cst.Call):
        name = context.qualified_name(call.func) or _called(call) or ""
        module, _, last = name.rpartition(".")
        if (last in SIZED and module == "torch") or name in ("range", *SEEDS):
            args = [arg.value for arg in call.args if arg.keyword is None or name in SEEDS]
            sizes = [*args[:1]] if last == "full" else args
            parts = (
                [element.value for element in arg.elements]
                if isinstance(arg, cst.List | cst.Tuple)
                else [arg]
                for arg in sizes
            )
            used |= {n.value for part in parts for n in part if isinstance(n, cst.Name)}
    return used & {*names}


def _names(target: cst.BaseExpression) -> list[str]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _names(element.value)]
    return [target.value] if isinstance(target, cst.Name) else []
