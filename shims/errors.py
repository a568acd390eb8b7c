"""What running a program through the shims can fail with: each error is one line for the user, exit code 2.

The docstring of each class is its help page: cause, then remedy.
"""

from __future__ import annotations


class ShimError(Exception):
    """The program could not be run on this backend.

    Args:
        what: what went wrong, and where (file, line), in one line.
        remedy: what the user can do about it, in one line.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy
