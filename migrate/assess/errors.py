"""Errors in what `migrate assess` is asked."""

from __future__ import annotations

from migrate.errors import MigrateError


class AssessError(MigrateError):
    """An assessment cannot be made of what was named.

    Cause: no such project or script, a GPU or a slice that no price is known of, a file of prices or hours
    that says what it cannot mean.

    Remedy: the message says what to give instead; the line, where it is in a file.
    """
