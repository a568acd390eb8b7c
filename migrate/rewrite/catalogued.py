"""What is wrong with a name of the catalogue that an edit takes care of, where the edit does not say it."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry, OnXla
from migrate.check.only_cuda import only_with_cuda
from migrate.check.severity import Severity
from migrate.reading.facts import facts_of
from migrate.rewrite.edit import Edit
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import nodes

# How bad a name is that is left as it is, by what comes of it; of others the rule says it.
_HOW_BAD = {
    OnXla.RAISES: Severity.ERROR,
    OnXla.WRONG: Severity.WARNING,
    OnXla.NOTHING: Severity.INFO,
}
OF_CUDA = ("torch.cuda.", "torch.accelerator.")


class Wrong(NamedTuple):
    """What happens on a TPU without an edit of a name.

    Args:
        message: that, and what to do; empty where no entry names the edit's rule.
        severity: how bad it is; None: as the rule says.
        subject: the name.
    """

    message: str = ""
    severity: Severity | None = None
    subject: str = ""


def wrong_by_catalogue(edit: Edit, script: Workspace) -> Wrong:
    """Return what happens on a TPU without `edit`, as the catalogue has it.

    A name of CUDA that only a run on CUDA comes to is information.
    """
    name, entry = _named(edit, script)
    if entry is None:
        return Wrong()
    severity = _HOW_BAD.get(entry.on_xla)
    if name.startswith(OF_CUDA) and only_with_cuda(edit.node, facts_of(script)):
        severity = Severity.INFO
    return Wrong(f"{name}: {entry.says()}", severity, name)


def _named(edit: Edit, script: Workspace) -> tuple[str, CatalogueEntry | None]:
    """Return the first name in what an edit takes away of which the catalogue says its rule."""
    for part in (*edit.consumes, edit.node):
        for node in nodes(part):
            name = (
                script.qualified_name(node) if isinstance(node, cst.Name | cst.Attribute) else None
            )
            entry = None if name is None else catalogue.of(name)
            if name is not None and entry is not None and entry.rule == edit.rule:
                return name, entry
    return "", None
