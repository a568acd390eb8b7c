"""Errors of the commands: each is one line for the user, exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations

import copyreg
from typing import Any


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

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross processes as it is: Python would call the class with its text alone."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]
