"""Helpers that a written file does not use."""

from __future__ import annotations

from migrate.train.write.unused import without_unused

SOURCE = '''"""What it is."""

import functools

__all__ = ["load", "_main"]

_USED = 1
# Nothing reads it.
_LEFT = {"a": 1}
PUBLIC = 2


def load():
    return _USED


# Of a script that has functions.
@functools.cache
def _called():
    return _values()


def _values():
    return 3


def _main():
    return load()
'''


def test_private_helpers_that_nothing_names_are_removed() -> None:
    head, rest = SOURCE.split("# Nothing reads it.")
    tail = rest.split("PUBLIC")[1].split("# Of a script")[0]
    main = SOURCE[SOURCE.index("def _main") :]
    assert without_unused(SOURCE) == f"{head}PUBLIC{tail}{main}"


def test_a_file_without_them_stays() -> None:
    source = "_A = 1\n\n\ndef f():\n    return _A\n"
    assert without_unused(source) == source
