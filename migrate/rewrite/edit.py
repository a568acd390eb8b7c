"""What a rule asks for: the edit of a node, of neighbouring statements, or a finding."""

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
        rule: name of the rule that asks for it.
        node: the original node; two edits of one node are an error.
        replace: makes the new node from the *updated* node, in which the edits of the nodes inside
            have already been made.
        message: what is done, for the user.
        consumes: original subtrees that do not survive the edit. No other rule may edit inside them,
            and a CUDA construct in them counts as handled.
        wrong: what happens on a TPU without the edit, and what to do: what `migrate check` says. Where it
            is empty, `message` says it.
        severity: how bad that is; None: as the rule says (`Rule.edited`).
        code: its code where that is not the rule's.
        yields: whether it is not made where another edit speaks of the node.
        names_device: whether it writes the XLA device, which torch knows where torch_xla is imported.
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
    """Something that is reported and not edited: what it is, and what to do by hand.

    Args:
        rule: name of the rule that reports it.
        node: the original node.
        message: what happens, and what to do, for the user.
        severity: how bad it is; `INFO` where the rewritten script stands with it.
        code: its code where that is not the rule's.
        subject: the name, as the catalogue has it, of what is reported; empty where that is no name.
        is_hint: whether it costs so little that `migrate check` alone shows it.
    """

    rule: str
    node: cst.CSTNode
    message: str
    severity: Severity = Severity.ERROR
    code: str = ""
    subject: str = ""
    is_hint: bool = False
