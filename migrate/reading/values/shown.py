"""Values that are only printed or logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import LOGGING_METHODS

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Nodes between a value and the call that prints it; one `print(…)` may format the value with `%`.
AROUND = (
    cst.Arg
    | cst.FormattedString
    | cst.FormattedStringExpression
    | cst.ConcatenatedString
    | cst.BinaryOperation
)


def is_shown(value: cst.CSTNode, script: Script) -> bool:
    """Whether a value is only printed or logged: `print(f"GPU: {value}")`, `logging.info("%s", value)`."""
    below, above = value, script.parent(value)
    while isinstance(above, AROUND):
        if isinstance(above, cst.BinaryOperation) and not _formats(above):
            return False
        below, above = above, script.parent(above)
    if not isinstance(above, cst.Call) or above.func is below:
        return False
    if isinstance(above.func, cst.Name):
        return above.func.value == "print" and not script.bindings(above.func)
    name = script.qualified_name(above.func) or ""
    return name.startswith("logging.") and name.rpartition(".")[2] in LOGGING_METHODS


def _formats(operation: cst.BinaryOperation) -> bool:
    """Whether an operation puts a value into a text: `"%s" % value`."""
    texts = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString
    return isinstance(operation.operator, cst.Modulo) and isinstance(operation.left, texts)
