"""Statement of a block that trains: its effects, its names, and whether it belongs in a step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import AVERAGES
from migrate.reading.flow.dataflow import Flow, flow
from migrate.reading.halves.regions import is_region
from migrate.reading.steps.effects import Effect
from migrate.reading.steps.outside import Outside, why_outside
from migrate.reading.values.device_values import DeviceValues
from migrate.reading.values.devices import moves
from migrate.reading.values.scalers import is_scaler
from migrate.syntax.tree import base_name, last_part, nodes, nodes_of, targets

if TYPE_CHECKING:
    from migrate.reading.script import Script

EDITS_GRADIENTS = re.compile(
    r"_*clip_(grad|norm|value)\w*|(clip|scale|unscale|sync|reduce|average)_grad\w*|unscale_"
)
IN_PLACE = re.compile("(add|addcdiv|addcmul|copy|lerp|mul|sub|div|zero)_")


@dataclass(frozen=True)
class Statement:
    """Statement of a block with the facts that the step needs.

    Args:
        node: the statement, without the tail that leaves the step.
        values: which names hold tensors of the device.
        context: the script.
        whole: the statement as it stands in the script, if that differs.
        computing: the ids of calls that only compute, whatever their names say.
    """

    node: cst.BaseStatement
    values: DeviceValues
    context: Script
    whole: cst.BaseStatement | None = None
    computing: frozenset[int] = frozenset()

    @cached_property
    def effect(self) -> Effect:
        """Whether the statement runs a backward pass or an optimizer step."""
        node = self.whole or self.node
        effects = self.context.effects
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            return Effect.NONE  # a definition runs nothing
        if isinstance(node, cst.For | cst.While) and effects.is_step_loop(node):
            return Effect.NONE  # its steps are its own
        if self.nesting:
            return Effect.NONE
        return effects.of(node)

    @cached_property
    def nesting(self) -> list[cst.Call]:
        """Calls of a statement without blocks that get steps of their own, if no other call trains."""
        node = self.whole or self.node
        apart = isinstance(node, cst.FunctionDef | cst.ClassDef | cst.For | cst.While)
        if apart or next(nodes_of(node, cst.IndentedBlock), None) is not None:
            return []
        effects = self.context.effects
        trains = [call for call in nodes_of(node, cst.Call) if effects.of(call)]
        nesting = [call for call in trains if effects.nests(call)]
        if not nesting or not all(
            effects.nests(call) or any(map(effects.nests, nodes_of(call, cst.Call)))
            for call in trains
        ):
            return []
        return nesting

    @cached_property
    def flow(self) -> Flow:
        """Names that the statement reads, binds and changes."""
        return flow(self.node, self.values, self.context)

    @cached_property
    def outside(self) -> Outside | None:
        """Reason why the statement stays outside of a step, or None."""
        if self.effect or isinstance(self.node, cst.FunctionDef | cst.ClassDef):
            return None
        why = why_outside(self.node, self.values, self.context, self.computing)
        alone = (Outside.GUARD, Outside.SAVE, Outside.EVALUATION, Outside.STEPS)
        return None if self.averages and why not in alone else why

    @cached_property
    def clears_gradients(self) -> bool:
        """Whether the statement calls `zero_grad`."""
        return any(
            isinstance(call.func, cst.Attribute) and call.func.attr.value == "zero_grad"
            for call in nodes_of(self.node, cst.Call)
        )

    @cached_property
    def edits_gradients(self) -> bool:
        """Whether the statement clips, unscales or changes gradients, which affects the update."""
        for call in nodes_of(self.node, cst.Call):
            name = last_part(call.func)
            if EDITS_GRADIENTS.fullmatch(name):
                return True
            in_place = name.endswith("_") and isinstance(call.func, cst.Attribute)
            if in_place and any(map(_is_grad, nodes_of(call.func, cst.Attribute))):
                return True
        return any(_is_grad(target) for target in targets(self.node))

    @cached_property
    def averages(self) -> bool:
        """Whether the statement averages weights, or reports the end of the step to a gradient scaler."""
        return any(self._averages(call) for call in nodes_of(self.node, cst.Call))

    @cached_property
    def moves(self) -> bool:
        """Whether the statement moves a value to the device, directly or in a function of the script."""
        calls = list(nodes_of(self.node, cst.Call))
        if any(self.context.effects.moves(call) for call in calls if not self.effect):
            return True
        called = (function for call in calls for function in self.context.called(call))
        places = (self.node, *(function.body for function in called))
        return any(next(moves(place, self.context), None) is not None for place in places)

    @cached_property
    def on_device(self) -> bool:
        """Whether the statement works on the device: it moves or computes tensors there."""
        if isinstance(self.node, cst.FunctionDef | cst.ClassDef):
            return False  # its body runs where it is called
        if self.moves or _edits_tensors(self.node):
            return True
        for node in nodes(self.node):
            if isinstance(node, cst.Call) and self.values.is_state(node):
                return True
            # Whatever it calls: code puts a computation on the accelerator into such a region.
            if isinstance(node, cst.With) and is_region(node, self.context):
                return True
            computes = isinstance(node, cst.Call | cst.Subscript | cst.BinaryOperation)
            if computes and self.values.mentions(node):
                return True
        return False

    @cached_property
    def ends_a_step(self) -> bool:
        """Whether the statement clears gradients, or fetches the next batch: `prefetcher.next()`."""
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
            if method and (AVERAGES.fullmatch(receiver) or is_scaler(func.value, self.context)):
                return True
            if func.attr.value == "update_parameters":  # of torch's AveragedModel
                return True
            return AVERAGES.fullmatch(func.attr.value) is not None
        if not isinstance(func, cst.Name):
            return False
        for called in self.context.called(call):
            if _walks_parameters(called.body):
                return _edits_tensors(called.body)
        return AVERAGES.fullmatch(func.value) is not None and not self.values.is_state(call)


def _edits_tensors(node: cst.CSTNode) -> bool:
    return any(
        isinstance(call.func, cst.Attribute)
        and IN_PLACE.fullmatch(call.func.attr.value) is not None
        for call in nodes_of(node, cst.Call)
    )


def _is_grad(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "grad"


def _walks_parameters(node: cst.CSTNode) -> bool:
    """Whether `node` iterates over the parameters of a model."""
    return any(
        attribute.attr.value in ("parameters", "named_parameters", "buffers", "state_dict")
        for attribute in nodes_of(node, cst.Attribute)
    )
