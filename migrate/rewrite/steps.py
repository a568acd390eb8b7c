"""The steps of a script: which blocks get `with torch_xla.step():`, and what of them goes in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.accumulation import micro_batches
from migrate.rewrite.arrange import Arrangement, arrange
from migrate.rewrite.effects import BOTH, Effect
from migrate.rewrite.loops import Loop, batch_names, has_sync, loops
from migrate.rewrite.outside import Outside
from migrate.rewrite.slice import Body
from migrate.rewrite.tree import nodes, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.context import Context


@dataclass(frozen=True)
class Step:
    """A block that gets one or more steps.

    Args:
        loop: the training loop.
        body: the block: the loop's, or that of a function or an inner loop that it runs.
        batch: the names that the loop around the block binds to a batch.
        parts: what becomes of its statements, one for each `with`, in their order.
    """

    loop: Loop
    body: Body
    batch: tuple[str, ...]
    parts: tuple[Arrangement, ...]


@dataclass(frozen=True)
class Undecided:
    """A training loop, or a part of one, that gets no step, and why."""

    node: cst.CSTNode
    why: str


class Steps:
    """The steps of one script, by training loop."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._found: dict[int, list[Step | Undecided]] = defaultdict(list)
        self._blocks: set[int] = set()
        on_accelerator = trains_on_accelerator(context)
        for loop in loops(context.module):
            marked = context.effects.is_marked(loop)
            if not (marked or on_accelerator) or has_sync(loop, context):
                continue
            if context.effects.is_step_loop(loop):
                self._loop(loop)
            self._hopeless(loop)

    def of(self, loop: Loop) -> Sequence[Step | Undecided]:
        """Return the steps of the training loop `loop`; none where it is no training loop."""
        return self._found.get(id(loop), ())

    def parts(self) -> Iterator[Arrangement]:
        """Yield what becomes of the statements of every step of the script."""
        for found in self._found.values():
            for step in found:
                if isinstance(step, Step):
                    yield from step.parts

    def _loop(self, loop: Loop) -> None:
        if isinstance(loop.body, cst.IndentedBlock):
            self._block(loop, loop.body, batch_names(loop))
        else:
            self._undecided(loop, loop, "the step is on the line of the loop: put it on its own")

    def _hopeless(self, loop: Loop) -> None:
        """Note the calls of the loop that train in a way that no step can hold."""
        for call in nodes_of(loop.body, cst.Call):
            why = self._context.effects.obstacle(call)
            inner = next(a for a in self._context.ancestors(call) if isinstance(a, Loop))
            if why is not None and inner is loop:
                self._undecided(loop, call, why)

    def _undecided(self, loop: Loop, node: cst.CSTNode, why: str) -> None:
        self._found[id(loop)].append(Undecided(node, why))

    def _step(
        self, loop: Loop, body: Body, batch: Sequence[str], parts: Sequence[Arrangement]
    ) -> None:
        if id(body.block) not in self._blocks:  # a function may be run by several loops
            self._blocks.add(id(body.block))
            self._found[id(loop)].append(Step(loop, body, tuple(batch), tuple(parts)))

    def _block(self, loop: Loop, block: cst.IndentedBlock, batch: Sequence[str]) -> None:
        body = Body(block, batch, self._context)
        trains = [i for i, statement in enumerate(body.statements) if statement.effect]
        micro = [micro_batches(body.statements[i].node, self._context) for i in trains]
        if len(trains) == 1:
            inner = self._inner(body, trains[0], micro[0] is not None)
            if inner is not None:
                self._block(loop, *inner)
                return
        if any(micro):
            self._accumulation(loop, body, batch, trains, micro)
            return
        bounds = _bounds(body)
        if bounds is None:
            why = (
                "no backward pass in plain sight: put the step in `with torch_xla.step():` by hand"
            )
            self._undecided(loop, loop, why)
            return
        tried = [arrange(body, bounds[0], end) for end in bounds[1]]
        found = next((one for one in tried if not one.obstacles()), tried[-1])
        parts = _parts(found)
        if parts is None:
            self._obstacles(loop, found)
        else:
            self._step(loop, body, batch, parts)

    def _obstacles(self, loop: Loop, found: Arrangement) -> None:
        for index in found.obstacles():
            statement = found.body.statements[index]
            assert statement.outside is not None
            why = found.kept.get(index, "")
            moved = f" and cannot be moved below it ({why})" if why else ""
            hangs = statement.outside is Outside.GUARD
            message = (
                f"{statement.outside.value} lies in the middle of the step{moved}: "
                f"{'in the block it would part the graphs of the replicas, which then hang; ' * hangs}"
                "move it, then put the step in `with torch_xla.step():`"
            )
            self._undecided(loop, statement.node, message)

    def _accumulation(
        self,
        loop: Loop,
        body: Body,
        batch: Sequence[str],
        trains: Sequence[int],
        micro: Sequence[Loop | None],
    ) -> None:
        """Find the steps of a loop that accumulates gradients: one a micro-batch, one for the update."""
        at = next(i for i, inner in zip(trains, micro, strict=True) if inner is not None)
        inner = next(one for one in micro if one is not None)
        others = [i for i in trains if i != at]
        alone = all(body.statements[i].effect == Effect.STEP and i > at for i in others)
        if not alone or not others or not isinstance(inner.body, cst.IndentedBlock):
            message = (
                "gradient accumulation in an inner loop: put `with torch_xla.step():` around one "
                "micro-batch, and another around the optimizer's step"
            )
            self._undecided(loop, loop, message)
            return
        small = Body(inner.body, batch_names(inner), self._context)
        backward = small.backward()
        small_part = arrange(small, small.first(backward[0]), backward[-1])
        ends = [end for end in body.ends() if end > at]
        start = next(i for i in range(at + 1, len(body.statements)) if _updates(body, i))
        tried = [arrange(body, start, end) for end in ends]
        update = next((one for one in tried if not one.obstacles()), tried[-1])
        for part in (small_part, update):
            self._obstacles(loop, part)
        if not small_part.obstacles() and not update.obstacles():
            self._step(loop, small, batch_names(inner), [small_part])
            self._step(loop, body, (), [update])

    def _inner(
        self, body: Body, index: int, accumulates: bool
    ) -> tuple[cst.IndentedBlock, list[str]] | None:
        """Return the block in a statement that the step goes into, where that as a whole cannot be it."""
        effects = self._context.effects
        node = body.block.body[index]
        if effects.of(node) & BOTH != BOTH:
            return None
        if isinstance(node, cst.With | cst.If | cst.Try):
            blocks = [child for child in node.children if isinstance(child, cst.IndentedBlock)]
            inside = [block for block in blocks if effects.of(block) & BOTH == BOTH]
            block, batch = (inside[0] if len(inside) == 1 else None), list[str]()
        else:
            callees = effects.callees([node])
            whole = [callee for callee in callees if effects.of(callee.body) & BOTH == BOTH]
            called = whole[0] if len(whole) == 1 and len(callees) == 1 else None
            suite = called.body if called is not None else None
            block = suite if isinstance(suite, cst.IndentedBlock) else None
            batch = [p.name.value for p in called.params.params] if called is not None else []
        if block is None:
            return None
        inner = Body(block, batch, self._context)
        end = body.tails.get(index)
        leaving = end.statements if end is not None else ()
        mixed = any(s.outside is not None and s.node not in leaving for s in inner.statements)
        deeper = any(
            self._inner(inner, i, accumulates) is not None
            for i, statement in enumerate(inner.statements)
            if statement.effect
        )
        return (block, batch) if mixed or accumulates or deeper else None


def _bounds(body: Body) -> tuple[int, list[int]] | None:
    """Return the first statement of the step, and those that may be its last."""
    if backward := body.backward():
        return body.first(backward[0]), body.ends()
    # Marked by hand: what computes on the device is the step.
    work = [i for i, s in enumerate(body.statements) if s.on_device and s.outside is None]
    return (work[0], [work[-1]]) if work else None


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


def _parts(found: Arrangement) -> list[Arrangement] | None:
    """Return the steps into which evaluations and saves in the middle cut the run; None where none fit."""
    cuts = found.obstacles()
    if not cuts:
        return [found]
    statements = found.body.statements
    if any(statements[i].outside not in (Outside.SAVE, Outside.EVALUATION) for i in cuts):
        return None
    parts = []
    for start, end in zip(
        [found.first, *(i + 1 for i in cuts)], [*cuts, found.last + 1], strict=True
    ):
        inside = [statements[i].effect for i in range(start, end)]
        trains = Effect.NONE
        for effect in inside:
            trains |= effect
        if trains != BOTH:
            return None
        parts.append(arrange(found.body, start, end - 1))
    return None if any(part.obstacles() for part in parts) else parts


def trains_on_accelerator(context: Context) -> bool:
    """Whether the script means an accelerator: it moves something there, or uses torch.cuda."""
    return context.moves_to_accelerator or any(
        isinstance(node, cst.Attribute)
        and (context.qualified_name(node) or "").startswith("torch.cuda.")
        for node in context.nodes
    )


@lru_cache(maxsize=2)
def steps_of(context: Context) -> Steps:
    """Return the steps of a script; found once, for the rules ask for every loop."""
    return Steps(context)
