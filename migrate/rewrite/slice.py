"""Which part of a block of statements is the step, before anything is moved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.rewrite.dataflow import Flow, aliases, base_name, flow, overlap
from migrate.rewrite.device_values import DeviceValues
from migrate.rewrite.devices import moves
from migrate.rewrite.effects import Effect
from migrate.rewrite.outside import Outside, why_outside
from migrate.rewrite.tree import nodes, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.context import Context

# What follows an optimizer's step and is work of the device: averages of weights, a scaler's update.
AVERAGE = re.compile(
    r".*(ema|moving_average|polyak|swa|avg_model|averaged?_model|momentum_(update|encoder)"
    r"|update_(teacher|target|momentum)|soft_update)(_.*|\d*)?|accumulate|.*scaler",
    re.IGNORECASE,
)
IN_PLACE = re.compile("(add|addcdiv|addcmul|copy|lerp|mul|sub|div|zero)_")
ON_STATE = re.compile(
    "eval|named_parameters|parameters|requires_grad_|state_dict|step|train|unscale_|zero_grad"
)


class Body:
    """The statements of a block that runs a step, with what is known of each.

    Args:
        block: the block.
        batch: the names that the loop around it binds to a batch.
        context: the script.
    """

    def __init__(self, block: cst.IndentedBlock, batch: Sequence[str], context: Context) -> None:
        self.block = block
        self.context = context
        self.values = DeviceValues(block, batch, context)
        self.statements = [Statement(s, self.values, context) for s in block.body]

    @cached_property
    def state(self) -> frozenset[str]:
        """The names of models and optimizers: what a step changes though it does not bind it."""
        found = set()
        for call in nodes_of(self.block, cst.Call):
            if isinstance(call.func, cst.Attribute) and ON_STATE.fullmatch(call.func.attr.value):
                found.add(base_name(call.func.value))
            elif self.values.is_state(call.func):
                found.add(get_full_name_for_node(call.func))
        return frozenset(name for name in found if name) - self.values.names

    @cached_property
    def aliases(self) -> list[tuple[str, str]]:
        """The pairs of names in the block that stand for one memory."""
        return aliases([statement.node for statement in self.statements])

    def backward(self) -> list[int]:
        """Return the indices of the statements that run a backward pass."""
        return [i for i, s in enumerate(self.statements) if Effect.BACKWARD in s.effect]

    def first(self, backward: int) -> int:
        """Return the index of the first statement that belongs to the backward pass at `backward`.

        From there upwards, a statement belongs if it is work of the device that binds or changes a name
        that a later one of the step uses, or clears gradients. What only the host computes stays above.
        """
        first = backward
        used = set(self.statements[backward].flow.used)
        for index in range(backward - 1, -1, -1):
            statement = self.statements[index]
            if overlap(statement.flow.written, used):
                used |= statement.flow.used
                if statement.on_device:
                    first = index
            elif statement.clears_gradients and statement.outside is None:
                first = index
        return first

    def ends(self) -> list[int]:
        """Return the indices that may be the last of the step, the preferred one first.

        The last one is that of the last optimizer's step; what clears gradients or averages weights after
        it is taken along where nothing that has to stay outside lies between.
        """
        last = max(i for i, statement in enumerate(self.statements) if statement.effect)
        found = [last]
        for index in range(last + 1, len(self.statements)):
            statement = self.statements[index]
            between = {s.outside for s in self.statements[found[0] + 1 : index]} - {None}
            over_logs = between <= {Outside.READ, Outside.LOG, Outside.SYNC}
            ends = not between and statement.outside is None and statement.ends_a_step
            averages = statement.averages and statement.outside is None
            if ends or (averages and over_logs):
                found.insert(0, index)
        return found


@dataclass(frozen=True)
class Statement:
    """One statement of a block and what is known of it."""

    node: cst.BaseStatement
    values: DeviceValues
    context: Context

    @cached_property
    def effect(self) -> Effect:
        """Whether it runs a backward pass or an optimizer's step."""
        return self.context.effects.of(self.node)

    @cached_property
    def flow(self) -> Flow:
        """The names that it reads, binds and changes."""
        return flow(self.node, self.values, self.context)

    @cached_property
    def outside(self) -> Outside | None:
        """Why it stays outside of a step, if it does."""
        if self.effect:
            return None
        why = why_outside(self.node, self.values, self.context)
        alone = (Outside.GUARD, Outside.SAVE, Outside.EVALUATION)
        return None if self.averages and why not in alone else why

    @cached_property
    def clears_gradients(self) -> bool:
        """Whether it calls `zero_grad`."""
        return any(
            isinstance(call.func, cst.Attribute) and call.func.attr.value == "zero_grad"
            for call in nodes_of(self.node, cst.Call)
        )

    @cached_property
    def averages(self) -> bool:
        """Whether it averages weights, or tells a gradient scaler that the step is done."""
        return any(self._averages(call) for call in nodes_of(self.node, cst.Call))

    @cached_property
    def moves(self) -> bool:
        """Whether it moves something to the device, itself or in a function of the script."""
        calls = nodes_of(self.node, cst.Call)
        called = (self.values.method(call.func) for call in calls)
        places = (self.node, *(function.body for function in called if function is not None))
        return any(next(moves(place, self.context), None) is not None for place in places)

    @cached_property
    def on_device(self) -> bool:
        """Whether it is work of the device: moves or computes tensors there."""
        if self.moves or _edits_tensors(self.node):
            return True
        for node in nodes(self.node):
            if isinstance(node, cst.Call) and self.values.is_state(node.func):
                return True
            computes = isinstance(node, cst.Call | cst.Subscript | cst.BinaryOperation)
            if computes and self.values.mentions(node):
                return True
        return False

    @cached_property
    def ends_a_step(self) -> bool:
        """Whether it clears gradients, or asks a prefetcher for the next batch: `prefetcher.next()`."""
        return self.clears_gradients or any(
            isinstance(call.func, cst.Attribute) and call.func.attr.value == "next"
            for call in nodes_of(self.node, cst.Call)
        )

    def _averages(self, call: cst.Call) -> bool:
        func = call.func
        if isinstance(func, cst.Attribute):
            if IN_PLACE.fullmatch(func.attr.value):
                return _walks_parameters(self.node)
            method = func.attr.value in ("update", "update_parameters", "step")
            receiver = (base_name(func.value) or "").split(".")[-1]
            if method and AVERAGE.fullmatch(receiver):
                return True
            return AVERAGE.fullmatch(func.attr.value) is not None
        if not isinstance(func, cst.Name):
            return False
        called = self.context.functions.get(func.value)
        if called is not None and _walks_parameters(called.body):
            return _edits_tensors(called.body)
        return AVERAGE.fullmatch(func.value) is not None and not self.values.is_state(func)


def _edits_tensors(node: cst.CSTNode) -> bool:
    return any(
        isinstance(call.func, cst.Attribute)
        and IN_PLACE.fullmatch(call.func.attr.value) is not None
        for call in nodes_of(node, cst.Call)
    )


def _walks_parameters(node: cst.CSTNode) -> bool:
    """Whether `node` goes over the parameters of a model."""
    return any(
        attribute.attr.value in ("parameters", "named_parameters", "buffers", "state_dict")
        for attribute in nodes_of(node, cst.Attribute)
    )
