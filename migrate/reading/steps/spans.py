"""Steps of a script as it stands: from the inputs of the forward to the update of the weights.

The rule that puts steps in `with torch_xla.step():` arranges the statements found here. The hazards of
`migrate check` inspect the code in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.steps.block import Body
from migrate.reading.steps.effects import BOTH, Effect
from migrate.reading.steps.loops import Loop, batch_names, loops
from migrate.syntax.tree import code, nodes, nodes_of
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Annotations of parameters that hold no tensor, and names of parameters for clipping.
NUMBER = re.compile(r"\b(int|float|bool|str)\b")
CLIP = re.compile(r"(.*_)?clip(_.*)?|clipping|max_(grad_)?norm|(grad|gradient)_norm", re.IGNORECASE)
LEAVES = (cst.Return, cst.Continue)
Inner = tuple[cst.IndentedBlock, list[str]]


@dataclass(frozen=True)
class Span:
    """Run of statements of a block that is a step, or a part of a step that accumulates gradients.

    Args:
        body: the block.
        batch: the names that the loop around the block binds to a batch.
        first: the index of the first statement.
        ends: the indices of possible last statements, the preferred one first, the smallest last.
    """

    body: Body
    batch: tuple[str, ...]
    first: int
    ends: tuple[int, ...]


class Trained:
    """Block that trains, with the statements that do.

    Args:
        block: the block.
        batch: the names that the loop around the block binds to a batch.
        context: the script.
    """

    def __init__(self, block: cst.IndentedBlock, batch: Sequence[str], context: Script) -> None:
        self.context = context
        self.body = Body(block, batch, context)
        self.batch = tuple(batch)
        self.indices = [i for i, s in enumerate(self.body.statements) if s.effect]

    @cached_property
    def _micro(self) -> list[Loop | None]:
        statements = self.body.statements
        return [micro_batches(statements[i].node, self.context) for i in self.indices]

    @property
    def accumulates(self) -> bool:
        """Whether gradients are accumulated in an inner loop."""
        return any(self._micro)

    def inner(self, index: int) -> list[Inner]:
        """Return the blocks in a statement that each run a whole step, with the names of their batches.

        They are branches of the statement, or bodies of the script's functions that it calls. Beside a branch
        that runs a whole step, a branch that runs a part of it counts too: it belongs to another turn.
        """
        effects = self.context.effects
        node = self.body.block.body[index]
        if effects.of(node) & BOTH != BOTH:
            return []
        if isinstance(node, cst.With | cst.If | cst.Try):
            blocks = [block for block in _branches(node) if effects.of(block)]
            whole = any(effects.of(block) & BOTH == BOTH for block in blocks)
            return [(block, []) for block in blocks] if whole else []
        callees = effects.callees([node])
        if not all(effects.of(callee.body) & BOTH == BOTH for callee in callees):
            return []
        return [
            (callee.body, given_batches(callee))
            for callee in callees
            if isinstance(callee.body, cst.IndentedBlock)
        ]

    def span(self) -> Span | None:
        """Return the step of a block that does not accumulate; None without a backward pass."""
        if backward := self.body.backward():
            first = self.body.first(backward[0])
            return Span(self.body, self.batch, first, tuple(self.body.ends()))
        # Marked by hand: all device computations are the step.
        statements = self.body.statements
        work = [i for i, s in enumerate(statements) if s.on_device and s.outside is None]
        return Span(self.body, self.batch, work[0], (work[-1],)) if work else None

    @property
    def leaving(self) -> list[Inner]:
        """Blocks that run a whole step and leave: the code below them is an alternative for the turn."""
        blocks = [self._leaving(index) for index in self.indices]
        return [(block, []) for block in blocks if block is not None]

    def _leaving(self, index: int) -> cst.IndentedBlock | None:
        node = self.body.block.body[index]
        if not isinstance(node, cst.If) or node.orelse is not None:
            return None
        block = node.body
        if (
            not isinstance(block, cst.IndentedBlock)
            or self.context.effects.of(block) & BOTH != BOTH
        ):
            return None
        last = block.body[-1] if block.body else None
        leaves = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], LEAVES)
        return block if leaves else None

    def accumulated(self) -> tuple[Span, Span] | None:
        """Return the step of a micro-batch and that of the update; None if they are not plain to see."""
        at, inner = next(
            (i, loop) for i, loop in zip(self.indices, self._micro, strict=True) if loop
        )
        others = [i for i in self.indices if i != at and self._leaving(i) is None]
        alone = all(self.body.statements[i].effect == Effect.STEP and i > at for i in others)
        if not alone or not others or not isinstance(inner.body, cst.IndentedBlock):
            return None
        batch = batch_names(inner, self.context)
        small = Body(inner.body, batch, self.context)
        backward = small.backward()
        micro = Span(small, tuple(batch), small.first(backward[0]), (backward[-1],))
        start = next(i for i in range(at + 1, len(self.body.statements)) if _updates(self.body, i))
        ends = tuple(end for end in self.body.ends() if end > at)
        return micro, Span(self.body, (), start, ends)


def _branches(node: cst.CSTNode) -> Iterator[cst.IndentedBlock]:
    """Yield the blocks of a statement, with those of its `elif`, `else`, `except` and `finally`."""
    for child in children(node):
        if isinstance(child, cst.IndentedBlock):
            yield child
        elif isinstance(child, cst.If | cst.Else | cst.ExceptHandler | cst.Finally):
            yield from _branches(child)


def given_batches(function: cst.FunctionDef) -> list[str]:
    """Return the parameters of a whole-step function that may hold a batch.

    Parameters annotated as a number, a flag or a text, or used for clipping gradients, hold none.
    """
    return [
        parameter.name.value
        for parameter in function.params.params
        if not isinstance(parameter.default, cst.BaseNumber | cst.BaseString)
        and code(parameter.default or parameter.name) not in ("True", "False")
        and not (parameter.annotation and NUMBER.search(code(parameter.annotation.annotation)))
        and not CLIP.fullmatch(parameter.name.value)
    ]


def _updates(body: Body, index: int) -> bool:
    """Whether the statement at `index` is a part of the update of the weights."""
    statement = body.statements[index]
    if statement.outside is not None:
        return False
    on_gradients = any(
        isinstance(node, cst.Attribute) and node.attr.value in ("parameters", "grad", "unscale_")
        for node in nodes(statement.node)
    )
    return bool(statement.effect) or on_gradients or statement.averages


def micro_batches(node: cst.CSTNode, context: Script) -> Loop | None:
    """Return the loop in `node`, or in a function that it calls, that runs one micro-batch per turn.

    In one step with the optimizer's, the loop would be unrolled: the graph grows with the number of
    micro-batches, and each number needs another graph. A loop over losses that are already computed does not
    count.
    """
    callees = context.effects.callees([node])
    for place in (node, *(callee.body for callee in callees)):
        for loop in loops(place):
            accumulates = context.effects.of(loop.body) & BOTH == Effect.BACKWARD
            if accumulates and _runs_a_model(loop):
                return loop
    return None


def _runs_a_model(loop: Loop) -> bool:
    """Whether the loop does more than call `backward` on its elements."""
    calls = [
        call
        for call in nodes_of(loop.body, cst.Call)
        if not (
            isinstance(call.func, cst.Attribute)
            and call.func.attr.value in ("backward", "scale", "append", "item")
        )
    ]
    return bool(calls)
