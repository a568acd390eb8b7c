"""The statements that keep the values of one reading on the device, and read them later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.rules.step.deferral.reading import Reading
from migrate.syntax.tree import code

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

READ_VALUES = '''
def read_values(pending):
    """Read the scalars of `pending` from the device, 500 in one transfer, and empty it."""
    values = []
    for start in range(0, len(pending), 500):
        values += {torch}.stack(pending[start : start + 500]).flatten().tolist()
    pending.clear()
    return values
'''
READ_ROWS = '''
def read_rows(pending):
    """Read the scalars at the head of the rows of `pending` from the device, and empty it."""
    values = {read_values}([row[0] for row in pending])
    rows = [(value, *row[1:]) for value, row in zip(values, pending)]
    pending.clear()
    return rows
'''


class RecordedReading:
    """The code that records one reading.

    Args:
        reading: the reading.
        tensor: the expression that is appended to the list.
        context: the script, for unused names.
    """

    def __init__(self, reading: Reading, tensor: str, context: Workspace) -> None:
        self.reading = reading
        around = context.function_around(reading.line) or context.module
        self._taken = {name.value for name in context.below(around, cst.Name)}
        self._tensor = tensor
        name = reading.variable or sorted(reading.watched)[0]
        self._pending = self._free(f"{name}_pending")
        self._value = reading.variable or self._free("value")
        self._kept: dict[str, str] = {}
        for value in reading.kept:
            number = len(self._kept)
            fresh = self._free("count" if not number else f"count_{number + 1}")
            self._kept.setdefault(code(value), fresh)
        torch = context.imports.require("torch")
        read = context.definitions.require("read_values", READ_VALUES.format(torch=torch))
        if self._kept:
            rows = READ_ROWS.format(read_values=read)
            read = context.definitions.require("read_rows", rows)
        self._read = read

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def start(self) -> cst.SimpleStatementLine:
        """Return the statement that makes the list."""
        return _line(f"{self._pending} = []")

    def keep(self, updated: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """Return the statement that replaces the read: it appends the tensor to the list."""
        row = f"({', '.join([self._tensor, *self._kept])})" if self._kept else self._tensor
        return updated.with_changes(body=_line(f"{self._pending}.append({row})").body)

    def flush(self) -> list[cst.BaseStatement]:
        """Return the statements that read the list and do with each value what the step did."""
        values = f"{self._read}({self._pending})"
        if (extended := self._extended()) is not None:
            return [_line(f"{extended}.extend({values})")]
        target = ", ".join([self._value, *self._kept.values()])
        names: dict[int, cst.BaseExpression] = {id(self.reading.read): cst.Name(self._value)}
        for value in self.reading.kept:
            names[id(value)] = cst.Name(self._kept[code(value)])
        body = [_replaced(line, names) for line in self.reading.takes] or [_line("pass")]
        loop = cst.ensure_type(cst.parse_statement(f"for {target} in {values}: pass"), cst.For)
        return [loop.with_changes(body=cst.IndentedBlock(body))]

    def _extended(self) -> str | None:
        """Return the list that takes the values as they are, if that is all that becomes of them."""
        only = self.reading.takes[0].body[0] if len(self.reading.takes) == 1 else None
        call = only.value if isinstance(only, cst.Expr) else None
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return None
        if call.func.attr.value != "append" or self.reading.variable or len(call.args) != 1:
            return None
        return code(call.func.value) if call.args[0].value is self.reading.read else None


def bare(line: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
    """Return `line` without the lines above it and the comment behind it: they stay where they are."""
    return line.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())


def _line(text: str) -> cst.SimpleStatementLine:
    return cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)


def _replaced(
    line: cst.SimpleStatementLine, names: Mapping[int, cst.BaseExpression]
) -> cst.SimpleStatementLine:
    return cst.ensure_type(bare(line).visit(_Replacing(names)), cst.SimpleStatementLine)


class _Replacing(cst.CSTTransformer):
    """Puts names in the places of expressions."""

    def __init__(self, names: Mapping[int, cst.BaseExpression]) -> None:
        super().__init__()
        self._names = names

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        """Return the name, or the node as it is."""
        return self._names.get(id(original_node), updated_node)
