"""Reading the user's code without Python's warnings of it.

An invalid escape (`"\\d"`) is a SyntaxWarning since Python 3.12, printed as `<unknown>:1` at each reading.
The script runs with it all the same: it is not ours to say, and no error where warnings are errors.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType


@contextmanager
def unwarned() -> Iterator[None]:
    """No warning of what is parsed or evaluated inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def syntax_tree(code: bytes | str) -> ast.Module:
    """Python's own tree of the user's code.

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
