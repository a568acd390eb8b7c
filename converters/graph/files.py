"""Files of Python that a model is written in, as trees."""

from __future__ import annotations

import ast
import linecache
from functools import cache


@cache
def tree_of(file: str) -> ast.Module:
    """The tree of a file, as Python has read it; an empty one where it cannot be read or parsed."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])
