"""Errors of `migrate train`, before there is a folder."""

from __future__ import annotations

from migrate.errors import MigrateError


class TrainError(MigrateError):
    """The training script cannot be written as a JAX program.

    Cause: the script does not train where this command looks, or a part of its training has no counterpart
    yet. The message names the file and the line.

    Remedy: as the line says. Nothing was written.
    """
