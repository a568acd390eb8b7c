"""Numbers of processes that a launching script keeps on an object which it passes to the worker."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import libcst as cst

from migrate.catalogue.words import LOGGING_METHODS
from migrate.reading.replicas.launch import INIT
from migrate.reading.values.devices import is_device_count
from migrate.rewrite.rules.ranks.derived_counts import derived_of
from migrate.rewrite.rules.ranks.object_fields import Counted, ObjectField, kept_on
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes, nodes_of

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
        self.derived = derived_of(
            context, call, self._counts, self.objects, self._assigned, besides
        )
        self._moved = {id(node) for count in self.derived for node in nodes(count.statement)}

    def _find(self) -> Iterator[Counted]:
        around = self._context.function_around(self._call)
        for node in self._context.all_of(cst.Assign):
            if len(node.targets) != 1 or self._context.function_around(node) is not around:
                continue
            for count in _given(node):
                place = kept_on(count.target)
                if (
                    place is not None
                    and place.root in self.objects
                    and (COUNTS.fullmatch(place.word) or self._is_count(count.value))
                    and self._counts(count.value)
                ):
                    yield count

    def _is_count(self, value: cst.BaseExpression) -> bool:
        """Whether `value` is a count of devices and no more, whatever it is called; there may be another."""
        if isinstance(value, cst.IfExp):
            ways = (value.body, value.orelse)
            return any(self._is_count(way) for way in ways) and all(
                isinstance(way, cst.Integer) or self._is_count(way) for way in ways
            )
        return is_device_count(value, self._context)

    def _counts(self, value: cst.BaseExpression) -> bool:
        """Whether `value` has the number of processes in it, or a count of devices."""
        return any(
            is_device_count(node, self._context)
            or (self._count is not None and node.deep_equals(self._count))
            for node in nodes(value)
        )

    def _reads(self, assign: Counted) -> list[cst.CSTNode]:
        """Return where the script reads what `assign` assigns, by whatever name the object has there."""
        place = assign.place
        objects = {place.root, self.objects[place.root]}
        return [
            node
            for root, node in self._kept[place.word]
            if root in objects or self._is_handed_on(root, node)
        ]

    @cached_property
    def _kept(self) -> dict[str, list[tuple[str, cst.CSTNode]]]:
        """The reads of what any object keeps, by its word, each with the name of the object."""
        settings: dict[str, list[tuple[str, cst.CSTNode]]] = defaultdict(list)
        words = {assign.place.word for assign in self._assigned}
        for node in self._context.all_of(cst.Attribute, cst.Subscript, cst.Call) if words else ():
            place = kept_on(node)
            is_target = isinstance(self._context.parent(node), cst.AssignTarget)
            if place is None or place.word not in words or is_target:
                continue
            if place.root != "self" or place.steps > 1:
                settings[place.word].append((place.root, node))
        return settings

    def _is_handed_on(self, root: str, node: cst.CSTNode) -> bool:
        """Whether `root` may be another name of a passed object: a parameter, or `self` of `self.args`."""
        function = self._context.function_around(node)
        if function is None or function is self._context.function_around(self._call):
            return False
        return root == "self" or any(
            parameter.name.value == root for parameter in function.params.params
        )

    def in_worker(self) -> list[str]:
        """Return the places, as the worker calls them, that a replica reads."""
        names = []
        for assign in self._assigned:
            place = assign.place
            target = code(assign.target)
            name = self.objects[place.root] + target.removeprefix(place.root)
            reads = [read for read in self._reads(assign) if self._in_replica(read)]
            moved = any(id(read) in self._moved for read in self._reads(assign))
            if (reads or moved or self._leaves_the_file(place)) and name not in names:
                names.append(name)
        return names

    def of_one_host(self, target: str) -> bool:
        """Whether `target`, one of `in_worker`, counts one host's devices: the hosts multiply it."""
        place = kept_on(cst.parse_expression(target))
        counts = [
            assign.target
            for assign in self._assigned
            if place is not None
            and assign.place.word == place.word
            and self._is_count(assign.value)
        ]
        products = [
            (node.left, node.right)
            for assign in self._assigned
            for node in nodes_of(assign.value, cst.BinaryOperation)
            if isinstance(node.operator, cst.Multiply)
        ]
        return any(
            side.deep_equals(count) for sides in products for side in sides for count in counts
        )

    def words_in_worker(self) -> set[str]:
        """Return what the places are called that the worker asks for: `world_size` of `args.world_size`."""
        kept = (kept_on(cst.parse_expression(name)) for name in self.in_worker())
        return {place.word for place in kept if place is not None}

    def _leaves_the_file(self, place: ObjectField) -> bool:
        """Whether a replica gives the object to code that is not here, which may read it."""
        objects = {place.root, self.objects[place.root]}
        around = self._context.function_around(self._call)
        for call in self._context.all_of(cst.Call):
            function = self._context.function_around(call)
            if function is None or function is around or self._is_here(call.func):
                continue
            if any(
                isinstance(arg.value, cst.Name) and arg.value.value in objects for arg in call.args
            ):
                return True
        return False

    def _is_here(self, called: cst.BaseExpression) -> bool:
        """Whether what is called is in the script, or of a library that no number of replicas concerns."""
        if isinstance(called, cst.Attribute) and called.attr.value in LOGGING_METHODS:
            return True
        package = (self._context.qualified_name(called) or "").partition(".")[0]
        if package:
            return package == "torch" or package in sys.stdlib_module_names
        if not isinstance(called, cst.Name):
            return False
        values = [binding.node for binding in self._context.bindings(called)]
        return not any(isinstance(node, cst.Import | cst.ImportFrom) for node in values)

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
        """Whether `node` is in a removed assignment, or reads what the worker asks for."""
        if id(node) in self._moved:
            return True
        gone = [assign for assign in self._assigned if self._unread(assign)]
        if any(node is inner for assign in gone for inner in nodes(assign.value)):
            return True
        return self._in_replica(node) and any(
            node is read for assign in self._assigned for read in self._reads(assign)
        )

    def _unread(self, assign: Counted) -> bool:
        """Whether nothing before the launch reads it, but for the launch and its own value."""
        inside = {id(node) for node in (*nodes(self._call), *nodes(assign.value))}
        inside |= self._moved | self._besides
        for read in self._reads(assign):
            if id(read) not in inside and not self._in_replica(read) and not self._joins(read):
                here, there = self._context.position(assign.node), self._context.position(read)
                if (there.line, there.column) > (here.line, here.column):
                    return False
        return True

    def gone(self) -> Iterator[Counted]:
        """Yield the assignments that nothing before the launch reads."""
        for assign in self._assigned:
            alone = (
                isinstance(assign.node, cst.Assign)
                and is_device_count(assign.value, self._context)
                and (self._count is not None and assign.target.deep_equals(self._count))
            )
            if self._unread(assign) and not alone:
                yield assign


def _given(node: cst.Assign) -> Iterator[Counted]:
    """Yield the places that an assignment to one target gives a value: one, or those of a dictionary."""
    target = node.targets[0].target
    if not isinstance(node.value, cst.Dict) or not isinstance(target, cst.Name):
        yield Counted(node, target, node.value)
        return
    for element in node.value.elements:
        if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
            index = cst.SubscriptElement(cst.Index(element.key))
            yield Counted(element, cst.Subscript(target, [index]), element.value)
