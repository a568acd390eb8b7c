"""Imports of the rewritten script: which names it may use, what is added, what is no longer needed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import libcst as cst
from libcst.helpers import get_absolute_module_for_import, get_full_name_for_node

from migrate.rewrite.edits.nodes import split_blank
from migrate.rewrite.edits.statements import KeepingComments
from migrate.syntax.tree import is_docstring, nodes_of
from migrate.syntax.walk import children

# Imported for what the import does: it registers the backend.
FOR_EFFECT = frozenset({"torch_xla.distributed.xla_backend"})

Statement = TypeVar("Statement", cst.Import, cst.ImportFrom)


@dataclass(frozen=True)
class ImportBinding:
    """A name that an import statement binds: `import torch.optim as optim` binds `optim`.

    Without `as`, `import torch.optim` is reachable as `torch.optim`: `name` is then the dotted path.
    """

    target: str
    name: str


class Imports:
    """The imports that the rules ask for, resolved against those that the script has.

    Args:
        module: the script.
        stars: what the names stand for that `from module import *` brings.
    """

    def __init__(self, module: cst.Module, stars: Mapping[str, str]) -> None:
        self._existing = {target: name for name, target in stars.items()}
        self._existing |= {binding.target: binding.name for binding in bindings(module)}
        self._module = module
        self._added: dict[str, str] = {}
        self._asked: set[str] = set()
        self._registers = False

    def register_xla(self) -> None:
        """Have torch know the XLA device: any import of torch_xla does that."""
        self._registers = not any(target.split(".")[0] == "torch_xla" for target in self._existing)

    def require(self, module: str, alias: str | None = None) -> str:
        """Return the name under which `module` is reachable, importing it where it is not yet.

        Args:
            module: dotted name of the module, e.g. `torch_xla.runtime`.
            alias: the name that the field gives it (`xr`); another is made where the script uses that
                one for something else.
        """
        self._asked.add(module)
        name = self._existing.get(module) or self._added.get(module)
        if name is None:
            name = alias or module
            while name in self._taken and not self._is_root_of_existing(name):
                name += "_"
            self._added[module] = name
        return name

    def requires(self, package: str) -> bool:
        """Whether a rule has asked for `package` or a module in it."""
        return any(module.split(".")[0] == package for module in self._asked)

    @cached_property
    def _taken(self) -> set[str]:
        return _names(self._module)

    def given(self, module: str, name: str) -> None:
        """Take note that a rule writes `import module as name` itself, above all that uses it."""
        self._existing.setdefault(module, name)
        self._added.pop(module, None)

    def _is_root_of_existing(self, name: str) -> bool:
        # `torch_xla` is no foreign name where the script has `import torch_xla.core.xla_model`.
        return any(bound.split(".")[0] == name for bound in self._existing.values())

    def added(self, *used_in: cst.CSTNode) -> list[cst.SimpleStatementLine]:
        """Return the import statements to add, sorted by module.

        Args:
            used_in: what the script has become. What it does not use was asked for by an edit that was
                not made; an import for what it does (`FOR_EFFECT`) needs no use.
        """
        lines = []
        uses = _uses(*used_in) if self._added else Counter[str]()
        for module, name in sorted(self._added.items()):
            if not uses[name] and module not in FOR_EFFECT:
                continue
            suffix = "" if name == module else f" as {name}"
            lines.append(
                cst.ensure_type(
                    cst.parse_statement(f"import {module}{suffix}"), cst.SimpleStatementLine
                )
            )
        if self._registers and not any(_root(line) == "torch_xla" for line in lines):
            statement = cst.parse_statement("import torch_xla")
            lines.append(cst.ensure_type(statement, cst.SimpleStatementLine))
        return lines


def _names(module: cst.Module) -> set[str]:
    """Return the names in the script; `from torch.cuda import amp as a` binds none but `a`."""
    froms = [s.module for s in nodes_of(module, cst.ImportFrom) if s.module is not None]
    renamed = [a.name for a in nodes_of(module, cst.ImportAlias) if a.asname is not None]
    unbound = {id(name) for path in (*froms, *renamed) for name in nodes_of(path, cst.Name)}
    return {name.value for name in nodes_of(module, cst.Name) if id(name) not in unbound}


def bindings(module: cst.Module) -> Iterator[ImportBinding]:
    """Yield what the import statements at module level bind."""
    for line in module.body:
        if not isinstance(line, cst.SimpleStatementLine):
            continue
        for statement in line.body:
            if isinstance(statement, cst.Import):
                for alias in statement.names:
                    target = alias.evaluated_name
                    yield ImportBinding(target, alias.evaluated_alias or target)
            elif isinstance(statement, cst.ImportFrom) and not isinstance(
                statement.names, cst.ImportStar
            ):
                origin = get_absolute_module_for_import(None, statement)
                for alias in statement.names:
                    name = alias.evaluated_name
                    yield ImportBinding(f"{origin}.{name}", alias.evaluated_alias or name)


def add_imports(module: cst.Module, lines: Sequence[cst.SimpleStatementLine]) -> cst.Module:
    """Return `module` with the import statements `lines`.

    They go before the first `from torch… import` (torch_xla replaces functions of torch when it is
    imported, so that a name bound earlier stays the old one), else after the last `import torch…`,
    else after the first block of imports. `import shims`, which replaces nothing, goes before torch, as it
    is sorted. Those of the standard library go to its first import.
    """
    for line in lines:
        if _root(line) in sys.stdlib_module_names:
            module = _add_standard(module, line)
    lines = [line for line in lines if _root(line) not in sys.stdlib_module_names]
    if not lines:
        return module
    body = list(module.body)
    index = _insertion_index(body)
    if all(_root(line) < "torch" for line in lines):
        index = next(
            (at for at, statement in enumerate(body[:index]) if _root(statement) == "torch"), index
        )
    added = list(lines)
    above = body[index - 1] if index > 0 else None
    below = body[index] if index < len(body) else None
    if _root(below) == "torch" and _root(above) != "torch":
        # The head of a group of imports: the blank lines that set it apart stay above it.
        assert below is not None
        blanks, comments = split_blank(below.leading_lines)
        added[0] = added[0].with_changes(leading_lines=blanks)
        body[index] = below.with_changes(leading_lines=comments)
    elif above is not None and not _imported(above):
        added[0] = added[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    if below is not None and not _imported(below) and not split_blank(below.leading_lines)[0]:
        definition = isinstance(below, cst.FunctionDef | cst.ClassDef)
        blanks = [cst.EmptyLine(indent=False)] * (2 if definition else 1)
        body[index] = below.with_changes(leading_lines=[*blanks, *below.leading_lines])
    return module.with_changes(body=[*body[:index], *added, *body[index:]])


def _add_standard(module: cst.Module, line: cst.SimpleStatementLine) -> cst.Module:
    """Return `module` with an import of the standard library, in order among the first ones."""
    body = list(module.body)
    first = next((i for i, s in enumerate(body) if _root(s) not in ("", "__future__")), None)
    if first is None:
        at = 1 if body and is_docstring(body[0]) else 0
        return module.with_changes(body=[*body[:at], line, *body[at:]])
    at = first
    while at < len(body) and _root(body[at]) in sys.stdlib_module_names:
        imported = _imported(body[at])
        if (
            imported
            and imported[0] is cst.Import
            and imported[1] > (_imported(line) or ("", ""))[1]
        ):
            break
        if imported and imported[0] is cst.ImportFrom:
            break
        at += 1
    below = body[at] if at < len(body) else None
    if below is not None and at == first:
        blanks, comments = split_blank(getattr(below, "leading_lines", ()))
        line = line.with_changes(leading_lines=blanks)
        own = [] if _root(below) in sys.stdlib_module_names else [cst.EmptyLine(indent=False)]
        body[at] = below.with_changes(leading_lines=[*own, *comments])
    return module.with_changes(body=[*body[:at], line, *body[at:]])


def _root(statement: cst.CSTNode | None) -> str:
    """Return the top package that an import statement imports from; empty for other statements."""
    imported = _imported(statement) if statement is not None else None
    return imported[1].split(".")[0] if imported else ""


def _insertion_index(body: Sequence[cst.BaseStatement]) -> int:
    last_torch = last_import = None
    for index, statement in enumerate(body):
        imported = _imported(statement)
        if imported:
            kind, module = imported
            if module.split(".")[0] == "torch":
                if kind is cst.ImportFrom:
                    return index
                last_torch = index
        if imported or (last_import is None and is_docstring(statement)):
            last_import = index
        elif last_torch is not None:
            break
    last = last_torch if last_torch is not None else last_import
    return 0 if last is None else last + 1


def _imported(statement: cst.CSTNode) -> tuple[type[cst.CSTNode], str] | None:
    """Return the kind of import and the first module of an import statement, else None."""
    if isinstance(statement, cst.SimpleStatementLine) and statement.body:
        first = statement.body[0]
        if isinstance(first, cst.Import):
            return cst.Import, first.names[0].evaluated_name
        if isinstance(first, cst.ImportFrom):
            module = get_full_name_for_node(first.module) if first.module else ""
            return cst.ImportFrom, "." * len(first.relative) + (module or "")
    return None


def no_longer_used(before: cst.Module, *after: cst.CSTNode) -> frozenset[str]:
    """Return the names that imports of `before` bind, that `before` used and `after` does not.

    An import that was unused from the start is the user's affair, and so is one that `__all__` names.

    Args:
        before: the script.
        after: what the script has become, and the definitions that come into it.
    """
    used_before, used_after = _uses(before), _uses(*after)
    kept = {
        string.raw_value
        for statement in before.body
        if any(name.value == "__all__" for name in nodes_of(statement, cst.Name))
        for string in nodes_of(statement, cst.SimpleString)
    }
    return frozenset(
        binding.name
        for binding in bindings(before)
        if used_before[binding.name] and not used_after[binding.name] and binding.name not in kept
    )


def _uses(*roots: cst.CSTNode) -> Counter[str]:
    """Count uses of names and of dotted names, each dotted prefix too, import statements left out."""
    uses: Counter[str] = Counter()

    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        # By the type: to ask whether it is an instance takes ten times as long, of every node.
        kind = type(node)
        if kind is cst.Name:
            uses[node.value] += 1  # type: ignore[attr-defined]
        elif kind is cst.Attribute:
            if (name := get_full_name_for_node(node)) and "." in name:
                uses[name] += 1
            waiting.append(node.value)  # type: ignore[attr-defined]
        elif kind is cst.Arg:
            waiting.append(node.value)  # type: ignore[attr-defined]
        elif kind is not cst.Import and kind is not cst.ImportFrom:
            waiting.extend(children(node))
    return uses


def remove_imports(module: cst.Module, names: frozenset[str]) -> cst.Module:
    """Return `module` without the module-level imports of `names`; comments above them are kept."""
    if not names:
        return module
    visited = module.visit(KeepingComments(_RemoveImports(module, names)))
    return cst.ensure_type(visited, cst.Module)


class _RemoveImports(cst.CSTTransformer):
    """Takes names out of the import statements at module level."""

    def __init__(self, module: cst.Module, names: frozenset[str]) -> None:
        super().__init__()
        self._names = names
        # `import torch.multiprocessing` may be all that binds `torch`.
        self._roots = Counter(binding.name.split(".")[0] for binding in bindings(module))
        self._uses = _uses(module)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.RemovalSentinel:
        names = [alias for alias in updated_node.names if not self._removable(alias, dotted=True)]
        if not names:
            return cst.RemoveFromParent()
        return updated_node if len(names) == len(updated_node.names) else _with(updated_node, names)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        names = [alias for alias in updated_node.names if not self._removable(alias, dotted=False)]
        if not names:
            return cst.RemoveFromParent()
        return updated_node if len(names) == len(updated_node.names) else _with(updated_node, names)

    def _removable(self, alias: cst.ImportAlias, *, dotted: bool) -> bool:
        name = alias.evaluated_alias or alias.evaluated_name
        if name not in self._names:
            return False
        root = name.split(".")[0]
        if dotted and root != name and self._uses[root] and self._roots[root] == 1:
            return False
        self._roots[root] -= 1
        return True


def _with(statement: Statement, names: list[cst.ImportAlias]) -> Statement:
    """Return `statement` with fewer names; the last keeps the comma, if any, that the last one had."""
    old = statement.names
    assert not isinstance(old, cst.ImportStar)
    names[-1] = names[-1].with_changes(comma=old[-1].comma)
    return statement.with_changes(names=names)
