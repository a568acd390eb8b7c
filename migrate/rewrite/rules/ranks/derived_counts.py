"""Find attributes that a launching function computes from the number of processes, for the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.reading.values.devices import is_device_count
from migrate.rewrite.rules.random.seeds import AVAILABLE, in_worker
from migrate.rewrite.rules.ranks.object_fields import Counted, kept_on
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes

PURE = frozenset({"float", "int", "len", "max", "min", "round"})
ASKED = "migrate_asked_count"  # where the number itself stands in a text


@dataclass(frozen=True)
class Derived:
    """A statement of the launching function that the worker runs instead.

    Args:
        statement: the statement.
        text: the statement as the worker runs it.
        is_message: whether it only prints a message. Then the first replica alone runs it.
    """

    statement: cst.SimpleStatementLine
    text: str
    is_message: bool

    def in_worker(self, worker: cst.FunctionDef | None, asked: str) -> Iterator[str]:
        """Yield the statement for `worker`, `asked` is an expression for the number of replicas."""
        if worker is None or not worker.params.params:
            return
        text = self.text.replace(ASKED, asked)
        index = worker.params.params[0].name.value
        yield f"if {index} == 0:\n    {text}" if self.is_message else text


def derived_of(
    context: Workspace,
    call: cst.Call,
    counts: Callable[[cst.BaseExpression], bool],
    objects: Mapping[str, str],
    counted: Sequence[Counted],
    besides: Sequence[cst.CSTNode],
) -> list[Derived]:
    """Return what is computed before the launch `call`, as `h.batch_size = h.batch_size // h.num_gpus`.

    Nothing, unless all of it can be computed in the worker, and nothing else reads it before the launch.

    Args:
        context: the script.
        call: the launching call.
        counts: whether an expression has the number of processes in it.
        objects: the names of what the call passes, each with the worker's name for it.
        counted: the assignments of the number itself.
        besides: code that does not survive.
    """
    targets = [assign.target for assign in counted]

    def has_count(value: cst.BaseExpression) -> bool:
        return counts(value) or any(
            node.deep_equals(target) for node in nodes(value) for target in targets
        )

    derived: list[Derived] = []
    expressions: list[cst.BaseExpression] = []
    for line in _before(call, context):
        small = line.body[0]
        if any(small is count.node for count in counted):
            continue
        if isinstance(small, cst.Assign | cst.AugAssign):
            target = small.targets[0].target if isinstance(small, cst.Assign) else small.target
            is_one = isinstance(small, cst.AugAssign) or len(small.targets) == 1
            if not (is_one and _is_of(target, objects) and has_count(small.value)):
                if any(_speaks_of(line, expression) for expression in expressions):
                    return []
                continue
            if is_device_count(small.value, context):
                continue
            value = _said(small.value, objects, context)
            place = in_worker(target, objects, context)
            if value is None or place is None or not _is_always_run(line, call, context):
                return []
            sign = code(small.operator) if isinstance(small, cst.AugAssign) else "="
            derived.append(Derived(line, f"{place} {sign} {value}", is_message=False))
            expressions.append(target)
        elif any(_speaks_of(line, expression) for expression in expressions):
            attribute = _told(small, objects, context)
            if attribute is None:
                return []
            derived.append(Derived(line, attribute, is_message=True))
    return [] if _is_asked(expressions, call, besides, context) else derived


def _is_asked(
    expressions: Sequence[cst.BaseExpression],
    call: cst.Call,
    besides: Sequence[cst.CSTNode],
    context: Workspace,
) -> bool:
    """Whether a condition of the launching function reads one of `expressions`, in code that survives."""
    around = context.function_around(call)
    gone = {id(node) for root in besides for node in nodes(root)}
    for node in context.all_of(cst.If, cst.While, cst.IfExp, cst.Assert, cst.For, cst.WithItem):
        asked = (
            node.iter
            if isinstance(node, cst.For)
            else node.item
            if isinstance(node, cst.WithItem)
            else node.test  # type: ignore[attr-defined]
        )
        if id(asked) in gone or context.function_around(node) is not around:
            continue
        if any(_speaks_of(asked, expression) for expression in expressions):
            return True
    return False


def _before(call: cst.Call, context: Workspace) -> Iterator[cst.SimpleStatementLine]:
    """Yield the lines of the launching function that stand above the launch, each of one statement."""
    around = context.function_around(call)
    here = context.position(call).line
    for line in context.all_of(cst.SimpleStatementLine):
        if context.position(line).line >= here:
            return
        if context.function_around(line) is around and len(line.body) == 1:
            yield line


def _is_of(target: cst.BaseExpression, objects: Mapping[str, str]) -> bool:
    place = kept_on(target)
    return place is not None and place.root in objects


def _speaks_of(line: cst.CSTNode, target: cst.BaseExpression) -> bool:
    return any(node.deep_equals(target) for node in nodes(line))


def _said(value: cst.BaseExpression, objects: Mapping[str, str], context: Workspace) -> str | None:
    """Return `value` in the worker's words, the number of processes as what asks for it."""
    known = dict(objects)
    for node in nodes(value):
        if is_device_count(node, context):
            return None
        if isinstance(node, cst.Name) and node.value not in known:
            _, bound = context.bound_to(node)
            if isinstance(bound, cst.BaseExpression) and is_device_count(bound, context):
                known[node.value] = ASKED
    return in_worker(value, known, context, PURE)


def _told(
    small: cst.BaseSmallStatement, objects: Mapping[str, str], context: Workspace
) -> str | None:
    """Return the statement `small` as the worker runs it, if it prints."""
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return None
    return in_worker(small.value, objects, context, PURE | {"print"})


def _is_always_run(line: cst.CSTNode, call: cst.Call, context: Workspace) -> bool:
    """Whether `line` runs wherever there is a device: below no condition but whether there is one."""
    around = {id(node) for node in context.ancestors(call)}
    below = line
    for above in context.ancestors(line):
        if id(above) in around:
            return True
        if isinstance(above, cst.If):
            asked = above.test if below is above.body else None
            if not isinstance(asked, cst.Call):
                return False
            if context.qualified_name(asked.func) != AVAILABLE:
                return False
        elif isinstance(above, cst.BaseCompoundStatement):
            return False
        below = above
    return True
