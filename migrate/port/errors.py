"""Errors of porting a model, before there is a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migrate.errors import MigrateError


class PortError(MigrateError):
    """The model could not be ported.

    Cause: what was named is no torch module, does not take the inputs, or its output cannot be written.

    Remedy: as the line says. Nothing was written.
    """


class MissingOperatorsError(PortError):
    """Operators of the model have no counterpart yet.

    All of them are in `missing`, each with the reason, the module and the source line that needs it; they are
    shown as a table. Nothing was written.

    Remedy: register a lowering of your own (`--lowerings my_ops.py`), or have stubs written that you fill in
    (`--allow-stubs`).
    """

    def __init__(self, shown: str, missing: Sequence[Any]) -> None:
        names = list(dict.fromkeys(operation.op for operation in missing))
        super().__init__(
            f"{shown}: {len(names)} operators have no Flax counterpart ({', '.join(names[:5])}"
            f"{', …' if len(names) > 5 else ''})",
            "write them (--lowerings my_ops.py), or have stubs to fill in (--allow-stubs)",
        )
        self.missing = tuple(missing)


class EditedError(PortError):
    """The folder holds edits of yours, which would be lost.

    Cause: files in it are no longer as `migrate port` wrote them, or are new.

    Remedy: move the folder away or choose another output; `--force --force` writes over it.
    """

    def __init__(self, folder: str, edited: Sequence[str]) -> None:
        super().__init__(
            f"{folder}: has edits ({', '.join(edited)})",
            "move it away or choose another -o; --force --force writes over them",
        )
        self.edited = tuple(edited)
