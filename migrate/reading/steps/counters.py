"""Numbers of the host that change from one graph to the next: a step's index, a position, a counter."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.steps.in_step import is_step
from migrate.reading.steps.loops import Loop
from migrate.reading.tree.tree import code, nodes_of
from migrate.reading.values.kind import Kind
from migrate.reading.values.words import CALLED_MODEL, NO_GRADIENTS

if TYPE_CHECKING:
    from migrate.reading.facts import Facts
    from migrate.reading.script import Script

COUNTING = frozenset({"range", "trange"})
AROUND = frozenset({"reversed", "tqdm", "list", "iter", "sorted"})
PLAIN = frozenset({"int", "min", "max", "abs", "round"})
DEEPEST = 4


@lru_cache(maxsize=2)
def counters_of(facts: Facts) -> Counters:
    """Return the numbers of a script that change between its graphs."""
    return Counters(facts)


class Counters:
    """Finds out whether an expression is a number that is another one in the next graph.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._script: Script = facts.context
        self._graphs: dict[int, bool] = {}

    def changes(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        """Whether `node` is a number made of one that changes."""
        if depth > DEEPEST:
            return False
        if isinstance(node, cst.Name):
            return self._changes_by_loop(node, depth)
        if isinstance(node, cst.Attribute):
            return self._is_counted(node)
        if isinstance(node, cst.UnaryOperation):
            return self.changes(node.expression, depth)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Modulo):
                return False  # a few values
            return self.changes(node.left, depth) or self.changes(node.right, depth)
        if isinstance(node, cst.Call) and code(node.func) in PLAIN:
            return any(self.changes(arg.value, depth) for arg in node.args)
        return False

    def _changes_by_loop(self, name: cst.Name, depth: int) -> bool:
        """Whether a loop around `name` counts by it, or what the function is given changes."""
        below: cst.CSTNode = name
        for above in self._script.ancestors(name):
            if isinstance(above, cst.For | cst.While) and below is not getattr(above, "iter", None):
                made = self._made_in(above, name, depth)
                if made is not None:
                    return made and self._runs_graphs(above)
            if isinstance(above, cst.FunctionDef):
                return self._is_given(name, above, depth)
            if isinstance(above, cst.ListComp | cst.GeneratorExp | cst.Lambda):
                return False
            below = above
        return False

    def _made_in(self, loop: Loop, name: cst.Name, depth: int) -> bool | None:
        """Return whether `loop` counts by `name`; None where it does not bind the name."""
        if isinstance(loop, cst.For):
            target: cst.BaseExpression = loop.target
            over = loop.iter
            if isinstance(target, cst.Tuple) and _called(over) in (*AROUND, "enumerate"):
                first = target.elements[0].value
                if isinstance(first, cst.Name) and first.value == name.value:
                    return "enumerate" in code(over)
            if isinstance(target, cst.Name) and target.value == name.value:
                return self._counts(over)
        for node in nodes_of(loop.body, cst.AugAssign):
            if isinstance(node.target, cst.Name) and node.target.value == name.value:
                return isinstance(node.value, cst.Integer)
        for assign in nodes_of(loop.body, cst.Assign):
            if any(code(one.target) == name.value for one in assign.targets):
                is_made = not any(node is name for node in nodes_of(assign.value, cst.Name))
                return is_made and self.changes(assign.value, depth + 1)
        return None

    def _counts(self, over: cst.BaseExpression, deeper: bool = True) -> bool:
        """Whether a loop over `over` gives numbers."""
        if isinstance(over, cst.Name) and deeper:
            made = [given.value for given in self._facts.bindings.given(over)]
            return bool(made) and all(v is not None and self._counts(v, deeper=False) for v in made)
        called = _called(over)
        if called in COUNTING:
            return True
        args = over.args if isinstance(over, cst.Call) else ()
        return called in AROUND and bool(args) and self._counts(args[0].value, deeper)

    def _runs_graphs(self, loop: Loop) -> bool:
        """Whether each turn of `loop` runs graphs of its own: it trains, evaluates or samples."""
        if id(loop) not in self._graphs:
            self._graphs[id(loop)] = self._has_steps(loop)
        return self._graphs[id(loop)]

    def _has_steps(self, loop: Loop) -> bool:
        script = self._script
        if self._facts.steps.in_marked_block(loop):
            return False  # unrolled in the graph of that step
        if any(is_step(block, script) for block in nodes_of(loop.body, cst.With)):
            return True
        inner = nodes_of(loop, cst.For | cst.While)  # type: ignore[arg-type]
        if any(script.effects.is_step_loop(one) for one in inner):
            return True
        return self._without_gradients(loop) and not self._facts.steps.inside(loop)

    def _without_gradients(self, loop: Loop) -> bool:
        """Whether a model runs in each turn of `loop`, without gradients: it evaluates or samples."""
        calls = nodes_of(loop.body, cst.Call)
        if not any(call.args and _is_model(call, self._facts) for call in calls):
            return False
        items: list[cst.BaseExpression] = []
        for above in self._script.ancestors(loop):
            if isinstance(above, cst.With):
                items.extend(item.item for item in above.items)
            elif isinstance(above, cst.FunctionDef):
                items.extend(one.decorator for one in above.decorators)
        names = (item.func if isinstance(item, cst.Call) else item for item in items)
        return any(self._script.qualified_name(name) in NO_GRADIENTS for name in names)

    def _is_given(self, name: cst.Name, function: cst.FunctionDef, depth: int) -> bool:
        """Whether calls in the script pass a number that changes for the parameter `name`."""
        params = [*function.params.posonly_params, *function.params.params]
        if name.value not in [param.name.value for param in params]:
            return False
        passed = self._facts.bindings.passed(function, name.value)
        return any(self.changes(value, depth + 1) for value in passed)

    def _is_counted(self, node: cst.Attribute) -> bool:
        """Whether `node` is an attribute such as `self.pos` that a step makes greater each time."""
        if not (isinstance(node.value, cst.Name) and node.value.value == "self"):
            return False
        around = self._script.class_around(node)
        if around is None:
            return False
        return any(
            code(made.target) == code(node) and self._facts.steps.inside(made)
            for made in nodes_of(around.body, cst.AugAssign)
        )


def _called(value: cst.BaseExpression) -> str:
    return code(value.func).rpartition(".")[2] if isinstance(value, cst.Call) else ""


def _is_model(call: cst.Call, facts: Facts) -> bool:
    name = code(call.func).removesuffix(".forward").rpartition(".")[2]
    return facts.values.kind(call.func) is Kind.MODEL or bool(CALLED_MODEL.fullmatch(name))
