"""Add the import of torch_xla that registers the XLA device with torch."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.model.objects.programs import TEST
from migrate.reading.replicas.launch import is_guard
from migrate.rewrite.rule import Edit, Wrap
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import dotted

XLA = "torch_xla"


def register(edits: Sequence[Edit | Wrap], context: Workspace) -> list[Edit]:
    """Import torch_xla if `edits` name the device. Return the imports to add beside local imports of torch.

    A program or a file of tests imports torch_xla at its head. A module leaves the import to the program,
    unless a program of the project names no device itself. If the script imports torch only in functions,
    the programs that use it may import neither. torch_xla is then imported beside torch, or at the head if
    the line that imports torch may not have run.
    """
    named = [edit.node for edit in edits if isinstance(edit, Edit) and edit.names_device]
    if not named or context.portable or context.for_torch_tpu:  # which torch loads itself
        return []
    local = _local_imports(named, context)
    taken = {id(edit.node) for edit in edits}
    if local and None not in local and not any(id(line) in taken for line in local):
        lines = {id(line): line for line in local if line is not None}
        return [_beside(line) for line in lines.values()]
    if local or _is_program(named, context) or context.calls.run_without_accelerator:
        context.imports.register_xla()
    return []


def _is_program(named: Sequence[cst.CSTNode], context: Workspace) -> bool:
    """Whether the script is a program or a file of tests, not a module."""
    if TEST.match(context.source.path.name):
        return True
    guarded = any(
        isinstance(statement, cst.If) and is_guard(statement) for statement in context.module.body
    )
    at_import = any(context.function_around(node) is None for node in named)
    return guarded or at_import or _runs_functions(context)


def _runs_functions(context: Workspace) -> bool:
    """Whether the script calls its own function when it is imported: `main()` without a guard."""
    return any(
        context.function_around(call) is None
        and not any(isinstance(a, cst.Decorator | cst.ClassDef) for a in context.ancestors(call))
        for call in context.all_of(cst.Call)
        if context.called(call)
    )


def _local_imports(
    named: Sequence[cst.CSTNode], context: Workspace
) -> list[cst.SimpleStatementLine | None]:
    """Return the lines that import torch in functions that name a device.

    None stands for a device whose function imports torch in a branch that may not have run. The list is
    empty if the script imports torch or torch_xla at module level.
    """
    by_function: dict[int, list[cst.Import | cst.ImportFrom]] = {}
    for statement in context.all_of(cst.Import, cst.ImportFrom):
        if _roots(statement) & {"torch", XLA}:
            around = context.function_around(statement)
            if around is None:
                return []
            by_function.setdefault(id(around), []).append(statement)
    lines: list[cst.SimpleStatementLine | None] = []
    for node in named:
        function = context.function_around(node)
        while function is not None and id(function) not in by_function:
            function = context.function_around(function)
        if function is not None:
            lines += _above(node, by_function[id(function)], context)
    return lines


def _above(
    node: cst.CSTNode, imports: Sequence[cst.Import | cst.ImportFrom], context: Workspace
) -> list[cst.SimpleStatementLine | None]:
    """Return the first line of `imports` that has always run before `node`. Empty if it imports torch_xla."""
    blocks = {id(above) for above in context.ancestors(node)}
    for statement in imports:
        line = context.parent(statement)
        if id(context.parent(line)) in blocks and _is_before(statement, node, context):
            if XLA in _roots(statement):
                return []
            return [line if isinstance(line, cst.SimpleStatementLine) else None]
    return [None]


def _is_before(first: cst.CSTNode, second: cst.CSTNode, context: Workspace) -> bool:
    start, other = context.position(first), context.position(second)
    return (start.line, start.column) < (other.line, other.column)


def _roots(statement: cst.Import | cst.ImportFrom) -> set[str]:
    """Return the top packages that an import statement imports from."""
    if isinstance(statement, cst.Import):
        return {alias.evaluated_name.partition(".")[0] for alias in statement.names}
    if statement.module is None or statement.relative:
        return set()
    return {dotted(statement.module).partition(".")[0]}


def _beside(line: cst.SimpleStatementLine) -> Edit:
    """Return the edit that adds `import torch_xla` below `line`, or above a line of several statements."""
    added = cst.ensure_type(cst.parse_statement(f"import {XLA}"), cst.SimpleStatementLine)

    def replace(updated: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(updated, cst.BaseStatement)
        return cst.FlattenSentinel([added, updated] if len(line.body) > 1 else [updated, added])

    return Edit("device", line, replace, "import torch_xla: makes the device known to torch")
