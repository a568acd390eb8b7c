"""What the commands can fail with: each error is one line for the user, exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

from collections.abc import Callable


class MigrateError(Exception):
    """The command could not do its work.

    Args:
        what: what went wrong, and where (file, line), in one line.
        remedy: what the user can do about it, in one line.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[Callable[..., MigrateError], tuple[object, ...]]:
        """Cross processes as it is: Python would call the class with its text alone."""
        return _restored, (type(self), self.args, vars(self))


def _restored(
    kind: type[MigrateError], args: tuple[object, ...], state: dict[str, object]
) -> MigrateError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error
