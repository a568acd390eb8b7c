"""The inputs of a step: which of them the script does not move to the device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import IN_A_FORWARD, READ_METHODS
from migrate.check.hazard import Severity
from migrate.model.calls.effect import Effect
from migrate.model.calls.kind import LOADERS, Kind
from migrate.reading.names.bindings import passed_for
from migrate.reading.steps.loops import batch_names, on_device
from migrate.reading.values.devices import is_move, moves
from migrate.rewrite.rules.step.steps import TrainingStep
from migrate.syntax.tree import base_name, bind, nodes_of, parameters_of, targets, used

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# What the call of a module runs: it takes tensors.
FORWARDS = frozenset({"forward", "__call__"})
# Methods that give a tensor where the other one is.
VIEWS = IN_A_FORWARD - READ_METHODS - {"cpu", "dim", "size"}
NOT_MOVED = "It is not moved in the loop"
NOT_SHOWN = "does not show where"
MOVED_BY_DDP = "{}: DistributedDataParallel moved it to the GPU: if it is a tensor, move it"


@dataclass(frozen=True)
class UnknownInputs:
    """Reason why the inputs to move are unknown.

    Args:
        message: the reason, and what to do, for the user.
        severity: severity of the finding.
    """

    message: str
    severity: Severity = Severity.ERROR


def unmoved_inputs(step: TrainingStep, context: Workspace) -> list[str] | UnknownInputs:
    """Return the names of the step's inputs to move to the device, or why that is not known."""
    if isinstance(step.loop, cst.FunctionDef):
        return []  # a loop of another file hands it what it has moved
    names = _inputs(step, context)
    part = step.parts[0]
    block = [s.node for s in part.body.statements[part.first : part.last + 1]]
    in_use = {name.value for part in block for name in used(part) if isinstance(name, cst.Name)}
    places = [step.body.block, step.loop.body]
    moved = {name for place in places for name in _receivers(moves(place, context))}
    moved |= {name for place in places for name in _rebound(place, context)}
    moved |= {name for place in places for name in _given_to_mover(place, context)}
    moved |= {name for place in places for name in _moved_by_element(place, context)}
    taken = _taken(names, places)
    placed = on_device(step.loop, context)
    unmoved = [name for name in names if name in in_use and name not in placed]
    mentioned = {*names, *taken}
    if moved & mentioned or (step.body.block is not step.loop.body and moved):
        # Where the script moves some of them it knows why it leaves the others; some to the model itself.
        with_model = _given_to_ddp(block, context)
        unmoved = [name for name in unmoved if name in with_model - moved]
        mentioned = set(unmoved)
        # A list has no `to`: of crops, which the model may move one by one (swav).
        parts = (
            subscript.value
            for part in block
            for subscript in context.below(part, cst.Subscript)
            if len(subscript.slice) == 1  # no list has rows and columns
        )
        in_parts = {part.value for part in parts if isinstance(part, cst.Name)}
        if unmoved and (with_model & moved or in_parts & mentioned):
            listed = ", ".join(unmoved)
            return UnknownInputs(MOVED_BY_DDP.format(listed))
    fed = _fed(block, context)
    if not unmoved or (fed and fed <= moved):
        return []
    loop = context.parent(step.body.block)
    sources = list(_made_of(loop, context))
    if any(_is_no_model(move, context) for source in sources for move in moves(source, context)):
        return []
    if _yields_moved(loop, context):
        return []
    listed = ", ".join(unmoved)
    converted = any(
        _is_no_model(call, context) for source in sources for call in _conversions(source)
    )
    if (
        converted
        or _receivers(_conversions(step.body.block)) & mentioned
        or _converted(step.body.block) & mentioned
        or _comes_moved(loop, context)
    ):
        device = context.vocabulary.device_said
        message = f"{listed}: see that the device to which they are moved is {device}"
        return UnknownInputs(message, Severity.INFO)
    if any(name in unmoved for name in _given_to_moving_step(block, context)):
        return []
    if callees := context.effects.callees(block):
        if any(next(moves(callee.body, context), None) for callee in callees):
            return []
        return UnknownInputs(f"the script {NOT_SHOWN} {listed} move to the device")
    functions = _given(unmoved, block, context)
    if any(f is not None and next(moves(f.body, context), None) is not None for f in functions):
        return []
    if functions:
        return UnknownInputs(f"the script {NOT_SHOWN} {listed} move to the device")
    if context.effects.is_marked(step.loop):
        message = f"see that {listed} are on the device: they are not moved in the loop"
        return UnknownInputs(message, Severity.INFO)
    if not isinstance(step.loop, cst.For) or len(names) < 2:
        return UnknownInputs(f"is `{listed}` on the device? {NOT_MOVED}")
    return unmoved


def left_to_the_wrapper(loop: cst.CSTNode, context: Workspace) -> UnknownInputs | None:
    """Return what to do where DistributedDataParallel alone moves the batch of a training loop.

    This is asked where no step of the loop has the batch: the forward pass is in a loop of parts of it,
    or the step is left to do by hand.
    """
    if not isinstance(loop, cst.For) or not context.calls.moved_inputs:
        return None
    calls = list(nodes_of(loop.body, cst.Call))
    models = [call for call in calls if context.effects.moves_inputs(call)]
    if not models or any(context.effects.moves(call) for call in models):
        return None
    if not any(Effect.BACKWARD in context.effects.of(call) for call in calls):
        return None
    batch = set(batch_names(loop, context))
    derived = set(batch)
    before = -1
    while before < len(derived):
        before = len(derived)
        for assign in context.below(loop.body, cst.Assign):
            if derived & {name.value for name in context.below(assign.value, cst.Name)}:
                derived |= {*filter(None, _targets(assign))}
    passed = {
        arg.value.value
        for call in models
        for arg in call.args
        if isinstance(arg.value, cst.Name) and arg.value.value in derived
    }
    moved = {
        *_receivers(moves(loop.body, context)),
        *_rebound(loop.body, context),
        *_given_to_mover(loop.body, context),
        *_moved_by_element(loop.body, context),
        *_receivers(_conversions(loop.body)),
        *_converted(loop.body),
    }
    if not passed or moved & derived or _yields_moved(loop, context) or _comes_moved(loop, context):
        return None
    return UnknownInputs(MOVED_BY_DDP.format(", ".join(sorted(passed))))


def _inputs(step: TrainingStep, context: Workspace) -> list[str]:
    """Return the names in which a batch comes: of a function that is a step, the parameters given one."""
    function = context.parent(step.body.block)
    if not isinstance(function, cst.FunctionDef):
        return list(step.batch)
    assert not isinstance(step.loop, cst.FunctionDef)
    batch = set(batch_names(step.loop, context))
    names: set[str] = set()
    for call in context.below(step.loop.body, cst.Call):
        if not any(callee is function for callee in context.called(call)):
            continue
        bound = bind(call, parameters_of(function, call))
        if bound is None:
            return list(step.batch)
        for name, arg in bound.items():
            if any(name.value in batch for name in context.below(arg.value, cst.Name)):
                names.add(name)
    return [name for name in step.batch if name in names]


def _taken(names: Collection[str], places: Iterable[cst.CSTNode]) -> set[str]:
    """Return the names bound to parts of what `names` hold: `target = batch["label"]`, `x, y = batch`."""
    bound = [
        (targets, node.value)
        for place in places
        for node in nodes_of(place, cst.Assign)
        if (isinstance(node.value, cst.Subscript) or _unpacks(node))
        and (targets := {*filter(None, _targets(node))})
    ]
    taken: set[str] = set()
    before = -1
    while before < len(taken):
        before = len(taken)
        for targets, value in bound:
            if base_name(value) in {*names, *taken}:
                taken |= targets
    return taken - {*names}


def _unpacks(assign: cst.Assign) -> bool:
    return isinstance(assign.value, cst.Name) and any(
        isinstance(target.target, cst.Tuple | cst.List) for target in assign.targets
    )


def _given_to_ddp(block: Iterable[cst.CSTNode], context: Workspace) -> set[str]:
    """Return the names that a model is given which moves its inputs to the GPU itself.

    It is given them as they are, or as views: `mask[:, :-1]`, `mask.float()`.
    """
    calls = (call for part in block for call in context.below(part, cst.Call))
    arguments = (call.args for call in calls if context.effects.moves_inputs(call))
    values = (_viewed(arg.value) for args in arguments for arg in args if not arg.star)
    return {value.value for value in values if isinstance(value, cst.Name)}


def _viewed(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the tensor of which `value` is a part, or which a method of tensors turned into it."""
    while True:
        if isinstance(value, cst.Subscript) and len(value.slice) > 1:
            value = value.value  # rows and columns: no list has them
        elif (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Attribute)
            and value.func.attr.value in VIEWS
        ):
            value = value.func.value
        else:
            return value


def _made_of(loop: cst.CSTNode | None, context: Workspace) -> Iterator[cst.BaseExpression]:
    """Yield what a loop iterates over, and its sources: `zip(*parts)`, `images.chunk(2)`, `images`."""
    if not isinstance(loop, cst.For):
        return
    values, owner = context.values, context.function_around(loop)
    waiting = [loop.iter]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if values.kind(value) in LOADERS:
            continue
        yield value
        for name in context.below(value, cst.Name):
            if context.function_around(name) is not owner:
                continue
            for assignment in values.bindings.given(name):
                if assignment.value is not None and id(assignment) not in seen:
                    seen.add(id(assignment))
                    waiting.append(assignment.value)


def _comes_moved(loop: cst.CSTNode | None, context: Workspace) -> bool:
    """Whether a loop iterates over the result of a function, in whatever file, that moves something.

    Loaders and what callers pass are followed too, where `_made_of` stops: it looks for moves in plain sight.
    """
    if not context.calls.moving or not isinstance(loop, cst.For):
        return False
    bindings = context.values.bindings
    waiting: list[cst.BaseExpression] = [loop.iter]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for call in context.below(value, cst.Call):
            if context.place(call) in context.calls.moving:
                return True
            for function in context.called(call):
                waiting += bindings.returns.get(id(function), [])
        for name in context.below(value, cst.Name):
            waiting += (
                assignment.value
                for assignment in bindings.given(name)
                if assignment.value is not None
            )
            waiting += passed_for(name, context)
    return False


def _yields_moved(loop: cst.CSTNode | None, context: Workspace) -> bool:
    """Whether a loop iterates over a generator of the script that moves all its values to the device."""
    if not isinstance(loop, cst.For):
        return False
    yields = [
        node.value
        for call in context.below(loop.iter, cst.Call)
        for function in context.called(call)
        for node in context.below(function.body, cst.Yield)
    ]
    return bool(yields) and all(_is_moved(value, context) for value in yields)


def _is_moved(value: cst.CSTNode | None, context: Workspace) -> bool:
    """Whether what is yielded is, or has last been bound to, the result of a move to the device."""
    if isinstance(value, cst.Name):
        assignments = context.values.bindings.reaching(value)
        return bool(assignments) and all(
            _is_moved(assignment.value, context) for assignment in assignments
        )
    if not isinstance(value, cst.BaseExpression):
        return False
    calls = nodes_of(value, cst.Call)
    return any(context.effects.moves(call) or is_move(call, context) for call in calls)


def _given(
    names: Collection[str], block: Iterable[cst.CSTNode], context: Workspace
) -> list[cst.FunctionDef | None]:
    """Return the user's functions that get one of `names`, where one is used in no other way.

    It may be the path of a file then: `image = load(name)`. None for a function of another file.
    """
    receivers: list[cst.FunctionDef | None] = []
    for name in names:
        mentions = [m for part in block for m in context.below(part, cst.Name) if m.value == name]
        functions = [_function_given(mention, context) for mention in mentions]
        if functions and all(is_given for is_given, _ in functions):
            receivers += [function for _, function in functions]
    return receivers


def _function_given(mention: cst.Name, context: Workspace) -> tuple[bool, cst.FunctionDef | None]:
    """Return whether `mention` is given to a function of the user's, and the function, if it is here."""
    arg = context.parent(mention)
    call = context.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or arg is call.func:
        return False, None
    if isinstance(call.func, cst.Name) and call.func.value in context.functions:
        return True, context.functions[call.func.value]
    for definition in context.run_by(call):
        if definition.name not in FORWARDS:
            is_here = definition.path == context.file
            return True, context.function_at(definition.line) if is_here else None
    return context.calls.is_local(context.qualified_name(call.func) or ""), None


def _rebound(root: cst.CSTNode, context: Workspace) -> Iterator[str]:
    """Yield the names bound to something that is moved: `x = [part.cuda() for part in x]`."""
    for assign in context.below(root, cst.Assign):
        if next(moves(assign.value, context), None) is not None:
            yield from (name for name in _targets(assign) if name)


def _converted(root: cst.CSTNode) -> set[str]:
    """Return the names bound to something converted: `x = {k: v.to(device) for k, v in x.items()}`."""
    return {
        name
        for assign in nodes_of(root, cst.Assign)
        if next(iter(_conversions(assign.value)), None) is not None
        for name in _targets(assign)
        if name
    }


def _given_to_mover(root: cst.CSTNode, context: Workspace) -> Iterator[str]:
    """Yield the names given to a function that moves something, and those of batches that move themselves.

    `to_device(batch, device)`, `batch.cuda(device)` of a class of the project.
    """
    for call in context.below(root, cst.Call):
        if context.effects.moves(call) and not context.effects.of(call):
            yield from (name.value for arg in call.args for name in context.below(arg, cst.Name))
            if isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Name):
                yield call.func.value.value


def _given_to_moving_step(block: Iterable[cst.CSTNode], context: Workspace) -> Iterator[str]:
    """Yield the names given to a function, of any file, that trains and moves something itself."""
    for call in (call for part in block for call in context.below(part, cst.Call)):
        if context.effects.of(call) and context.effects.moves(call):
            yield from (name.value for arg in call.args for name in context.below(arg, cst.Name))


def _fed(block: Iterable[cst.CSTNode], context: Workspace) -> set[str]:
    """Return the names that the models are called with."""
    calls = (call for part in block for call in context.below(part, cst.Call))
    fed = (call.args for call in calls if context.values.kind(call.func) is Kind.MODEL)
    return {
        name.value for args in fed for arg in args for name in context.below(arg.value, cst.Name)
    }


def _targets(assign: cst.Assign) -> Iterator[str | None]:
    return (base_name(target) for target in targets(assign))


def _receivers(calls: Iterable[cst.Call]) -> set[str]:
    """Return the names in what the methods `calls` are called on."""
    return {name.value for call in calls for name in nodes_of(call.func, cst.Name)}


def _moved_by_element(root: cst.CSTNode, context: Workspace) -> Iterator[str]:
    """Yield the names whose elements are moved: `batch` in `x, y = [part.cuda() for part in batch]`."""
    for move in moves(root, context):
        moved = _receivers([move])
        for around in context.ancestors(move):
            if around is root:
                break
            loops: list[cst.CompFor | cst.For] = []
            if isinstance(around, cst.BaseSimpleComp | cst.DictComp):
                inner: cst.CompFor | None = around.for_in
                while inner is not None:
                    loops.insert(0, inner)
                    inner = inner.inner_for_in
            elif isinstance(around, cst.For):
                loops.append(around)
            for loop in loops:
                if moved & {name.value for name in context.below(loop.target, cst.Name)}:
                    moved |= {name.value for name in context.below(loop.iter, cst.Name)}
        yield from moved


def _is_no_model(move: cst.Call, context: Workspace) -> bool:
    return (
        isinstance(move.func, cst.Attribute)
        and context.values.kind(move.func.value) is not Kind.MODEL
    )


def _conversions(root: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls of a method `to`: to a device or a dtype."""
    for call in nodes_of(root, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to":
            yield call
