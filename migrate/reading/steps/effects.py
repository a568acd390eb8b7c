"""Statements of a script that run a backward pass or an optimizer step, and loops that train.

The analysis follows calls over the files of the project (`migrate.reading.calls`); this is its answer for
the nodes of one script.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import libcst as cst

from migrate.model.calls.effect import BOTH, Effect
from migrate.model.replicated.saves import Saved
from migrate.model.replicated.shares import Share

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

__all__ = ["BOTH", "Effect", "Effects", "Loop"]

Loop = cst.For | cst.While


class Effects:
    """Effects of every statement of one script.

    A step loop consumes its effects: a caller of `train()` does not train a step.
    """

    def __init__(self, context: Parsed) -> None:
        self._context = context
        self._calls = context.calls
        self._of: dict[int, Effect] = {}
        for node in context.all_of(cst.Call):
            if effect := self._of_call(node):
                self._carry(node, effect)
        for loop in reversed(
            context.all_of(cst.For, cst.While)
        ):  # a loop comes after the loops around it
            effect = self._of.get(id(loop.body), Effect.NONE)
            if effect and not self.is_step_loop(loop):
                self._carry(loop, effect)

    def of(self, node: cst.CSTNode) -> Effect:
        """Return the effects of running `node`, without nested functions and inner step loops.

        For a function, class or loop, return the effects of its body.
        """
        if isinstance(node, cst.FunctionDef | Loop):
            return self._of.get(id(node.body), Effect.NONE)
        return self._of.get(id(node), Effect.NONE)

    def takes_loss(self, call: cst.Call) -> bool:
        """Whether `call` runs the backward pass of a loss that it gets, in functions of the project."""
        if Effect.BACKWARD not in self._of_call(call):
            return False
        functions = self._context.run_by(call)
        return bool(functions) and all(function.takes_loss for function in functions)

    def is_step_loop(self, loop: Loop) -> bool:
        """Whether every turn of `loop` is one training step: by its effects, or marked by hand."""
        return self._context.position(loop).line in self._calls.step_loops

    def on_accelerator(self, loop: Loop) -> bool | None:
        """Whether the step loop `loop` trains on an accelerator; None if that is unknown."""
        return self._calls.on_accelerator.get(self._context.position(loop).line, False)

    def is_marked(self, loop: Loop) -> bool:
        """Whether a comment `# migrate: step` on `loop`, or right above it, marks it."""
        return self._context.position(loop).line in self._calls.marked

    def on_cpu(self, loop: Loop) -> int | None:
        """Return the line of a move that contradicts a comment `# migrate: cpu` on `loop`, or 0.

        None if there is no such comment.
        """
        return self._calls.on_cpu.get(self._context.position(loop).line)

    def hidden(self, loop: Loop) -> str | None:
        """Return what to do about a loop that may train through a class chosen by name, or None."""
        return self._calls.hidden.get(self._context.position(loop).line)

    def obstacle(self, call: cst.Call) -> str | None:
        """Return why `call`, which trains, cannot be part of a step, or None."""
        return self._calls.obstacles.get(self._context.place(call))

    def has_steps(self, call: cst.Call) -> bool:
        """Whether `call` runs a function in which a loop trains."""
        return bool(self._calls.training) and self._context.place(call) in self._calls.training

    def nests(self, call: cst.Call) -> bool:
        """Whether `call` runs a part of a step, of any file, that gets blocks of its own."""
        nesting = self._calls.nesting
        return bool(nesting) and self._context.place(call) in nesting

    def holds_steps(self, function: cst.FunctionDef) -> bool:
        """Whether `function` is a part of a step and gets the blocks itself: a loop in it has some."""
        lines = self._calls.whole_steps
        return bool(lines) and self._context.position(function).line in lines

    def moves(self, call: cst.Call) -> bool:
        """Whether `call` runs a function, of any file, that moves something to an accelerator."""
        return bool(self._calls.moving) and self._context.place(call) in self._calls.moving

    def moves_inputs(self, call: cst.Call) -> bool:
        """Whether `call` calls a model that moves its inputs to the GPU: DistributedDataParallel."""
        inputs = self._calls.moved_inputs
        return bool(inputs) and self._context.place(call) in inputs

    def wraps_placed(self, call: cst.Call) -> bool:
        """Whether `call` wraps a model that is on an accelerator already: `DDP(Net(device="cuda"))`."""
        placed = self._calls.placed_models
        return bool(placed) and self._context.place(call) in placed

    def given_moving(self, call: cst.Call) -> bool:
        """Whether `call` gets a model that moves its inputs to the GPU: one of `moves_inputs`."""
        moving = self._calls.given_moving
        return bool(moving) and self._context.place(call) in moving

    def reads(self, call: cst.Call) -> bool:
        """Whether `call` runs a function, of any file, that reads values of tensors."""
        return bool(self._calls.reading) and self._context.place(call) in self._calls.reading

    def acts(self, call: cst.Call) -> bool:
        """Whether `call` runs a function that writes, logs, saves or trains."""
        return self._context.place(call) in self._calls.acting

    def ends(self, call: cst.Call) -> bool:
        """Whether `call` runs a function, of any file, that may raise or end the program."""
        return bool(self._calls.ending) and self._context.place(call) in self._calls.ending

    def meets(self, call: cst.Call) -> bool:
        """Whether `call` runs a function in which all replicas communicate."""
        return bool(self._calls.meeting) and self._context.place(call) in self._calls.meeting

    def waits(self, call: cst.Call) -> bool:
        """Whether `call` runs a function, of any file, that waits for the device and so ends the graph."""
        return bool(self._calls.waiting) and self._context.place(call) in self._calls.waiting

    def wraps(self, call: cst.Call) -> bool:
        """Whether `call` runs a function, of any file, that wraps a model for several replicas."""
        return bool(self._calls.wrapping) and self._context.place(call) in self._calls.wrapping

    def seeds_early(self, call: cst.Call) -> bool:
        """Whether `call` runs a seeding function of another file before the replicas are launched."""
        seeds = self._calls.early_seeds
        return bool(seeds) and self._context.place(call) in seeds

    def saves(self, call: cst.Call) -> Saved | None:
        """Return the save that `call` makes through a function of another file."""
        saves = self._calls.saves
        return saves.get(self._context.place(call)) if saves else None

    def divides(self, save: cst.Call) -> Share | None:
        """Return what makes the path of a torch.save call depend on the replica, or None."""
        divided = self._calls.divided_saves
        return divided.get(self._context.place(save)) if divided else None

    def callees(self, statements: Iterable[cst.CSTNode]) -> list[cst.FunctionDef]:
        """Return the functions of the script with an effect that `statements` call."""
        calls = [
            call for statement in statements for call in self._context.below(statement, cst.Call)
        ]
        functions = {
            id(function): function
            for call in calls
            if self._of_call(call)
            for function in self._context.called(call)
        }
        return list(functions.values())

    def _of_call(self, call: cst.Call) -> Effect:
        return self._calls.effects.get(self._context.place(call), Effect.NONE)

    def _carry(self, node: cst.CSTNode, effect: Effect) -> None:
        """Record `effect` for `node` and its parents, up to the next function or loop."""
        current: cst.CSTNode | None = node
        while current is not None:
            self._of[id(current)] = self._of.get(id(current), Effect.NONE) | effect
            above = self._context.parent(current)
            if isinstance(above, cst.FunctionDef | cst.Lambda | cst.ClassDef):
                return
            if isinstance(above, Loop) and current is above.body:
                return
            if isinstance(above, cst.While) and current is above.test:
                self._of[id(above.body)] = self._of.get(id(above.body), Effect.NONE) | effect
                return
            current = above
