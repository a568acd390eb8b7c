"""Repeated options and initializers of a constructor, written once: `dense = partial(nn.Dense, …)`,
`init = …`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from converters.graph.writing.forms.lists import is_numbered
from converters.graph.writing.holes import fill
from converters.graph.writing.precision.numerics import PARAM

# The longest line of a port, and how deep the statements of `setup` stand in it.
_WIDTH, _DEPTH = 100, 8


def shortened(setup: Sequence[ast.stmt], taken: Collection[str] = ()) -> list[ast.stmt]:
    """The statements of a constructor, what several of its layers are told alike said once.

    Only where the source gets shorter by it.

    Args:
        setup: the statements.
        taken: names that stand for something else in the port.
    """
    shorter = list(setup)
    groups: dict[str, list[ast.Call]] = defaultdict(list)
    for call in _layers(shorter):
        groups[_text(call.func)].append(call)
    for function, calls in groups.items():
        name = _named(function, shorter, taken)
        common = _best(shorter, calls, name)
        if common:
            shorter = _with_partial(shorter, function, common, name)
    return _with_initializers(shorter, taken)


def _with_initializers(setup: list[ast.stmt], taken: Collection[str]) -> list[ast.stmt]:
    """The statements with names for the initializers that are too long for the lines of their layers.

    One that only one layer has gets a name where no other has.
    """
    shorter_setup = setup
    uses = Counter(map(_text, _initializers(setup)))
    for text, count in uses.most_common():
        if count == 1 and shorter_setup is not setup:
            break
        first = next(
            (at for at, statement in enumerate(shorter_setup) if _starts(statement, text)),
            len(shorter_setup),
        )
        if first == len(shorter_setup) or isinstance(shorter_setup[first], ast.If):
            continue
        name = _free("init", shorter_setup, taken)
        value = ast.parse(text, mode="eval").body
        named = ast.Assign([ast.Name(name, ast.Store())], value)
        change = _NamedInitializers(text, name)
        rest = [
            change.visit(fill(statement, lambda hole: hole)) for statement in shorter_setup[first:]
        ]
        shorter = [*shorter_setup[:first], named, *rest]
        if sum(map(_lines, shorter)) < sum(map(_lines, shorter_setup)):
            shorter_setup = shorter
    return shorter_setup


def _initializers(statements: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """The expressions that make an initializer: of a layer, or of a parameter."""
    for statement in statements:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call):
                continue
            initializers = [
                keyword.value for keyword in node.keywords if (keyword.arg or "").endswith("_init")
            ]
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("param", PARAM):
                initializers += node.args[1:2]
            if (
                node.args and _text(node.args[0]) == "rngs.params()"
            ):  # nnx: `init(key, shape, dtype)`
                initializers.append(node.func)
            # What follows from a layer's number is known in its list only.
            yield from (
                value
                for value in initializers
                if isinstance(value, ast.Call) and not is_numbered(value)
            )


def _starts(statement: ast.stmt, text: str) -> bool:
    return any(_text(initializer) == text for initializer in _initializers([statement]))


class _NamedInitializers(ast.NodeTransformer):
    """An expression becomes a name, wherever it stands."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _text(node) == self.text:
            return ast.Name(self.name, ast.Load())
        self.generic_visit(node)
        return node


def _layers(statements: Sequence[ast.AST]) -> Iterator[ast.Call]:
    """The calls that make a layer: `nn.Dense(…)`, and of classes of the port's own."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and node.keywords and _is_class(node.func):
                yield node


def _is_class(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="nn" | "nnx"), attr=name) | ast.Name(id=name):
            return name[:1].isupper()
    return False


def _key(keyword: ast.keyword) -> str:
    return f"{keyword.arg}={_text(keyword.value)}"


def _best(setup: Sequence[ast.stmt], calls: Sequence[ast.Call], name: str) -> list[ast.keyword]:
    """The options to say once: those that shorten the source most; [] if none does."""
    kept = [
        {_key(keyword): keyword for keyword in call.keywords if not is_numbered(keyword.value)}
        for call in calls
    ]
    shared = {
        frozenset(keywords_of_call.keys() & other.keys())
        for keywords_of_call, other in itertools.combinations(kept, 2)
    }
    before = sum(map(_lines, setup))
    best, fewest = [], before
    function = _text(calls[0].func)
    for options in sorted(shared - {frozenset()}, key=sorted):
        source = next(
            options_of_call for options_of_call in kept if options <= options_of_call.keys()
        )
        common = [value for key, value in source.items() if key in options]
        shorter = _with_partial(setup, function, common, name)
        lines = sum(map(_lines, shorter))
        if lines < fewest:
            best, fewest = common, lines
    return best


def _with_partial(
    setup: Sequence[ast.stmt], function: str, common: Sequence[ast.keyword], name: str
) -> list[ast.stmt]:
    """The statements with a partial call of these options, before the first that uses it.

    A layer that only stands under a condition is left alone, unless one without a condition comes first:
    what an option is computed of may only hold there.
    """
    shared = {_key(keyword) for keyword in common}
    first = next(
        (at for at, statement in enumerate(setup) if _uses(statement, function, shared)), len(setup)
    )
    if first == len(setup) or isinstance(setup[first], ast.If):
        return list(setup)
    value = ast.Call(
        ast.Name("partial", ast.Load()), [ast.parse(function, mode="eval").body], list(common)
    )
    # mypy takes `**options` for all that the class can be told, so that a call with a size is one too many.
    partial_call: ast.stmt = ast.AnnAssign(
        ast.Name(name, ast.Store()), ast.Name("Any"), value, simple=1
    )
    change = _PartialCalls(function, name, shared)
    rest = [change.visit(fill(statement, lambda hole: hole)) for statement in setup[first:]]
    return [*setup[:first], partial_call, *rest]


def _uses(statement: ast.stmt, function: str, shared: set[str]) -> bool:
    return any(
        _text(call.func) == function and shared <= {_key(keyword) for keyword in call.keywords}
        for call in _layers([statement])
    )


def _named(function: str, setup: Sequence[ast.stmt], taken: Collection[str]) -> str:
    """Name of the partial call: `dense` for `nn.Dense`, `norm` for `nn.LayerNorm`."""
    words = [word.lower() for word in re.findall(r"[A-Z][a-z]+", function)] or ["layer"]
    return _free(words[-1] if words[-1] == "norm" else "_".join(words), setup, taken)


def _free(name: str, setup: Sequence[ast.stmt], taken: Collection[str]) -> str:
    """A name that stands for nothing else."""
    used = {
        node.id for statement in setup for node in ast.walk(statement) if isinstance(node, ast.Name)
    }
    number, free = 1, name
    while free in used or free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


class _PartialCalls(ast.NodeTransformer):
    """Calls of a class with these options become calls of the partial one."""

    def __init__(self, function: str, name: str, shared: set[str]) -> None:
        self.function, self.name, self.shared = function, name, shared

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        keys = [_key(keyword) for keyword in node.keywords]
        if _text(node.func) != self.function or not self.shared <= set(keys):
            return node
        rest = [
            keyword
            for keyword, key in zip(node.keywords, keys, strict=True)
            if key not in self.shared
        ]
        return ast.Call(ast.Name(self.name, ast.Load()), node.args, rest)


def _text(tree: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(tree))


def _lines(statement: ast.stmt) -> int:
    """About how many lines a statement takes, formatted."""
    return _height(statement, _DEPTH)


def _height(node: ast.AST, depth: int, before: int = 0, after: int = 0) -> int:
    if isinstance(node, ast.If):
        inner = sum(_height(statement, depth + 4) for statement in (*node.body, *node.orelse))
        return 1 + inner + bool(node.orelse)
    text = _text(node)
    if depth + before + len(text) + after <= _WIDTH:
        return 1
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return _height(value, depth, before + len(text) - len(_text(value)))
        case ast.Expr(value=value):
            return _height(value, depth)
        case ast.Call(args=given, keywords=keywords):
            parts: list[ast.AST] = [*given, *keywords]
            return _bracketed(parts, depth)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return _bracketed(items, depth)
        case ast.ListComp(elt=inner_value):
            return 3 + _height(inner_value, depth + 4)
        case ast.keyword(arg=name, value=value):
            return _height(value, depth, before + len(name or "**") + 1, after)
        case ast.BinOp(left=left, right=right):
            return _height(left, depth) + _height(right, depth, 2)
    return 1


def _bracketed(parts: Sequence[ast.AST], depth: int) -> int:
    whole = ", ".join(map(_text, parts))
    if depth + 4 + len(whole) <= _WIDTH:
        return 3
    return 2 + sum(_height(part, depth + 4, 0, 1) for part in parts)
