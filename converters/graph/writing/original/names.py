"""The names that the original's source has for values: targets of assignments, parameters of `forward`."""

from __future__ import annotations

import ast
import inspect
import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from converters.graph.files import tree_of
from converters.graph.ir import Frame
from converters.graph.recording.libraries import is_user_file

# Methods whose numbers are axes.
_AXES = frozenset({"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"})
_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr, ast.NamedExpr)


@cache
def _lines(file: str) -> dict[int, ast.stmt]:
    """Line → the innermost simple statement that it belongs to."""
    statements: dict[int, ast.stmt] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, _STATEMENTS) and isinstance(node, ast.stmt):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                statements.setdefault(line, node)
    return statements


def statement(frame: Frame) -> ast.stmt | None:
    """The statement that runs at a frame."""
    return _lines(frame.file).get(frame.line)


def in_loop(frame: Frame) -> bool:
    """Whether a line is in the body of a loop."""
    return any(first <= frame.line <= last for first, last in _loops(frame.file))


@cache
def _loops(file: str) -> tuple[tuple[int, int], ...]:
    """The first and the last line of the body of each loop in a file."""
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or 0)
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.For | ast.While)
    )


def targets(frame: Frame) -> tuple[str, ...]:
    """The names that the statement at a frame assigns; none for a return or an expression."""
    source = statement(frame)
    match source:
        case ast.Assign():
            return _names(source.targets[0])
        case ast.AnnAssign() | ast.AugAssign():
            return _names(source.target)
    return ()


def _names(target: ast.expr) -> tuple[str, ...]:
    match target:
        case ast.Name():
            return (target.id,)
        case ast.Tuple() | ast.List():
            return tuple(name for element in target.elts for name in (_names(element) or ("",)))
        case ast.Starred():
            return _names(target.value)
        case ast.Subscript():
            return _names(target.value)
        case ast.Attribute():
            return (target.attr,)
    return ()


# How many local variables are followed from the line that runs.
_REACH = 3


@cache
def reached(frame: Frame) -> tuple[ast.AST, ...]:
    """The nodes of a statement, and of the values assigned to the local variables in it."""
    source = statement(frame)
    if source is None:
        return ()
    nodes: dict[ast.AST, None] = dict.fromkeys(ast.walk(source))
    known = assigned(function_at(frame))
    new = list(nodes)
    for _ in range(_REACH):
        values = [
            value
            for node in new
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            for value in known.get(node.id, ())
        ]
        new = [node for value in values for node in ast.walk(value) if node not in nodes]
        nodes |= dict.fromkeys(new)
    return tuple(nodes)


@cache
def sides_written(frame: Frame) -> tuple[ast.expr, ...]:
    """The sides that a statement's only reshape names, `x.view(b, -1, self.heads)`; () if it names none.

    The first is starred if only the last sides are named: `x.view(*x.shape[:-1], self.heads, self.width)`, or
    `shape = x.shape[:-1] + (self.heads, self.width)` that a line before has.
    """
    calls = _arguments_of(frame, ("view", "reshape"))
    if len(calls) != 1:
        return ()
    sides = list(calls[0])
    alone = sides[0] if len(sides) == 1 else None
    shape = alone.value if isinstance(alone, ast.Starred) else alone
    if isinstance(shape, ast.Name):
        values = assigned(function_at(frame)).get(shape.id, ())
        shape = values[0] if len(values) == 1 else None
        sides = []
    match shape:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            sides = list(parts)
        case ast.BinOp(op=ast.Add(), left=before, right=ast.Tuple(elts=parts)):
            sides = [ast.Starred(before, ast.Load()), *parts]
    starred = [at for at, side in enumerate(sides) if isinstance(side, ast.Starred)]
    return tuple(sides[starred[-1] :] if starred else sides)


@cache
def flattens(frame: Frame) -> bool:
    """Whether a statement makes one axis of several by `flatten`, and reshapes nothing else."""
    source = statement(frame)
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in (ast.walk(source) if source is not None else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    return "flatten" in called and not called & _RESHAPING


@cache
def unflattened(frame: Frame) -> tuple[int, tuple[int | None, ...]] | None:
    """The axis that a statement's only `unflatten` splits, and its parts: `(-1, (-1, 2))`.

    A part that is no number in the source is None.
    """
    match _arguments_of(frame, _RESHAPING):
        case [[axis, ast.Tuple(elts=parts) | ast.List(elts=parts)]]:
            number = integer(axis)
            return None if number is None else (number, tuple(map(integer, parts)))
    return None


def _arguments_of(frame: Frame, methods: Collection[str]) -> list[list[ast.expr]]:
    """Arguments of each call in the statement at a frame of a method with one of these names."""
    source = statement(frame)
    return [
        node.args
        for node in (ast.walk(source) if source is not None else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in methods
    ]


# Methods and functions of torch that give a tensor sides.
_RESHAPING = {"view", "view_as", "reshape", "reshape_as", "unflatten"}


@cache
def cuts(frame: Frame) -> tuple[ast.AST, ...]:
    """The nodes of slice bounds in a statement, and of the values assigned to their variables."""
    source = statement(frame)
    bounds = [
        bound
        for node in (ast.walk(source) if source is not None else ())
        if isinstance(node, ast.Slice)
        for bound in (node.lower, node.upper)
        if bound is not None
    ]
    known = assigned(function_at(frame))
    nodes: dict[ast.AST, None] = {}
    new = [node for bound in bounds for node in ast.walk(bound)]
    for _ in range(_REACH + 1):
        nodes |= dict.fromkeys(new)
        names_read = [node.id for node in new if isinstance(node, ast.Name)]
        values = [value for name in names_read for value in known.get(name, ())]
        new = [node for value in values for node in ast.walk(value) if node not in nodes]
    return tuple(nodes)


@cache
def sides_read(frame: Frame) -> tuple[tuple[str, int], ...]:
    """Sides that a statement reads, itself or by local variables: `x.shape[1]`, `x.size(1)` → ("x", 1)."""
    sides: dict[tuple[str, int], None] = {}
    for node in reached(frame):
        match node:
            case (
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=inner
                )
                | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[inner])
                | ast.Subscript(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]
                    ),
                    slice=inner,
                )
            ) if (axis := integer(inner)) is not None:
                sides[clean(name), axis] = None
    return tuple(sides)


@cache
def axes_named(frame: Frame) -> frozenset[ast.AST]:
    """The nodes of a statement that name axes, not sizes: the arguments of `permute(2, 0, 3, 1, 4)`."""
    nodes: set[ast.AST] = set()
    for node in reached(frame):
        if not isinstance(node, ast.Call):
            continue
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        axes = [argument for argument in node.args if last in _AXES]
        axes += [word.value for word in node.keywords if word.arg in ("dim", "dims", "axis")]
        nodes |= {inner for axis in axes for inner in ast.walk(axis)}
    return frozenset(nodes)


@cache
def shape_given(frame: Frame) -> str:
    """The local variable that a statement's only `.view(…)` is given as its shape; "" if there is none."""
    source = statement(frame)
    calls = [
        node
        for node in (ast.walk(source) if source is not None else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("view", "reshape")
    ]
    if len(calls) != 1 or len(calls[0].args) != 1 or calls[0].keywords:
        return ""
    shape = calls[0].args[0]
    inner = shape.value if isinstance(shape, ast.Starred) else shape
    known = isinstance(inner, ast.Name) and inner.id in assigned(function_at(frame))
    return clean(inner.id) if known and isinstance(inner, ast.Name) else ""


@cache
def shape_taken_of(frame: Frame) -> str:
    """The local variable whose whole shape a statement's only reshape gives; "" if there is none.

    `y.view_as(x)`, `y.view(x.shape)`, and `y.reshape(b, t, d)` after `b, t, d = x.shape`.
    """
    source = statement(frame)
    calls = [
        (node.func.attr, node.args)
        for node in (ast.walk(source) if source is not None else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("view", "reshape", "view_as", "reshape_as")
        and not node.keywords
    ]
    if len(calls) != 1:
        return ""
    how, sides_written = calls[0]
    if how.endswith("_as"):
        return (
            clean(sides_written[0].id)
            if sides_written and isinstance(sides_written[0], ast.Name)
            else ""
        )
    if len(sides_written) == 1:
        return _shape_of(sides_written[0])
    tree = function_at(frame)
    for node in ast.walk(tree) if tree is not None and len(sides_written) > 1 else ():
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value) if name := _shape_of(
                value
            ):
                sides = [part.id if isinstance(part, ast.Name) else "" for part in parts]
                if sides == [
                    side.id if isinstance(side, ast.Name) else None for side in sides_written
                ]:
                    return name
    return ""


def _shape_of(node: ast.expr) -> str:
    """`x.shape` or `x.size()` → "x"; "" if the expression is something else."""
    match node:
        case (
            ast.Attribute(value=ast.Name(id=name), attr="shape")
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[])
        ):
            return clean(name)
    return ""


def integer(node: ast.AST) -> int | None:
    """`2`, `-1`; None where it is something else."""
    match node:
        case ast.Constant(value=int(found)):
            return found
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(found))):
            return -found
    return None


@cache
def assigned(tree: ast.AST | None) -> Mapping[str, tuple[ast.expr, ...]]:
    """Name → what a function assigns to it; of a tuple that is taken apart, the part."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(node.value)
                elif isinstance(target, ast.Tuple):
                    for index, element in enumerate(target.elts):
                        if isinstance(element, ast.Name):
                            part = ast.Subscript(node.value, ast.Constant(index), ast.Load())
                            values.setdefault(element.id, []).append(part)
    return {name: tuple(expressions) for name, expressions in values.items()}


@cache
def parameters(forward: Any) -> tuple[str, ...]:
    """The names of a forward's arguments, in order, without `self`."""
    try:
        signature = inspect.signature(inspect.unwrap(forward)).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(
        parameter.name
        for parameter in signature
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    )


@cache
def function_at(frame: Frame) -> ast.FunctionDef | None:
    """The function whose line a frame is."""
    innermost = None
    for node in ast.walk(tree_of(frame.file)):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == frame.function
            and node.lineno <= frame.line <= (node.end_lineno or node.lineno)
        ):
            innermost = node
    return innermost


@cache
def returned(frame: Frame) -> tuple[str, ...]:
    """The names of the tuple that a function returns; none where it returns otherwise, or in several ways."""
    return tuple(
        element.id if isinstance(element, ast.Name) else "" for element in _tuple_returned(frame)
    )


@cache
def variables_returned(frame: Frame) -> tuple[frozenset[str], ...]:
    """The variables in each part of the tuple that a function returns; none where it returns otherwise."""
    return tuple(
        frozenset(node.id for node in ast.walk(element) if isinstance(node, ast.Name))
        for element in _tuple_returned(frame)
    )


def _tuple_returned(frame: Frame) -> tuple[ast.expr, ...]:
    function = function_at(frame)
    returns = [
        node.value
        for node in (ast.walk(function) if function is not None else ())
        if isinstance(node, ast.Return)
    ]
    if len(returns) != 1 or not isinstance(returns[0], ast.Tuple):
        return ()
    return tuple(returns[0].elts)


def calls_of(caller: Frame, called: Frame, values: Collection[str]) -> tuple[dict[str, str], ...]:
    """Calls of a function in the statement at a frame: name that is given → the function's name for it.

    An expression that is no name stands for itself: `modulate(self.norm(x), shift)` gives `self.norm(x)`.

    Args:
        caller: the line.
        called: a line of the function.
        values: names that the function was given. A function that bears another name where it is called
            (`attention_interface(…)`) is known by these.
    """
    source = statement(caller)
    if source is None:
        return ()
    parameters = function_parameters(called)
    named, others = [], []
    for node in ast.walk(source):
        if not isinstance(node, ast.Call):
            continue
        own = [*node.args, *(keyword.value for keyword in node.keywords)]
        # What a function that is no method of the caller's is given first may be the module itself.
        first = isinstance(node.func, ast.Name) and own[:1] and ast.unparse(own[0]) == "self"
        shift = 1 if first and parameters[:1] != ("module",) else 0
        passed = {
            ast.unparse(argument): parameters[index - shift]
            for index, argument in enumerate(node.args)
            if not isinstance(argument, ast.Constant) and shift <= index < len(parameters) + shift
        }
        passed |= {
            ast.unparse(keyword.value): keyword.arg
            for keyword in node.keywords
            if not isinstance(keyword.value, ast.Constant) and keyword.arg
        }
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if name == called.function:
            named.append(passed)
        elif any(isinstance(argument, ast.Name) and argument.id in values for argument in own):
            others.append(passed)
    return tuple(named or others)


@cache
def spread_call(frame: Frame) -> tuple[str, str]:
    """Names of f and g, if the statement at a frame calls `f(*g(x))`; else "", ""."""
    source = statement(frame)
    for node in ast.walk(source) if source is not None else ():
        match node:
            case ast.Call(func=outer, args=[ast.Starred(value=ast.Call(func=inner))], keywords=[]):
                return last_name(outer), last_name(inner)
    return "", ""


@cache
def times_called(caller: Frame, called: Frame) -> tuple[int, bool]:
    """Number of calls of a function in the statement at a frame, and whether a call is repeated there.

    Args:
        caller: the line.
        called: a line of the function.
    """
    count, repeats = 0, False
    for node, inside in _with_repeats(statement(caller)):
        if not isinstance(node, ast.Call):
            continue
        if last_name(node.func) == called.function:
            count, repeats = count + 1, repeats or inside
        elif last_name(node.func) == "map" and called.function in map(last_name, node.args):
            count, repeats = count + 1, True
    return count, repeats


def last_name(node: ast.expr) -> str:
    """`turn` for `turn` and for `self.turn`; "" for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _with_repeats(node: ast.AST | None, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of a statement, each with whether it stands in a comprehension or a lambda."""
    if node is None:
        return
    yield node, inside
    again = isinstance(
        node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp | ast.Lambda
    )
    for child in ast.iter_child_nodes(node):
        yield from _with_repeats(child, inside or again)


def function_parameters(frame: Frame) -> tuple[str, ...]:
    """The names of its arguments, without `self`."""
    function = function_at(frame)
    if function is None:
        return ()
    parameter_names = [
        parameter.arg
        for parameter in (
            *function.args.posonlyargs,
            *function.args.args,
            *function.args.kwonlyargs,
        )
    ]
    return tuple(name for name in parameter_names if name != "self")


_PART = re.compile(r"\[(?:'(?P<name>[^']*)'|(?P<index>\d+))\]|\.(?P<attribute>\w+)")


def label_path(label: str) -> tuple[str | int, ...]:
    """ "[1]['mask'][0]" → (1, "mask", 0)."""
    return tuple(
        int(step["index"]) if step["index"] else (step["name"] or step["attribute"])
        for step in _PART.finditer(label)
    )


def argument_name(label: str, forward: Any) -> tuple[str, int]:
    """Name of an argument of a module's call in the method that runs, and its position there.

    A part of a tuple has the name that the forward gives it where it unpacks it (`cos, sin =
    position`).
    """
    path = label_path(label)
    if not path:
        return "", 1 << 20
    names = parameters(forward)
    kind, which, *rest = path
    if kind == 0 and isinstance(which, int):
        name = names[which] if which < len(names) else f"input_{which}"
    else:
        name = str(which)
    place = names.index(name) if name in names else len(names)
    if rest:
        name = _part(name, rest, forward)
    return clean(name), place


def _part(name: str, rest: Sequence[str | int], forward: Any) -> str:
    if len(rest) == 1 and isinstance(rest[0], int):
        parts = parts_of(name, forward)
        if len(parts) > rest[0] and parts[rest[0]]:
            return parts[rest[0]]
    return "_".join((name, *map(str, rest)))


def part_of(targets: Sequence[str], label: str) -> str:
    """Name of a value in an object that a call returns: `a, b = f(x)`, "[0].scale" → "a_scale".

    "" where the label names no attribute.
    """
    first, *rest = label_path(label) or ("",)
    if not targets or "." not in label:
        return ""
    if not isinstance(first, int) or len(targets) == 1:
        return clean("_".join(map(str, (targets[0], first, *rest))))
    return clean("_".join(map(str, (targets[first], *rest)))) if first < len(targets) else ""


def target_at(frame: Frame, label: str) -> str:
    """Name that the statement at a frame gives a part of its call's result: `a, b = f(x)`, "[1][0]" → "b_0".

    "" where the statement is no such call, or does not take the part apart by its place.
    """
    source, path = statement(frame), label_path(label)
    if "." in label or not isinstance(source, ast.Assign) or not _is_call(source.value):
        return ""
    target, steps = source.targets[0], 0
    for at in path:
        if not isinstance(target, ast.Tuple | ast.List) or not isinstance(at, int):
            break
        if at >= len(target.elts) or any(isinstance(x, ast.Starred) for x in target.elts[: at + 1]):
            return ""
        target, steps = target.elts[at], steps + 1
    if not steps or not isinstance(target, ast.Name) or target.id == "_":
        return ""
    return clean("_".join(map(str, (target.id, *path[steps:]))))


def _is_call(value: ast.expr) -> bool:
    """Whether a value is one call, of no other call's result."""
    return isinstance(value, ast.Call) and not any(
        isinstance(node, ast.Call) for node in ast.walk(value.func)
    )


def parts_of(name: str, forward: Any) -> tuple[str, ...]:
    """Names of a tuple's parts where it is unpacked: in a forward, else in its file."""
    function = inspect.unwrap(forward)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return _parts_in(source_tree(forward), name) or _parts_in(tree_of(file), name)


def elements_of(name: str, count: int, frame: Frame) -> tuple[str, ...]:
    """Names of the elements of a local variable, where a function gives each one: `q = parts[0]`.

    An element without a name, or with several, is `parts_1`; one of a name for two of them, too.

    Args:
        name: the variable.
        count: number of its elements.
        frame: a line of the function.
    """
    named: dict[int, list[str]] = {}
    for variable, values in assigned(function_at(frame)).items():
        for value in values:
            match value:
                case ast.Subscript(value=ast.Name(id=holder), slice=at) if holder == name:
                    if (place := integer(at)) is not None and -count <= place < count:
                        named.setdefault(place % count, []).append(variable)
    used = Counter(variable for variables in named.values() for variable in variables)
    return tuple(
        said[0] if len(said := named.get(at, [])) == 1 and used[said[0]] == 1 else f"{name}_{at}"
        for at in range(count)
    )


def _parts_in(tree: ast.AST, name: str) -> tuple[str, ...]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            parts = _names(node.targets[0])
            if node.value.id == name and isinstance(node.targets[0], ast.Tuple):
                return parts
    return ()


def docstring(documented: Any, file: str = "") -> str:
    """The docstring of a class or of a function's source: whole where it is the user's, who keeps the port;
    of an installed package its first sentence; "" if there is none.

    Args:
        documented: the class, or the function's source.
        file: of the function.
    """
    if isinstance(documented, type):
        file = source_file(documented)
        text = inspect.getdoc(documented) or "" if vars(documented).get("__doc__") else ""
    else:
        text = (ast.get_docstring(documented) or "") if documented is not None else ""
    if not is_user_file(file):
        return first_sentence(documented)
    lines = [
        textwrap.wrap(
            line,
            _WIDTH,
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
        for line in text.strip().splitlines()
    ]
    whole = textwrap.indent("\n".join(line for part in lines for line in part), "    ").strip()
    return f"{whole}\n    " if len(lines) > 1 else whole


def source_file(documented: Any) -> str:
    """The file of a class or function; "" if there is none."""
    try:
        return inspect.getsourcefile(documented) or ""
    except (OSError, TypeError):
        return ""


def first_sentence(documented: Any) -> str:
    """The first sentence of a docstring, of a class or of a function's source; "" if there is none."""
    if documented is None:  # a lambda
        return ""
    if isinstance(documented, ast.FunctionDef):
        text = ast.get_docstring(documented) or ""
    else:
        text = inspect.getdoc(documented) or "" if vars(documented).get("__doc__") else ""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    sentence = match[0] if match else paragraph
    return "\n    ".join(textwrap.wrap(sentence, _WIDTH, break_long_words=False))


def documented(function: Any) -> str:
    """The docstring of a method for its port (see `docstring`); "" if there is none."""
    body = getattr(source_tree(function), "body", [])
    if not body or not isinstance(body[0], ast.FunctionDef):
        return ""
    return docstring(body[0], source_file(inspect.unwrap(function)))


# It does not end behind an initial ("Aidan N. Gomez") or an abbreviation.
_SENTENCE = re.compile(
    r".*?(?<![\s.(][A-Z])(?<!\bal)(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)[.!?](?=\s|$)"
)
# Of a line of a docstring, with what stands around it.
_WIDTH = 88


@cache
def attribute_lines(cls: type) -> Mapping[str, Frame]:
    """Attribute → the line of a constructor in the user's files that first sets it."""
    lines: dict[str, Frame] = {}
    for base in cls.__mro__:
        constructor = inspect.unwrap(vars(base).get("__init__", object.__init__))
        file = source_file(constructor)
        if not inspect.isfunction(constructor) or not is_user_file(file):
            continue
        try:
            first = inspect.getsourcelines(constructor)[1]
        except OSError:
            continue
        for node in ast.walk(source_tree(constructor)):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    pass
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id="self"),
                        attr="register_buffer" | "register_parameter" | "add_module",
                    ),
                    args=[ast.Constant(value=str() as name), *_],
                ):
                    pass
                case _:
                    continue
            lines.setdefault(name, Frame(file, first + node.lineno - 1, "__init__"))
    return lines


def aliases(forward: Any) -> frozenset[tuple[str, str]]:
    """(new, old) where a forward gives a value another name."""
    return frozenset(
        (clean(node.targets[0].id), clean(node.value.id))
        for node in ast.walk(source_tree(forward))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and isinstance(node.targets[0], ast.Name)
    )


def numbers_begun(forward: Any) -> dict[str, int | float]:
    """Name → number that a forward gives it: `total = 0.0`."""
    numbers: dict[str, int | float] = {}
    for name, values in assigned(source_tree(forward)).items():
        for value in values:
            number = value.value if isinstance(value, ast.Constant) else None
            if isinstance(number, int | float) and not isinstance(number, bool):
                numbers[clean(name)] = number
    return numbers


def other_name(name: str, forward: Any) -> str:
    """Under which name a forward keeps a value before it gives its name to another (`residual = x`)."""
    for node in ast.walk(source_tree(forward)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            targets_here = _names(node.targets[0])
            if node.value.id == name and len(targets_here) == 1 and targets_here[0] != name:
                return clean(targets_here[0])
    return ""


@cache
def source_tree(function: Any) -> ast.AST:
    """The parsed source of a function; an empty module where there is none."""
    try:
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        return ast.parse(text)
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def clean(name: str) -> str:
    """The name as an identifier that Python and the port's imports leave free."""
    name = re.sub(r"\W", "_", name)
    if not name or name[0].isdigit():
        name = f"x{name}"
    return f"{name}_" if keyword.iskeyword(name) or name in _TAKEN else name


_TAKEN = {"jax", "jnp", "nn", "self", "np"}
