"""What reads values or logs inside an `if` or a `with` that itself belongs in the step."""

from __future__ import annotations

import libcst as cst

from migrate.reading.flow.dataflow import overlap
from migrate.reading.steps.statement import Statement
from migrate.rewrite.rules.step.arrange import Arrangement
from migrate.rewrite.rules.step.detached_read import Read, as_read


def nested_reads(found: Arrangement, index: int) -> list[Read]:
    """Return the reads `value = tensor.item()` below `with` at `index` that can be made after the block."""
    statement = found.body.statements[index]
    if not isinstance(statement.node, cst.With):
        return []
    lines = _lines(statement.node)
    reads = []
    for at, line in enumerate(lines):
        read = as_read(line)
        if read is None or not found.body.values.mentions(read.tensor):
            continue
        later = [Statement(s, statement.values, statement.context) for s in lines[at + 1 :]]
        used = {n for s in (*later, *found.after(index)) for n in s.flow.used | s.flow.assigned}
        if not overlap([read.name], used):
            reads.append(read)
    return reads


def _lines(block: cst.With) -> list[cst.BaseStatement]:
    """Return the statements that certainly run in a `with`, those of `with` blocks in it included."""
    lines: list[cst.BaseStatement] = []
    for statement in block.body.body:
        if isinstance(statement, cst.With):
            lines.extend(_lines(statement))
        elif isinstance(statement, cst.BaseStatement):
            lines.append(statement)
    return lines
