"""Code of a script that a message about one of its nodes may quote."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.reading.names.parsed import Parsed
from migrate.syntax.tree import code, nodes, string_value

LEAVES = (cst.FormattedStringText, cst.Name, cst.SimpleString)
QUOTED = (cst.Arg, cst.BaseExpression, cst.BaseSmallStatement)


def quoted(node: cst.CSTNode, context: Parsed) -> Iterator[str]:
    """Yield the parts of the statement around `node` that name XLA.

    Neither the literal `"xla"` alone is among them nor a lone name: a message may mean the device with it.
    """
    for leaf in nodes(context.statement_around(node)):
        if not isinstance(leaf, LEAVES) or "xla" not in leaf.value.lower():
            continue
        for part in (leaf, *context.ancestors(leaf)):
            if isinstance(
                part, cst.BaseSuite | cst.BaseCompoundStatement | cst.SimpleStatementLine
            ):
                break
            alone = part.value if isinstance(part, cst.Arg) and part.keyword is None else part
            lone = isinstance(alone, cst.Name) or string_value(alone) == "xla"
            if isinstance(part, QUOTED) and not lone:
                yield code(part).strip().removesuffix(",")
