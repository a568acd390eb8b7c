"""Helper functions of a written file with the options alone that its calls use."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from migrate.train.slice.text import first_line

# The function of a port that checks sizes; up to so many calls of it are statements instead.
DEMAND, _FEW_CHECKS = "demand_size", 2


def specialized(texts: Sequence[str], own: Collection[str] = ()) -> list[str]:
    """Return the texts of a program's files, with functions that have only what some call asks for.

    A parameter that no call passes becomes its default, and a parameter that each call passes with the same
    word, True, False or None becomes that; branches that it decides are decided.

    Args:
        texts: the texts; the functions are those of the first.
        own: functions of the script, which stay as they are.
    """
    result = list(texts)
    while names := [n for n in _functions(result[0]) if n not in own and _fixed(n, result)]:
        result = _with_fixed(result, names[0], _fixed(names[0], result))
    return [
        _without_demand(result[0]) if f"{DEMAND}(" not in "".join(result[1:]) else result[0],
        *result[1:],
    ]


def _without_demand(text: str) -> str:
    """The text with its one or two checks of sizes as statements."""
    tree, lines = ast.parse(text), text.splitlines()
    checks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == DEMAND
    ]
    reads = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == DEMAND]
    function = _functions(text).get(DEMAND)
    if function is None or len(reads) != len(checks) or len(checks) > _FEW_CHECKS:
        return text
    for check in sorted(checks, key=lambda node: -node.lineno):
        holds, what = check.value.args  # type: ignore[attr-defined]
        failed: ast.expr = ast.UnaryOp(ast.Not(), holds)
        if (
            isinstance(holds, ast.Compare)
            and isinstance(holds.ops[0], ast.Eq)
            and len(holds.ops) == 1
        ):
            failed = ast.Compare(holds.left, [ast.NotEq()], holds.comparators)
        indent = " " * check.col_offset
        lines[check.lineno - 1 : check.end_lineno] = [
            f"{indent}if {ast.unparse(failed)}:",
            f"{indent}    raise ValueError({f'the loss takes {what.value}'!r})",
        ]
    tree = ast.parse("\n".join(lines))
    [function] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == DEMAND]
    del lines[first_line(function) - 1 : function.end_lineno]
    return "\n".join(lines) + "\n"


def _functions(text: str) -> dict[str, ast.FunctionDef]:
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}


def _calls(name: str, text: str) -> list[ast.Call] | None:
    """Calls of a function in a text; None if the text reads it in another way."""
    tree = ast.parse(text)
    reads = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name
    ]
    unpacked = any(
        isinstance(a, ast.Starred) or (isinstance(a, ast.keyword) and a.arg is None)
        for call in calls
        for a in (*call.args, *call.keywords)
    )
    lines = text.splitlines()
    commented = any("#" in line for c in calls for line in lines[c.lineno - 1 : c.end_lineno])
    return None if unpacked or commented or len(reads) != len(calls) else calls


def _fixed(name: str, texts: Sequence[str]) -> dict[str, ast.Constant]:
    """Parameters of a function with a default that have one value in all calls."""
    function = _functions(texts[0])[name]
    arguments = function.args
    plain = not (
        arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
    )
    lists = [_calls(name, text) for text in texts]
    lines = texts[0].splitlines()[first_line(function) - 1 : function.end_lineno]
    commented = any("#" in line for line in lines)
    if not plain or commented or function.decorator_list or None in lists:
        return {}
    calls = [call for own in lists for call in own or ()]
    if not calls:
        return {}
    names = [a.arg for a in arguments.args]
    nodes = [*ast.walk(function)]
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inner = [n.arg for n in nodes if isinstance(n, ast.arg)]
    bound |= {name for name in inner if inner.count(name) > 1}  # a parameter of a function inside
    result = {}
    defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    for parameter, default in defaults.items():
        passed = [_passed(call, names, parameter) for call in calls]
        if any(_is_number(v) and ast.dump(v) != ast.dump(default) for v in passed if v):
            continue  # a setting of the script, as a smoothing of labels
        values = [value or default for value in passed]
        first = values[0]
        number = first.operand if isinstance(first, ast.UnaryOp) else first
        alike = len({ast.dump(value) for value in values}) == 1
        if alike and isinstance(number, ast.Constant) and parameter not in bound:
            result[parameter] = first
    return result  # type: ignore[return-value]


def _is_number(node: ast.expr) -> bool:
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _passed(call: ast.Call, names: Sequence[str], parameter: str) -> ast.expr | None:
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    position = names.index(parameter)
    return call.args[position] if position < len(call.args) else by_name.get(parameter)


def _with_fixed(texts: Sequence[str], name: str, fixed: Mapping[str, ast.Constant]) -> list[str]:
    names = [a.arg for a in _functions(texts[0])[name].args.args]
    result = []
    for text in texts:
        lines = text.splitlines()
        for call in sorted(_calls(name, text) or (), key=lambda c: (-c.lineno, -c.col_offset)):
            args = [a for a, n in zip(call.args, names, strict=False) if n not in fixed]
            keywords = [k for k in call.keywords if k.arg not in fixed]
            shorter = ast.unparse(ast.Call(call.func, args, keywords))
            first, last = call.lineno - 1, (call.end_lineno or 0) - 1
            head = lines[first].encode()[: call.col_offset].decode()
            tail = lines[last].encode()[call.end_col_offset :].decode()
            lines[first : last + 1] = [f"{head}{shorter}{tail}"]
        result.append("\n".join(lines) + "\n")
    function = _functions(result[0])[name]
    lines = result[0].splitlines()
    lines[first_line(function) - 1 : function.end_lineno] = _written(function, fixed).splitlines()
    result[0] = "\n".join(lines) + "\n"
    return result


def _written(function: ast.FunctionDef, fixed: Mapping[str, ast.Constant]) -> str:
    doc = ast.get_docstring(function)
    arguments = function.args
    names = [a.arg for a in arguments.args]
    defaults = dict(zip(reversed(names), reversed(arguments.defaults), strict=False))
    arguments.args = [a for a in arguments.args if a.arg not in fixed]
    arguments.defaults = [defaults[a.arg] for a in arguments.args if a.arg in defaults]
    folder = _Folder(fixed)
    function.body = _folded([folder.visit(s) for s in function.body[bool(doc) :]])
    if doc:
        for name, value in fixed.items():
            doc = doc.replace(f"`{name}`", f"`{ast.unparse(value)}`")
        function.body.insert(0, ast.Expr(ast.Constant(doc)))
    *_, before, last = [ast.Pass(), *function.body]
    if isinstance(before, ast.Assign) and isinstance(last, ast.Return):
        named = [ast.unparse(target) for target in before.targets]
        if last.value and named == [ast.unparse(last.value)]:
            function.body[-2:] = [ast.Return(before.value)]
    return ast.unparse(ast.fix_missing_locations(function))


class _Folder(ast.NodeTransformer):
    """Puts constants in, and decides what they decide."""

    def __init__(self, values: Mapping[str, ast.Constant]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node) if isinstance(node.ctx, ast.Load) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        return _evaluated(node) if len(node.ops) == 1 else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node


def _evaluated(node: ast.Compare) -> ast.expr:
    """The comparison of two constants as its value."""
    try:
        left, right = ast.literal_eval(node.left), ast.literal_eval(node.comparators[0])
    except ValueError:
        return node
    [op] = node.ops
    if isinstance(op, ast.Is | ast.IsNot):
        if left is not None and right is not None:
            return node
        return ast.Constant((left is right) == isinstance(op, ast.Is))
    if isinstance(op, ast.Eq | ast.NotEq):
        return ast.Constant((left == right) == isinstance(op, ast.Eq))
    return node


def _folded(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements without branches that are never taken, up to the first return."""
    result: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant):
            result += _folded(statement.body if statement.test.value else statement.orelse)
        else:
            result.append(statement)
        if result and isinstance(result[-1], ast.Return):
            break
    return result
