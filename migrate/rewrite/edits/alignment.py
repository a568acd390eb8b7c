"""Alignment of arguments below one another, and indentation of new blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from migrate.syntax.tree import code, nodes_of


class CallAlignment:
    """Moves the continuation lines of a call by as much as its opening parenthesis has moved.

    Args:
        module: the script before any edit.
    """

    def __init__(self, module: cst.Module) -> None:
        self._module = module

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return MetadataWrapper(self._module, unsafe_skip_copy=True).resolve(PositionProvider)

    def kept(self, original: cst.Call, edited: cst.Call) -> cst.Call:
        """Return `edited`, with its arguments aligned to the parenthesis if those of `original` are."""
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
    """Moves lines whose indentation is at least a limit."""

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


def as_around(before: cst.Module, after: cst.Module) -> cst.Module:
    """Indent the blocks that edits added like the block around them, and return `after`.

    A new block has the indentation of the first block in the script. If the script also uses another
    indentation, and never nests the two, the block gets the indentation of the block around it. At module
    level it gets the commonest one.

    Args:
        before: the script before the edits.
        after: the script after the edits.
    """
    written = [block.indent for block in nodes_of(before, cst.IndentedBlock)]
    if not any(indent is not None for indent in written) or _is_mixed(before):
        return after
    common = Counter(written).most_common(1)[0][0]
    known = {_header(statement) for statement in before.body if _block_of(statement)}
    body = list(after.body)
    for index, statement in enumerate(body):
        block = _block_of(statement)
        if block is not None and _header(statement) not in known:
            body[index] = statement.with_changes(body=block.with_changes(indent=common))
    after = after.with_changes(body=body)
    return cst.ensure_type(after.visit(_Indenting(lambda outer, own: own or outer)), cst.Module)


def _block_of(statement: cst.CSTNode) -> cst.IndentedBlock | None:
    """Return the block of a function or an `if` with the indentation of the script."""
    block = statement.body if isinstance(statement, cst.FunctionDef | cst.If) else None
    return block if isinstance(block, cst.IndentedBlock) and block.indent is None else None


def _header(statement: cst.CSTNode) -> str:
    """Return the text that identifies a function or an `if` at module level."""
    if isinstance(statement, cst.FunctionDef):
        return statement.name.value
    return code(statement.test) if isinstance(statement, cst.If) else ""


def _is_mixed(module: cst.Module) -> bool:
    """Whether a block of the first indentation is inside a block of another one."""
    seen: list[bool] = []

    def note(outer: str | None, own: str | None) -> str | None:
        seen.append(outer is not None and own is None)
        return own

    module.visit(_Indenting(note))
    return any(seen)


class _Indenting(cst.CSTTransformer):
    """Gives each block an indentation.

    Args:
        choose: returns it from the indentations of the surrounding block and of the block itself. None means
            the indentation of the script.
    """

    def __init__(self, choose: Callable[[str | None, str | None], str | None]) -> None:
        super().__init__()
        self._choose = choose
        self._around: list[str | None] = [None]

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        """Note the indentation for the blocks below."""
        self._around.append(self._choose(self._around[-1], node.indent))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        """Return the block with the chosen indentation."""
        indent = self._around.pop()
        if indent == original_node.indent:
            return updated_node
        return updated_node.with_changes(indent=indent)
