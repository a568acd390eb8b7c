"""Waiting for the device, and measuring its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.prescan import named
from migrate.reading.facts import facts_of
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.step.arrange import Arrangement
from migrate.rewrite.rules.step.evaluation import evaluation_steps
from migrate.rewrite.rules.step.steps import TrainingStep, steps_of
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, last_part, nodes_of

WAIT = names(*torch_cuda.WAITS)
EVENT = names(*torch_cuda.EVENTS)
HOLDS = frozenset(
    {"dict", "list", "state_dict", "tuple"}
)  # results that hold tensors, and compute none
STREAMS = names(*torch_cuda.CURRENT_STREAMS)


class CudaTiming(Rule):
    """Wait for the XLA device, and time with the clock of the host.

    **What it does.** `torch.cuda.synchronize()` becomes `torch_xla.sync(wait=True)`: it runs what has been
    recorded so far and waits for it. Directly below a step, which has ended its graph, it becomes
    `xm.wait_device_ops()`, which runs nothing; so does a wait in the first replica alone, where nothing is
    computed below the test of the rank. Below a read (`loss.item()`), which has waited, it goes.

    A pair of CUDA events becomes two readings of `time.perf_counter()`, each after such a wait, and
    `start.elapsed_time(end)` their difference in milliseconds; another wait right beside such a reading goes.
    A wait computes what is still held by a name, and nothing else: the rule `timed-results` keeps the result
    of a call that is timed.

    **Reported.** Events that are used otherwise: kept in lists, passed on, asked whether they are done,
    recorded in another function than the one that makes them.

    Source: torch_xla 2.9 (measured: synchronize, record and elapsed_time raise).
    """

    name = "cuda-timing"
    code = "XLA832"
    beside_frameworks = True
    nodes = (cst.Call, cst.SimpleStatementLine)
    words = named(WAIT | EVENT) + "|elapsed_time"
    examples = (
        rewritten(
            """
            import torch
            from torch.cuda import Event


            def measure(model, x):
                x = torch.relu(x)
                start = torch.cuda.Event(enable_timing=True)
                end = Event(enable_timing=True)
                start.record()
                y = model(x)
                # done
                end.record()
                torch.cuda.synchronize()
                return y, start.elapsed_time(end)
            """,
            """
            import time

            import torch
            import torch_xla


            def measure(model, x):
                x = torch.relu(x)
                torch_xla.sync(wait=True)
                start = time.perf_counter()
                y = model(x)
                # done
                torch_xla.sync(wait=True)
                end = time.perf_counter()
                return y, (end - start) * 1000
            """,
        ),
        rewritten(
            """
            import torch

            torch.cuda.synchronize(device=0)
            torch.cuda.current_stream().synchronize()
            """,
            """
            import torch_xla

            torch_xla.sync(wait=True)
            torch_xla.sync(wait=True)
            """,
        ),
        rewritten(
            """
            import torch


            def train(model, loader, optimizer, meter):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    meter.update(loss.item())
                    torch.cuda.synchronize()
            """,
            """
            import torch_xla


            def train(model, loader, optimizer, meter):
                for x, y in loader:
                    with torch_xla.step():
                        loss = model(x.to("xla"), y.to("xla"))
                        loss.backward()
                        optimizer.step()
                    meter.update(loss.item())
            """,
        ),
        rewritten(
            """
            import time

            import torch
            import torch.distributed as dist


            def train(model, loader, optimizer):
                rank = dist.get_rank()
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        torch.cuda.synchronize()
                        print(time.time())
            """,
            """
            import time

            import torch.distributed as dist
            import torch_xla
            import torch_xla.core.xla_model as xm


            def train(model, loader, optimizer):
                rank = dist.get_rank()
                for x, y in loader:
                    with torch_xla.step():
                        loss = model(x.to("xla"), y.to("xla"))
                        loss.backward()
                        optimizer.step()
                    if rank == 0:
                        xm.wait_device_ops()
                        print(time.time())
            """,
        ),
        left_alone(
            """
            import threading

            event = threading.Event()
            event.record()
            """
        ),
        reported(
            """
            import torch

            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            """,
            "time.perf_counter()",
        ),
        reported(
            """
            import torch


            def run(model, x):
                start = torch.cuda.Event(enable_timing=True)

                def begin():
                    start.record()

                begin()
                model(x)
            """,
            "time.perf_counter()",
        ),
        checked(
            """
            import torch


            def wait(x):
                torch.accelerator.synchronize()  # XLA832
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # XLA832 info
                if x.is_cuda and x.device.type == "cuda":
                    torch.cuda.synchronize(x.device)  # XLA832 info
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of a wait, of an event that times, or the finding on another event."""
        if isinstance(node, cst.SimpleStatementLine):
            yield from self._line(node, context)
            return
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name in WAIT or _waits_for_stream(node, context):
            yield self._wait(node, context)
        elif name in EVENT:
            if self._event(_assigned_name(node, context), context) is None:
                message = (
                    f"{code(node)} raises on XLA when used: {context.vocabulary.say('wait')}, then "
                    "time.perf_counter()"
                )
                yield from self.report(node, message)
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "elapsed_time":
            yield from self._elapsed(node, context)

    def _wait(self, node: cst.Call, context: Workspace) -> Edit:
        """Return the edit of a wait. No wait is needed right after a read or the end of a step."""
        if (event := self._timed_beside(node, context)) is not None:
            wait = context.statement_around(node)
            message = f"remove {code(node)}: the reading of the clock beside it waits (`{event}`)"
            return self.edit(wait, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        line, above = _line_and_above(node, context)
        if line is not None and above is not None and _reads(above):
            message = f"remove {code(node)}: the read above it has waited"
            return self.edit(line, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        if not context.portable and (why := _nothing_pends(node, above, context)):
            module = context.imports.require("torch_xla.core.xla_model", "xm")
            waits = cst.parse_expression(f"{module}.wait_device_ops()")
            message = f"{code(node)} → xm.wait_device_ops(): {why}"
            return self.edit(node, lambda _: waits, message, consumes=[node])
        wait = context.vocabulary.expression("wait")
        message = f"{code(node)} → {context.vocabulary.say('wait')}"
        return self.edit(node, lambda _: wait, message, consumes=[node])

    def _timed_beside(self, node: cst.Call, context: Workspace) -> str | None:
        """Return the event whose `.record()` stands right above or below the wait `node`, a statement."""
        line = context.statement_around(node)
        block = context.parent(line)
        alone = _called_alone(line)
        if alone is not node or not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        at = next((i for i, statement in enumerate(block.body) if statement is line), 0)
        for beside in (*block.body[max(at - 1, 0) : at], *block.body[at + 1 : at + 2]):
            call = _called_alone(beside)
            if call is None or not isinstance(call.func, cst.Attribute):
                continue
            event = self._event(call.func.value, context)
            if event is not None and call.func.attr.value == "record":
                return event
        return None

    def _line(self, node: cst.SimpleStatementLine, context: Workspace) -> Iterable[Edit]:
        if len(node.body) != 1:
            return
        small = node.body[0]
        value = small.value if isinstance(small, cst.Assign | cst.Expr) else None
        if not isinstance(value, cst.Call):
            return
        if isinstance(small, cst.Assign):
            if context.qualified_name(value.func) in EVENT:
                name = _assigned_name(value, context)
                if self._event(name, context) is not None:
                    message = f"{code(node)}: the host's clock takes the time"
                    yield self.edit(
                        node, lambda _: cst.RemoveFromParent(), message, consumes=[node]
                    )
            return
        if not isinstance(value.func, cst.Attribute):
            return
        event = self._event(value.func.value, context)
        if event is None:
            return
        if value.func.attr.value == "record":
            yield self._record(node, event, context)
        elif self._timed_beside(value, context) is not None:
            message = f"remove {code(value)}: the reading of the clock beside it waits"
            yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[value])
        else:
            wait = context.vocabulary.expression("wait")
            message = f"{code(value)} → {context.vocabulary.say('wait')}"
            yield self.edit(value, lambda _: wait, message, consumes=[value])

    def _record(self, node: cst.SimpleStatementLine, event: str, context: Workspace) -> Edit:
        waits = context.vocabulary.write("wait")
        time = context.imports.require("time")
        read = cst.parse_statement(f"{event} = {time}.perf_counter()")

        def replace(updated: cst.SimpleStatementLine) -> Replacement:
            wait = cst.ensure_type(cst.parse_statement(waits), cst.SimpleStatementLine)
            wait = wait.with_changes(leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([wait, read])

        message = f"{code(node)}: the host's clock, after a wait"
        return self.edit(node, replace, message, consumes=[node])

    def _elapsed(self, node: cst.Call, context: Workspace) -> Iterable[Edit]:
        assert isinstance(node.func, cst.Attribute)
        start = self._event(node.func.value, context)
        end = self._event(node.args[0].value, context) if len(node.args) == 1 else None
        if start is not None and end is not None:
            difference = cst.parse_expression(f"({end} - {start}) * 1000")
            above = context.parent(node)
            if isinstance(above, cst.BinaryOperation | cst.Attribute | cst.UnaryOperation):
                difference = cst.parse_expression(f"(({end} - {start}) * 1000)")
            message = f"{code(node)} → milliseconds of the host's clock"
            yield self.edit(node, lambda _: difference, message, consumes=[node])

    def _event(self, node: cst.CSTNode | None, context: Workspace) -> str | None:
        """Return the name of the variable `node` if it is an event that only times."""
        if not isinstance(node, cst.Name):
            return None
        values = context.bound_values(node)
        if len(values) != 1 or not isinstance(values[0], cst.Call):
            return None
        if context.qualified_name(values[0].func) not in EVENT:
            return None
        owner, _ = context.bound_to(node)
        mentions = [
            mention
            for mention in context.mentions(node)
            if isinstance(mention, cst.Name) and context.bound_to(mention)[0] is owner
        ]
        function = context.function_around(values[0])
        plain = all(_is_plain(mention, function, context) for mention in mentions)
        return node.value if plain else None


def steps_around(node: cst.CSTNode, context: Workspace) -> Iterator[Arrangement]:
    """Yield the steps of the script's training, and that of the evaluation loop around `node`."""
    yield from steps_of(context).parts()
    around = (above for above in context.ancestors(node) if isinstance(above, cst.For | cst.While))
    loop = next(around, None)
    for step in evaluation_steps(loop, context) if loop is not None else ():
        if isinstance(step, TrainingStep):
            yield from step.parts


def _computes(guard: cst.If, context: Workspace) -> bool:
    """Whether code below `guard` computes on the device, or calls a function of the script, which may."""
    values = facts_of(context).values
    calls = [call for call in nodes_of(guard, cst.Call) if last_part(call.func) not in HOLDS]
    return (
        any(values.on_device(call) or context.run_by(call) for call in calls)
        or any(values.on_device(part) for part in nodes_of(guard, cst.BinaryOperation))
        or any(values.on_device(part.target) for part in nodes_of(guard, cst.AugAssign))
    )


def _nothing_pends(node: cst.Call, above: cst.CSTNode | None, context: Workspace) -> str:
    """Return why the wait `node` has nothing to run that is its own, or an empty string.

    Below a test of the rank a wait that ends the graph would end it in some replicas alone.
    """
    if any(above is part.body.block.body[part.last] for part in steps_around(node, context)):
        return "the step has just ended its graph"
    guard = context.guards.around(node)
    if isinstance(guard, cst.If) and not _computes(guard, context):
        return (
            "nothing is computed below the test of the rank, and the graph stays as in the others"
        )
    return ""


def _called_alone(line: cst.CSTNode | None) -> cst.Call | None:
    """Return the call that a statement is, or None if it is anything else."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    small = line.body[0]
    return (
        small.value if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) else None
    )


def _line_and_above(
    node: cst.Call, context: Workspace
) -> tuple[cst.SimpleStatementLine | None, cst.CSTNode | None]:
    """Return the statement that a wait is, and the one above it in a loop that trains or evaluates.

    The statement is None where a test stands around it: `if timed: torch.cuda.synchronize()`.
    """
    line: cst.CSTNode | None = context.statement_around(node)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None, None
    if not isinstance(line.body[0], cst.Expr) or line.body[0].value is not node:
        return None, None
    outer: cst.CSTNode | None = line
    block = context.parent(line)
    test = context.parent(block)
    if isinstance(test, cst.If) and isinstance(block, cst.IndentedBlock) and len(block.body) == 1:
        outer, block = test, context.parent(test)
    if not isinstance(block, cst.IndentedBlock):
        return None, None
    steps = [part for part in steps_around(node, context) if part.body.block is block]
    at = next((i for i, statement in enumerate(block.body) if statement is outer), 0)
    if at == 0 or not any(part.last < at for part in steps):
        return None, None
    return line if outer is line else None, block.body[at - 1]


def _reads(statement: cst.CSTNode) -> bool:
    """Whether a simple statement reads a tensor of one value."""
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "item" and not call.args
        for call in nodes_of(statement, cst.Call)
    )


def _assigned_name(call: cst.Call, context: Workspace) -> cst.Name | None:
    """Return the variable that the call's value is assigned to, in a statement of its own."""
    assign = context.parent(call)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        line = context.parent(assign)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        return target if isinstance(target, cst.Name) and alone else None
    return None


def _is_plain(mention: cst.CSTNode, function: cst.FunctionDef | None, context: Workspace) -> bool:
    """Whether `mention` is an assignment, `.record()`, `.synchronize()` or a part of elapsed_time.

    A `.record()` becomes an assignment: it has to stand in `function`, the function that makes the event.
    """
    above = context.parent(mention)
    if isinstance(above, cst.AssignTarget):
        return True
    if isinstance(above, cst.Arg):
        call = context.parent(above)
        func = call.func if isinstance(call, cst.Call) else None
        return isinstance(func, cst.Attribute) and func.attr.value == "elapsed_time"
    if not isinstance(above, cst.Attribute):
        return False
    call = context.parent(above)
    if not isinstance(call, cst.Call):
        return False
    if above.attr.value == "elapsed_time":
        return True
    line = context.parent(context.parent(call))
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    if above.attr.value == "record":
        return context.function_around(mention) is function
    return above.attr.value == "synchronize"


def is_wait(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` waits for the device, or records an event: what has been computed must be there."""
    if context.qualified_name(call.func) in WAIT or _waits_for_stream(call, context):
        return True
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in ("record", "synchronize"):
        return False
    event = func.value
    values = context.bound_values(event) if isinstance(event, cst.Name) else []
    return any(
        isinstance(value, cst.Call) and context.qualified_name(value.func) in EVENT
        for value in values
    )


def _waits_for_stream(call: cst.Call, context: Workspace) -> bool:
    func = call.func
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value == "synchronize"
        and isinstance(func.value, cst.Call)
        and context.qualified_name(func.value.func) in STREAMS
    )
