"""Statements of a script with the text that they have there: comments, line breaks and all."""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

# Names of a statement's lists of statements.
_BLOCKS = ("body", "orelse", "finalbody")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ScriptText:
    """Source of a script.

    Attributes:
        name: the file, as messages name it.
        source: its text.
        loops: lines of statements with a comprehension that trains; each is a `for` in the tree.
    """

    name: str
    source: str
    loops: tuple[int, ...] = ()

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree."""
        tree = ast.parse(self.source)
        for line in self.loops:
            as_loop(tree, line)
        return tree

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the source."""
        return self.source.splitlines()

    def position(self, line: int) -> tuple[str, int]:
        """File and line that a line comes from."""
        return self.name, line

    def at(self, line: int) -> str:
        """Position for a message."""
        file, own = self.position(line)
        return f"{file}:{own}"

    def span(self, first: int, last: int) -> str:
        """Position of some lines: "train.py:3-5"."""
        return self.at(first) if first == last else f"{self.at(first)}-{self.position(last)[1]}"

    def code(self, first: int, function: str) -> ast.Module | FunctionNode | None:
        """The code object's node: the module, or the function whose first line it is."""
        if function == "<module>":
            return self.tree
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode) and node.name == function:
                begins = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if begins == first:
                    return node
        return None

    def text(self, statement: ast.stmt) -> str:
        """Text of a statement without its indentation, with the comments right above it."""
        first = self.first_line_of_text(statement)
        lines = self.lines[first - 1 : statement.end_lineno]
        indent = self.lines[first_line(statement) - 1][: statement.col_offset]
        if indent.strip():  # another statement stands before it on the line
            return ast.unparse(statement)
        return textwrap.dedent("\n".join(lines))

    def first_line_of_text(self, statement: ast.stmt) -> int:
        """The first line of a statement's text: that of the comments right above it."""
        first = first_line(statement)
        while first > 1 and self.lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return first


Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp


def comprehension(statement: ast.stmt, called: str) -> Comprehension | None:
    """The comprehension of a simple statement whose items are calls of a function; None if there is none."""
    if any(blocks(statement)):
        return None
    for node in ast.walk(statement):
        if isinstance(node, Comprehension) and len(node.generators) == 1:
            for inner in ast.walk(node.elt):
                function = inner.func if isinstance(inner, ast.Call) else None
                if getattr(function, "id", getattr(function, "attr", "")) == called:
                    return node
    return None


def as_loop(tree: ast.Module, line: int) -> None:
    """Write the statement at a line as a `for` over its comprehension, without the use of the items."""
    for code in (tree, *(n for n in ast.walk(tree) if isinstance(n, FunctionNode))):
        path = path_to(code, line)
        if not path:
            continue
        block, index = path[-1]
        statement = block[index]
        comprehensions = [n for n in ast.walk(statement) if isinstance(n, Comprehension)]
        if any(blocks(statement)) or not comprehensions:
            continue
        (generator,) = comprehensions[0].generators
        body: ast.stmt = ast.Expr(comprehensions[0].elt)
        for test in reversed(generator.ifs):
            body = WrittenIf(test, [body], [])
        loop = WrittenFor(generator.target, generator.iter, [body], [])
        for new in (loop, *(n for n in ast.walk(body) if isinstance(n, ast.stmt))):
            ast.copy_location(new, statement)
        block[index] = loop


class WrittenFor(ast.For):
    """A loop that has no text of its own in the script."""

    @property
    def head(self) -> str:
        """First line of the statement."""
        return f"for {ast.unparse(self.target)} in {ast.unparse(self.iter)}:"


class WrittenIf(ast.If):
    """A condition that has no text of its own in the script."""

    @property
    def head(self) -> str:
        """First line of the statement."""
        return f"if {ast.unparse(self.test)}:"


def with_text(script: ScriptText, first: int, last: int, text: str) -> ScriptText:
    """The script with another text in some lines; the lines after them stay where they are."""
    lines = [*script.lines]
    indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())]
    own = [f"{indent}{text}"] if text else []
    lines[first - 1 : last] = [*own, *[""] * (last - first + 1 - len(own))]
    return replace(script, source="\n".join(lines) + "\n")


def first_line(statement: ast.stmt) -> int:
    """First line of a statement, decorators included."""
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements right inside a compound statement."""
    for name in _BLOCKS:
        block = getattr(statement, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


def path_to(code: ast.AST, line: int) -> list[tuple[list[ast.stmt], int]]:
    """Return block and index at each level, outermost first, down to the statement at a line.

    Statements of functions and classes inside the code are not entered.
    """
    for block in blocks(code):
        for index, statement in enumerate(block):
            if not first_line(statement) <= line <= (statement.end_lineno or 0):
                continue
            if isinstance(statement, FunctionNode | ast.ClassDef):
                return []
            return [(block, index), *path_to(statement, line)]
    return []


def shared_line(code: ast.AST, line: int) -> int:
    """First line with two statements in the outermost loop, or the statement, around a line; 0 if none.

    A call that trains is known by its line.
    """
    path = path_to(code, line)
    loops = (block[i] for block, i in path if isinstance(block[i], ast.For | ast.While))
    around = next(loops, path[-1][0][path[-1][1]] if path else None)
    if around is None:
        return 0
    groups = [[around], *(block for node in ast.walk(around) for block in blocks(node))]
    if path and around is path[-1][0][path[-1][1]]:
        groups.append(path[-1][0])
    for group in groups:
        for before, after in itertools.pairwise(group):
            if first_line(after) <= (before.end_lineno or 0):
                return first_line(after)
    return 0


def loads(node: ast.AST) -> set[str]:
    """Names that a node reads from outside, without what its own comprehensions and lambdas bind."""
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.Lambda):
        bound = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        return (loads(node.body) - bound).union(*map(loads, defaults))
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        targets = [generator.target for generator in node.generators]
        bound = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        inner = set[str]().union(*map(loads, ast.iter_child_nodes(node))) - bound
        return inner | loads(node.generators[0].iter)
    return set[str]().union(*map(loads, ast.iter_child_nodes(node)))


def outside(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names that statements read before they bind them, and names that they bind on every way through."""
    reads, binds = set[str](), set[str]()
    for statement in statements:
        more, bound = _outside(statement)
        reads |= more - binds
        binds |= bound
    return reads, binds


def _outside(statement: ast.stmt) -> tuple[set[str], set[str]]:
    if isinstance(statement, ast.With | ast.AsyncWith):
        heads = [item.context_expr for item in statement.items]
        targets = _targets(*(item.optional_vars for item in statement.items))
        reads, binds = outside(statement.body)
        return set[str]().union(reads - targets, *map(loads, heads)), binds | targets
    if isinstance(statement, ast.If):
        reads, binds = outside(statement.body)
        others, also = outside(statement.orelse)
        if _raises(statement.body) or _raises(statement.orelse):  # nothing runs after that branch
            return loads(statement.test) | reads | others, binds | also
        return loads(statement.test) | reads | others, binds & also
    if isinstance(statement, ast.For | ast.AsyncFor):
        targets = _targets(statement.target)
        reads, _ = outside(statement.body)
        others, _ = outside(statement.orelse)
        return loads(statement.iter) | (reads - targets) | others, set()
    if isinstance(statement, FunctionNode | ast.ClassDef):
        return free_names(statement), {statement.name}
    if any(blocks(statement)):  # `while`, `match` and `try` may leave a name as it was
        return loads(statement), set()
    return loads(statement), stores(statement)[0]


def _raises(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Raise)


def _targets(*nodes: ast.AST | None) -> set[str]:
    """Names that targets of loops and context managers bind."""
    every = (inner for node in nodes if node is not None for inner in ast.walk(node))
    return {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def free_names(statement: ast.stmt) -> set[str]:
    """Names that a definition reads and does not bind itself."""
    bound = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
    loaded = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return loaded - bound


def returns_built(node: ast.FunctionDef, line: int) -> bool:
    """Whether all that a function returns is the object that is built at a line."""
    built = {
        target.id
        for statement in ast.walk(node)
        if isinstance(statement, ast.Assign)
        and statement.lineno <= line <= (statement.end_lineno or 0)
        and isinstance(statement.value, ast.Call)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    return bool(returns) and all(
        (isinstance(value, ast.Name) and value.id in built)
        or (isinstance(value, ast.Call) and value.lineno <= line <= (value.end_lineno or 0))
        for value in returns
    )


def root(node: ast.AST) -> str:
    """Name at the root of an attribute, a subscript or a call: "batch" in `batch["x"].to(d)`; "" if none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def stores(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement binds anew, and the roots of what it changes in place."""
    binds: set[str] = set()
    changes: set[str] = set()
    for node in _own_nodes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            binds.add(node.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(
            node.ctx, ast.Store | ast.Del
        ):
            changes.add(root(node))
        elif isinstance(node, FunctionNode | ast.ClassDef):
            binds.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            binds |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(statement, ast.AugAssign):
        target = root(statement.target)
        binds.discard(target)
        changes.add(target)
    return binds, changes - {""}


def _own_nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a statement, without the insides of functions, classes, comprehensions and lambdas."""
    yield statement
    if isinstance(statement, FunctionNode | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        yield from _own_nodes(child)
