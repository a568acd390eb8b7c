"""Errors of `migrate launch`."""

from __future__ import annotations

from migrate.errors import MigrateError


class JobError(MigrateError):
    """The options do not describe a job that can run.

    Cause: a slice, zone, bucket, program or option that does not go together with the others. Nothing is
    written.

    Remedy: the message names the option to change and its possible values.
    """


class InvalidJobError(MigrateError):
    """A file of the job is not valid for its launcher.

    Cause: the launcher's own parser refuses the file, usually because its version is another one.

    Remedy: report the message with the version of the launcher; `--check` names both.
    """
