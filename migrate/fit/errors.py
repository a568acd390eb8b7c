"""Errors in what `migrate fit` is asked."""

from __future__ import annotations

from migrate.errors import MigrateError


class FitError(MigrateError):
    """A program cannot be made of what was named.

    Cause: no such model or script, inputs that it does not take, a mesh that the slice cannot hold.

    Remedy: the message says what to give instead.
    """
