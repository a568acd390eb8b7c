"""What a rewrite rule is: its page, its examples, and how it says what to edit and what to report.

What it asks for (`Edit`, `Wrap`, `Finding`) is in `migrate.rewrite.edit`.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from migrate.check.hazard import Severity
from migrate.check.work import Work
from migrate.rewrite.edit import Edit as Edit
from migrate.rewrite.edit import Finding as Finding
from migrate.rewrite.edit import Replacement as Replacement
from migrate.rewrite.edit import Run as Run
from migrate.rewrite.edit import Wrap as Wrap
from migrate.rewrite.options import DEFAULT, Options

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


class Safety(StrEnum):
    """Whether the edits of a rule keep the meaning of the script."""

    SAFE = "safe"  # the rewritten script computes the same
    UNSAFE = "unsafe"  # the same where what the rule's page names holds
    REPORT_ONLY = "report only"  # the rule edits nothing


class Stage(IntEnum):
    """When to mend what a rule reports: before the replicas start nothing runs, speed comes last."""

    FRAMEWORK = 0
    LAUNCH = 1
    DEVICE = 2
    STEP = 3
    REST = 4


class Kind(StrEnum):
    """What an example shows."""

    REWRITTEN = "rewritten"
    LEFT_ALONE = "left alone"
    REPORTED = "reported"
    CHECKED = "checked"


@dataclass(frozen=True)
class Example:
    """A script before and after a rule: a test and a part of the rule's page.

    Args:
        kind: what the rule does with it.
        before: the script; indented as its place in the rule's source, dedented when used. Of
            `Kind.CHECKED`, the lines of which `migrate check` speaks end in the rule's code, and the
            severity where that is not `Rule.edited`: `# XLA824 info`.
        after: the script as written; empty where nothing is edited.
        reports: what the finding's message says (a part of it), for `Kind.REPORTED`.
    """

    kind: Kind
    before: str
    after: str = ""
    reports: str = ""


def rewritten(before: str, after: str) -> Example:
    """Return an example that the rule edits."""
    return Example(Kind.REWRITTEN, inspect.cleandoc(before) + "\n", inspect.cleandoc(after) + "\n")


def left_alone(before: str) -> Example:
    """Return an example that looks alike and is none of the rule's business."""
    return Example(Kind.LEFT_ALONE, inspect.cleandoc(before) + "\n")


def reported(before: str, reports: str) -> Example:
    """Return an example that the rule names to the user and does not edit."""
    return Example(Kind.REPORTED, inspect.cleandoc(before) + "\n", reports=reports)


def checked(script: str) -> Example:
    """Return an example with the lines that `migrate check` reports in the rule's name, and no others."""
    return Example(Kind.CHECKED, inspect.cleandoc(script) + "\n")


class Rule(ABC):
    """One construct of DDP scripts and what becomes of it.

    The docstring is the rule's page (first line: its title). A subclass without a docstring, or without
    an example of each kind, does not come into being; one that only reports needs none that is rewritten.
    """

    name: ClassVar[str]
    code: ClassVar[str]  # that of the hazard that it mends, where there is one
    also: ClassVar[tuple[tuple[str, str], ...]] = ()  # further codes that it has, and their names
    safety: ClassVar[Safety] = Safety.SAFE
    severity: ClassVar[Severity] = Severity.ERROR  # of its findings, where they do not say another
    edited: ClassVar[Severity] = Severity.ERROR  # of what it edits, were that left as it is
    nodes: ClassVar[tuple[type[cst.CSTNode], ...]]
    words: ClassVar[str] = ""  # see `migrate.catalogue.prescan.Worded`
    # Whether it looks only at those names and attributes that stand for something imported.
    of_names: ClassVar[bool] = False
    examples: ClassVar[tuple[Example, ...]]
    options: ClassVar[Options] = DEFAULT  # under which the examples are what they are
    after: ClassVar[bool] = (
        False  # whether it looks at what the other rules have made of the script
    )
    # Whether its construct is as wrong in a script whose training a framework runs, which stays as it is.
    beside_frameworks: ClassVar[bool] = False
    # Literals whose edit is not made where another one speaks of them, and whether its edits write the XLA
    # device: see `Edit`.
    yields: ClassVar[tuple[type[cst.CSTNode], ...]] = ()
    names_device: ClassVar[bool] = False
    stage: ClassVar[Stage] = Stage.REST  # when its findings are to be mended
    # The work that its findings ask for, where it is another kind than its package's.
    work: ClassVar[Work | None] = None
    notebook: ClassVar[bool] = False  # whether its examples are cells of a notebook

    def __init_subclass__(cls) -> None:
        if not cls.__doc__:
            raise TypeError(f"rule {cls.__name__} has no docstring: it is the rule's page")
        shown = {Kind.CHECKED, *(example.kind for example in getattr(cls, "examples", ()))}
        if cls.safety is Safety.REPORT_ONLY:
            shown.add(Kind.REWRITTEN)
        if missing := [kind.value for kind in Kind if kind not in shown]:
            raise TypeError(f"rule {cls.__name__} has no example: {', '.join(missing)}")
        if not re.fullmatch(r"XLA[1-8]\d\d", getattr(cls, "code", "")):
            raise TypeError(f"rule {cls.__name__} has no code")

    @property
    def codes(self) -> Mapping[str, str]:
        """The names of its codes, by the codes; its own code is the first."""
        return {self.code: self.name, **dict(self.also)}

    @abstractmethod
    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Wrap | Finding]:
        """Yield what to edit and what to report at `node`, whose type is among `nodes`."""

    def edit(
        self,
        node: cst.CSTNode,
        replace: Callable[..., Replacement],
        message: str,
        *,
        consumes: Iterable[cst.CSTNode] = (),
        wrong: str = "",
        severity: Severity | None = None,
        code: str = "",
    ) -> Edit:
        """Return an edit of `node` in this rule's name.

        Args:
            node, replace, message, consumes: as `Edit` has them.
            wrong: what happens on a TPU without the edit, and what to do.
            severity: how bad that is, where it is not the rule's usual.
            code: of the construct, where it is not the rule's own.
        """
        return Edit(
            self.name,
            node,
            replace,
            message,
            tuple(consumes),
            wrong,
            severity,
            code,
            isinstance(node, self.yields),
            self.names_device,
        )

    def report(
        self,
        node: cst.CSTNode,
        message: str,
        severity: Severity | None = None,
        *,
        subject: str = "",
        code: str = "",
        is_hint: bool = False,
    ) -> Iterator[Finding]:
        """Yield a finding at `node` in this rule's name, as bad as the rule's usually are by default.

        Args:
            node: the place.
            message: what happens, and what to do.
            severity: how bad that is.
            subject: the name of what is reported, as the catalogue has it.
            code: of the hazard that this is, where it is not the rule's own.
            is_hint: whether it costs so little that `migrate check` alone shows it.
        """
        how_bad = severity or self.severity
        yield Finding(self.name, node, message, how_bad, code, subject, is_hint)
