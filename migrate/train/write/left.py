"""Statements of the training loop that the program does not have."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable

from migrate.model.calls.rank_tests import last_part
from migrate.train.slice.called import is_call_of
from migrate.train.slice.data import DataSlice
from migrate.train.slice.loops import TrainingCalls, loops_around, step_statements
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText, blocks, first_line, loads

# Calls that a JAX program has no use for: one process on a host, and reading a loss waits for the device.
_WAITING = ("torch.cuda.synchronize", "torch.distributed.barrier")
# Methods of tensors and modules that end with "_" and change no value.
_NO_VALUES = ("requires_grad_", "share_memory_", "detach_")


def left_statements(
    script: ScriptText,
    data: DataSlice,
    loss: LossSlice,
    events: TrainingCalls,
    schedules: Collection[int] = (),
    own: Collection[int] = (),
    *,
    scaled: bool = False,
) -> list[str]:
    """List the statements of the loops around the training step that are left to do by hand.

    Evaluation, logs, checkpoints, averages of weights: position and first line of each. Lines that step a
    schedule (`schedules`) are in the optimizer; those that set the mode of a module or print an update
    (`own`) are the program's own. If the program multiplies its gradients (`scaled`), statements that read
    gradients are not left, nor those that compute numbers for them alone.
    """
    known = {*data.kept, *trains(events), *schedules, *own} | {
        line for first, last in loss.lines for line in range(first, last + 1)
    }
    left: list[ast.stmt] = []
    shown = loads(ast.parse(loss.result))
    for frame in events.backward:
        shown |= {name for loop in loops_around(script, frame) for name in _targets(loop)}
    for _, body in step_statements(script, events.backward):
        for statement in body:
            _collect(statement, known, left)
    if scaled:
        left = _without_scaling(left)
    shown |= {name for statement in left if _counted(statement) for name in _stored(statement)}
    left = [statement for statement in left if not _is_needless(statement, shown, script.tree)]
    left = _without_unread(left)
    lines = [first_line(statement) for statement in left]
    return [_entry(script, line) for line in dict.fromkeys(lines)]


def _entry(script: ScriptText, line: int) -> str:
    return f"{script.at(line)}: {script.lines[line - 1].strip()}"


def weight_notes(
    script: ScriptText, left: Collection[str], modules: Collection[str], updates: int
) -> list[str]:
    """Return a note for each left statement that changes a trained module in place.

    Such as `model.scale.data.clamp_(0, 4)`: the comparison cannot show it if it changes nothing so early.

    Args:
        script: the script.
        left: what `left_statements` has listed.
        modules: names of the trained modules in the script.
        updates: number of compared updates.
    """
    notes = []
    names = _other_names(script.tree, modules)
    for statement in ast.walk(script.tree):
        if not isinstance(statement, ast.stmt):
            continue
        line = first_line(statement)
        if _entry(script, line) in left and _changes(statement, names):
            notes.append(
                f"{script.at(line)} changes weights besides the optimizer, and the program does not have it; "
                f"it changed nothing in {updates} compared updates: write it into `train_step` of train.py"
            )
    return list(dict.fromkeys(notes))


def _other_names(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Names of the modules, with those of what a wrapper holds, and of their parts.

    `model` in `ddp = DDP(model)`, `inner` in `inner = ddp.module`.
    """
    names = set(modules)
    pairs = [
        (_last(target), node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
    ]
    count = 0
    while count < len(names):
        count = len(names)
        for target, value in pairs:
            if target in names and isinstance(value, ast.Call):
                names |= {_last(_wrapped(value))} - {""}
            elif isinstance(value, ast.Attribute | ast.Name) and _roots(value) & names:
                names |= {target} - {""}
    return names


def _wrapped(value: ast.expr) -> ast.expr:
    """The first argument of calls in each other: `model` of `torch.compile(DDP(model))`."""
    while isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    return value


def _last(node: ast.expr) -> str:
    """Last name of a variable: `model` of `self.model`; "" of other expressions."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _changes(statement: ast.stmt, modules: Collection[str]) -> bool:
    """Whether a statement calls a method that changes in place what it reaches from a module."""
    known = set(modules)
    for node in ast.walk(statement):
        if isinstance(node, ast.For | ast.comprehension) and _roots(node.iter) & known:
            known |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, receiver = node.func.attr, node.func.value
            in_place = name.endswith("_") and not name.endswith("__") and name not in _NO_VALUES
            of_gradient = any(
                isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(receiver)
            )
            if in_place and not of_gradient and _roots(receiver) & known:
                return True
    return False


def _roots(node: ast.expr) -> set[str]:
    """The name from which an expression reaches a value: `model` of `model.scale.data`, `self.model`."""
    path = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return set()
    return {node.id, *path[-1:]} if node.id == "self" else {node.id}


def trains(events: TrainingCalls) -> set[int]:
    """Lines of the calls that train, with those of their callers."""
    chains = (events.backward, *events.steps, *events.dropped)
    return {frame.line for frames in chains for frame in frames}


def _targets(loop: ast.stmt) -> set[str]:
    """Names that a `for` gives values to."""
    nodes = ast.walk(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else ()
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _counted(statement: ast.stmt) -> bool:
    """Whether a statement counts: `step += 1`."""
    return (
        isinstance(statement, ast.AugAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(statement.value, ast.Constant)
    )


def _is_needless(statement: ast.stmt, shown: Collection[str], tree: ast.Module) -> bool:
    """Whether a program needs nothing for a statement.

    Learning rates are the program's own, it counts its updates, and prints losses and rates.

    Args:
        statement: the statement.
        shown: names of the loss and of counters.
        tree: the script.
    """
    if isinstance(statement, ast.If):
        nodes = list(ast.walk(statement.test))
        calls = any(isinstance(n, ast.Call) and last_part(n.func) not in _TESTS for n in nodes)
        calls = calls or any(isinstance(n, ast.NamedExpr) for n in nodes)
        inner = [*statement.body, *statement.orelse]
        return not calls and all(_is_needless(child, shown, tree) for child in inner)
    if isinstance(statement, ast.For):  # for group in optimizer.param_groups: group["lr"] = …
        return all(_sets_rate(child) for child in statement.body) and not statement.orelse
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return _counted(statement)
    if any(is_call_of(tree, call.func, name) for name in _WAITING):
        return True
    is_print = isinstance(call.func, ast.Name) and call.func.id == "print"
    return is_print and _names([*call.args, *call.keywords]) <= set(shown)


def _sets_rate(statement: ast.stmt) -> bool:
    """Whether a statement sets the learning rate of a group. The rates of all updates are compared."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return bool(targets) and all(
        isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "'lr'"
        for target in targets
    )


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that expressions read, without functions of Python and what learning rates are read from."""
    names: set[str] = set()
    for node in nodes:
        is_rate = isinstance(node, ast.Attribute) and node.attr in ("get_last_lr", "param_groups")
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            names.add(node.id)
        elif not is_rate:
            names |= _names(ast.iter_child_nodes(node))
    return names


def _without_scaling(left: list[ast.stmt]) -> list[ast.stmt]:
    """Leave out what reads gradients, and what computes numbers for that."""
    read: set[str] = set()
    while True:
        rest = [
            statement
            for statement in left
            if not any(
                isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(statement)
            )
            and not (_stored(statement) and _stored(statement) <= read)
        ]
        known = set[str]().union(*(loads(s) for s in left if s not in rest))
        if known <= read:
            return rest
        read |= known


# Functions and methods that only give a value; those of tests.
_TESTS = ("startswith", "endswith", "is_available")
_GIVE = ("float", "int", "len", "min", "max", "round", "item", "detach", "time", "perf_counter")


def _without_unread(left: list[ast.stmt]) -> list[ast.stmt]:
    """Leave out what only gives values to names that no other left statement reads."""
    while True:
        unread = [
            statement
            for statement in left
            if isinstance(statement, ast.Assign | ast.AugAssign)
            and all(_is_name(target) for target in _targets_of(statement))
            and all(
                last_part(node.func) in _GIVE
                for node in ast.walk(statement.value)
                if isinstance(node, ast.Call)
            )
            and not _stored(statement)
            & set[str]().union(*(loads(s) for s in left if s is not statement))
        ]
        if not unread:
            return left
        left = [statement for statement in left if statement not in unread]


def _targets_of(statement: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_name(target: ast.expr) -> bool:
    elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return all(isinstance(element, ast.Name) for element in elements)


def _stored(statement: ast.stmt) -> set[str]:
    """Names, and texts of attributes and items, that a statement stores."""
    targets = (n for n in ast.walk(statement) if isinstance(getattr(n, "ctx", None), ast.Store))
    return {ast.unparse(target) for target in targets}


def _collect(statement: ast.stmt, known: set[int], left: list[ast.stmt]) -> None:
    lines = set(range(first_line(statement), (statement.end_lineno or 0) + 1))
    inner = [child for block in blocks(statement) for child in block]
    if inner and lines & known:
        for child in inner:
            _collect(child, known, left)
        return
    if lines & known or _is_text(statement) or isinstance(statement, ast.Return | ast.Pass):
        return
    left.append(statement)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
