"""The library `shims` in a project that has its own module of that name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from migrate.errors import MigrateError
from migrate.model.project.shadowing import shadowing
from migrate.rewrite.applied_plan import applied
from migrate.rewrite.plan import Plan
from migrate.rewrite.results import Note
from migrate.rewrite.rule import Edit, Wrap
from migrate.rewrite.withdrawn import culprits

PORTABLE = "the portable style"
_SHIMS = re.compile(rb"\bshims\b")


class OwnShimsError(MigrateError):
    """The project has a module `shims` of its own, which the rewritten script would import.

    Cause: the portable style writes `import shims` for the library of this toolkit, the native style for few
    constructs (SyncBatchNorm). Python finds the module in the project first.

    Remedy: rename the project's module, or use `--style native` where that needs no `shims`.
    """


def check_own_shims(shims: Path | None, needs: str) -> None:
    """Raise OwnShimsError if a result would import the library `shims` and the project has its own module.

    Args:
        shims: the project's module, if there is one.
        needs: constructs that need the library.
    """
    if shims is not None:
        raise OwnShimsError(
            f"{shims}: {needs} needs the library shims of this toolkit, and `import shims` imports "
            "this module of the project instead",
            "rename the module" + ("" if needs != PORTABLE else ", or use --style native"),
        )


def refuse_own_shims(plan: Plan, notes: Sequence[Note]) -> None:
    """Raise OwnShimsError if the edits of a plan, which need `shims`, would import the project's own module.

    Args:
        plan: the plan.
        notes: notes on the edits of the plan.
    """
    script = plan.context
    if (module := shadowing("shims", script.source.path)) is None:
        return
    if script.portable:
        check_own_shims(module, PORTABLE)
    count = len(_SHIMS.findall(script.source.data))

    def uses(edits: Sequence[Edit | Wrap]) -> str:
        try:
            rewritten = applied(replace(plan, edits=tuple(edits))).data
        except Exception:
            return ""
        return "shims" if len(_SHIMS.findall(rewritten)) > count else ""

    users = {id(edit) for edit, _ in culprits(plan.edits, uses)}
    if users:
        said = zip(plan.edits, notes, strict=True)
        lines = [note for edit, note in said if id(edit) in users]
        where = ", ".join(f"{note.line} ({note.rule})" for note in lines[:3])
        check_own_shims(module, f"the rewrite of line {where}")
