"""Body of `if __name__ == '__main__':` as the body of a function: names that other code reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import TARGETED, assigned_by, code, nodes
from migrate.syntax.walk import children

# Builtins that run text in the namespace of their caller, and those that return that namespace.
EVALUATING = ("exec", "eval")
NAMESPACES = {"locals": "globals()", "vars": "globals()", "dir": "sorted(globals())"}


def shared_names(guard: cst.If, context: Workspace) -> frozenset[str]:
    """Return the names that the guard's body binds and that other code of the script uses."""
    bound = set(_bound(guard.body))
    if _looks_at_its_globals(context):
        return frozenset(bound)
    inside = {id(node) for node in nodes(guard)}
    used = set()
    for node in context.nodes:
        if isinstance(node, cst.Name) and node.value in bound and id(node) not in inside:
            above = context.parent(node)
            if isinstance(above, cst.Attribute) and above.attr is node:
                continue
            if isinstance(above, cst.Arg) and above.keyword is node:
                continue
            while isinstance(above, cst.Attribute):
                above = context.parent(above)
            if isinstance(above, cst.ImportFrom | cst.ImportAlias):
                continue  # a module of that name: `from optimizer import make`, `from exp.run import start`
            owner, _ = context.bound_to(node)
            # A variable of a function, class or comprehension is another one of that name.
            if owner is None or isinstance(owner, cst.Module):
                used.add(node.value)
    return frozenset(used)


def _bound(body: cst.CSTNode) -> Iterable[str]:
    """Yield the names that statements bind in their own scope."""
    for node in _own(body):
        for target in assigned_by(node) if type(node) in TARGETED else ():
            if isinstance(target, cst.Name):
                yield target.value
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            yield node.name.value
        elif isinstance(node, cst.Import | cst.ImportFrom):
            for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
                name = alias.evaluated_alias or alias.evaluated_name
                yield name.split(".")[0]


def _looks_at_its_globals(context: Workspace) -> bool:
    calls = (node for node in context.nodes if isinstance(node, cst.Call))
    named = [call for call in calls if isinstance(call.func, cst.Name)]
    return any(
        code(call.func) in ("globals", *EVALUATING)
        or (code(call.func) in NAMESPACES and not call.args)  # `vars(args)` asks an object
        for call in named
    )


def _own(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes at and below `node` without those of other scopes.

    Definitions and comprehensions have names of their own, but for `(name := value)` in a comprehension.
    """
    yield node
    inner: Sequence[cst.CSTNode] = children(node)
    if isinstance(node, cst.FunctionDef):
        inner = [part for part in inner if part is not node.body and part is not node.params]
    elif isinstance(node, cst.ClassDef):
        inner = [part for part in inner if part is not node.body]
    elif isinstance(node, cst.Lambda):
        inner = []
    elif isinstance(node, cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp):
        below = (part for inner in children(node) for part in _own(inner))
        inner = [part for part in below if isinstance(part, cst.NamedExpr)]
    for part in inner:
        yield from _own(part)


class WithoutAnnotations(cst.CSTTransformer):
    """Makes `x: int = 1` plain: an annotated name may not be global in a function."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Skip a scope with its own names."""
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Skip a scope with its own names."""
        return False

    def leave_AnnAssign(
        self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign
    ) -> cst.BaseSmallStatement | cst.RemovalSentinel:
        """Return the plain assignment."""
        target = updated_node.target
        if not isinstance(target, cst.Name) or target.value not in self._names:
            return updated_node
        if updated_node.value is None:
            return cst.RemoveFromParent()
        return cst.Assign(targets=[cst.AssignTarget(target)], value=updated_node.value)


class InModuleNamespace(cst.CSTTransformer):
    """Gives `exec(text)` and `locals()` the module's names, which were theirs at module level.

    Names that a text assigns in a function are lost without an error.

    Args:
        context: the script, whose own functions may have these names.
    """

    def __init__(self, context: Workspace) -> None:
        super().__init__()
        self._names = {*EVALUATING, *NAMESPACES} - {*_bound(context.module)}

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        """Skip a scope with its own names."""
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        """Skip a scope with its own names."""
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        """Skip a scope with its own names."""
        return False

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Return the call with the module's names."""
        function = updated_node.func
        if not isinstance(function, cst.Name) or function.value not in self._names:
            return updated_node
        if function.value in NAMESPACES:
            whole = not updated_node.args
            return cst.parse_expression(NAMESPACES[function.value]) if whole else updated_node
        if len(updated_node.args) != 1 or updated_node.args[0].star:
            return updated_node
        names = cst.Arg(cst.parse_expression("globals()"))
        text = updated_node.args[0]
        if not isinstance(text.comma, cst.Comma):
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            after = text.whitespace_after_arg
            text = text.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
            names = names.with_changes(whitespace_after_arg=after)
        return updated_node.with_changes(args=[text, names])
