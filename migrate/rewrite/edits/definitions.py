"""Functions, classes and statements that the rules add to the script, after its imports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import libcst as cst

from migrate.syntax.tree import nodes_of

Definition = cst.FunctionDef | cst.ClassDef


class Definitions:
    """Functions and classes that rules ask for. Each is added to the script once."""

    def __init__(self, module: cst.Module) -> None:
        self._module = module
        self._added: dict[str, Definition] = {}
        self._names: dict[str, str] = {}
        self._statements: dict[str, cst.SimpleStatementLine] = {}

    @cached_property
    def _taken(self) -> set[str]:
        attributes = {id(node.attr) for node in nodes_of(self._module, cst.Attribute)}
        names = nodes_of(self._module, cst.Name)
        return {name.value for name in names if id(name) not in attributes}

    def require(self, name: str, source: str) -> str:
        """Return the name under which a function or class is reachable, and add it if it is missing.

        Args:
            name: its name. If the script uses this name for something else, another one is made.
            source: its definition, under `name`.
        """
        if name not in self._names:
            free = name
            while free in self._taken:
                free += "_"
            definition = cst.parse_statement(source)
            assert isinstance(definition, cst.FunctionDef | cst.ClassDef)
            self._added[free] = definition.with_changes(name=cst.Name(free))
            self._names[name] = free
        return self._names[name]

    def require_statement(self, source: str) -> None:
        """Add the statement `source` after the imports, once."""
        statement = cst.parse_statement(source)
        self._statements[source] = cst.ensure_type(statement, cst.SimpleStatementLine)

    def added(self) -> list[Definition | cst.SimpleStatementLine]:
        """Return what to add: the statements, then the definitions, sorted by name."""
        statements = [statement for _, statement in sorted(self._statements.items())]
        return [*statements, *(definition for _, definition in sorted(self._added.items()))]


def add_definitions(
    module: cst.Module, definitions: Sequence[Definition | cst.SimpleStatementLine]
) -> cst.Module:
    """Return `module` with `definitions` after the imports that come before its first definition."""
    if not definitions:
        return module
    body = list(module.body)
    kinds = cst.FunctionDef | cst.ClassDef
    first = next((i for i, s in enumerate(body) if isinstance(s, kinds)), len(body))
    imports = [i for i, statement in enumerate(body[:first]) if _imports(statement)]
    at = imports[-1] + 1 if imports else 0
    two = [cst.EmptyLine(indent=False)] * 2
    added = [
        new.with_changes(leading_lines=two)
        if isinstance(new, kinds)
        else new.with_changes(leading_lines=[two[0], *new.leading_lines])
        for new in definitions
    ]
    if at < len(body) and any(isinstance(new, kinds) for new in definitions):
        below = body[at]
        lines = list(getattr(below, "leading_lines", ()))
        while lines and lines[0].comment is None:
            del lines[0]
        body[at] = below.with_changes(leading_lines=[*two, *lines])
    return module.with_changes(body=[*body[:at], *added, *body[at:]])


def _imports(statement: cst.CSTNode) -> bool:
    """Whether `statement` imports something, also in a `try` at module level."""
    return next(
        (n for kind in (cst.Import, cst.ImportFrom) for n in nodes_of(statement, kind)), None
    ) is not None and isinstance(statement, cst.SimpleStatementLine | cst.Try)
