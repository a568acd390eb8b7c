"""Results of timed calls that are not stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import libcst as cst

from migrate.catalogue.words import BUILTINS
from migrate.check.hazard import Severity
from migrate.model.calls.kind import Kind
from migrate.reading.names.bindings import passed_for
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.cuda.cuda_timing import is_wait, steps_around
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, line_call

# The first of these that the function does not use holds the result.
NAMES = ("output", "result", "outputs", "results")
CLOCKS = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "timeit.default_timer",
        "datetime.datetime.now",
    }
)
# A function that waits and does little else: `def wait(): ...`.
MOST_LINES = 3
Loop = cst.For | cst.While
Does = Callable[[cst.Call, Workspace], bool]


class TimedResults(Rule):
    """Keep the result of a call that is timed.

    **What it does.** A wait for XLA computes what a name still holds. Where a script measures `model(x)` and
    drops the result, nothing is left to compute at `torch_xla.sync(wait=True)`, and the time is that of
    recording the graph. The result gets a name: `output = model(x)`. In a loop that waits only below it, as
    one that warms up, each turn would drop the result of the one before: `torch_xla.sync()` ends each turn.
    What no clock measures stays: after the call there must be a wait, and after that a reading of the clock.

    **Reported.** A call whose result is dropped where all names that the rule would give it are used.

    Source: torch_xla 2.9 (measured: a result that is dropped before the sync is not computed).
    """

    name = "timed-results"
    code = "XLA847"
    edited = Severity.INFO
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
            import time

            import torch


            def measure(model, x, output, result, outputs, results):
                start = time.time()
                model(x)
                torch.cuda.synchronize()
                print(time.time() - start)
                return output, result, outputs, results
            """,
            "give it a name",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of a statement that drops what it computes, above a wait."""
        assert isinstance(node, cst.Expr)
        call = node.value
        line = context.parent(node)
        if not isinstance(call, cst.Call) or not isinstance(line, cst.SimpleStatementLine):
            return
        if len(line.body) != 1 or not _is_timed(call, context):
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
        return any(_returns_pending(function, call, context) for function in ran) and not any(
            bool(context.effects.of(function.body)) for function in ran
        )
    if context.values.calls_model(call):
        return True
    if name.startswith("torch.") and context.values.kind(call) is Kind.ON_DEVICE:
        return True  # a method of a value may be `weights.update(others)`, which gives nothing
    return _is_given(call, context)


def _returns_pending(function: cst.FunctionDef, call: cst.Call, context: Workspace) -> bool:
    """Whether `function`, called by `call`, returns what may not be computed and what nothing else holds."""
    plain = all(isinstance(arg.value, cst.Name | cst.Attribute) for arg in call.args)
    parameters = {
        param.name.value
        for param in (*function.params.params, *function.params.kwonly_params)
        if plain
    }
    for node in context.below(function.body, cst.Return):
        value = node.value
        if value is None or context.values.kind(value) is Kind.HOST:
            continue
        if isinstance(value, cst.Name) and value.value in parameters:
            bound = {type(binding.node) for binding in context.bindings(value)}
            if bound == {cst.Param}:
                continue  # the caller holds it
        if not _is_below_wait(node, context):
            return True
    return False


def _is_below_wait(node: cst.Return, context: Workspace) -> bool:
    """Whether the line above `return output` waits: then `output` is computed."""
    line = context.parent(node)
    if not isinstance(node.value, cst.Name) or line is None:
        return False
    call = line_call(context.statement_above(line))
    return call is not None and is_wait(call, context)


def _is_given(call: cst.Call, context: Workspace) -> bool:
    """Whether a function is a parameter of the one around it: `def seconds(function): function()`.

    A builtin, which every call passes, computes nothing: `seconds(print)`.
    """
    if not isinstance(call.func, cst.Name):
        return False
    owner, parameter = context.bound_to(call.func)
    if not isinstance(owner, cst.FunctionDef) or not isinstance(parameter, cst.Param):
        return False
    passed = passed_for(call.func, context)
    return not passed or not all(
        isinstance(value, cst.Name) and value.value in BUILTINS and not context.bindings(value)
        for value in passed
    )


def _around(node: cst.CSTNode, context: Workspace) -> cst.CSTNode:
    return context.function_around(node) or context.module


def _waits(node: cst.CSTNode, context: Workspace) -> Sequence[cst.Call]:
    """Return the calls in `node` that wait, themselves or by a function of the script."""
    return _calls(node, is_wait, context)


def _readings(node: cst.CSTNode, context: Workspace) -> Sequence[cst.Call]:
    """Return the calls in `node` that read a clock or record an event, themselves or by such a function."""
    return _calls(node, _reads_clock, context)


@lru_cache(maxsize=8)  # the last ones: each statement of a function asks
def _calls(node: cst.CSTNode, does: Does, context: Workspace) -> tuple[cst.Call, ...]:
    return tuple(
        call
        for call in context.below(node, cst.Call)
        if does(call, context)
        or any(
            does(inner, context)
            for function in context.called(call)
            if len(function.body.body) <= MOST_LINES
            for inner in context.below(function.body, cst.Call)
        )
    )


def _reads_clock(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` reads a clock: `time.time()`, or `start.record()` of an event."""
    if context.qualified_name(call.func) in CLOCKS:
        return True
    func = call.func
    return (
        isinstance(func, cst.Attribute) and func.attr.value == "record" and is_wait(call, context)
    )


def _loops(node: cst.CSTNode, context: Workspace) -> list[Loop]:
    """Return the loops around `node` in its function, the innermost first."""
    loops: list[Loop] = []
    for above in context.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            break
        if isinstance(above, cst.For | cst.While):
            loops.append(above)
    return loops


def _is_timed(call: cst.Call, context: Workspace) -> bool:
    """Whether a clock is read after a wait that runs after `call`: it measures the call, or what follows.

    The turns of a loop follow each other: there the wait and the reading may stand above the call.
    A loop of training steps is measured by what its steps compute.
    """
    loops = _loops(call, context)
    if loops and context.effects.is_step_loop(loops[0]):
        return False
    if any(_waits(loop.body, context) and _readings(loop.body, context) for loop in loops):
        return True
    line = context.position(call).line
    around = _around(call, context)
    clocks = [context.position(reading).line for reading in _readings(around, context)]
    waits = [context.position(wait).line for wait in _waits(around, context)]
    if not any(line < wait <= clock for wait in waits for clock in clocks):
        return False
    # A warm-up is given something to compute with: `model.load_teacher()` prepares.
    prepares = isinstance(call.func, cst.Attribute) and not call.args
    return not prepares or any(clock <= line for clock in clocks)


def _ends_no_turn(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` stands in a loop whose turns end no graph."""
    loops = _loops(node, context)
    if not loops or _waits(loops[0].body, context):
        return False
    return not context.effects.is_step_loop(loops[0]) and not any(steps_around(node, context))


def _free_name(node: cst.CSTNode, context: Workspace) -> str | None:
    """Return the first name for a result that the function around `node` does not use."""
    used = {name.value for name in context.below(_around(node, context), cst.Name)}
    return next((name for name in NAMES if name not in used), None)
