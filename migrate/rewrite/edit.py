"""Results of a rule: the edit of a node, the edit of neighboring statements, or a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.check.hazard import Severity

Replacement = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]


@dataclass(frozen=True, eq=False)
class Edit:
    """A change of one node of the original tree.

    Args:
        rule: name of the rule that requests the edit.
        node: the original node. Two edits of one node are an error.
        replace: makes the new node from the *updated* node, in which the edits of the nodes inside
            have already been made.
        message: what is done, for the user.
        consumes: original subtrees that do not survive the edit. No other rule may edit inside them,
            and a CUDA construct in them counts as handled.
        wrong: what happens on a TPU without the edit, and what to do. `migrate check` prints it. If it
            is empty, `migrate check` prints `message`.
        severity: severity of the unedited construct. None: that of the rule (`Rule.edited`).
        code: code of the construct, if it is not the rule's.
        yields: whether the edit is dropped if another edit covers the node.
        names_device: whether the edit writes the XLA device. torch knows it only if torch_xla is imported.
    """

    rule: str
    node: cst.CSTNode
    replace: Callable[[cst.CSTNode], Replacement]
    message: str
    consumes: tuple[cst.CSTNode, ...] = ()
    wrong: str = ""
    severity: Severity | None = None
    code: str = ""
    yields: bool = False
    names_device: bool = False


class StatementRun(list[cst.BaseStatement]):
    """The updated statements of a run, in order.

    Args:
        parts: for each original statement of the run, what remains of it. That is usually one statement,
            and none if another rule removed it.
    """

    def __init__(self, parts: Sequence[Sequence[cst.BaseStatement]]) -> None:
        super().__init__(statement for part in parts for statement in part)
        self.parts = parts


@dataclass(frozen=True, eq=False)
class Wrap:
    """A change of several neighboring statements of one block into one or more new statements.

    Args:
        rule: name of the rule that requests the change.
        block: the original block that holds the statements.
        first, last: the original statements where the run begins and ends (included).
        make: makes the new statements from the updated statements of the run.
        message: what is done, for the user.
        wrong: what happens on a TPU without the change, and what to do. `migrate check` prints it. If it
            is empty, `migrate check` prints `message`.
    """

    rule: str
    block: cst.IndentedBlock | cst.Module
    first: cst.CSTNode
    last: cst.CSTNode
    make: Callable[[StatementRun], cst.BaseStatement | Sequence[cst.BaseStatement]]
    message: str
    wrong: str = ""

    @property
    def node(self) -> cst.CSTNode:
        """The statement at which the change is reported."""
        return self.first


@dataclass(frozen=True, eq=False)
class RuleFinding:
    """A construct that is reported and not edited, with what to do by hand.

    Args:
        rule: name of the rule that reports it.
        node: the original node.
        message: what happens, and what to do, for the user.
        severity: severity of the finding. `INFO` if the rewritten script works with the construct.
        code: code of the finding, if it is not the rule's.
        subject: name of the construct in the catalogue. Empty if the construct is no name.
        is_hint: whether its cost is so small that only `migrate check` shows it.
    """

    rule: str
    node: cst.CSTNode
    message: str
    severity: Severity = Severity.ERROR
    code: str = ""
    subject: str = ""
    is_hint: bool = False
