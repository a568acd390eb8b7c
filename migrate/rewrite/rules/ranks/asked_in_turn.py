"""Lists of variables that are asked for in turn: which of them are set?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.values.environment import CALLS, ENVIRON
from migrate.syntax.tree import code, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

COMPREHENSIONS = (cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)
LISTS = (cst.Tuple, cst.List, cst.Set)
# Questions about two collections.
OF_SETS = frozenset({"difference", "intersection", "issubset", "isdisjoint"})
# Functions whose result says the same.
KEEP = frozenset({"all", "any", "bool", "dict", "len", "list", "set", "sum"})
DEPTH = 3  # so many functions and variables are followed


def listed(node: cst.SimpleString, context: Workspace) -> cst.Tuple | cst.List | cst.Set | None:
    """Return the list that the literal `node` is an element of."""
    element = context.parent(node)
    above = context.parent(element) if isinstance(element, cst.Element) else None
    return above if isinstance(above, LISTS) else None


def names_in(names: cst.Tuple | cst.List | cst.Set) -> list[str]:
    """Return the strings of a list."""
    values = (string_value(element.value) for element in names.elements)
    return [value for value in values if value is not None]


def asked(names: cst.BaseExpression, context: Workspace) -> Iterator[cst.CSTNode]:
    """Yield the questions which of `names` are set, where something depends on the answer.

    Comprehensions, loops and sets: `{n: os.environ[n] for n in NAMES if n in os.environ}`.
    """
    for use in _uses(names, context):
        question = _question(use, context)
        if question is not None:
            yield question


def _uses(names: cst.BaseExpression, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield `names` itself where it is used, or each use of the variable that it is assigned to."""
    value: cst.BaseExpression = names
    above = context.parent(value)
    wrapped = context.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(wrapped, cst.Call) and code(wrapped.func) in (
        "frozenset",
        "list",
        "set",
        "sorted",
        "tuple",
    ):
        value, above = wrapped, context.parent(wrapped)
    if isinstance(above, cst.AnnAssign):
        target: cst.CSTNode = above.target
    elif isinstance(above, cst.Assign) and len(above.targets) == 1:
        target = above.targets[0].target
    else:
        yield value
        return
    if not isinstance(target, cst.Name):
        return
    in_class = context.parent(context.parent(context.parent(above)))
    for mention in context.references(target.value):
        if mention is target:
            continue
        attribute = context.parent(mention)
        if isinstance(attribute, cst.Attribute) and attribute.attr is mention:
            owner = in_class.name.value if isinstance(in_class, cst.ClassDef) else None
            if code(attribute.value) in ("self", "cls", owner) and owner is not None:
                yield attribute
        elif context.bound_to(mention)[1] is value:
            yield mention


def _question(use: cst.BaseExpression, context: Workspace) -> cst.CSTNode | None:
    """Return what asks which of `use`, a list of names, are set, or None if nothing depends on it."""
    place: cst.BaseExpression = use
    above = context.parent(place)
    while isinstance(above, cst.Arg):  # sorted(NAMES)
        call = context.parent(above)
        if not isinstance(call, cst.Call):
            return None
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if method in OF_SETS and call.func is not place:
            other = call.func.value if isinstance(call.func, cst.Attribute) else call
            return call if _is_environment(other, context) and _decides(call, context) else None
        place, above = call, context.parent(call)
    if isinstance(above, cst.For) and above.iter is place:
        return above if _loop_decides(above, context) else None
    if isinstance(above, cst.CompFor) and above.iter is place:
        whole = context.parent(above)
        if isinstance(whole, COMPREHENSIONS) and isinstance(above.target, cst.Name):
            if _fails(whole, above, context):
                return whole
            if _asks(whole, above.target.value, context) and _decides(whole, context):
                return whole
        return None
    if isinstance(above, cst.BinaryOperation):
        other = above.right if above.left is place else above.left
        is_set = isinstance(above.operator, cst.Subtract | cst.BitAnd)
        return above if is_set and _of(other, context) and _decides(above, context) else None
    if isinstance(above, cst.Comparison | cst.ComparisonTarget):
        test = above if isinstance(above, cst.Comparison) else context.parent(above)
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            target = test.comparisons[0]
            other = target.comparator if test.left is place else test.left
            return test if _of(other, context) and _decides(test, context) else None
    if isinstance(above, cst.Attribute) and above.attr.value in OF_SETS:
        call = context.parent(above)
        if isinstance(call, cst.Call) and call.args and _of(call.args[0].value, context):
            return call if _decides(call, context) else None
    return None


def _of(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is the names of the environment: `os.environ`, its keys, or a set of them."""
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute) and value.func.attr.value == "keys":
            return _is_environment(value.func.value, context)
        return len(value.args) == 1 and _of(value.args[0].value, context)
    return _is_environment(value, context)


def _is_environment(value: cst.BaseExpression, context: Workspace) -> bool:
    return context.qualified_name(value) == ENVIRON


def _asks(root: cst.CSTNode, name: str, context: Workspace) -> bool:
    """Whether `root` asks whether the variable called `name` is set: `n in os.environ`, `os.getenv(n)`."""
    for comparison in context.below(root, cst.Comparison):
        target = comparison.comparisons[0]
        membership = isinstance(target.operator, cst.In | cst.NotIn)
        if membership and code(comparison.left) == name and _of(target.comparator, context):
            return True
    return any(
        context.qualified_name(call.func) in CALLS | {f"{ENVIRON}.get"}
        and len(call.args) == 1
        and code(call.args[0].value) == name
        for call in context.below(root, cst.Call)
    )


def _fails(whole: cst.CSTNode, loop: cst.CompFor, context: Workspace) -> bool:
    """Whether a comprehension takes each variable without asking: `[os.environ[n] for n in NAMES]`."""
    return not loop.ifs and any(
        _is_environment(taken.value, context)
        and code(taken.slice[0]) == code(loop.target)
        and not _asks(whole, code(loop.target), context)
        for taken in context.below(whole, cst.Subscript)
    )


def _loop_decides(loop: cst.For, context: Workspace) -> bool:
    """Whether a loop over names asks for each, and ends or keeps something where it is missing."""
    if not isinstance(loop.target, cst.Name):
        return False
    name = loop.target.value
    for test in context.below(loop.body, cst.If):
        if not _asks(test.test, name, context):
            continue
        branches = [test.body, *([test.orelse] if test.orelse is not None else [])]
        for branch in branches:
            if any(nodes_of(branch, cst.Raise)) or any(nodes_of(branch, cst.Return)):
                return True
            kept = [code(target.target) for target in nodes_of(branch, cst.AssignTarget)]
            kept += [code(statement.target) for statement in context.below(branch, cst.AugAssign)]
            kept += [
                code(call.func.value)
                for call in context.below(branch, cst.Call)
                if isinstance(call.func, cst.Attribute)
                and call.func.attr.value in ("append", "add")
            ]
            roots = {text.partition("[")[0] for text in kept} - {ENVIRON, "environ"}
            if any(_is_tested(root, loop, context) for root in roots):
                return True
    return False


def _is_tested(name: str, place: cst.CSTNode, context: Workspace) -> bool:
    """Whether a test of the function around `place` asks for the variable `name`."""
    around = context.function_around(place) or context.module
    return any(
        use.value == name and _decides(use, context, DEPTH - 1)
        for use in context.below(around, cst.Name)
        if not isinstance(context.parent(use), cst.AssignTarget)
    )


def _decides(value: cst.BaseExpression, context: Workspace, depth: int = DEPTH) -> bool:
    """Whether a test depends on `value`: itself, by a variable, or where its function is called."""
    below: cst.CSTNode = value
    for above in context.ancestors(value):
        if isinstance(above, cst.If | cst.IfExp | cst.While | cst.Assert):
            return below is above.test
        if isinstance(above, cst.Return):
            function = context.function_around(above)
            return function is not None and depth > 0 and _call_decides(function, context, depth)
        if isinstance(above, cst.Assign) and depth > 0:
            names = [code(target.target) for target in above.targets]
            return any(_name_decides(name, above, context, depth) for name in names)
        if isinstance(above, cst.NamedExpr) and depth > 0:
            if _name_decides(code(above.target), above, context, depth):
                return True
        elif isinstance(above, cst.BaseSmallStatement | cst.BaseStatement) or (
            isinstance(above, cst.Call) and below is not above.func and code(above.func) not in KEEP
        ):
            return False
        below = above
    return False


def _call_decides(function: cst.FunctionDef, context: Workspace, depth: int) -> bool:
    calls = [
        call
        for call in context.all_of(cst.Call)
        if any(callee is function for callee in context.called(call))
    ]
    if not calls:  # another file may ask
        return True
    return any(_decides(call, context, depth - 1) for call in calls)


def _name_decides(name: str, assign: cst.CSTNode, context: Workspace, depth: int) -> bool:
    last = name.rpartition(".")[2]
    around = context.function_around(assign)
    for mention in context.references(last):
        use: cst.CSTNode | None = mention
        if "." in name:
            use = context.parent(mention)
            if not isinstance(use, cst.Attribute) or code(use) != name:
                continue
        elif context.function_around(mention) is not around and around is not None:
            continue
        assert isinstance(use, cst.BaseExpression)
        if isinstance(context.parent(use), cst.AssignTarget):
            continue
        if _decides(use, context, depth - 1):
            return True
    return False
