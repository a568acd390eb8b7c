"""The uses of a gradient scaler, and whether all of them can go with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate.reading.names.bindings import passed_for
from migrate.rewrite.edits.branch import is_plain_question, left_above
from migrate.rewrite.edits.nodes import operand
from migrate.rewrite.rule import Edit, Replacement, Rule
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, nodes_of

_OF_STATE = (("state_dict", 0), ("load_state_dict", 1))  # methods, with their numbers of arguments
# What a comment that goes with a scaler speaks of.
ABOUT = re.compile(r"scaler|unscal|scal(e|es|ing)\b|\bamp\b|mixed.precision|fp16", re.IGNORECASE)


@dataclass(frozen=True)
class ScalerChange:
    """The replacement of a node when the scaler is removed. `gone` holds the nodes that do not survive.

    `wrong` is what happens on a TPU without it; empty if the catalogue of names says it.
    """

    node: cst.CSTNode
    replace: Callable[..., Replacement]
    gone: cst.CSTNode | None
    message: str
    wrong: str = ""


@dataclass
class Removal:
    """Removal of a scaler with all its uses, except uses that save and load its state.

    Args:
        context: the script.
        call: the call that creates the scaler.
        at_rest: returns the changes that make the scaler only keep its state, or None if they are unknown.
    """

    context: Workspace
    call: cst.Call
    at_rest: Callable[[], list[ScalerChange] | None]
    changes: list[ScalerChange] = field(default_factory=list)
    # The calls by which functions that receive the scaler save or load its state.
    received: list[cst.Call] = field(default_factory=list)
    _lines: set[int] = field(default_factory=set)
    _keeps: bool = False

    def plan(self) -> list[ScalerChange] | None:
        """Return all changes. None if a use is not plain: then the scaler has to stay."""
        assign = self.context.parent(self.call)
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return None
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or self._in_class_body(target):
            return None
        if self.context.bound_to(target)[1] is not self.call:
            return None
        methods = set()
        self._keeps = self._saves(target.value)
        if not self._keeps and not self._drop_line(assign):
            return None
        for use in self.context.references(target.value):
            if use is target or not self._is_variable(use):
                continue
            owner, value = self.context.bound_to(use)
            if value is not self.call:
                if owner is None or isinstance(value, cst.Param) or value is not None:
                    continue  # another variable of the same name
                return None
            method = self._plain(use)
            if method is None:
                return None
            methods.add(method)
        if self._keeps:
            rests = self.at_rest()
            if rests is None:
                return None
            self.changes += rests
            if not self.changes:
                return []
        return self.changes if "scale" in methods and not self._empties_a_block() else None

    def _saves(self, name: str) -> bool:
        """Whether the state of the scaler is saved in checkpoints, which the CUDA script may load."""
        uses = [
            self.context.parent(use)
            for use in self.context.references(name)
            if self._is_variable(use) and self.context.bound_to(use)[1] is self.call
        ]
        return any(
            (isinstance(use, cst.Attribute) and use.attr.value == "state_dict")
            or (isinstance(use, cst.Arg) and self._receiving(use) is not None)
            for use in uses
        )

    def _receiving(self, arg: cst.Arg) -> list[cst.Call] | None:
        """Return the calls by which a function of the script saves or loads the state of `arg`, the scaler.

        None if the function does anything else with it, or receives another scaler elsewhere.
        """
        call = self.context.parent(arg)
        functions = self.context.called(call) if isinstance(call, cst.Call) else []
        if len(functions) != 1 or not isinstance(call, cst.Call):
            return None
        params = [*functions[0].params.posonly_params, *functions[0].params.params]
        params += functions[0].params.kwonly_params
        bound = bind(call, [param.name.value for param in params]) or {}
        received = next((param for param in params if bound.get(param.name.value) is arg), None)
        if received is None:
            return None
        states: list[cst.Call] = []
        for use in self.context.references(received.name.value):
            if use is received.name or self.context.bound_to(use)[1] is not received:
                continue
            passed = passed_for(use, self.context)
            attribute = self.context.parent(use)
            state = self.context.parent(attribute)
            if not passed or not all(map(self._is_this, passed)):
                return None
            if not isinstance(attribute, cst.Attribute) or not isinstance(state, cst.Call):
                return None
            method = (attribute.attr.value, len(state.args))
            if method not in _OF_STATE or state.func is not attribute:
                return None
            states.append(state)
        return states

    def _is_this(self, value: cst.BaseExpression) -> bool:
        return isinstance(value, cst.Name) and self.context.bound_to(value)[1] is self.call

    def _is_variable(self, name: cst.Name) -> bool:
        above = self.context.parent(name)
        if isinstance(above, cst.Attribute):
            return above.value is name
        return not (isinstance(above, cst.Arg) and above.keyword is name)

    def _in_class_body(self, name: cst.Name) -> bool:
        kinds = (cst.ClassDef, cst.FunctionDef)
        scope = next((a for a in self.context.ancestors(name) if isinstance(a, kinds)), None)
        return isinstance(scope, cst.ClassDef)

    def _plain(self, use: cst.Name) -> str | None:
        """Plan the change of one use. Return the name of the method, or None if the use is not plain."""
        attribute = self.context.parent(use)
        call = self.context.parent(attribute)
        if isinstance(attribute, cst.Arg) and (received := self._receiving(attribute)) is not None:
            self.received += received
            return "state_dict"
        if not isinstance(attribute, cst.Attribute) or not isinstance(call, cst.Call):
            return None
        if call.func is not attribute or any(arg.star for arg in call.args):
            return None
        method, count = attribute.attr.value, len(call.args)
        above = self.context.parent(call)
        if method == "scale" and count == 1:
            message = f"{code(call)} → {code(call.args[0].value)}"
            self.changes.append(ScalerChange(call, _argument, call.func, message))
        elif method == "step" and count == 1:
            message = f"{code(call)} → {code(call.args[0].value)}.step()"
            self.changes.append(ScalerChange(call, _step, call.func, message))
        elif self._keeps and (method, count) in _OF_STATE:
            return method
        elif (method, count) in (("unscale_", 1), ("update", 0), ("load_state_dict", 1)):
            return method if isinstance(above, cst.Expr) and self._drop_line(above) else None
        else:
            return None
        return method

    def _drop_line(self, statement: cst.CSTNode) -> bool:
        """Plan the removal of the line of `statement`, if it is alone there."""
        line = self.context.parent(statement)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return False
        self._lines.add(id(line))
        message = f"remove {code(statement)}"
        # Not the whole line: another rule may edit what is in it, to no effect.
        call = next(nodes_of(statement, cst.Call))
        left = left_above(line, ABOUT)
        self.changes.append(ScalerChange(line, lambda _: left, call.func, message))
        return True

    def _empties_a_block(self) -> bool:
        blocks = [self.context.parent(change.node) for change in self.changes]
        return any(
            all(id(statement) in self._lines for statement in block.body)
            for block in blocks
            if isinstance(block, cst.IndentedBlock)
        )


def _argument(updated: cst.Call) -> cst.BaseExpression:
    return operand(updated.args[0].value)


def _step(updated: cst.Call) -> cst.Call:
    return cst.Call(cst.Attribute(_argument(updated), cst.Name("step")))


class _Changed(cst.CSTTransformer):
    """Makes the changes in a subtree, comments left out."""

    def __init__(self, changes: list[ScalerChange]) -> None:
        super().__init__()
        self._changes = {id(change.node): change.replace for change in changes}

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        """Return the changed node."""
        if isinstance(original_node, cst.EmptyLine | cst.TrailingWhitespace):
            return updated_node.with_changes(comment=None)
        replace = self._changes.get(id(original_node))
        return updated_node if replace is None else replace(updated_node)


def edits(rule: Rule, changes: list[ScalerChange], what: str, context: Workspace) -> Iterator[Edit]:
    """Yield the edits that make `changes`, and leave one of two branches that say the same without `what`."""
    for change in changes:
        gone = [change.gone] if change.gone else []
        yield rule.edit(
            change.node, change.replace, change.message, consumes=gone, wrong=change.wrong
        )
    for branch in _branches_made_equal(changes, context):
        message = f"both branches say the same without {what}: one of them is left"
        yield rule.edit(branch, _only_branch, message)


def _branches_made_equal(changes: list[ScalerChange], context: Workspace) -> list[cst.If]:
    """Return the `if … else …` whose two branches say the same once the changes are made."""
    branches: dict[int, cst.If] = {}
    for change in changes:
        for above in context.ancestors(change.node):
            if isinstance(above, cst.FunctionDef | cst.Lambda):
                break
            if isinstance(above, cst.If) and _equal_branches(above, changes, context):
                branches[id(above)] = above
    return list(branches.values())


def _only_branch(updated: cst.If) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return the statements of the first branch in place of the whole `if`."""
    statements = list(cst.ensure_type(updated.body, cst.IndentedBlock).body)
    first = statements[0]
    above = [*updated.leading_lines, *getattr(first, "leading_lines", ())]
    return cst.FlattenSentinel([first.with_changes(leading_lines=above), *statements[1:]])


def _equal_branches(node: cst.If, changes: list[ScalerChange], context: Workspace) -> bool:
    other = node.orelse
    is_elif = isinstance(context.parent(node), cst.If)
    if is_elif or not isinstance(other, cst.Else) or not is_plain_question(node.test):
        return False
    if not isinstance(node.body, cst.IndentedBlock) or not isinstance(
        other.body, cst.IndentedBlock
    ):
        return False
    first, two = (_text(block.visit(_Changed(changes))) for block in (node.body, other.body))
    return first == two


def _text(block: object) -> str:
    assert isinstance(block, cst.IndentedBlock)
    lines = cst.Module(body=[]).code_for_node(block).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())
