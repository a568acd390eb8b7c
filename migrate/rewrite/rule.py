"""Base class of rewrite rules: documentation page, examples, edits and findings.

The results of a rule (`Edit`, `Wrap`, `RuleFinding`) are in `migrate.rewrite.edit`.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from migrate.catalogue.target import XLA, XLA_ONLY, Target
from migrate.check.hazard import Severity
from migrate.check.manual_work import ManualWork
from migrate.rewrite.edit import Edit as Edit
from migrate.rewrite.edit import Replacement as Replacement
from migrate.rewrite.edit import RuleFinding as RuleFinding
from migrate.rewrite.edit import StatementRun as StatementRun
from migrate.rewrite.edit import Wrap as Wrap
from migrate.rewrite.options import DEFAULT, RewriteOptions

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


class Safety(StrEnum):
    """Whether the edits of a rule keep the meaning of the script."""

    SAFE = "safe"  # the rewritten script computes the same
    UNSAFE = "unsafe"  # the same only if `Rule.condition` holds
    REPORT_ONLY = "report only"  # the rule edits nothing


class Stage(IntEnum):
    """Order in which to fix findings: first what keeps the replicas from starting, last what costs speed."""

    FRAMEWORK = 0
    LAUNCH = 1
    DEVICE = 2
    STEP = 3
    REST = 4


class ExampleKind(StrEnum):
    """Behavior of a rule that an example shows."""

    REWRITTEN = "rewritten"
    LEFT_ALONE = "left alone"
    REPORTED = "reported"
    CHECKED = "checked"


@dataclass(frozen=True)
class RuleExample:
    """A script before and after a rule: a test and a part of the rule's page.

    Args:
        kind: what the rule does with the script.
        before: the script. It is indented as in the rule's source, and dedented when used. For
            `ExampleKind.CHECKED`, the lines that `migrate check` reports end in the rule's code, and in
            the severity if that is not `Rule.edited`: `# XLA824 info`.
        after: the rewritten script. Empty if nothing is edited.
        reports: a part of the finding's message, for `ExampleKind.REPORTED`.
        target: the package that drives the TPU in the example.
    """

    kind: ExampleKind
    before: str
    after: str = ""
    reports: str = ""
    target: Target = XLA


def rewritten(before: str, after: str, *, target: Target = XLA) -> RuleExample:
    """Return an example that the rule edits."""
    return RuleExample(ExampleKind.REWRITTEN, _script(before), _script(after), target=target)


def left_alone(before: str, *, target: Target = XLA) -> RuleExample:
    """Return an example that looks similar and does not concern the rule."""
    return RuleExample(ExampleKind.LEFT_ALONE, _script(before), target=target)


def reported(before: str, reports: str, *, target: Target = XLA) -> RuleExample:
    """Return an example that the rule reports and does not edit."""
    return RuleExample(ExampleKind.REPORTED, _script(before), reports=reports, target=target)


def checked(script: str, *, target: Target = XLA) -> RuleExample:
    """Return an example. `migrate check` reports exactly its marked lines for the rule."""
    return RuleExample(ExampleKind.CHECKED, _script(script), target=target)


def _script(text: str) -> str:
    return inspect.cleandoc(text) + "\n"


class Rule(ABC):
    """A construct of DDP scripts and its rewrite.

    The docstring is the rule's page (first line: its title). A subclass without a docstring, or without
    an example of each kind, raises an error. A rule that only reports needs no rewritten example.
    """

    name: ClassVar[str]
    code: ClassVar[str]  # the code of the hazard that the rule fixes, if there is one
    also: ClassVar[tuple[tuple[str, str], ...]] = ()  # further codes of the rule, with their names
    safety: ClassVar[Safety] = Safety.SAFE
    condition: ClassVar[str] = ""  # for `Safety.UNSAFE`: completes "the rewrite is right only if …"
    severity: ClassVar[Severity] = Severity.ERROR  # default severity of its findings
    edited: ClassVar[Severity] = Severity.ERROR  # severity of the unedited construct
    # Code of the hazard that reports the unedited construct at another line: `migrate check` shows that one.
    reported_as: ClassVar[str] = ""
    nodes: ClassVar[tuple[type[cst.CSTNode], ...]]
    # Which scripts are inspected at all: see `migrate.catalogue.prescan.Worded`.
    words: ClassVar[str] = ""
    of_facts: ClassVar[tuple[str, ...]] = ()
    # Whether the rule inspects only names and attributes that refer to something imported.
    of_names: ClassVar[bool] = False
    examples: ClassVar[tuple[RuleExample, ...]]
    # Options of the examples. A rule whose examples defer reads is asked only if the user wants that.
    options: ClassVar[RewriteOptions] = DEFAULT
    after: ClassVar[bool] = False  # whether the rule runs on the result of the other rules
    # Whether the construct is also wrong in a script whose training a framework runs (left unchanged).
    beside_frameworks: ClassVar[bool] = False
    # The packages that drive the TPU for which the rule runs.
    targets: ClassVar[frozenset[Target]] = XLA_ONLY
    # What the rule does for torch_tpu: a section of the page.
    on_torch_tpu: ClassVar[str] = ""
    # Nodes whose edit is dropped if another edit covers them, such as literals, and whether the rule's edits
    # write the XLA device: see `Edit`.
    yields: ClassVar[tuple[type[cst.CSTNode], ...]] = ()
    names_device: ClassVar[bool] = False
    stage: ClassVar[Stage] = Stage.REST  # when to fix its findings
    # The kind of manual work for its findings, if it is not that of its package.
    work: ClassVar[ManualWork | None] = None
    # Whether it is asked about notebooks only; its examples are cells.
    notebook: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if not cls.__doc__:
            raise TypeError(f"rule {cls.__name__} has no docstring: it is the rule's page")
        shown = {ExampleKind.CHECKED, *(example.kind for example in getattr(cls, "examples", ()))}
        if cls.safety is Safety.REPORT_ONLY:
            shown.add(ExampleKind.REWRITTEN)
        if missing := [kind.value for kind in ExampleKind if kind not in shown]:
            raise TypeError(f"rule {cls.__name__} has no example: {', '.join(missing)}")
        if (cls.safety is Safety.UNSAFE) is not bool(cls.condition):
            raise TypeError(f"rule {cls.__name__}: a condition and Safety.UNSAFE need each other")
        if not re.fullmatch(r"XLA[1-8]\d\d", getattr(cls, "code", "")):
            raise TypeError(f"rule {cls.__name__} has no code")

    def options_of(self, example: RuleExample) -> RewriteOptions:
        """Return the options with which `example` runs."""
        return replace(self.options, config=replace(self.options.config, target=example.target))

    @property
    def codes(self) -> Mapping[str, str]:
        """The rule's codes with their names. The rule's main code is the first."""
        return {self.code: self.name, **dict(self.also)}

    @abstractmethod
    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Wrap | RuleFinding]:
        """Yield the edits and findings at `node`, whose type is among `nodes`."""

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
            node, replace, message, consumes: see `Edit`.
            wrong: what happens on a TPU without the edit, and what to do.
            severity: severity of the unedited construct, if it is not the rule's default.
            code: code of the construct, if it is not the rule's main code.
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
    ) -> Iterator[RuleFinding]:
        """Yield a finding at `node` in this rule's name. The default severity is the rule's.

        Args:
            node: the reported node.
            message: what happens, and what to do.
            severity: severity of the finding.
            subject: name of the construct in the catalogue.
            code: code of the hazard, if it is not the rule's main code.
            is_hint: whether its cost is so small that only `migrate check` shows it.
        """
        how_bad = severity or self.severity
        yield RuleFinding(self.name, node, message, how_bad, code, subject, is_hint)
