"""Find what happens on a TPU without an edit, from the catalogue of names, unless the edit states it."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry, OnXla
from migrate.catalogue.target import in_words
from migrate.check.only_cuda import only_with_cuda
from migrate.check.severity import Severity
from migrate.reading.facts import facts_of
from migrate.rewrite.edit import Edit
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import nodes

# Severity of a name that is left unchanged, by its effect on XLA. For other effects the rule decides.
_HOW_BAD = {
    OnXla.RAISES: Severity.ERROR,
    OnXla.WRONG: Severity.WARNING,
    OnXla.NOTHING: Severity.INFO,
}
OF_CUDA = ("torch.cuda.", "torch.accelerator.")


class Wrong(NamedTuple):
    """Effect on a TPU of leaving a name unedited.

    Args:
        message: the effect, and what to do. Empty if no catalogue entry names the edit's rule.
        severity: severity of the effect. None: the rule decides.
        subject: the name.
    """

    message: str = ""
    severity: Severity | None = None
    subject: str = ""


def wrong_by_catalogue(edit: Edit, script: Workspace) -> Wrong:
    """Return what happens on a TPU without `edit`, according to the catalogue.

    A CUDA name that only a run on CUDA reaches has the severity INFO.
    """
    name, entry = _named(edit, script)
    if entry is None:
        return Wrong()
    severity = _HOW_BAD.get(entry.on_xla)
    if name.startswith(OF_CUDA) and only_with_cuda(edit.node, facts_of(script)):
        severity = Severity.INFO
    message = f"{name}: {entry.says()}"
    if script.for_torch_tpu:
        message = in_words(message, script.target)
    return Wrong(message, severity, name)


def _named(edit: Edit, script: Workspace) -> tuple[str, CatalogueEntry | None]:
    """Return the first name that an edit removes and whose catalogue entry names the edit's rule."""
    for part in (*edit.consumes, edit.node):
        for node in nodes(part):
            name = (
                script.qualified_name(node) if isinstance(node, cst.Name | cst.Attribute) else None
            )
            entry = None if name is None else catalogue.of(name, script.target)
            if name is not None and entry is not None and entry.rule == edit.rule:
                return name, entry
    return "", None
