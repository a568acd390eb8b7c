"""Imports of the rewritten script: names that it may use, added imports, and unused imports."""

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

# Imported for its effect: it registers the backend.
FOR_EFFECT = frozenset({"torch_xla.distributed.xla_backend"})

Line = cst.SimpleStatementLine | cst.BaseCompoundStatement
Statement = TypeVar("Statement", cst.Import, cst.ImportFrom)


TORCH = "torch"


@dataclass(frozen=True)
class ImportBinding:
    """A name that an import statement binds: `import torch.optim as optim` binds `optim`.

    Without `as`, `name` is the dotted path: `import torch.optim` is reachable as `torch.optim`.
    """

    target: str
    name: str


class Imports:
    """Imports that rules ask for, resolved against the imports of the script.

    Args:
        module: the script.
        stars: meanings of the names from `from module import *`.
    """

    def __init__(self, module: cst.Module, stars: Mapping[str, str]) -> None:
        self._existing = {target: name for name, target in stars.items()}
        self._existing |= {binding.target: binding.name for binding in bindings(module)}
        if TORCH not in self._existing and TORCH in _from_others(module):
            self._existing[TORCH] = TORCH
        self._module = module
        self._added: dict[str, str] = {}
        self._asked: set[str] = set()
        self._registers = False

    def register_xla(self) -> None:
        """Register the XLA device with torch. Any import of torch_xla does so."""
        self._registers = not any(target.split(".")[0] == "torch_xla" for target in self._existing)

    def require(self, module: str, alias: str | None = None) -> str:
        """Return the name under which `module` is reachable, and import it if needed.

        Args:
            module: dotted name of the module, e.g. `torch_xla.runtime`.
            alias: the usual name for it (`xr`). If the script uses this name for something else, another one
                is made.
        """
        self._asked.add(module)
        name = self._existing.get(module) or self._added.get(module)
        if name is None:
            name = alias or module
            is_root = alias is None and self._is_root_of_existing(name)
            while name in self._taken and not is_root:
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
        """Record that a rule itself writes `import module as name`, above all its uses."""
        self._existing.setdefault(module, name)
        self._added.pop(module, None)

    def _is_root_of_existing(self, name: str) -> bool:
        # With `import torch_xla.core.xla_model`, the name `torch_xla` already means the package.
        return any(bound.split(".")[0] == name for bound in self._existing.values())

    def added(self, *used_in: cst.CSTNode) -> list[cst.SimpleStatementLine]:
        """Return the import statements to add, sorted by module.

        Args:
            used_in: the rewritten script. An import that it does not use belongs to an edit that was not
                made. An import for its effect (`FOR_EFFECT`) needs no use.
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
    """Return the names in the script. `from torch.cuda import amp as a` binds only `a`."""
    froms = [s.module for s in nodes_of(module, cst.ImportFrom) if s.module is not None]
    renamed = [a.name for a in nodes_of(module, cst.ImportAlias) if a.asname is not None]
    unbound = {id(name) for path in (*froms, *renamed) for name in nodes_of(path, cst.Name)}
    return {name.value for name in nodes_of(module, cst.Name) if id(name) not in unbound}


def bindings(module: cst.Module) -> Iterator[ImportBinding]:
    """Yield the bindings of the import statements at module level."""
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

    They are put before the first `from torch… import`, because torch_xla replaces functions of torch when it
    is imported, and a name bound earlier would keep the old function. Otherwise they are put after the last
    `import torch…`, or after the first block of imports. `import shims` replaces nothing, so it is put before
    torch, in sorted order. Imports of the standard library are put at its first import. Where a statement
    above that place needs them already, as in a notebook that imports torch in a later cell, they are put
    above it, and torch with them.
    """
    for line in lines:
        if _root(line) in sys.stdlib_module_names:
            module = _add_standard(module, line)
    lines = [line for line in lines if _root(line) not in sys.stdlib_module_names]
    if not lines:
        return module
    body = list(module.body)
    index = _insertion_index(body)
    first = _first_use(body[:index], lines)
    if first is not None:
        missing = _missing_torch(body, first)
        index = 1 + max((at for at in range(first) if _imported(body[at])), default=-1)
        lines = [*missing, *lines]
    elif all(_root(line) < "torch" for line in lines):
        index = next(
            (at for at, statement in enumerate(body[:index]) if _root(statement) == "torch"), index
        )
    added = list(lines)
    above = body[index - 1] if index > 0 else None
    below = body[index] if index < len(body) else None
    if _root(below) == "torch" and _root(above) != "torch":
        # The first import of a group: the blank lines above the group stay above it.
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
    """Return the top package of an import statement. Empty for other statements."""
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


def _first_use(body: Sequence[Line], lines: Sequence[cst.SimpleStatementLine]) -> int | None:
    """Return the place of the first statement that needs torch or what `lines` import, as "xla" does too.

    Functions and classes run later.
    """
    needed = {"torch"} | _roots(*lines)
    for index, statement in enumerate(body):
        if _imported(statement):
            needed -= _roots(statement)
        elif not isinstance(statement, cst.FunctionDef | cst.ClassDef):
            texts = nodes_of(statement, cst.SimpleString)
            if needed & {*_uses(statement)} or any(text.raw_value == "xla" for text in texts):
                return index
    return None


def _roots(*statements: Line) -> set[str]:
    """Return the names that the imports among `statements` bind."""
    return {binding.name.split(".")[0] for binding in bindings(cst.Module(statements))}


def _missing_torch(body: Sequence[Line], index: int) -> list[cst.SimpleStatementLine]:
    """Return `import torch` if the statement at `index` uses it and only one below it imports it."""
    if not _uses(body[index])["torch"] or "torch" in _roots(*body[:index]):
        return []
    return [cst.ensure_type(cst.parse_statement("import torch"), cst.SimpleStatementLine)]


def _imported(statement: cst.CSTNode) -> tuple[type[cst.CSTNode], str] | None:
    """Return the kind and the first module of an import statement. None for other statements."""
    if isinstance(statement, cst.SimpleStatementLine) and statement.body:
        first = statement.body[0]
        if isinstance(first, cst.Import):
            return cst.Import, first.names[0].evaluated_name
        if isinstance(first, cst.ImportFrom):
            module = get_full_name_for_node(first.module) if first.module else ""
            return cst.ImportFrom, "." * len(first.relative) + (module or "")
    return None


def no_longer_used(before: cst.Module, *after: cst.CSTNode) -> frozenset[str]:
    """Return the names of imports that `before` uses and `after` does not.

    Imports that were unused from the start, and imports in `__all__`, are left to the user.

    Args:
        before: the script.
        after: the rewritten script, and the definitions that are added to it.
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
    """Count uses of names, dotted names and their prefixes, without import statements."""
    uses: Counter[str] = Counter()

    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        # By type: `isinstance` on every node takes ten times as long.
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
    """Return `module` without the module-level imports of `names`. Comments above them are kept."""
    if not names:
        return module
    visited = module.visit(KeepingComments(_RemoveImports(module, names)))
    return cst.ensure_type(visited, cst.Module)


class _RemoveImports(cst.CSTTransformer):
    """Removes names from the import statements at module level."""

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
    """Return `statement` with fewer names. The last name keeps the trailing comma, if there was one."""
    old = statement.names
    assert not isinstance(old, cst.ImportStar)
    names[-1] = names[-1].with_changes(comma=old[-1].comma)
    return statement.with_changes(names=names)


def _from_others(module: cst.Module) -> set[str]:
    """Return the names that lines of the module take from other modules: `from safe import torch`."""
    lines = [line for line in module.body if isinstance(line, cst.SimpleStatementLine)]
    imports = [part for line in lines for part in line.body if isinstance(part, cst.ImportFrom)]
    return {
        alias.evaluated_name
        for statement in imports
        if not isinstance(statement.names, cst.ImportStar)
        for alias in statement.names
        if alias.asname is None
    }
