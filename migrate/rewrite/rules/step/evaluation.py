"""Evaluation loops: a model's forward over batches without gradients, and the values read from it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.words import CALLED_MODEL, MOVES, NO_GRADIENTS
from migrate.check.hazard import Severity
from migrate.check.rules.shapes.loops.unended_loop import UnendedLoop
from migrate.check.which_read import first_code
from migrate.reading.facts import facts_of
from migrate.reading.flow.dataflow import overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.steps.block import Body
from migrate.reading.steps.effects import Effect
from migrate.reading.steps.leaving import leaves_turn, yields
from migrate.reading.steps.loops import Loop, batch_names, has_sync, numbers_of_host
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.unended import is_in_eval_mode, is_unknown_callee, unended_call
from migrate.reading.values.devices import is_move, moves
from migrate.reading.values.parameters import goes_over_weights, is_in_optimizer
from migrate.rewrite.rules.step.arrange import Arrangement, arrange, head
from migrate.rewrite.rules.step.detached_read import TensorRead, as_read
from migrate.rewrite.rules.step.forward_read import as_forward_read
from migrate.rewrite.rules.step.steps import (
    ON_CPU,
    YIELDED,
    TrainingStep,
    Undecided,
    steps_of,
    trains_on_accelerator,
)
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, nodes, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script
    from migrate.rewrite.workspace import Workspace


UNSEEN = (
    "the source does not show whether this evaluation runs on the accelerator: see that its steps end "
    "there, by `# migrate: step` above the loop, or say that it does not, by `# migrate: cpu`"
)
READ_IN_FORWARD = (
    "`{}`: a value is read in the block of the forward, so that no step goes around it, and the graph "
    "ends at the read: keep the tensor there, and read it below the block"
)
TIMED = (
    "`{}`: the loop takes the time of the model. What nobody keeps is not computed on XLA, and a step is "
    "only recorded until it ends: put each forward in `with torch_xla.step():`, keep its output until then, "
    "and let `torch_xla.sync(wait=True)` come before each look at the clock"
)


def evaluation_steps(loop: Loop, context: Workspace) -> tuple[TrainingStep | Undecided, ...]:
    """Return the parts of an evaluation loop that are work of the device, none for any other loop.

    There are several where the branches of an `if` evaluate the batch, and some of them read values.
    Only a loop over batches, or one that fetches them to the device, without gradients, whose forward is
    a call of a model in plain sight, or of a function of the project that runs one.
    """
    if not isinstance(loop.body, cst.IndentedBlock) or not any(_models(loop.body, context)):
        return ()
    said = context.effects.on_cpu(loop)
    where = trains_on_accelerator(context) or context.effects.on_accelerator(loop)
    if where is False or said == 0 or context.effects.is_step_loop(loop):
        return ()
    if context.effects.of(loop.body) != Effect.NONE or not _without_gradients(loop, context):
        return ()
    within = nodes_of(loop.body, cst.For | cst.While)  # type: ignore[arg-type]
    if any(context.effects.is_step_loop(loop) for loop in within):
        return ()  # around a training loop
    if has_sync(loop, context) or _in_a_model(loop, context) or _in_a_step(loop, context):
        return ()
    if _is_over_models(loop, context):
        return ()  # all of them get one batch
    over_parameters = goes_over_weights(loop, context)
    if over_parameters or is_in_optimizer(loop, context):
        return ()  # an update, a norm, an average of weights: a part of the step
    within = nodes_of(loop.body, cst.For | cst.While)  # type: ignore[arg-type]
    inner = (loop for loop in within if any(_models(loop.body, context)))
    if any(
        isinstance(step, TrainingStep) for loop in inner for step in evaluation_steps(loop, context)
    ):
        return ()  # which has the step
    batch = batch_names(loop, context)
    steps = (_step(part, loop, batch, context) for part in _parts(loop.body, batch, context))
    return tuple(step for step in steps if step is not None)


def _step(
    part: Arrangement, loop: Loop, batch: list[str], context: Workspace
) -> TrainingStep | Undecided | None:
    """Return the step of `part`, why it gets none, or None where the part works as it is."""
    said = context.effects.on_cpu(loop)
    where = trains_on_accelerator(context) or context.effects.on_accelerator(loop)
    if part.obstacles():
        return None
    forward = next(i for i, s in enumerate(part.body.statements) if _runs_model(s.node, part.body))
    timers = [s.node for s in part.body.statements if s.outside is Outside.TIMER]
    if forward in part.split and (where is None or timers):
        return None  # the read ends its graph: it works as it is
    stays = forward in part.staying() or forward in part.split
    if not stays and where is not None and said is None:
        statement = part.body.statements[forward].node
        reads = DeviceReads(part.body.values, context).inside(statement)
        read = first_code(reads, facts_of(context))
        return Undecided(statement, READ_IN_FORWARD.format(head(statement)), code=read)
    if said is not None:
        return Undecided(loop, ON_CPU.format(at_line(said)))
    if where is None:
        unended = unended_call(loop, facts_of(context)) is not None
        return Undecided(loop, UNSEEN, Severity.INFO, UnendedLoop.code if unended else "")
    if timers and _waits(part):
        return Undecided(timers[0], TIMED.format(head(timers[0])))
    inside = [*part.staying(), *part.split]
    handed = next((i for i in inside if yields(part.body.statements[i].node)), None)
    if handed is not None:
        statement = part.body.statements[handed].node
        return Undecided(statement, YIELDED.format(head(statement)))
    below = {node for i in inside for node in nodes(part.body.statements[i].node)}
    names = _made_of({*batch, *numbers_of_host(loop, context)}, loop)
    uses_batch = any(isinstance(n, cst.Name) and n.value in names for n in below)
    moves = any(part.body.statements[i].moves for i in inside)
    return TrainingStep(loop, part.body, tuple(batch), (part,)) if uses_batch or moves else None


def _made_of(names: set[str], loop: Loop) -> set[str]:
    """Return `names`, and the variables that a turn of the loop makes of them, as texts of a class."""
    computed = set(names)
    for assign in nodes_of(loop.body, cst.Assign):
        mentioned = {name.value for name in nodes_of(assign.value, cst.Name)}
        if mentioned & computed:
            targets = (
                name.value
                for assign_target in assign.targets
                for name in nodes_of(assign_target, cst.Name)
            )
            computed.update(targets)
    return computed


def _waits(part: Arrangement) -> bool:
    """Whether something between the first and the last work of the device waits for it."""
    statements = part.body.statements[part.first : part.last + 1]
    return any(statement.outside is Outside.SYNC for statement in statements)


def _parts(block: cst.IndentedBlock, batch: list[str], context: Workspace) -> Iterator[Arrangement]:
    """Yield the run of statements from the move of the batch to the last that computes on the device.

    That is the run of each block below a statement with the forward that stays outside as a whole.
    """
    body = Body(block, batch, context, computing=_computing(block, batch, context))
    forward = [i for i, s in enumerate(body.statements) if _runs_model(s.node, body)]
    if not forward:
        return
    statement = body.statements[forward[0]]
    splits = _splits(body, forward, context)
    node = block.body[forward[0]]
    handed = isinstance(node, cst.With) and yields(node)
    if handed or (statement.outside is not None and forward[0] not in splits):
        apart = statement.outside in (Outside.EVALUATION, Outside.LOG, Outside.READ)
        for inner in _blocks(node) if apart or isinstance(node, cst.With) else ():
            yield from _parts(inner, batch, context)
        return  # else the forward is in a statement that reads: `out.append(model(x).cpu())`
    # What reads, in a function of its own, comes after the block: post-processing, metrics.
    reads = (i for i in range(forward[0] + 1, len(body.statements)) if _reads(body, i, context))
    end = next(reads, len(body.statements))
    first = body.first(forward[0])
    # A function that reads values, as one with steps of its own, has ended the graph: the block begins below.
    first = max(
        (i + 1 for i in range(first, forward[0]) if _reads(body, i, context)), default=first
    )
    last = max(
        i
        for i, s in enumerate(body.statements[:end])
        if i >= forward[0]
        and (s.outside is None or i in splits)
        and (i == forward[0] or i in splits or (s.on_device and _computes(body, i)))
        and not _answers(body, first, i)
    )
    handing = (i for i in range(forward[0] + 1, last + 1) if yields(body.statements[i].node))
    last = next(handing, last + 1) - 1  # the block ends above a yield
    part = arrange(body, first, last)
    above = [i for i in part.obstacles() if i < forward[0]]
    if above:  # the block begins below it
        first = above[-1] + 1
        part = arrange(body, first, last)
    after = [i for i in part.obstacles() if i > forward[0]]
    if after:  # the block ends above it
        last = after[0] - 1
        part = arrange(body, first, last)
    leaving = [i for i in part.checks if leaves_turn(body.statements[i].node)]
    if leaving:  # what comes below the block would be skipped
        last = leaving[0] - 1
        if last < forward[0]:
            return
        part = arrange(body, first, last)
    for index, read in splits.items():
        if index > last:
            continue
        if index not in part.below:
            return
        part.copies.pop(index, None)
        part.split[index] = read
    yield part


def _blocks(node: cst.CSTNode | None) -> Iterator[cst.IndentedBlock]:
    """Yield the blocks of a `with`, or the branches of an `if`."""
    if isinstance(node, cst.With | cst.If | cst.Else) and isinstance(node.body, cst.IndentedBlock):
        yield node.body
    if isinstance(node, cst.If):
        yield from _blocks(node.orelse)


def _computing(block: cst.IndentedBlock, batch: list[str], context: Workspace) -> frozenset[int]:
    """Return the ids of the calls in `block` that evaluate its batch by a loop and read nothing: a rollout.

    Their names say an evaluation, which stays outside of a training step. This loop is one itself, and no
    other statement ends what they compute. A callee with steps of its own is none of them.
    """
    return frozenset(
        id(call)
        for call in context.below(block, cst.Call)
        if context.place(call) in context.calls.sampling
        and any(
            isinstance(name, cst.Name) and name.value in batch
            for arg in call.args
            for name in context.below(arg.value, cst.Name)
        )
        and (callees := context.called(call))
        and not any(
            any(_models(loop.body, context)) and _without_gradients(loop, context)
            for callee in callees
            for loop in nodes_of(callee.body, cst.For | cst.While)  # type: ignore[arg-type]
        )
    )


def _splits(body: Body, forward: list[int], context: Workspace) -> dict[int, TensorRead]:
    """Return the statements with a forward that read its result."""
    reads: dict[int, TensorRead] = {}
    for index in forward:
        statement = body.statements[index]
        if statement.outside is None:
            continue
        names = frozenset(read.name for read in reads.values())
        read = as_read(statement.node)
        if read is not None and code(read.call.func).rpartition(".")[2] == "item":
            reads[index] = read
        elif (forward_read := as_forward_read(statement.node, context, names)) is not None:
            reads[index] = forward_read
    return reads


def _answers(body: Body, first: int, index: int) -> bool:
    """Whether the statement at `index` only moves what something gave for values read after `first`.

    An environment's answer to an action: it belongs to the next turn, and this step ends before the read.
    """
    between = body.statements[first:index]
    at = next((i for i, statement in enumerate(between) if statement.outside is Outside.READ), None)
    if at is None or _runs_model(body.statements[index].node, body):
        return False
    assigned = {name for statement in between[at:] for name in statement.flow.assigned}
    written = {
        name for statement in between[:at] for name in statement.flow.written
    } & body.values.names
    used = body.statements[index].flow.used
    return bool(overlap(used, assigned)) and not overlap(used, written - assigned)


def _reads(body: Body, index: int, context: Workspace) -> bool:
    node = body.statements[index].node
    return any(context.effects.reads(call) for call in context.below(node, cst.Call))


def _computes(body: Body, index: int) -> bool:
    """Whether the statement at `index` has to do with the device: not with what was read from it before."""
    statement = body.statements[index]
    if statement.moves or _runs_model(statement.node, body):
        return True
    used = {name.split(".")[0] for name in statement.flow.used}
    return any(body.is_on_device(name, index, True) for name in used)


def _runs_model(node: cst.BaseStatement, body: Body) -> bool:
    return any(
        named_forward or body.values.is_state(call)
        for call, named_forward in _models(node, body.context)
    )


def _models(node: cst.CSTNode, context: Script) -> Iterator[tuple[cst.Call, bool]]:
    """Yield the calls below `node` that are of a model, and whether they say `.forward`.

    That is by what made what is called, by what the same function tells it, or else by its name. A call of
    a function of the project that runs a model, in whatever file, counts as one that says so. A function
    that a turn only defines, as a hook, runs nothing there.
    """
    places = _told(context)
    # Statements of an arrangement are not in the script's tree: the tree cannot be asked for their function.
    defined = {
        id(call)
        for function in context.below(node, cst.FunctionDef)
        for call in context.below(function.body, cst.Call)
    }
    for call in context.below(node, cst.Call):
        if id(call) in defined:
            continue
        if context.place(call) in context.calls.forwarding:
            yield call, True
            continue
        if call.args and context.values.computes_by_method(call):
            yield call, True
            continue
        name = get_full_name_for_node(call.func) or ""
        parts = [part for part in name.split(".") if part != "forward"]
        if not parts or not call.args or "criterion" in parts[-1] or "loss" in parts[-1]:
            continue
        of = (id(context.function_around(call)), ".".join(parts))
        if context.place(call) in context.calls.of_libraries:
            continue
        named = CALLED_MODEL.fullmatch(parts[-1]) or of in places
        if (
            named
            or context.place(call.func) in context.calls.models
            or (isinstance(call.func, cst.Subscript) and context.values.calls_model(call))
            or _takes_batch(call, context)
        ):
            yield call, len(parts) < len(name.split("."))


def _takes_batch(call: cst.Call, context: Script) -> bool:
    """Whether an unknown function is called with what the loop moved to the accelerator.

    A parameter that no caller fills, or an attribute that nothing sets: on the accelerator it computes,
    whatever it is.
    """
    if not is_unknown_callee(call, context):
        return False
    loop = next((a for a in context.ancestors(call) if isinstance(a, cst.For | cst.While)), None)
    if loop is None:
        return False
    moved = {
        name.value
        for assign in context.below(loop.body, cst.Assign)
        if next(moves(assign.value, context), None) is not None
        for target in assign.targets
        for name in context.below(target, cst.Name)
    }
    return any(
        (isinstance(arg.value, cst.Name) and arg.value.value in moved)
        or (isinstance(arg.value, cst.Call) and is_move(arg.value, context))
        for arg in call.args
    )


@lru_cache(maxsize=2)
def _told(context: Script) -> frozenset[tuple[int, str]]:
    """Return the names of what the script treats as modules, each with the id of its function.

    That is `x.eval()`, and `x.cuda()` as a statement: of a tensor it would move nothing.
    """
    return frozenset(
        (id(context.function_around(call)), code(call.func.value))
        for call in context.all_of(cst.Call)
        if isinstance(call.func, cst.Attribute)
        and (
            _is_eval(call)
            or (call.func.attr.value in MOVES and isinstance(context.parent(call), cst.Expr))
        )
    )


def _without_gradients(loop: Loop, context: Workspace) -> bool:
    """Whether a forward in the loop runs without gradients, or its function has called `model.eval()`."""
    places = [context.place(call) for call, _ in _models(loop.body, context)]
    if all(place in context.calls.evaluating for place in places):
        return True
    blocks = (block for block in context.below(loop, cst.With) if any(_models(block.body, context)))
    items = [item.item for block in blocks for item in block.items]
    for above in context.ancestors(loop):
        if isinstance(above, cst.With):
            items.extend(item.item for item in above.items)
        elif isinstance(above, cst.FunctionDef):
            items.extend(decorator.decorator for decorator in above.decorators)
            if is_in_eval_mode(loop, above, context):
                return True
    return context.names_any(items, NO_GRADIENTS)


def _is_eval(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "eval" and not call.args


def _in_a_model(loop: Loop, context: Workspace) -> bool:
    """Whether the loop is a part of a model: its methods may run inside a step."""
    around = context.class_around(loop)
    return around is not None and any(
        isinstance(method, cst.FunctionDef) and method.name.value == "forward"
        for method in around.body.body
    )


def _is_over_models(loop: Loop, context: Workspace) -> bool:
    """Whether the turns run one model each on what the loop does not yield: `for net in nets: net(x)`."""
    if not isinstance(loop, cst.For):
        return False
    yielded = {name.value for name in context.below(loop.target, cst.Name)}
    called, passed = set(), set()
    for call, _ in _models(loop.body, context):
        called.add((get_full_name_for_node(call.func) or "").partition(".")[0])
        passed |= {name.value for arg in call.args for name in context.below(arg.value, cst.Name)}
    return called <= yielded and not (passed & yielded)


def _in_a_step(loop: Loop, context: Workspace) -> bool:
    """Whether the loop lies in the part of a training loop that gets a step, or in what that calls."""
    function = context.function_around(loop)
    if function is not None and context.position(function.name).line in context.calls.feeding:
        return True
    above = {id(node) for node in context.ancestors(loop)}
    for part in steps_of(context).parts():
        for index in part.staying():
            node = part.body.statements[index].node
            if id(node) in above:
                return True
            calls = nodes_of(node, cst.Call)
            if any(callee is function for call in calls for callee in context.called(call)):
                return True
    return False
