"""Imported name that an expression stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.reading.names.scopes import NameBinding, Use, Uses, bound_by
from migrate.syntax.tree import is_dotted_name, nodes

Import = cst.Import | cst.ImportFrom


class ImportedNames:
    """Meanings of a module's names, as its imports bind them.

    Args:
        module: the module.
        uses: its names.
        imports: its import statements, wherever they stand.
        stars: the meanings of the names that `from module import *` brings.
        attempts: its `try` and `if` statements.
        loaded: the names that get a module as a value, by the ids of their nodes: `torch = import_torch()`.

    Attributes:
        roots: the names that may stand for an import: `a` of `a.b`.
    """

    def __init__(
        self,
        module: cst.Module,
        uses: Uses,
        imports: Iterable[Import],
        stars: Mapping[str, str],
        attempts: Iterable[cst.Try | cst.If] = (),
        loaded: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        self._stars = stars
        self._attempts = attempts
        self._loaded = loaded or {}
        bound = (name for statement in imports for name in bound_by(statement))
        named = (name for name, _ in self._loaded.values())
        self._bound = frozenset((*bound, *named, *self._stars))
        self._uses = uses.of
        self.roots = [use.name for use in uses.of.values() if use.name.value in self._bound]
        self._meanings: dict[int, list[list[tuple[str, str]]]] = {}
        self._assigned = {id(name) for name in _assigned(module)} if self._bound else set()

    def of(self, node: cst.CSTNode) -> str | None:
        """Return the imported name that the dotted name `node` stands for, or None."""
        root = node
        while isinstance(root, cst.Attribute):
            root = root.value
        use = self._uses.get(id(root))
        if use is None:
            return None
        names = dict(self._imported_names_at(node, root, use))
        if len(names) > 1:
            return self._first_of_attempt(names)
        return next(iter(names), None)

    def _first_of_attempt(self, names: Mapping[str, cst.CSTNode]) -> str | None:
        """Return the first of `names` that the branches of a `try` or an `if` import from torch, or None.

        torch has moved functions: `torch.GradScaler` was `torch.cuda.amp.GradScaler`. Branches of an `if` may
        also select another function, with another name there.
        """
        if not all(name.startswith("torch.") for name in names):
            return None
        is_same = len({name.rpartition(".")[2] for name in names}) == 1
        for attempt in self._attempts:
            if isinstance(attempt, cst.If) and not is_same:
                continue
            first, *others = (
                {id(node) for node in nodes(block) if isinstance(node, cst.Import | cst.ImportFrom)}
                for block in _branches(attempt)
            )
            in_body = [name for name, statement in names.items() if id(statement) in first]
            rest = [statement for name, statement in names.items() if name not in in_body]
            if len(in_body) == 1 and all(
                any(id(statement) in other for other in others) for statement in rest
            ):
                return in_body[0]
        return None

    def _imported_names_at(
        self, node: cst.CSTNode, root: cst.CSTNode, use: Use
    ) -> Iterator[tuple[str, cst.CSTNode]]:
        if use.reads:
            read, name = self._read(root, use)
            if read is node:
                yield from self._imported(name, self._not_hidden(_before(name, use), use))
                return
        full = prefix = get_full_name_for_node(node) or ""
        while prefix and not use.scope.holds(prefix):
            prefix = prefix.rpartition(".")[0]
        bindings = use.scope.find(prefix, use.scope) if prefix else []
        if all(binding.node is not node for binding in bindings):
            yield from self._imported(full, self._not_hidden(bindings, use))

    def _not_hidden(self, bindings: Sequence[NameBinding], use: Use) -> Sequence[NameBinding]:
        """Return the bindings that no statement of the module before `use` hides: `model = model.Net()`."""
        hiding = (
            b.number
            for b in bindings
            if id(b.node) in self._assigned and (b.scope is not use.scope or b.number < use.number)
        )
        last = max(hiding, default=-1)
        return [b for b in bindings if b.number >= last]

    def _read(self, root: cst.CSTNode, use: Use) -> tuple[cst.CSTNode, str]:
        """Return the expression read at the name `root`: the name, or as much of `a.b.c` as is imported."""
        if use.around is not None and is_dotted_name(use.around):
            node: cst.CSTNode = use.around
            while isinstance(node, cst.Attribute):
                name = get_full_name_for_node(node) or ""
                if name in self._bound and use.scope.holds(name):
                    return node, name
                node = node.value
        return root, get_full_name_for_node(root) or ""

    def _imported(
        self, full: str, bindings: Iterable[NameBinding]
    ) -> Iterator[tuple[str, cst.CSTNode]]:
        """Yield the meanings of `full` by the imports among `bindings`, each with its import."""
        for binding in bindings:
            bound, module = self._loaded.get(id(binding.node), ("", ""))
            if module and f"{full}.".startswith(f"{bound}."):
                yield module + full[len(bound) :], binding.node
            if isinstance(binding.node, cst.Import | cst.ImportFrom):
                for meanings in self._meanings_of(binding.node):
                    for bound, name in meanings:
                        if full == bound or full.startswith(f"{bound}."):
                            yield name + full[len(bound) :], binding.node
                            break

    def _meanings_of(self, statement: Import) -> list[list[tuple[str, str]]]:
        if id(statement) not in self._meanings:
            is_star = isinstance(statement.names, cst.ImportStar)
            meanings = [list(self._stars.items())] if is_star else list(_meanings(statement))
            self._meanings[id(statement)] = meanings
        return self._meanings[id(statement)]


def _branches(statement: cst.Try | cst.If) -> Iterator[cst.CSTNode]:
    """Yield the blocks of `statement` of which a run enters one, or one after the other failed."""
    yield statement.body
    if isinstance(statement, cst.Try):
        yield from statement.handlers
    elif isinstance(statement.orelse, cst.If):
        yield from _branches(statement.orelse)
    elif statement.orelse is not None:
        yield statement.orelse


def _assigned(module: cst.Module) -> Iterator[cst.Name]:
    """Yield the names that the module's own statements always assign."""
    for line in module.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            for target in small.targets if isinstance(small, cst.Assign) else ():
                if isinstance(target.target, cst.Name):
                    yield target.target


def _before(name: str, use: Use) -> list[NameBinding]:
    """Return the bindings of `name` before its use; if there are none, those of the enclosing scope."""
    scope = use.scope
    bindings = scope.find(name, scope)
    earlier = [b for b in bindings if b.scope is not scope or b.number < use.number]
    if bindings and not earlier and scope.parent is not scope:
        return scope.parent.find(name, scope)
    return earlier


def _meanings(statement: Import) -> Iterator[list[tuple[str, str]]]:
    """Yield for each name of an import what it binds, the longest first, with its meaning."""
    if isinstance(statement.names, cst.ImportStar):
        return
    module = ""
    if isinstance(statement, cst.ImportFrom):
        dots = "." * len(statement.relative)
        module = dots + (get_full_name_for_node(statement.module) or "" if statement.module else "")
        if statement.module:
            module += "."
    for alias in statement.names:
        name = alias.evaluated_name
        bound = alias.evaluated_alias
        meanings = []
        while name:
            meanings.append((bound or name, module + name))
            name = name.rpartition(".")[0]
        yield meanings
