"""Parsing of the user's code without Python's warnings about it.

An invalid escape (`"\\d"`) is a SyntaxWarning since Python 3.12, printed as `<unknown>:1` at each parse. The
script runs anyway, so this program does not report it, and it is no error if warnings are errors.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType


@contextmanager
def unwarned() -> Iterator[None]:
    """Suppress the warnings of code parsed or evaluated in the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def syntax_tree(code: bytes | str) -> ast.Module:
    """Return Python's own tree of the user's code.

    Raises:
        SyntaxError, ValueError: as `ast.parse`.
    """
    with unwarned():
        return ast.parse(code)


def compiled(code: bytes | str) -> CodeType:
    """Return the code object that Python would run for the user's code.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `compile`.
    """
    with unwarned():
        return compile(code, "<the script>", "exec", dont_inherit=True)
