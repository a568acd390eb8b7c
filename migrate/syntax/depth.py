"""Scripts that nest deeper than Python's stack: a sum of 500 terms is a tree of 500 levels.

What walks over such a tree runs out of Python's own limit of 1,000 calls. It is run once more then, in a
thread with a larger stack.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

# Of addresses: memory is taken as far as the stack is used.
_STACK_BYTES = 512 << 20
_CALLS = 200_000
# That of the thread, by its name: what it calls need not start another one.
_NAME = "migrate-deep"


def deep(work: Callable[Given, Result]) -> Callable[Given, Result]:
    """Let a function that reads, and changes nothing, be called once more where the stack is too small."""

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
