"""Statements that rename, remove or copy a file after its save: for the replica that has written it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.edits.lift import marked
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.rewrite.rules.saving.unguard import keep_to_first

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

MESSAGE = "the first replica alone has the file: it renames, removes or copies it"


def statements_after(save: cst.Call, context: Workspace) -> Iterator[cst.BaseStatement]:
    """Yield the statements that change the file that `save` writes, on every replica that saves."""
    ends = {end for end, of in context.calls.moved_files.items() if of == context.place(save)}
    around = context.function_around(save) if ends else None
    for statement in context.all_of(cst.If, cst.SimpleStatementLine) if ends else ():
        if context.function_around(statement) is around and _end(statement, context) in ends:
            yield statement


def _end(statement: cst.If | cst.SimpleStatementLine, context: Workspace) -> tuple[int, int] | None:
    if isinstance(statement, cst.If):
        return context.place(statement.test)
    line = statement.body[0] if len(statement.body) == 1 else None
    return context.place(line.value) if isinstance(line, cst.Expr) else None


def moved_by_first(
    rule: Rule, saves: Sequence[cst.Call], context: Workspace
) -> Iterator[Edit | RuleFinding]:
    """Yield the edits that leave to the first replica what changes the files of `saves`."""
    if not context.calls.replicated:
        return
    blocks: dict[int, cst.IndentedBlock] = {}
    for save in saves:
        for statement in statements_after(save, context):
            block = context.parent(statement)
            if isinstance(block, cst.IndentedBlock):
                yield rule.edit(statement, marked, MESSAGE)
                blocks[id(block)] = block
            else:
                yield from rule.report(statement, f"{MESSAGE}; put it under a test of the rank")
    for block in blocks.values():
        test = context.vocabulary.expression("is first")
        yield rule.edit(block, keep_to_first(test), MESSAGE)
