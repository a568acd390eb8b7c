"""Start and end of each node of a tree, recorded while the tree is written out once.

libcst's own provider computes lines and columns for every node. This module records the number of tokens
before and after each node, and computes lines and columns only for the nodes that are asked for.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate
from types import TracebackType

import libcst as cst
from libcst._nodes.internal import CodegenState
from libcst.metadata import CodePosition

NEWLINE = re.compile(r"\r\n?|\n")


class Positions:
    """Text of a module, and the position of each of its nodes in it.

    Positions equal those of libcst's `PositionProvider`: white space and comments around a node are excluded.
    """

    def __init__(self, module: cst.Module) -> None:
        state = _Writing(module.default_indent, module.default_newline)
        module._codegen(state)
        self._spans = state.spans
        self._tokens = state.tokens
        self.code = "".join(state.tokens[:-1] if state.ends_without_newline else state.tokens)
        self._offsets: list[int] = []
        self._lines: list[int] = []
        self._known: dict[int, CodePosition] = {}  # by token: each is asked for many times

    def start(self, node: cst.CSTNode) -> CodePosition:
        """Return the line (from 1) and column (from 0) where `node` starts."""
        return self._position(self._spans[id(node)][0])

    def end(self, node: cst.CSTNode) -> CodePosition:
        """Return the line (from 1) and column (from 0) where `node` ends."""
        return self._position(self._spans[id(node)][1])

    def _position(self, token: int) -> CodePosition:
        """Return the start of the token with this number."""
        known = self._known.get(token)
        if known is not None:
            return known
        if not self._offsets:
            self._offsets = list(accumulate(map(len, self._tokens), initial=0))
            text = "".join(self._tokens)
            self._lines = [0, *(newline.end() for newline in NEWLINE.finditer(text))]
        offset = self._offsets[token]
        line = bisect_right(self._lines, offset)
        position = self._known[token] = CodePosition(line, offset - self._lines[line - 1])
        return position


class _Writing(CodegenState):
    """State of libcst's code generation that records the tokens before and after each node."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.spans: dict[int, tuple[int, int]] = {}
        self.ends_without_newline = False
        self._open: list[int] = []

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._open.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._open.pop()
        if id(node) not in self.spans:  # otherwise it is recorded without the white space around it
            self.spans[id(node)] = start, len(self.tokens)

    def pop_trailing_newline(self) -> None:
        self.ends_without_newline = bool(self.tokens)

    def record_syntactic_position(  # type: ignore[override]
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> _Span:
        return _Span(self, node, start_node, end_node)


class _Span:
    """Context that records the tokens written inside of a `with` as those of a node."""

    __slots__ = ("_end_node", "_node", "_start", "_start_node", "_state")

    def __init__(
        self,
        state: _Writing,
        node: cst.CSTNode,
        start_node: cst.CSTNode | None,
        end_node: cst.CSTNode | None,
    ) -> None:
        self._state = state
        self._node = node
        self._start_node = start_node
        self._end_node = end_node

    def __enter__(self) -> None:
        self._start = len(self._state.tokens)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return  # nodes inside have no spans: the tree was too deep, and is visited once more
        spans = self._state.spans
        start, end = self._start, len(self._state.tokens)
        if self._start_node is not None:
            start = spans[id(self._start_node)][0]
        if self._end_node is not None:
            end = spans[id(self._end_node)][1]
        spans[id(self._node)] = start, end
