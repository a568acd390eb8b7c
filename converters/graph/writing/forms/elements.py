"""Parts of an array that the original keeps in a list: `parts = jnp.split(…)`, then `parts[0]`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

from converters.graph.expression import code
from converters.graph.writing.original.comments import commented, of

# Functions of JAX that give the parts of an array as a list.
_SPLITTING = ("jnp.split", "jnp.unstack")


def kept_together(
    body: Sequence[ast.stmt], result: ast.expr, taken: Iterable[str]
) -> tuple[list[ast.stmt], ast.expr]:
    """Statements and a result that read the parts of an array by their place in a list.

    The parts have the list's name and their number: `parts_0, parts_1 = …`. Parts that the original gives
    names of their own keep these.

    Args:
        body: the statements.
        result: what follows them.
        taken: other names that stand for something there.
    """
    stored = Counter(
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    trees = (*body, result)
    read = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = {*taken, *read}
    lists: dict[str, tuple[str, int]] = {}
    for statement in body:
        match statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=first), *_] as parts)],
                value=ast.Call(func=function),
            ) if ast.unparse(function) in _SPLITTING:
                base = first.removesuffix("_0")
                numbered = [f"{base}_{at}" for at in range(len(parts))]
                own = [part.id for part in parts if isinstance(part, ast.Name)]
                if len(own) != len(parts) or first == base or base in names:
                    continue
                pairs = zip(own, numbered, strict=True)
                if any(name not in ("_", wanted) for name, wanted in pairs):
                    continue
                if any(stored[name] != 1 for name in own if name != "_"):
                    continue
                names.add(base)
                lists |= {name: (base, at) for at, name in enumerate(numbered)}
    if not lists:
        return list(body), result
    change = _Indexed(lists)
    return [commented(change.visit(each), of(each)) for each in body], change.visit(result)


class _Indexed(ast.NodeTransformer):
    def __init__(self, lists: dict[str, tuple[str, int]]) -> None:
        self.lists = lists

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        first = node.elts[0] if node.elts else None
        if (
            isinstance(node.ctx, ast.Store)
            and isinstance(first, ast.Name)
            and first.id in self.lists
        ):
            return ast.Name(self.lists[first.id][0], ast.Store())
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self.lists or not isinstance(node.ctx, ast.Load):
            return node
        base, at = self.lists[node.id]
        return code(f"{base}[{at}]")
