"""The comments of the original, where the statement that they speak of is written.

No tree of Python's has comments: a statement bears them as an attribute until its class is written, where
`placed` puts them above it.
"""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import re
import textwrap
import tokenize
from collections.abc import Sequence
from functools import cache
from typing import Any

from converters.graph.ir import Frame
from converters.graph.writing.original import names

_ATTRIBUTE = "comments_of_original"
# How long a comment may be, with its indentation beside it.
_WIDTH = 86
# What speaks to tools or to those who work on the original.
_TO_OTHERS = re.compile(
    r"noqa|type:|fmt:|pylint|pyright|mypy|ruff|isort|pragma|nosec|copied from|adapted from|todo|fixme|xxx|"
    r"\W*$",
    re.I,
)
# What speaks of torch, its devices and what is done in place.
_OF_TORCH = re.compile(r"torch|cuda|gpu|\bmps\b|onnx|compil|export|\bjit\b|contiguous|\w_\b", re.I)


def above(frame: Frame) -> tuple[str, ...]:
    """The comments right above the statement at a frame, and the one behind it if it has one line."""
    source = names.statement(frame)
    if source is None:
        return ()
    comments = _comments(frame.file)
    lines: list[str] = []
    at = source.lineno - 1
    while at in comments and comments[at][1]:
        lines.insert(0, comments[at][0])
        at -= 1
    if source.end_lineno == source.lineno and source.lineno in comments:
        lines.append(comments[source.lineno][0])
    return () if any(map(_is_left, lines)) else tuple(lines)


def on_header(function: Any) -> tuple[str, ...]:
    """The comments on the lines of a function's head: `def forward(self, x):  # (batch, length)`."""
    body = getattr(names.source_tree(function), "body", [])
    if not body or not isinstance(body[0], ast.FunctionDef):
        return ()
    plain = inspect.unwrap(function)
    try:
        first = inspect.getsourcelines(plain)[1]
    except (OSError, TypeError):
        return ()
    # The tree of a source that stands alone begins at line 1, with its decorators.
    shift = first - 1
    comments = _comments(names.source_file(plain))
    end = body[0].body[0].lineno + shift
    head = range(body[0].lineno + shift, end)
    lines = tuple(comments[at][0] for at in head if at in comments and not comments[at][1])
    return () if any(map(_is_left, lines)) else lines


@cache
def _comments(file: str) -> dict[int, tuple[str, bool]]:
    """Line → its comment, and whether nothing else stands there."""
    text = "".join(linecache.getlines(file))
    comments = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                alone = not token.line[: token.start[1]].strip()
                comments[token.start[0]] = (token.string.lstrip("#").strip(), alone)
    except (tokenize.TokenError, SyntaxError):
        return {}
    return comments


# Words and letters for the axes of an image, a shape in brackets, two sizes with a sign between them.
_AXES = re.compile(
    r"\b(ax[ie]s|dims?|dimensions?|channels?|shapes?|layout|permut\w*|transpos\w*|height|width|rows?|columns?)\b"
    r"|\b[bnchwdt]\b|\bN?CHW\b|[\[(][^\])]*,|\w x \w|\dx\d|×",
    re.I,
)


def speaks_of_axes(text: str) -> bool:
    """Whether a comment is on the order or the sizes of axes."""
    return bool(_AXES.search(text))


def _is_left(text: str) -> bool:
    """Whether a comment is no word on the model: code that was taken out, words to tools or on torch."""
    if _TO_OTHERS.match(text) or _OF_TORCH.search(text):
        return True
    try:
        parsed = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    plain = (ast.Name, ast.Tuple, ast.List, ast.Constant)
    return not all(
        isinstance(line, ast.Expr) and isinstance(line.value, plain) for line in parsed.body
    )


def commented(node: Any, lines: Sequence[str]) -> Any:
    """The statement or expression, with comments that stand above it."""
    setattr(node, _ATTRIBUTE, tuple(lines))
    return node


def of(node: ast.AST) -> tuple[str, ...]:
    """The comments of a statement or expression."""
    comments: tuple[str, ...] = getattr(node, _ATTRIBUTE, ())
    return comments


def placed(tree: ast.AST) -> None:
    """Put the comments of all statements below above them, as what Python's own writer takes for names."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A source that is written again has them already.
            own = [child for child in body if not _is_line(child)]
            node.body = [new for child in own for new in (*_lines(of(child)), child)]  # type: ignore[attr-defined]


def _is_line(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Name(id=text)):
            return text.startswith("#")
    return False


def _lines(comments: Sequence[str]) -> list[ast.stmt]:
    lines = [
        line
        for comment in comments
        for line in textwrap.wrap(comment, _WIDTH, break_long_words=False)
    ]
    return [ast.Expr(ast.Name(f"# {line}", ast.Load())) for line in lines]
