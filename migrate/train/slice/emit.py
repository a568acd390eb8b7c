"""Source of the kept statements, as the script has them."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterable, Mapping

from migrate.train.errors import TrainError
from migrate.train.slice.keep import KeptPart
from migrate.train.slice.statements import every_statement, own_nodes
from migrate.train.slice.text import FunctionNode, ScriptText, WrittenFor, WrittenIf, first_line

RESTORE = "restore_draws"
# Helpers of `data.py` around a decorated function.
DECORATED, GIVEN = "as_in_script", "given_by"


class Emitter:
    """Writes kept statements.

    Attributes:
        lines: lines of the script that were written.

    Args:
        script: the script.
        restore_before: lines of statements before which the random generators are restored.
        sliced: functions with the training loop or a call of it, and what of them is kept.
    """

    def __init__(
        self,
        script: ScriptText,
        restore_before: Collection[int],
        sliced: Mapping[ast.AST, KeptPart],
    ) -> None:
        self.lines: set[int] = set()
        self._script, self._restore, self._sliced = script, restore_before, sliced

    def members(
        self,
        scope: KeptPart,
        statement: ast.ClassDef,
    ) -> list[ast.stmt]:
        """Members of a trainer that what is kept uses: its own methods, and the lines that call them."""
        callers = {
            node.attr
            for part in (scope, *self._sliced.values())
            for node in self._kept_nodes(part)
            if isinstance(node, ast.Attribute)
        }
        members = [
            m
            for m in statement.body
            if m in self._sliced or not isinstance(m, FunctionNode) or m.name.startswith("__")
        ]
        while True:
            used = set(callers)
            for member in members:
                nodes: Iterable[ast.AST] = ast.walk(member)
                if member in self._sliced:
                    nodes = self._kept_nodes(self._sliced[member])
                used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            more = [
                m
                for m in statement.body
                if isinstance(m, FunctionNode) and m.name in used and m not in members
            ]
            if not more:
                return [m for m in statement.body if m in members]
            members += more

    @staticmethod
    def _kept_nodes(part: KeptPart) -> Iterable[ast.AST]:
        """Nodes of what is kept of a function, as it is written."""
        marks = {**part.marks, **part.ends}
        for node in part.kept - part.opened:
            yield from own_nodes(ast.parse(marks[node]) if node in marks else node)

    def emit(
        self,
        scope: KeptPart,
        statement: ast.stmt,
        indent: str,
    ) -> str:
        """Text of a kept statement, without the parts of it that are not kept."""
        text = self._own_text(scope, statement, indent)
        if statement in scope.before:
            text = f"{indent}{scope.before[statement]}\n{text}"
        if first_line(statement) not in self._restore or isinstance(
            statement, FunctionNode | ast.ClassDef
        ):
            return text
        return f"{indent}{RESTORE}()\n{text}"

    def _own_text(
        self,
        scope: KeptPart,
        statement: ast.stmt,
        indent: str,
    ) -> str:
        if statement in scope.marks:
            self.lines.add(first_line(statement))
            return textwrap.indent(scope.marks[statement], indent)
        if statement in scope.ends:
            self.lines |= set(range(first_line(statement), (statement.end_lineno or 0) + 1))
            return f"{indent}{scope.ends[statement]}"
        if statement in self._sliced:
            assert isinstance(statement, FunctionNode)
            inner = self._sliced[statement]
            head = self._head(statement).splitlines()
            if statement.decorator_list:
                head.insert(statement.lineno - first_line(statement), f"@{DECORATED}")
            lines = [textwrap.indent("\n".join(head), indent)]
            for child in statement.body:
                if child in inner.kept or child in inner.marks:
                    lines.append(self.emit(inner, child, indent + "    "))
            return "\n".join(lines)
        if isinstance(statement, ast.ClassDef) and any(c in self._sliced for c in statement.body):
            members = self.members(scope, statement)
            lines = [textwrap.indent(self._head(statement), indent)]
            for member in members:
                lines.append(self.emit(scope, member, indent + "    "))
            return "\n\n".join(lines)
        if statement in scope.opened:
            block: list[ast.stmt] = statement.body  # type: ignore[attr-defined]
            return "\n".join(self.emit(scope, s, indent) for s in block if s in scope.kept)
        inner_statements = [n for n in every_statement(statement) if n is not statement]
        if not inner_statements or isinstance(statement, FunctionNode | ast.ClassDef):
            return self._verbatim(statement, indent, keeps_value=statement in scope.asked)
        replaced = {
            *scope.marks,
            *scope.opened,
            *(s for s in scope.ends if ast.unparse(s) != scope.ends[s]),
        }
        if all(n in scope.kept and n not in replaced for n in inner_statements):
            return self._verbatim(statement, indent)
        return self._partial(scope, statement, indent)

    def _verbatim(self, statement: ast.stmt, indent: str, *, keeps_value: bool = False) -> str:
        self.lines |= set(range(first_line(statement), (statement.end_lineno or 0) + 1))
        if isinstance(statement, ast.Return) and not keeps_value:
            return f"{indent}return"
        return textwrap.indent(_as_if(self._script.text(statement)), indent)

    def _head(self, statement: ast.stmt) -> str:
        if isinstance(statement, WrittenFor | WrittenIf):
            self.lines |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
            return statement.head
        body = statement.body  # type: ignore[attr-defined]
        first, last = first_line(statement), first_line(body[0]) - 1
        while last > first and not self._script.lines[last - 1].rstrip().endswith(":"):
            last -= 1  # comments above the first statement
        self.lines |= set(range(first, last + 1))
        lines = self._script.lines[first - 1 : max(last, first)]
        if body[0].lineno == first:  # `if a: b`
            lines = [lines[0].encode()[: body[0].col_offset].decode().rstrip()]
        return _as_if(textwrap.dedent("\n".join(lines)))

    def _partial(
        self,
        scope: KeptPart,
        statement: ast.stmt,
        indent: str,
    ) -> str:
        if isinstance(statement, ast.Try | ast.Match):
            what = "a training step"
            if not scope.trains(statement):
                what = "leaving the training loop"
            raise TrainError(
                f"{self._script.at(statement.lineno)}: {what} inside of this statement is not read",
                "move it out of the statement",
            )
        lines = [textwrap.indent(self._head(statement), indent)]

        def block(statements: list[ast.stmt]) -> None:
            kept = [s for s in statements if s in scope.kept]
            lines.extend(self.emit(scope, s, indent + "    ") for s in kept)
            if not kept:
                lines.append(f"{indent}    pass")

        block(statement.body)  # type: ignore[attr-defined]
        orelse = getattr(statement, "orelse", [])
        if any(s in scope.kept for s in orelse):
            lines.append(f"{indent}else:")
            block(orelse)
        return "\n".join(lines)


def _as_if(text: str) -> str:
    """The text of an `elif` as a statement of its own."""
    return text.removeprefix("el") if text.startswith("elif ") else text
