"""Results of timed calls that nobody keeps."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.tree import code, nodes_of
from migrate.reading.values.kind import Kind
from migrate.rewrite.rule import Edit, Finding, Replacement, Rule, left_alone, reported, rewritten
from migrate.rewrite.rules.cuda.cuda_timing import is_wait, steps_around
from migrate.rewrite.workspace import Workspace

# The first of these that the function does not use holds the result.
NAMES = ("output", "result", "outputs", "results")
CLOCKS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.monotonic",
        "timeit.default_timer",
        "torch.cuda.Event",
    }
)
# A function that waits and does little else: `def wait(): ...`.
MOST_LINES = 3
Loop = cst.For | cst.While


class TimedResults(Rule):
    """Keep the result of a call that is timed.

    **What it does.** A wait for XLA computes what a name still holds. Where a script measures `model(x)` and
    drops the result, nothing is left to compute at `torch_xla.sync(wait=True)`, and the time is that of
    recording the graph. The result gets a name: `output = model(x)`. In a loop that waits only below it, as
    one that warms up, each turn would drop the result of the one before: `torch_xla.sync()` ends each turn.

    **Reported.** A call whose result is dropped where all names that the rule would give it are used.

    Source: torch_xla 2.9 (measured: a result that is dropped before the sync is not computed).
    """

    name = "timed-results"
    nodes = (cst.Expr,)
    words = "synchronize|record"
    examples = (
        rewritten(
            """
            import time

            import torch


            def throughput(model, images):
                for _ in range(10):
                    model(images)
                torch.cuda.synchronize()
                times = []
                for _ in range(50):
                    start = time.time()
                    model(images)  # one batch
                    torch.cuda.synchronize()
                    times.append(time.time() - start)
                return times
            """,
            """
            import time
            import torch_xla


            def throughput(model, images):
                for _ in range(10):
                    output = model(images)
                    torch_xla.sync()
                torch_xla.sync(wait=True)
                times = []
                for _ in range(50):
                    start = time.time()
                    output = model(images)  # one batch
                    torch_xla.sync(wait=True)
                    times.append(time.time() - start)
                return times
            """,
        ),
        rewritten(
            """
            import time

            import torch


            def seconds(function, output):
                torch.cuda.synchronize()
                start = time.perf_counter()
                function()
                torch.cuda.synchronize()
                return time.perf_counter() - start, output
            """,
            """
            import time
            import torch_xla


            def seconds(function, output):
                torch_xla.sync(wait=True)
                start = time.perf_counter()
                result = function()
                torch_xla.sync(wait=True)
                return time.perf_counter() - start, output
            """,
        ),
        left_alone(
            """
            import time


            def seconds(model, x):
                start = time.time()
                model(x)
                return time.time() - start
            """
        ),
        reported(
            """
            import torch


            def measure(model, x, output, result, outputs, results):
                model(x)
                torch.cuda.synchronize()
                return output, result, outputs, results
            """,
            "give it a name",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the edit of a statement that drops what it computes, above a wait."""
        assert isinstance(node, cst.Expr)
        call = node.value
        line = context.parent(node)
        if not isinstance(call, cst.Call) or not isinstance(line, cst.SimpleStatementLine):
            return
        if len(line.body) != 1 or not _waits_below(node, context):
            return
        if not _computes(call, context):
            return
        name = _free_name(node, context)
        if name is None:
            message = (
                f"the result of {code(call)} is dropped before the wait, which then computes nothing: "
                "give it a name"
            )
            yield from self.report(node, message)
            return
        kept = cst.parse_statement(f"{name} = {code(call)}")
        ends = _ends_no_turn(node, context)
        sync = context.vocabulary.write("sync") if ends else ""

        def replace(updated: cst.SimpleStatementLine) -> Replacement:
            value = cst.ensure_type(updated.body[0], cst.Expr).value
            target = cst.AssignTarget(cst.Name(name))
            assign = cst.Assign([target], value)
            changed = updated.with_changes(body=[assign])
            return cst.FlattenSentinel([changed, cst.parse_statement(sync)]) if sync else changed

        message = f"{code(call)} → {code(kept).strip()}: a wait computes only what is still held"
        yield self.edit(line, replace, message)


def _computes(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` gives a tensor of the device, and does nothing else that is to be seen."""
    func = call.func
    last = func.attr.value if isinstance(func, cst.Attribute) else code(func)
    name = context.qualified_name(func) or ""
    if context.effects.of(call) or last.endswith("_") or name.startswith("torch.distributed."):
        return False
    if is_wait(call, context) or any(
        arg.keyword is not None and arg.keyword.value == "out" for arg in call.args
    ):
        return False
    ran = context.called(call)
    if ran:
        return any(
            one.value is not None and context.values.kind(one.value) is not Kind.HOST
            for function in ran
            for one in nodes_of(function.body, cst.Return)
        ) and not any(bool(context.effects.of(function.body)) for function in ran)
    if context.values.calls_model(call):
        return True
    if name.startswith("torch.") and context.values.kind(call) is Kind.ON_DEVICE:
        return True  # a method of a value may be `weights.update(others)`, which gives nothing
    return _is_given(func, context) and _reads_clock(call, context)


def _is_given(func: cst.BaseExpression, context: Workspace) -> bool:
    """Whether a function is a parameter of the one around it: `def seconds(function): function()`."""
    if not isinstance(func, cst.Name):
        return False
    owner, parameter = context.bound_to(func)
    return isinstance(owner, cst.FunctionDef) and isinstance(parameter, cst.Param)


def _reads_clock(node: cst.CSTNode, context: Workspace) -> bool:
    calls = nodes_of(_around(node, context), cst.Call)
    return any(context.qualified_name(call.func) in CLOCKS for call in calls)


def _around(node: cst.CSTNode, context: Workspace) -> cst.CSTNode:
    return context.function_around(node) or context.module


def _waits(node: cst.CSTNode, context: Workspace) -> list[cst.Call]:
    """Return the calls in `node` that wait, themselves or by a function of the script."""
    return [
        call
        for call in nodes_of(node, cst.Call)
        if is_wait(call, context)
        or any(
            is_wait(inner, context)
            for function in context.called(call)
            if len(function.body.body) <= MOST_LINES
            for inner in nodes_of(function.body, cst.Call)
        )
    ]


def _loops(node: cst.CSTNode, context: Workspace) -> list[Loop]:
    """Return the loops around `node` in its function, the innermost first."""
    found: list[Loop] = []
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            break
        if isinstance(above, cst.For | cst.While):
            found.append(above)
    return found


def _waits_below(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether a wait of the same function runs after `node`."""
    line = context.position(node).line
    if any(context.position(wait).line > line for wait in _waits(_around(node, context), context)):
        return True
    return any(_waits(loop.body, context) for loop in _loops(node, context))


def _ends_no_turn(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` stands in a loop whose turns end no graph."""
    loops = _loops(node, context)
    if not loops or _waits(loops[0].body, context):
        return False
    return not context.effects.is_step_loop(loops[0]) and not any(steps_around(node, context))


def _free_name(node: cst.CSTNode, context: Workspace) -> str | None:
    """Return the first name for a result that the function around `node` does not use."""
    used = {name.value for name in nodes_of(_around(node, context), cst.Name)}
    return next((name for name in NAMES if name not in used), None)
