"""Scripts that nest deeper than Python's stack: a sum of 500 terms is a tree of 500 levels.

A walk over such a tree exceeds Python's limit of 1,000 calls. It is then repeated in a thread with a larger
stack.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
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
