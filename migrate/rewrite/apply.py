"""Apply the edits of a plan to the tree, then fix the imports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import libcst as cst

from migrate.errors import MigrateError
from migrate.rewrite.edits.alignment import CallAlignment, as_around
from migrate.rewrite.edits.definitions import Definitions, add_definitions
from migrate.rewrite.edits.imports import Imports, add_imports, no_longer_used, remove_imports
from migrate.rewrite.edits.nodes import with_parentheses
from migrate.rewrite.edits.statements import StatementTransformer
from migrate.rewrite.rule import Edit, Wrap
from migrate.syntax.tree import nodes


class RuleConflictError(MigrateError):
    """Two rules want to edit the same code.

    Cause: a defect of this program, not of the script.

    Remedy: report it with the script; nothing was written.
    """


def apply(
    module: cst.Module,
    edits: Sequence[Edit | Wrap],
    imports: Imports,
    definitions: Definitions,
    above: Callable[[cst.CSTNode], Iterable[cst.CSTNode]],
    *,
    gives_all: bool = False,
    kept_imports: Collection[str] = (),
) -> cst.Module:
    """Apply `edits` to `module`, add imports and definitions, and remove imports that are no longer used.

    Args:
        module: the script.
        edits: the edits to make.
        imports, definitions: imports and functions that the edits need.
        above: returns the nodes above a node of `module`.
        gives_all: whether another file imports all names of the script, so that no import may be removed.
        kept_imports: names of imports that stay, used or not.

    Raises:
        RuleConflictError: two edits of one node, or an edit inside a subtree that another consumes.
    """
    _check_conflicts(edits)
    applying = _Applying(edits, _on_the_way(edits, above), CallAlignment(module))
    edited = cst.ensure_type(module.visit(applying), cst.Module)
    added = definitions.added()
    if not gives_all:
        unused = no_longer_used(module, edited, *added)
        gone = {name for name in unused if name.partition(".")[0] not in kept_imports}
        edited = remove_imports(edited, frozenset(gone))
    edited = add_definitions(add_imports(edited, imports.added(edited, *added)), added)
    return as_around(module, edited)


def conflicts(edits: Sequence[Edit | Wrap]) -> Iterator[tuple[Edit | Wrap, Edit | Wrap]]:
    """Yield pairs of edits that claim the same code: one node, or a node that the other edit consumes."""
    claimed: dict[int, Edit | Wrap] = {}
    for edit in edits:
        node = edit.node if isinstance(edit, Edit) else edit.block
        other = claimed.setdefault(id(node), edit)
        if other is not edit:
            yield edit, other
    for edit in edits:
        for subtree in edit.consumes if isinstance(edit, Edit) else ():
            for node in nodes(subtree):
                other = claimed.get(id(node), edit)
                if other is not edit:
                    yield edit, other


def _check_conflicts(edits: Sequence[Edit | Wrap]) -> None:
    """Raise RuleConflictError, with both rules, if two edits claim the same code."""
    for edit, other in conflicts(edits):
        raise RuleConflictError(
            f"the rules {edit.rule} and {other.rule} both edit the same code "
            f"({edit.message}; {other.message})",
            "this is a bug; please report it with the script",
        )


def _on_the_way(
    edits: Sequence[Edit | Wrap], above: Callable[[cst.CSTNode], Iterable[cst.CSTNode]]
) -> set[int]:
    """Return the ids of the edited nodes, and of all nodes above them."""
    edited: set[int] = set()
    for edit in edits:
        place = edit.node if isinstance(edit, Edit) else edit.block
        edited.add(id(place))
        for node in above(place):
            if id(node) in edited:
                break
            edited.add(id(node))
    return edited


class _Applying(StatementTransformer):
    """Makes the edits of a plan."""

    def __init__(
        self, edits: Sequence[Edit | Wrap], on_the_way: set[int], alignment: CallAlignment
    ) -> None:
        super().__init__([edit for edit in edits if isinstance(edit, Wrap)])
        self._on_the_way = on_the_way
        self._alignment = alignment
        self._edits = {id(edit.node): edit for edit in edits if isinstance(edit, Edit)}

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Visit only nodes that contain an edit."""
        if id(node) not in self._on_the_way:
            return False
        self.enter(node)
        return True

    def replace(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:
        """Return the edited node."""
        edit = self._edits.get(id(original))
        result: object = updated if edit is None else edit.replace(updated)
        if isinstance(original, cst.Call) and isinstance(result, cst.Call):
            result = self._alignment.kept(original, result)
        if isinstance(result, cst.CSTNode):
            return with_parentheses(result, below=edit is not None)
        return result
