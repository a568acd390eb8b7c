"""Find the code that observes a value or what it was added to. The value must be read before that code."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import COUNTER
from migrate.model.pure import same_everywhere
from migrate.reading.replicas.first_replica import parts
from migrate.reading.steps.loops import Loop
from migrate.rewrite.rules.step.deferral.reading import Reading
from migrate.rewrite.rules.step.deferral.variables import Variables
from migrate.syntax.tree import code, nodes

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

LOOKED_AT = "is looked at in every step"


class Observers:
    """Code that observes the values that one loop reads.

    Args:
        loop: the loop.
        context: the script.
    """

    def __init__(self, loop: Loop, context: Workspace) -> None:
        assert isinstance(loop.body, cst.IndentedBlock)
        self._loop = loop
        self._context = context
        self._variables = Variables(loop, context)
        self._statements = loop.body.body
        self._place = {
            id(node): statement for statement in self._statements for node in nodes(statement)
        }

    @cached_property
    def _counters(self) -> frozenset[str]:
        """The names that count the turns of the loop: `batch` of `for batch, x in enumerate(…)`."""
        loop = self._loop
        if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call):
            return frozenset()
        target: cst.BaseExpression = loop.target
        if code(loop.iter.func) == "enumerate" and isinstance(target, cst.Tuple):
            target = target.elements[0].value
        elif code(loop.iter.func) not in ("range", "trange"):
            return frozenset()
        return frozenset({code(target)})

    def find(self, reading: Reading) -> str | None:
        """Record in `reading` where its values are observed. Return why it has to stay, or None."""
        mentioned: list[cst.Name] = []
        for name in sorted(reading.watched):
            names = self._variables.aliases(name) if name in reading.objects else {name}
            if names is None:
                return f"adds to `{name}`, which others may hold"
            if name in reading.objects and not self._variables.is_sum(name):
                return f"is passed to `{name}`, of which the function does not show that it only adds up"
            for variable in names:
                mentions = self._variables.mentions(variable)
                if mentions is None:
                    return f"is assigned to `{variable}`, which other functions see"
                mentioned.extend(mentions)
        flushes: dict[int, cst.If] = {}
        for mention in mentioned:
            if not self._variables.in_loop(mention) or self._is_own(mention, reading):
                continue
            guard = self._guard(mention)
            if isinstance(guard, str):
                return guard
            flushes[id(guard)] = guard
        if self._is_caught(mentioned):
            return "is looked at where an exception ends the loop"
        reading.flushes = [
            s for s in self._statements if isinstance(s, cst.If) and id(s) in flushes
        ]
        reading.seen_after = not self._variables.is_dead_after(reading.watched)
        if not reading.flushes and not reading.seen_after:
            return "is not looked at in plain sight"
        return None

    def _is_own(self, mention: cst.Name, reading: Reading) -> bool:
        """Whether `mention` is in a statement that takes the value, or makes the tensor that is read."""
        place = self._place.get(id(mention))
        if any(place is line for line in reading.lines):
            return True
        is_tensor = isinstance(reading.tensor, cst.Name) and reading.tensor.value == mention.value
        above = self._context.parent(mention)
        return is_tensor and isinstance(place, cst.With) and isinstance(above, cst.AssignTarget)

    def _guard(self, mention: cst.Name) -> cst.If | str:
        """Return the `if` in the loop around `mention`, or the reason why no `if` allows to defer."""
        place = self._place.get(id(mention))
        if not isinstance(place, cst.If):
            return LOOKED_AT
        if not any(node is mention for node in nodes(place.body)):
            return "decides what comes next"
        common = self.common_test(place)
        if common is None:
            return (
                f"is looked at under `if {code(place.test)}`, which may differ between the replicas"
            )
        return place

    def common_test(self, guard: cst.If) -> list[cst.BaseExpression] | None:
        """Return the parts of the test of `guard` that have the same result on all replicas.

        None if there are none, or if a part without the rank may differ.
        """
        asks = self._context.guards.asks
        common = [part for part in parts(guard.test) if not asks(part)]
        return common if common and all(self._is_count(part) for part in common) else None

    def _is_count(self, test: cst.BaseExpression) -> bool:
        """Whether `test` asks for counters and options only."""
        lengths = {
            id(node)
            for call in self._context.below(test, cst.Call)
            if code(call.func) == "len"
            for node in nodes(call)
        }
        names = [
            node
            for node in nodes(test)
            if isinstance(node, cst.Name | cst.Attribute) and id(node) not in lengths
        ]
        calls = (call for call in self._context.below(test, cst.Call) if id(call) not in lengths)
        return next(calls, None) is None and all(
            same_everywhere(name)
            or self._is_part(name)
            or _is_counter(name)
            or code(name) in self._counters
            for name in names
        )

    def _is_part(self, node: cst.Name | cst.Attribute) -> bool:
        """Whether `node` is a part of a longer dotted name, which is inspected as a whole."""
        return isinstance(self._context.parent(node), cst.Attribute)

    def _is_caught(self, mentioned: list[cst.Name]) -> bool:
        """Whether a `try` around the loop observes the values after an exception in the loop."""
        around: set[int] = set()
        below: cst.CSTNode = self._loop
        for above in self._context.ancestors(self._loop):
            if isinstance(above, cst.Try) and below is above.body:
                rest = (*above.handlers, above.orelse, above.finalbody)
                around.update(id(n) for part in rest if part is not None for n in nodes(part))
            below = above
        return any(id(mention) in around for mention in mentioned)


def _is_counter(name: cst.Name | cst.Attribute) -> bool:
    last = name.attr if isinstance(name, cst.Attribute) else name
    return COUNTER.fullmatch(last.value) is not None
