"""Record of optimizers, schedulers and functions of the running script; called in the script's process."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from migrate.train.optimizer.recorded import (
    SCALE,
    RecordedFunction,
    RecordedGroup,
    RecordedSchedule,
)

# How deep functions that call functions are followed; recursion has no end.
_DEPTH = 8
# Turns of a loop in a function that are written one by one.
_MOST_TURNS = 16
# Entries of a table of the script that is written out.
_MOST_ENTRIES = 4096


def recorded_groups(optimizer: Any, names: Mapping[int, str]) -> tuple[RecordedGroup, ...]:
    """Return the groups of an optimizer.

    Args:
        optimizer: the optimizer, before its first update.
        names: `id` of each parameter → its torch name; parameters without a name are left out.
    """
    return tuple(
        RecordedGroup(
            tuple(names[id(p)] for p in group["params"] if id(p) in names),
            {
                key: value
                for k, v in group.items()
                if k != "params"
                for key, value in [(k, plain(v))]
            },
        )
        for group in optimizer.param_groups
    )


def recorded_schedule(
    scheduler: Any, counts: tuple[int, ...] = (), line: int = 0
) -> RecordedSchedule:
    """Return what a scheduler is made of.

    Args:
        scheduler: a scheduler of torch, before its first `step()`.
        counts: number of its `step()` calls before each recorded update.
        line: line of the script that creates it.
    """
    cls = type(scheduler)
    attributes = vars(scheduler)
    options = {key: plain(value) for key, value in attributes.items() if is_plain(value)}
    if attributes.get(SCALE) is not None:
        options[SCALE] = True
    # a counter of milestones is a dictionary by step
    functions = attributes.get("lr_lambdas", ())
    children = attributes.get("_schedulers", ())
    return RecordedSchedule(
        f"{cls.__module__}.{cls.__qualname__}",
        options,
        tuple(recorded_function(function) for function in functions),
        tuple(recorded_schedule(child) for child in children),
        counts,
        line,
    )


def recorded_function(function: Callable[..., Any], depth: int = 0) -> RecordedFunction:
    """Return the source of a function, and the plain values that it reads.

    An object with `__call__` has no source here.
    """
    keywords: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        keywords = {**function.keywords, **keywords}
        if function.args:
            return RecordedFunction(getattr(function.func, "__name__", "partial"), "")
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    node, source = _definition(function) if code is not None else (None, "")
    if node is None or code is None:
        return RecordedFunction(name, "", module=getattr(function, "__module__", "") or "")
    own: dict[str, Any] = {}
    if inspect.ismethod(function):
        if not isinstance(node, ast.FunctionDef) or not node.args.args:
            return RecordedFunction(name, "", module=function.__module__ or "")
        own = {node.args.args[0].arg: function.__self__}
        node = _as_function(node, own)
        source = ast.unparse(node)
    values, functions = _reads(node, lambda dotted: _value(function, dotted, own), depth)
    for text, value in _defaults(node, function).items():
        if is_plain(value):
            values.setdefault(text, plain(value))
    return RecordedFunction(
        name,
        source,
        values,
        functions,
        {key: plain(value) for key, value in keywords.items()},
        getattr(function, "__module__", "") or "",
        code.co_firstlineno,
    )


def recorded_part(
    node: ast.FunctionDef, local: Mapping[str, Any], of_module: Mapping[str, Any]
) -> RecordedFunction:
    """Return a function made of statements of another one, and the plain values that it reads.

    Args:
        node: the function; its own parameters have no values.
        local: values of the other function's names when it is called.
        of_module: those of its module.
    """
    value = _value_in(local, of_module, [argument.arg for argument in node.args.args])
    values, functions = _reads(node, value, 0)
    name = str(of_module.get("__name__", ""))
    return RecordedFunction(
        node.name, ast.unparse(node), values, functions, module=name, line=node.lineno
    )


def unrolled(
    node: ast.FunctionDef, local: Mapping[str, Any], of_module: Mapping[str, Any], argument: str
) -> ast.FunctionDef:
    """Return a function without branches of another configuration, and without loops over known numbers.

    Args:
        node: the function.
        local: values of its names when it is called.
        of_module: those of its module.
        argument: its parameter that changes, which has no value.
    """
    value = _value_in(local, of_module, [argument])
    result = _Unrolled(value).visit(copy.deepcopy(node))
    assert isinstance(result, ast.FunctionDef)
    return result


def _value_in(
    local: Mapping[str, Any], of_module: Mapping[str, Any], without: Sequence[str]
) -> Callable[[str], tuple[bool, Any]]:
    """Give whether a dotted name has a value among names, and the value."""

    def value(dotted: str) -> tuple[bool, Any]:
        root, *path = dotted.split(".")
        if root in without:
            return False, None
        try:
            held = local[root] if root in local else of_module[root]
            for step in path:
                held = getattr(held, step)
        except (KeyError, AttributeError):
            return False, None
        return not inspect.ismodule(held), held

    return value


class _Unrolled(ast.NodeTransformer):
    """Statements without branches of another configuration, and without loops over known numbers.

    Args:
        value_of: gives whether a name has a value, and the value.
    """

    def __init__(self, value_of: Callable[[str], tuple[bool, Any]]) -> None:
        self._value_of = value_of

    def visit_If(self, node: ast.If) -> Any:
        """Keep the branch that runs, if the test is an option of the script."""
        self.generic_visit(node)
        runs = self._decided(node.test)
        if runs is None:
            return node
        return node.body if runs else node.orelse

    def _decided(self, test: ast.expr) -> bool | None:
        """Whether options of the script alone decide a test, and how: `args.cos`, `table is not None`."""
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                decided = self._decided(operand)
                return None if decided is None else not decided
            case ast.BoolOp(operator, values):
                decided_parts = [self._decided(value) for value in values]
                ends = isinstance(operator, ast.Or)
                if ends in decided_parts:
                    return ends
                return None if None in decided_parts else not ends
            case ast.Compare(left, [ast.Is() | ast.IsNot() as compared], [ast.Constant(None)]):
                known, value = self._value(left)
                return (value is None) is isinstance(compared, ast.Is) if known else None
            case ast.Compare(left, [ast.Eq() | ast.NotEq() as compared], [ast.Constant(str(text))]):
                known, value = self._value(left)
                return (value == text) is isinstance(compared, ast.Eq) if known else None
        known, value = self._value(test)
        return bool(value) if known and (value is None or isinstance(value, bool)) else None

    def visit_For(self, node: ast.For) -> Any:
        """Write each turn of a loop over a few numbers: `for milestone in args.schedule`."""
        self.generic_visit(node)
        known, value = self._value(node.iter)
        is_short = isinstance(value, list | tuple) and len(value) <= _MOST_TURNS
        leaves = any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(node))
        if not known or not is_short or leaves or node.orelse:
            return node
        if not isinstance(node.target, ast.Name) or not all(type(v) in (int, float) for v in value):
            return node
        turns = []
        for number in value:
            turn = _Number(node.target.id, number)
            turns += [turn.visit(copy.deepcopy(statement)) for statement in node.body]
        return turns

    def _value(self, node: ast.expr) -> tuple[bool, Any]:
        if not isinstance(node, ast.Name | ast.Attribute):
            return False, None
        return self._value_of(ast.unparse(node))


class _Number(ast.NodeTransformer):
    """A name becomes a number."""

    def __init__(self, name: str, number: float) -> None:
        self._name, self._number = name, number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Write the number where the name is read."""
        is_read = node.id == self._name and isinstance(node.ctx, ast.Load)
        return ast.Constant(self._number) if is_read else node


def _reads(
    node: ast.AST, value_of: Callable[[str], tuple[bool, Any]], depth: int
) -> tuple[dict[str, Any], dict[str, RecordedFunction]]:
    """Return plain values, and functions of the script, that a function reads, by their names."""
    values: dict[str, Any] = {}
    functions: dict[str, RecordedFunction] = {}
    for dotted in _read(node):
        known, value = value_of(dotted)
        if not known:
            continue
        if is_plain(value):
            values[dotted] = plain(value)
        elif _is_table(value):
            values[dotted] = value.tolist()
        elif inspect.isfunction(value) and "." not in dotted and depth < _DEPTH:
            functions[dotted] = recorded_function(value, depth + 1)
    return values, functions


def _defaults(node: ast.AST, function: Any) -> dict[str, Any]:
    """Return what the names in a function's defaults were when it was defined."""
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        return {}
    pairs = list(zip(node.args.defaults, function.__defaults__ or (), strict=False))
    keywords = function.__kwdefaults__ or {}
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None and argument.arg in keywords:
            pairs.append((default, keywords[argument.arg]))
    return {ast.unparse(n): v for n, v in pairs if isinstance(n, ast.Name | ast.Attribute)}


def is_plain(value: Any) -> bool:
    """Whether a value can be written as a literal."""
    if isinstance(value, Mapping):
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, str | bool | int | float) or _is_number(value)


def plain(value: Any) -> Any:
    """Return a plain value without tensors and arrays; other values as they are."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value) if type(value) in (list, tuple) else value
    return value.item() if _is_number(value) else value


def _is_number(value: Any) -> bool:
    """Whether a value is a tensor or a NumPy number of a single element."""
    return hasattr(value, "item") and getattr(value, "ndim", None) == 0


def _is_table(value: Any) -> bool:
    """Whether a value is an array of a few numbers: the learning rate of each update."""
    return (
        hasattr(value, "tolist")
        and getattr(value, "ndim", None) == 1
        and len(value) <= _MOST_ENTRIES
    )


def definition(function: Any) -> ast.AST | None:
    """Return the function's node; None where Python does not have its source."""
    return _definition(function)[0]


def _definition(function: Any) -> tuple[ast.AST | None, str]:
    """Return the function's node, and its text without indentation."""
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None, ""
    wanted = function.__code__.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            begins = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if begins == wanted and not node.decorator_list:
                return node, textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno]))
    lambdas = [
        node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == wanted
    ]
    if function.__name__ != "<lambda>":
        return None, ""
    if len(lambdas) > 1:
        inside = [node for node in lambdas if _covers(node, function)]
        lambdas = sorted(inside, key=lambda node: len(ast.unparse(node)))[:1]
    if len(lambdas) != 1:
        return None, ""
    text = ast.get_source_segment("".join(lines), lambdas[0]) or ""
    # Without the call around it, a lambda on several lines is no statement.
    return lambdas[0], ast.unparse(lambdas[0]) if "\n" in text else text


def _covers(node: ast.Lambda, function: Any) -> bool:
    """Whether all instructions of a lambda's code lie in the node's body."""
    body = node.body
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    return all(
        start <= (line, column) and (end_line, end_column) <= end
        for line, end_line, column, end_column in function.__code__.co_positions()
        if line is not None
        and end_line is not None
        and column is not None
        and end_column is not None
        and end_column > 0
    )


def _read(node: ast.AST) -> list[str]:
    """Return the names that a function reads, with their attributes."""
    result = []
    inner: set[ast.AST] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute) and child not in inner:
            dotted = ast.unparse(child)
            if all(part.isidentifier() for part in dotted.split(".")):
                result.append(dotted)
            inner.update(ast.walk(child))
        elif isinstance(child, ast.Name) and child not in inner:
            result.append(child.id)
    return list(dict.fromkeys(result))


def _as_function(method: ast.FunctionDef, own: Mapping[str, Any]) -> ast.FunctionDef:
    """Return a method without its first argument, whose attributes are names from outside.

    A name for an object among them, `cfg = self.cfg`, is left out: `cfg.lr` becomes `self.cfg.lr`.
    """
    node: ast.FunctionDef = copy.deepcopy(method)
    node.args.args = node.args.args[1:]
    aliases: dict[str, ast.expr] = {}
    for statement in list(node.body):
        match statement:
            case ast.Assign([ast.Name(name)], ast.Attribute() as value):
                root, *path = ast.unparse(value).split(".")
                held = own.get(root)
                for part in path:
                    held = getattr(held, part, None)
                if root in own and not is_plain(held):
                    aliases[name] = value
                    node.body.remove(statement)

    class Named(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            is_read = isinstance(name.ctx, ast.Load)
            return aliases.get(name.id, name) if is_read else name

    return ast.fix_missing_locations(Named().visit(node))


def _value(function: Any, dotted: str, own: Mapping[str, Any]) -> tuple[bool, Any]:
    """Return whether a name has a value outside of the function, and the value.

    Args:
        function: the function.
        dotted: the name, with attributes.
        own: the object of a method, by the name of its first argument.
    """
    root, *path = dotted.split(".")
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    try:
        if root in own:
            value = own[root]
        else:
            value = closure[root].cell_contents if root in closure else function.__globals__[root]
        for step in path:
            value = getattr(value, step)
    except (KeyError, ValueError, AttributeError):
        return False, None
    return not inspect.ismodule(value), value
