"""What a rewrite rule is: its page, its examples, and how it says what to edit and what to report."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from migrate.rewrite.options import DEFAULT, Options

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

Replacement = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]


class Safety(StrEnum):
    """Whether the edits of a rule keep the meaning of the script."""

    SAFE = "safe"  # the rewritten script computes the same
    UNSAFE = "unsafe"  # the same where what the rule's page names holds
    REPORT_ONLY = "report only"  # the rule edits nothing


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one node of the original tree.

    Args:
        rule: name of the rule that asks for it.
        node: the original node; two edits of one node are an error.
        replace: makes the new node from the *updated* node, in which the edits of the nodes inside
            have already been made.
        message: what is done, for the user.
        consumes: original subtrees that do not survive the edit. No other rule may edit inside them,
            and a CUDA construct in them counts as handled.
    """

    rule: str
    node: cst.CSTNode
    replace: Callable[[cst.CSTNode], Replacement]
    message: str
    consumes: tuple[cst.CSTNode, ...] = ()


class Run(list[cst.BaseStatement]):
    """The updated statements of a run, in order.

    Args:
        parts: for each original statement of the run what is left of it: one statement as a rule, none
            where another rule removed it.
    """

    def __init__(self, parts: Sequence[Sequence[cst.BaseStatement]]) -> None:
        super().__init__(statement for part in parts for statement in part)
        self.parts = parts


@dataclass(frozen=True, eq=False)
class Wrap:
    """A change of several neighbouring statements of one block into one, or into others.

    Args:
        rule: name of the rule that asks for it.
        block: the original block that holds them.
        first, last: the original statements where the run begins and ends (included).
        make: makes the new statement, or the new ones, from the updated statements of the run.
        message: what is done, for the user.
    """

    rule: str
    block: cst.IndentedBlock | cst.Module
    first: cst.CSTNode
    last: cst.CSTNode
    make: Callable[[Run], cst.BaseStatement | Sequence[cst.BaseStatement]]
    message: str

    @property
    def node(self) -> cst.CSTNode:
        """The statement to which the change is reported."""
        return self.first


@dataclass(frozen=True, eq=False)
class Finding:
    """Something that is reported and not edited: what it is, and what to do by hand."""

    rule: str
    node: cst.CSTNode
    message: str


class Kind(StrEnum):
    """What an example shows."""

    REWRITTEN = "rewritten"
    LEFT_ALONE = "left alone"
    REPORTED = "reported"


@dataclass(frozen=True)
class Example:
    """A script before and after a rule: a test and a part of the rule's page.

    Args:
        kind: what the rule does with it.
        before: the script; indented as its place in the rule's source, dedented when used.
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


class Rule(ABC):
    """One construct of DDP scripts and what becomes of it.

    The docstring is the rule's page (first line: its title). A subclass without a docstring, or without
    an example of each kind, does not come into being; one that only reports needs none that is rewritten.
    """

    name: ClassVar[str]
    safety: ClassVar[Safety] = Safety.SAFE
    nodes: ClassVar[tuple[type[cst.CSTNode], ...]]
    examples: ClassVar[tuple[Example, ...]]
    options: ClassVar[Options] = DEFAULT  # under which the examples are what they are
    after: ClassVar[bool] = (
        False  # whether it looks at what the other rules have made of the script
    )
    notebook: ClassVar[bool] = False  # whether its examples are cells of a notebook

    def __init_subclass__(cls) -> None:
        if not cls.__doc__:
            raise TypeError(f"rule {cls.__name__} has no docstring: it is the rule's page")
        shown = {example.kind for example in getattr(cls, "examples", ())}
        if cls.safety is Safety.REPORT_ONLY:
            shown.add(Kind.REWRITTEN)
        if missing := [kind.value for kind in Kind if kind not in shown]:
            raise TypeError(f"rule {cls.__name__} has no example: {', '.join(missing)}")

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
    ) -> Edit:
        """Return an edit of `node` in this rule's name."""
        return Edit(self.name, node, replace, message, tuple(consumes))

    def report(self, node: cst.CSTNode, message: str) -> Iterator[Finding]:
        """Yield a finding at `node` in this rule's name."""
        yield Finding(self.name, node, message)
