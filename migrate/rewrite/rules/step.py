"""The training step goes in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.devices import moves
from migrate.rewrite.effects import BOTH, Effect
from migrate.rewrite.rule import Finding, Rule, Wrap, left_alone, reported, rewritten
from migrate.rewrite.slice import step_slice
from migrate.rewrite.tree import code, nodes_of, split_blank

Loop = cst.For | cst.While

# Calls that end a graph by themselves: a loop that has one is torch_xla code already.
SYNCS = frozenset(
    {
        "torch_xla.step",
        "torch_xla.sync",
        "torch_xla.core.xla_model.mark_step",
        "torch_xla.core.xla_model.optimizer_step",
    }
)
READS = frozenset({"item", "tolist", "numpy", "cpu"})


class Step(Rule):
    """Put the training step in `with torch_xla.step():`.

    **What it does.** On XLA operations are recorded and run at the end of a step. The loop that gets the
    step is the innermost one whose body runs both a backward pass and an optimizer step, also through
    functions and methods of the script. Into the block goes the part of the body from the statement
    that produces the inputs of the forward to the last optimizer or `zero_grad` statement; timers,
    logging, evaluation and saves stay outside, so that they read values after the step has run. Inputs
    that the script does not move are moved: `inputs, labels = inputs.to('xla'), labels.to('xla')`.

    **Reported.** Values read inside the block (`.item()`, `print`): each cuts the graph in two. A
    micro-batch loop (gradient accumulation) inside the step. Inputs of which the script does not show
    that they are tensors.

    Source: torch_xla 2.9, `torch_xla.step`; the choice of the loop: measured on 82 public scripts.
    """

    name = "step"
    nodes = (cst.For, cst.While)
    examples = (
        rewritten(
            """
            def train(model, loader, optimizer, loss_fn):
                model.cuda()
                for step, (inputs, labels) in enumerate(loader):
                    adjust_learning_rate(optimizer, step)

                    # forward
                    outputs = model(inputs)
                    loss = loss_fn(outputs, labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

                    if step % 10 == 0:
                        print(loss.item())
            """,
            """
            import torch_xla


            def train(model, loader, optimizer, loss_fn):
                model.to("xla")
                for step, (inputs, labels) in enumerate(loader):
                    adjust_learning_rate(optimizer, step)

                    with torch_xla.step():
                        inputs, labels = inputs.to("xla"), labels.to("xla")
                        # forward
                        outputs = model(inputs)
                        loss = loss_fn(outputs, labels)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()

                    if step % 10 == 0:
                        print(loss.item())
            """,
        ),
        left_alone(
            """
            def train_on_cpu(model, loader, optimizer, loss_fn):
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss_fn(model(inputs), labels).backward()
                    optimizer.step()
            """
        ),
        left_alone(
            """
            import torch_xla


            def train(model, loader, optimizer, loss_fn):
                model.to('xla')
                for inputs, labels in loader:
                    with torch_xla.step():
                        loss_fn(model(inputs.to('xla')), labels.to('xla')).backward()
                        optimizer.step()
            """
        ),
        reported(
            """
            import torch_xla


            def train(model, loader, optimizer, loss_fn):
                model.to('xla')
                for batches in loader:
                    optimizer.zero_grad()
                    for inputs, labels in batches:
                        loss_fn(model(inputs), labels).backward()
                    optimizer.step()
            """,
            "gradient accumulation",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Wrap | Finding]:
        """Yield the block of one training loop, and what in it cuts the graph."""
        assert isinstance(node, cst.For | cst.While)
        if context.effects.of(node.body) & BOTH != BOTH or not context.moves_to_accelerator:
            return
        if _has_sync(node, context):
            return
        if not isinstance(node.body, cst.IndentedBlock):
            yield from self.report(node, "the step is on the line of the loop: put it on its own")
            return
        statements = node.body.body
        effects = [context.effects.of(statement) for statement in statements]
        if any(_accumulates(statement, context) for statement in statements):
            message = (
                "gradient accumulation in an inner loop: put `with torch_xla.step():` around one "
                "micro-batch, and another around the optimizer's step"
            )
            yield from self.report(node, message)
            return
        first, last = step_slice(statements, effects)
        block = statements[first : last + 1]
        for read in _reads(block, context):
            message = f"`{code(read)}` reads a value inside the step: move it below the block"
            yield from self.report(read, message)
        moved = self._inputs(node, block, context)
        if isinstance(moved, str):
            yield from self.report(node, moved)
            moved = []
        yield self._wrap(node.body, statements[first], statements[last], moved, context)

    def _wrap(
        self,
        block: cst.IndentedBlock,
        first: cst.BaseStatement,
        last: cst.BaseStatement,
        moved: Sequence[str],
        context: Context,
    ) -> Wrap:
        step = f"{context.imports.require('torch_xla')}.step()"
        device = context.string("xla").value
        lines = []
        if moved:
            values = ", ".join(f"{name}.to({device})" for name in moved)
            lines.append(cst.parse_statement(f"{', '.join(moved)} = {values}"))

        def make(updated: list[cst.BaseStatement]) -> cst.BaseStatement:
            above, inside = split_blank(getattr(updated[0], "leading_lines", ()))
            body = [*lines, updated[0].with_changes(leading_lines=inside), *updated[1:]]
            return cst.With(
                items=[cst.WithItem(cst.parse_expression(step))],
                body=cst.IndentedBlock(body=body),
                leading_lines=above,
            )

        message = (
            f"{len(lines) + _count(block, first, last)} statements in `with torch_xla.step():`"
        )
        if moved:
            message += f"; {', '.join(moved)} moved to the device"
        return Wrap(self.name, block, first, last, make, message)

    def _inputs(
        self, loop: Loop, block: Sequence[cst.BaseStatement], context: Context
    ) -> list[str] | str:
        """Return the names of the loop's inputs to move to the device, or why that is not known."""
        names = _batch_names(loop)
        used = {name.value for statement in block for name in nodes_of(statement, cst.Name)}
        moved = _receivers(moves(loop.body, context))
        if moved & set(names):
            return []  # where the script moves some of them it knows why it leaves the others
        unmoved = [name for name in names if name in used]
        if not unmoved:
            return []
        listed = ", ".join(unmoved)
        if _receivers(_conversions(loop.body)) & set(names):
            return f"{listed}: see that the device to which they are moved is 'xla'"
        if callees := context.effects.callees(block):
            if any(next(moves(callee.body, context), None) for callee in callees):
                return []
            return f"the script does not show where {listed} move to the device"
        if not isinstance(loop, cst.For) or len(names) < 2:
            return f"is `{listed}` on the device? It is not moved in the loop"
        return unmoved


def _receivers(calls: Iterable[cst.Call]) -> set[str]:
    """Return the names in what the methods `calls` are called on."""
    return {name.value for call in calls for name in nodes_of(call.func, cst.Name)}


def _conversions(root: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls of a method `to`: to a device or a dtype."""
    for call in nodes_of(root, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to":
            yield call


def _count(block: cst.IndentedBlock, first: cst.BaseStatement, last: cst.BaseStatement) -> int:
    statements = list(block.body)
    return statements.index(last) - statements.index(first) + 1


def _has_sync(loop: Loop, context: Context) -> bool:
    """Whether the loop, or a block around it, already ends its graphs."""
    calls = list(nodes_of(loop, cst.Call))
    for above in context.ancestors(loop):
        if isinstance(above, cst.With):
            calls.extend(item.item for item in above.items if isinstance(item.item, cst.Call))
    return any(context.qualified_name(call.func) in SYNCS for call in calls)


def _accumulates(statement: cst.BaseStatement, context: Context) -> bool:
    """Whether a loop in `statement` runs backward passes whose step comes after the loop."""
    return any(
        context.effects.of(loop.body) & BOTH == Effect.BACKWARD
        for kind in (cst.For, cst.While)
        for loop in nodes_of(statement, kind)
    )


def _reads(block: Sequence[cst.BaseStatement], context: Context) -> Iterator[cst.Call]:
    """Yield the calls in the step that make the host wait for a value of the device."""
    for statement in block:
        for call in nodes_of(statement, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in READS:
                if context.qualified_name(call.func) is None:
                    yield call
            elif isinstance(call.func, cst.Name) and call.func.value == "print":
                yield call


def _batch_names(loop: Loop) -> list[str]:
    """Return the names to which the loop binds a batch; the counter of `enumerate` is left out."""
    if not isinstance(loop, cst.For):
        return []
    target: cst.BaseExpression = loop.target
    called = loop.iter.func if isinstance(loop.iter, cst.Call) else None
    name = called.value if isinstance(called, cst.Name) else None
    if name == "range":
        return []
    if name == "enumerate" and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        target = target.elements[1].value
    elements = target.elements if isinstance(target, cst.Tuple | cst.List) else [target]
    values = [e.value if isinstance(e, cst.BaseElement) else e for e in elements]
    return [value.value for value in values if isinstance(value, cst.Name) and value.value != "_"]
