"""Numbers of processes that a launching script keeps on an object which it passes to the worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from migrate.reading.replicas.launch import INIT
from migrate.reading.tree.tree import nodes
from migrate.reading.values.devices import is_device_count
from migrate.rewrite.rules.ranks.derived_counts import derived_of
from migrate.rewrite.workspace import Workspace

COUNTS = re.compile(r"world_size|nprocs?|n?gpus?|num_gpus|n?gpus_per_node|nproc_per_node")


class SharedCounts:
    """`args.world_size = ngpus * nodes` before a launch that passes `args`.

    The number is not known before the launch: where a replica reads it, the worker asks for it first.

    Args:
        context: the script.
        call: the launching call.
        count: the number of processes that it starts.
        elements: what it passes to the worker.
        worker: the launched function, if it is in the script.
        first: the worker's parameter that gets the first of `elements`.
        besides: code that does not survive.

    Attributes:
        objects: the names of what the call passes, each with the worker's name for it.
        derived: what the launching function computes of the number, and the worker has to compute instead.
    """

    def __init__(
        self,
        context: Workspace,
        call: cst.Call,
        count: cst.BaseExpression | None,
        elements: Sequence[cst.BaseElement],
        worker: cst.FunctionDef | None,
        first: int,
        besides: Sequence[cst.CSTNode] = (),
    ) -> None:
        self._context = context
        self._call = call
        self._count = count
        self.objects: dict[str, str] = {}
        parameters = worker.params.params if worker is not None else ()
        for position, element in enumerate(elements, first):
            if isinstance(element.value, cst.Name) and position < len(parameters):
                self.objects[element.value.value] = parameters[position].name.value
        self._besides = {id(node) for root in besides for node in nodes(root)}
        self._assigned = list(self._find())
        self.derived = derived_of(context, call, self._counts, self.objects, self._assigned)
        self._moved = {id(node) for one in self.derived for node in nodes(one.statement)}

    def _find(self) -> Iterator[cst.Assign]:
        around = self._context.function_around(self._call)
        for node in self._context.all_of(cst.Assign):
            if len(node.targets) != 1:
                continue
            target = node.targets[0].target
            if (
                isinstance(target, cst.Attribute)
                and isinstance(target.value, cst.Name)
                and target.value.value in self.objects
                and COUNTS.fullmatch(target.attr.value)
                and self._context.function_around(node) is around
                and self._counts(node.value)
            ):
                yield node

    def _counts(self, value: cst.BaseExpression) -> bool:
        """Whether `value` has the number of processes in it, or a count of devices."""
        return any(
            is_device_count(node, self._context)
            or (self._count is not None and node.deep_equals(self._count))
            for node in nodes(value)
        )

    def _reads(self, assign: cst.Assign) -> list[cst.Attribute]:
        """Return where the script reads what `assign` assigns, by the name before or after the launch."""
        target = assign.targets[0].target
        assert isinstance(target, cst.Attribute)
        assert isinstance(target.value, cst.Name)
        before = target.value.value
        objects = {before, self.objects[before]}
        return [
            node
            for name in self._context.references(target.attr.value)
            if isinstance(node := self._context.parent(name), cst.Attribute)
            and node.attr is name
            and isinstance(node.value, cst.Name)
            and node.value.value in objects
            and not isinstance(self._context.parent(node), cst.AssignTarget)
        ]

    def in_worker(self) -> list[str]:
        """Return the attributes, as the worker calls them, that a replica reads."""
        found = []
        for assign in self._assigned:
            target = assign.targets[0].target
            assert isinstance(target, cst.Attribute)
            assert isinstance(target.value, cst.Name)
            name = f"{self.objects[target.value.value]}.{target.attr.value}"
            reads = [read for read in self._reads(assign) if self._in_replica(read)]
            moved = any(id(read) in self._moved for read in self._reads(assign))
            if (reads or moved) and name not in found:
                found.append(name)
        return found

    def _in_replica(self, read: cst.CSTNode) -> bool:
        around = self._context.function_around(self._call)
        if around is not None and self._context.function_around(read) is around:
            return False
        return around is not self._context.function_around(read) and not self._joins(read)

    def _joins(self, read: cst.CSTNode) -> bool:
        """Whether `read` is in an argument of `init_process_group`, which does without it."""
        return any(
            isinstance(above, cst.Call) and self._context.qualified_name(above.func) in INIT
            for above in self._context.ancestors(read)
        )

    def goes(self, node: cst.CSTNode) -> bool:
        """Whether `node` is in an assignment that goes, or reads what the worker asks for."""
        if id(node) in self._moved:
            return True
        gone = [assign for assign in self._assigned if self._unread(assign)]
        if any(node is inner for assign in gone for inner in nodes(assign.value)):
            return True
        return self._in_replica(node) and any(
            node is read for assign in self._assigned for read in self._reads(assign)
        )

    def _unread(self, assign: cst.Assign) -> bool:
        """Whether nothing before the launch reads it, but for the launch and its own value."""
        inside = {id(node) for node in (*nodes(self._call), *nodes(assign.value))}
        inside |= self._moved | self._besides
        for read in self._reads(assign):
            if id(read) not in inside and not self._in_replica(read) and not self._joins(read):
                here, there = self._context.position(assign), self._context.position(read)
                if (there.line, there.column) > (here.line, here.column):
                    return False
        return True

    def gone(self) -> Iterator[cst.Assign]:
        """Yield the assignments that nothing before the launch reads."""
        for assign in self._assigned:
            alone = is_device_count(assign.value, self._context) and (
                self._count is not None and assign.targets[0].target.deep_equals(self._count)
            )
            if self._unread(assign) and not alone:
                yield assign
