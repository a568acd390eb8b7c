"""Settings of Python while it works on the user's code: its stack, its garbage collector, its warnings.

A sum of 500 terms is a tree of 500 levels, and a walk over it exceeds Python's limit of 1,000 calls. It is
then repeated in a thread with a larger stack.

The tree of a script has a hundred thousand objects that all stay in use. Repeated garbage collections over
them took a fifth of the time of a rewrite.

An invalid escape (`"\\d"`) is a SyntaxWarning since Python 3.12, printed as `<unknown>:1` at each parse. The
script runs anyway, so this program does not report it, and it is no error if warnings are errors.
"""

from __future__ import annotations

import ast
import atexit
import functools
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

# Address space only: memory is used as far as the stack grows.
_STACK_BYTES = 512 << 20
_CALLS = 200_000
# Name of the thread: a function called in it does not start another one.
_NAME = "migrate-deep"


def deep(work: Callable[Given, Result]) -> Callable[Given, Result]:
    """Repeat a read-only function with a larger stack if the stack is too small."""

    @functools.wraps(work)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return work(*args, **kwargs)
        except RecursionError:
            if threading.current_thread().name == _NAME:
                raise
        return _with_a_large_stack(functools.partial(work, *args, **kwargs))

    return called


def _with_a_large_stack(work: Callable[[], Result]) -> Result:
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    calls, size = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    sys.setrecursionlimit(_CALLS)
    try:
        thread = threading.Thread(target=run, name=_NAME, daemon=True)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(calls)
    if failures:
        raise failures[0]
    return results[0]


# New objects between two collections, and collections between two of an older generation. A project of
# 10,000 lines keeps fewer: it is searched once, at its end.
SELDOM = (1_000_000, 5, 1)


def collect_seldom() -> None:
    """Make garbage collections of this process rare, and leave its end without one.

    For a process that does nothing else. When Python ends, it searches all objects for garbage, although the
    operating system takes back the memory anyway. That took a seventh of the time of a small project.
    """
    gc.set_threshold(*SELDOM)
    atexit.register(gc.freeze)  # what is frozen is not searched


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Make garbage collections rare while the block runs."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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
