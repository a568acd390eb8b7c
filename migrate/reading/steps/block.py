"""Part of a block of statements that is the step, before anything is moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.words import BUILTINS, HOST_ROOTS, NO_GRADIENTS
from migrate.reading.flow.dataflow import aliases, overlap
from migrate.reading.steps.effects import Effect
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.statement import Statement
from migrate.reading.values.device_values import DeviceValues
from migrate.reading.values.devices import moves
from migrate.syntax.tree import base_name, code, nodes, nodes_of, targets

if TYPE_CHECKING:
    from migrate.reading.script import Script

ON_STATE = re.compile(
    "eval|named_parameters|parameters|requires_grad_|state_dict|step|train|unscale_|zero_grad"
)


def _of_loss(block: cst.IndentedBlock, context: Script) -> frozenset[int]:
    """Return the ids of the calls from whose results the loss of the block is computed.

    `evaluate_model(model, x)` may be such a call: what runs without gradients is none.
    """
    names: set[str] = set()
    calls: set[int] = set()
    for statement in reversed(block.body):
        for assign in nodes_of(statement, cst.Assign) if names else ():
            if names.isdisjoint(map(base_name, targets(assign))):
                continue
            names |= {name.value for name in context.below(assign.value, cst.Name)}
            calls |= {
                id(call)
                for call in context.below(assign.value, cst.Call)
                if not any(_without_gradients(callee, context) for callee in context.called(call))
            }
        for call in context.below(statement, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward":
                names |= {name.value for name in context.below(call, cst.Name)}
    return frozenset(calls)


def _without_gradients(function: cst.FunctionDef, context: Script) -> bool:
    items = [decorator.decorator for decorator in function.decorators]
    items += [item.item for block in context.below(function, cst.With) for item in block.items]
    return context.names_any(items, NO_GRADIENTS)


class Body:
    """Statements of a block that runs a step, with the facts about each.

    Args:
        block: the block.
        batch: the names that the loop around it binds to a batch.
        context: the script.
        whole: the indices of statements whose tail is not inspected separately.
        computing: the ids of calls that only compute, whatever their names say.
    """

    def __init__(
        self,
        block: cst.IndentedBlock,
        batch: Sequence[str],
        context: Script,
        whole: frozenset[int] = frozenset(),
        computing: frozenset[int] = frozenset(),
    ) -> None:
        self.block = block
        self.context = context
        self.batch = batch
        self.whole = whole
        self.computing = computing = computing | _of_loss(block, context)
        self.values = DeviceValues(block, batch, context)
        all_of_it = [Statement(s, self.values, context, computing=computing) for s in block.body]
        self.tails = {
            index: end
            for index, statement in enumerate(all_of_it)
            if index not in whole and (end := tail(statement)) is not None
        }
        self.statements = [
            Statement(self.tails[index].rest, self.values, context, statement.node, computing)
            if index in self.tails
            else statement
            for index, statement in enumerate(all_of_it)
        ]

    def with_whole(self, index: int) -> Body:
        """Return the same block, with the statement at `index` taken as a unit."""
        return Body(self.block, self.batch, self.context, self.whole | {index}, self.computing)

    @cached_property
    def state(self) -> frozenset[str]:
        """Names of models and optimizers: a step changes them without binding them."""
        names = set()
        for call in self.context.below(self.block, cst.Call):
            if isinstance(call.func, cst.Attribute) and ON_STATE.fullmatch(call.func.attr.value):
                names.add(base_name(call.func.value))
            elif self.values.is_state(call):
                names.add(get_full_name_for_node(call.func))
        return frozenset(name for name in names if name) - self.values.names

    @cached_property
    def aliases(self) -> list[tuple[str, str]]:
        """Pairs of names in the block that refer to the same memory."""
        return aliases([statement.node for statement in self.statements])

    def backward(self) -> list[int]:
        """Return the indices of the statements that run a backward pass."""
        return [i for i, s in enumerate(self.statements) if Effect.BACKWARD in s.effect]

    def first(self, backward: int) -> int:
        """Return the index of the first statement that belongs to the backward pass at `backward`.

        Going upwards, a statement belongs if it works on the device and binds or changes a name that a later
        statement of the step uses, or if it clears gradients. Code that only the host computes stays above.
        Something has to run the model: if no such statement does, calls of unknown functions belong, too.
        """
        first = self._first(backward, unknown=False)
        if any(map(self._may_run_model, range(first, backward + 1))):
            return first
        return self._first(backward, unknown=True)

    def _first(self, backward: int, *, unknown: bool) -> int:
        """Return that index; with calls of unknown functions, or without."""
        first = backward
        used = self._inputs(backward)
        for index in range(backward - 1, -1, -1):
            statement = self.statements[index]
            if statement.outside is Outside.STEPS:
                break  # code above exists before the steps of that loop
            if overlap(statement.flow.written, used):
                if isinstance(statement.node, cst.SimpleStatementLine):
                    assigned = statement.flow.assigned
                    used = {
                        n for n in used if n.split(".")[0] not in assigned and n not in assigned
                    }
                used |= self._inputs(index)
                belongs = statement.on_device or statement.clears_gradients
                if unknown and statement.outside is None:
                    belongs = belongs or self._may_run_model(index)
                if belongs:
                    first = index
            elif statement.clears_gradients and statement.outside is None:
                first = index
        return first

    def _may_run_model(self, index: int) -> bool:
        """Whether the statement at `index` calls a model, or anything that may run one."""
        return any(map(self._is_open, nodes_of(self.statements[index].node, cst.Call)))

    def _is_open(self, call: cst.Call) -> bool:
        """Whether `call` is of a model, or of anything from outside of the block but a library.

        A backward pass of a loss that it gets runs no model: `updater.step(loss)`.
        """
        if self.context.effects.takes_loss(call):
            return False
        if self.values.is_state(call) or self.context.values.calls_model(call):
            return True
        name = (base_name(call.func) or "").split(".")[0]
        if not name or name in BUILTINS or name in self._bound:
            return False
        root = (self.context.qualified_name(call.func) or "").partition(".")[0]
        return root != "torch" and root not in HOST_ROOTS

    @cached_property
    def _bound(self) -> frozenset[str]:
        """Names that the block binds."""
        return frozenset(
            name.split(".")[0] for statement in self.statements for name in statement.flow.assigned
        )

    def _inputs(self, index: int) -> set[str]:
        """Return the names that the statement at `index` reads, without host values that it moves."""
        statement = self.statements[index]
        sources = {
            id(name)
            for call in moves(statement.node, self.context)
            if isinstance(call.func, cst.Attribute)
            for name in self.context.below(call.func.value, cst.Name)
        }
        if not sources:
            return set(statement.flow.used)
        bound = {id(n) for t in nodes_of(statement.node, cst.AssignTarget) for n in nodes(t.target)}
        others = {
            name.value
            for name in self.context.below(statement.node, cst.Name)
            if id(name) not in sources | bound or self.is_on_device(name.value, index, False)
        }
        return {name for name in statement.flow.used if name.split(".")[0] in others}

    def is_on_device(self, name: str, index: int, batch: bool) -> bool:
        """Whether `name` holds a device tensor where the statement at `index` begins.

        Args:
            name: the name.
            index: of the statement.
            batch: whether the values that the loop binds are on the device.
        """
        if name not in {full_name.split(".")[0] for full_name in self.values.names}:
            return False
        for before in range(index - 1, -1, -1):
            statement = self.statements[before]
            if name not in {full_name.split(".")[0] for full_name in statement.flow.assigned}:
                continue
            answers = [self._is_made_on_device(v, before, batch) for v in _made(name, statement)]
            if any(answers) or not answers:
                return True
            if isinstance(statement.node, cst.SimpleStatementLine):
                return False
        return batch if name in self.batch else True

    def _is_made_on_device(self, value: cst.BaseExpression, index: int, batch: bool) -> bool:
        """Whether the value that the statement at `index` binds is on the device."""
        call = value.func if isinstance(value, cst.Call) else None
        name = (self.context.qualified_name(call) or "").split(".")[0]
        if name in HOST_ROOTS or not self.values.mentions(value):
            return False
        if next(moves(value, self.context), None) is not None:
            return True
        calls = list(nodes_of(value, cst.Call))
        if any(self.values.is_state(call) or self.context.effects.moves(call) for call in calls):
            return True
        names = {name.value for name in self.context.below(value, cst.Name)}
        return any(self.is_on_device(name, index, batch) for name in names)

    def ends(self) -> list[int]:
        """Return the indices of possible last statements of the step, the preferred one first.

        The last one is that of the last optimizer step. Statements after it that clear gradients or average
        weights are included if nothing between them has to stay outside.
        """
        last = max(i for i, statement in enumerate(self.statements) if statement.effect)
        nodes = [last]
        for index in range(last + 1, len(self.statements)):
            statement = self.statements[index]
            between = {s.outside for s in self.statements[nodes[0] + 1 : index]} - {None}
            # None of these changes weights.
            over_logs = between <= {Outside.READ, Outside.LOG, Outside.SYNC, Outside.SCHEDULE}
            ends = not between and statement.outside is None and statement.ends_a_step
            averages = statement.averages and statement.outside is None
            if ends or (averages and over_logs):
                nodes.insert(0, index)
        return nodes


def _made(name: str, statement: Statement) -> list[cst.BaseExpression]:
    """Return the value that `statement` plainly binds to `name`."""
    return [
        assign.value
        for assign in nodes_of(statement.node, cst.Assign)
        for target in assign.targets
        if any(node.value == name for node in nodes_of(target.target, cst.Name))
    ]


class Tail:
    """Tail of an `if` or `with` that leaves the step: logging after the optimizer's step.

    Args:
        node: the `if` or `with`.
        block: its body.
        statements: the statements at the end of the body that leave.
    """

    def __init__(
        self,
        node: cst.If | cst.With,
        block: cst.IndentedBlock,
        statements: Sequence[cst.BaseStatement],
    ) -> None:
        self.node = node
        self.block = block
        self.statements = statements
        kept = [s for s in block.body if s not in statements]
        self.rest = node.with_changes(body=block.with_changes(body=kept))


def tail(statement: Statement) -> Tail | None:
    """Return the tail of `statement` that may leave the step, from the first statement that stays outside."""
    node = statement.node
    if not isinstance(node, cst.If | cst.With) or not isinstance(node.body, cst.IndentedBlock):
        return None
    if isinstance(node, cst.If) and (node.orelse is not None or not _is_pure(node.test)):
        return None
    inner = [Statement(s, statement.values, statement.context) for s in node.body.body]
    trains = [i for i, s in enumerate(inner) if s.effect or s.averages or s.clears_gradients]
    last = max(trains, default=-1)
    if isinstance(node, cst.If) and last < 0:
        return None  # an `if` without a part of the step moves as a whole
    start = next((i for i in range(last + 1, len(inner)) if inner[i].outside is not None), None)
    if start is None or start == 0:
        return None
    leaving = inner[start:]
    if isinstance(node, cst.With) and any(map(_computes, leaving)):
        return None  # values computed there are computed in the context
    return Tail(node, node.body, [s.node for s in leaving])


def _computes(statement: Statement) -> bool:
    """Whether `statement` is, or has in a branch, a part of the step: `if kind: loss = model(x)`."""
    if statement.outside is None:
        return True
    lines = nodes_of(statement.node, cst.SimpleStatementLine)
    inner = (Statement(line, statement.values, statement.context) for line in lines)
    compound = isinstance(statement.node, cst.BaseCompoundStatement)
    return compound and any(
        statement.outside is None and statement.on_device for statement in inner
    )


def _is_pure(test: cst.BaseExpression) -> bool:
    """Whether evaluating `test` twice gives the same answer: no calls but `len`."""
    return all(code(call.func) == "len" for call in nodes_of(test, cst.Call))
