"""Arguments that stand below one another stay so when the name of the function gets another length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider


class Alignment:
    """Moves the further lines of a call by as much as its opening parenthesis has moved.

    Args:
        module: the script before any edit.
    """

    def __init__(self, module: cst.Module) -> None:
        self._module = module

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return MetadataWrapper(self._module, unsafe_skip_copy=True).resolve(PositionProvider)

    def kept(self, original: cst.Call, edited: cst.Call) -> cst.Call:
        """Return `edited`, its arguments aligned to the parenthesis if those of `original` are."""
        breaks = [at for at, arg in enumerate(original.args[:-1]) if _break(arg) is not None]
        if not breaks or not isinstance(original.whitespace_before_args, cst.SimpleWhitespace):
            return edited
        old, new = self._text(original.func), self._text(edited.func)
        if len(old) == len(new) or "\n" in old + new:
            return edited
        column = self._positions[original.args[0]].start.column
        if any(self._positions[original.args[at + 1]].start.column != column for at in breaks):
            return edited
        first = _break(original.args[breaks[0]])
        assert first is not None
        moved = _Moving(len(first.last_line.value), len(new) - len(old))
        args = [cst.ensure_type(arg.visit(moved), cst.Arg) for arg in edited.args]
        return edited.with_changes(args=args)

    def _text(self, node: cst.CSTNode) -> str:
        return self._module.code_for_node(node)


def _break(arg: cst.Arg) -> cst.ParenthesizedWhitespace | None:
    """Return the line break after the comma of `arg`."""
    after = arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else None
    return after if isinstance(after, cst.ParenthesizedWhitespace) and after.indent else None


class _Moving(cst.CSTTransformer):
    """Moves lines that are indented at least so far."""

    def __init__(self, least: int, by: int) -> None:
        super().__init__()
        self._least = least
        self._by = by

    def leave_ParenthesizedWhitespace(
        self,
        original_node: cst.ParenthesizedWhitespace,
        updated_node: cst.ParenthesizedWhitespace,
    ) -> cst.ParenthesizedWhitespace:
        """Return the line break with the new indentation."""
        indent = updated_node.last_line.value
        if not updated_node.indent or len(indent) < self._least or "\t" in indent:
            return updated_node
        width = max(len(indent) + self._by, 0)
        return updated_node.with_changes(last_line=cst.SimpleWhitespace(" " * width))
