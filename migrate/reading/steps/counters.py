"""Host numbers that change from one graph to the next: a step's index, a position, a counter."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import CALLED_MODEL, NO_GRADIENTS
from migrate.model.calls.kind import Kind
from migrate.reading.steps.in_step import When, is_step
from migrate.reading.steps.loops import Loop
from migrate.syntax.tree import code, nodes_of

if TYPE_CHECKING:
    from migrate.reading.facts import Facts
    from migrate.reading.script import Script

COUNTING = frozenset({"range", "trange"})
ARRAYS = frozenset({"numpy.arange", "numpy.linspace"})
AROUND = frozenset({"reversed", "tqdm", "list", "iter", "sorted", "tuple", "set"})
# Array methods whose result still holds numbers.
KEPT = frozenset({"astype", "round", "tolist", "copy"})
# Functions that yield tuples with an element of each argument.
TOGETHER = frozenset({"zip", "product"})
PLAIN = frozenset({"int", "min", "max", "abs", "round", "slice"})
_LOOPS_AND_FUNCTIONS = frozenset(
    (cst.For, cst.While, cst.FunctionDef, cst.ListComp, cst.GeneratorExp, cst.SetComp, cst.Lambda)
)
DEEPEST = 10
MOST_CALLS = 3  # maximum number of calls followed from a counter to a training loop

# Position of a name in the elements of an iterable: `y` in `for i, (y, x) in …` is at (1, 0).
Path = tuple[int, ...]


@lru_cache(maxsize=2)
def counters_of(facts: Facts) -> Counters:
    """Return the numbers of a script that change between its graphs."""
    return Counters(facts)


class Counters:
    """Search for expressions whose number differs in the next graph.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._script: Script = facts.context
        self._graphs: dict[int, bool] = {}
        self._counting: dict[int, dict[str, list[cst.CSTNode]]] = {}  # by the id of the class

    def changes(self, node: cst.BaseExpression, depth: int = 0, graphs: bool = True) -> bool:
        """Whether `node` is a number computed from one that changes, or a slice with such a bound.

        Args:
            node: the number.
            depth: number of values followed so far.
            graphs: whether the number has to change from one graph to the next, not only in a loop.
        """
        if depth > DEEPEST:
            return False
        if isinstance(node, cst.Name):
            return self._changes_by_loop(node, depth, graphs)
        if isinstance(node, cst.Attribute):
            return self._is_counted(node)
        if isinstance(node, cst.UnaryOperation):
            return self.changes(node.expression, depth, graphs)
        if isinstance(node, cst.BinaryOperation):
            if isinstance(node.operator, cst.Modulo):
                return False  # a few values
            sides = (node.left, node.right)
            return any(self.changes(side, depth, graphs) for side in sides)
        if isinstance(node, cst.Call) and code(node.func) in PLAIN:
            return any(self.changes(arg.value, depth, graphs) for arg in node.args)
        return False

    def _changes_by_loop(self, name: cst.Name, depth: int, graphs: bool) -> bool:
        """Whether a loop around `name` counts with it, or the function's argument changes."""
        below: cst.CSTNode = name
        for above in self._script.ancestors(name):
            if type(above) not in _LOOPS_AND_FUNCTIONS:
                below = above
                continue
            if isinstance(above, cst.For | cst.While) and below is not getattr(above, "iter", None):
                change = self._made_in(above, name, depth, graphs)
                if change is not None:
                    return change and (not graphs or self._runs_graphs(above))
            if isinstance(above, cst.FunctionDef):
                if self._is_given(name, above, depth) or self._is_taken(name):
                    return True
                return graphs and self._is_computed(name, above, depth)
            if isinstance(above, cst.ListComp | cst.GeneratorExp | cst.SetComp):
                change = None if graphs else self._made_by(above.for_in, name, depth)
                if change is not None:
                    return change
                if graphs:
                    return False
            if isinstance(above, cst.Lambda):
                return False
            below = above
        return False

    def _made_by(self, part: cst.CompFor | None, name: cst.Name, depth: int) -> bool | None:
        """Return whether a comprehension counts with `name`; None if it does not bind the name."""
        while part is not None:
            path = _path(part.target, name.value)
            if path is not None:
                return self._counts(part.iter, path, depth + 1)
            part = part.inner_for_in
        return None

    def _made_in(self, loop: Loop, name: cst.Name, depth: int, graphs: bool) -> bool | None:
        """Return whether `loop` counts with `name`; None if it does not bind the name."""
        if isinstance(loop, cst.For):
            path = _path(loop.target, name.value)
            if path is not None:
                return self._counts(loop.iter, path, depth + 1)
        for node in self._facts.below(loop.body, cst.AugAssign):
            if isinstance(node.target, cst.Name) and node.target.value == name.value:
                return isinstance(node.value, cst.Integer) or self._advances(name.value, node, loop)
        for assign in self._facts.below(loop.body, cst.Assign):
            if any(code(target.target) == name.value for target in assign.targets):
                mentions = [
                    n for n in self._facts.below(assign.value, cst.Name) if n.value == name.value
                ]
                if mentions and self._advances(name.value, assign, loop):
                    return True
                is_made = not any(node is name for node in mentions)
                return is_made and self.changes(assign.value, depth + 1, graphs)
        return None

    def _advances(self, name: str, step: cst.Assign | cst.AugAssign, loop: Loop) -> bool:
        """Whether `column += stride` moves a position that begins at a number and ends the loop."""
        target = step.target if isinstance(step, cst.AugAssign) else step.targets[0].target
        if not isinstance(target, cst.Name) or not isinstance(loop, cst.While):
            return False
        ends = [
            part.test
            for part in self._facts.below(loop.body, cst.If)
            if any(nodes_of(part, cst.Break))
        ]
        asked = {
            node.value for test in (loop.test, *ends) for node in self._facts.below(test, cst.Name)
        }
        starts = (assignment.value for assignment in self._facts.bindings.given(target))
        return name in asked and any(isinstance(value, cst.Integer) for value in starts)

    def _counts(self, over: cst.BaseExpression, path: Path, depth: int) -> bool:
        """Whether the elements of `over`, or their parts at `path`, are numbers that change, or slices."""
        if depth > DEEPEST:
            return False
        if isinstance(over, cst.Name):
            return self._holds(over, path, depth + 1)
        if isinstance(over, cst.ListComp | cst.GeneratorExp | cst.SetComp):
            return self._part_changes(over.elt, path, depth)
        if not isinstance(over, cst.Call):
            return False
        called = _called(over)
        if called in COUNTING or self._facts.names.of(over.func) in ARRAYS:
            return not path
        if called in KEPT and isinstance(over.func, cst.Attribute):
            return self._counts(over.func.value, path, depth)
        if called == "enumerate" and path:
            return path == (0,) or self._first_counts(over, path[1:], depth)
        if called in TOGETHER and path and path[0] < len(over.args):
            return self._counts(over.args[path[0]].value, path[1:], depth + 1)
        if called in AROUND:
            return self._first_counts(over, path, depth)
        functions = self._script.called(over)
        return any(self._yields(function, path, depth + 1) for function in functions)

    def _first_counts(self, call: cst.Call, path: Path, depth: int) -> bool:
        return bool(call.args) and self._counts(call.args[0].value, path, depth)

    def _holds(self, name: cst.Name, path: Path, depth: int) -> bool:
        """Whether a list bound to `name`, or filled one by one, holds such numbers."""
        bindings = self._facts.bindings
        values = [assignment.value for assignment in bindings.given(name)]
        put = [put.value for put in bindings.put_into(name)]
        if put and all(isinstance(value, cst.List) and not value.elements for value in values):
            return all(
                value is not None and self._part_changes(value, path, depth) for value in put
            )
        return bool(values) and all(v is not None and self._counts(v, path, depth) for v in values)

    def _yields(self, function: cst.FunctionDef, path: Path, depth: int) -> bool:
        """Whether a generator yields such numbers, or a function returns a list of them."""
        for node in self._facts.below(function.body, cst.Yield):
            if isinstance(node.value, cst.From):
                if self._counts(node.value.item, path, depth):
                    return True
            elif node.value is not None and self._part_changes(node.value, path, depth):
                return True
        returned = (statement.value for statement in self._facts.below(function.body, cst.Return))
        return any(value is not None and self._counts(value, path, depth) for value in returned)

    def _part_changes(self, value: cst.BaseExpression, path: Path, depth: int) -> bool:
        for at in path:
            if not isinstance(value, cst.Tuple | cst.List) or at >= len(value.elements):
                return False
            value = value.elements[at].value
        return self.changes(value, depth + 1, graphs=False)

    def _runs_graphs(self, loop: Loop) -> bool:
        """Whether each turn of `loop` runs graphs of its own: it trains, evaluates or samples."""
        if id(loop) not in self._graphs:
            self._graphs[id(loop)] = self._has_steps(loop)
        return self._graphs[id(loop)]

    def _has_steps(self, loop: Loop) -> bool:
        script = self._script
        if self._facts.steps.in_marked_block(loop):
            return False  # unrolled in the graph of that step
        if any(is_step(block, script) for block in self._facts.below(loop.body, cst.With)):
            return True
        inner = nodes_of(loop, cst.For | cst.While)  # type: ignore[arg-type]
        if any(script.effects.is_step_loop(inner_loop) for inner_loop in inner):
            return True
        return self._without_gradients(loop) and not self._facts.steps.inside(loop)

    def _without_gradients(self, loop: Loop) -> bool:
        """Whether a model runs in each turn of `loop` without gradients: it evaluates or samples."""
        calls = nodes_of(loop.body, cst.Call)
        if not any(call.args and _is_model(call, self._facts) for call in calls):
            return False
        items: list[cst.BaseExpression] = []
        for above in self._script.ancestors(loop):
            if isinstance(above, cst.With):
                items.extend(item.item for item in above.items)
            elif isinstance(above, cst.FunctionDef):
                items.extend(decorator.decorator for decorator in above.decorators)
        return self._script.names_any(items, NO_GRADIENTS)

    def _is_given(self, name: cst.Name, function: cst.FunctionDef, depth: int) -> bool:
        """Whether calls in the script pass a changing number for the parameter `name`."""
        params = [*function.params.posonly_params, *function.params.params]
        if name.value not in [param.name.value for param in params]:
            return False
        passed = self._facts.bindings.passed(function, name.value)
        return any(self.changes(value, depth + 1) for value in passed)

    def _is_computed(self, name: cst.Name, function: cst.FunctionDef, depth: int) -> bool:
        """Whether `function` computes `name` from such a number that it is given: `n = int(30 * rate)`."""
        values = [assignment.value for assignment in self._facts.bindings.given(name)]
        return any(
            value is not None
            and self._script.function_around(value) is function
            and not any(inner.value == name.value for inner in self._facts.below(value, cst.Name))
            and self.changes(value, depth + 1)
            for value in values
        )

    def _is_taken(self, name: cst.Name) -> bool:
        """Whether a function takes `name` from a counting attribute: `at = self.pos`."""
        values = [assignment.value for assignment in self._facts.bindings.given(name)]
        return any(
            self._is_counted(part)
            for value in values
            if value is not None
            for part in self._facts.below(value, cst.Attribute)
            if value is part or isinstance(self._script.parent(part), cst.BinaryOperation)
        )

    def _is_counted(self, node: cst.Attribute) -> bool:
        """Whether `node` is an attribute such as `self.pos` that counts in each step, or beside it.

        A position in a ring is such a number: `self.pos = (self.pos + n) % self.size`. A tensor is not.
        """
        if not (isinstance(node.value, cst.Name) and node.value.value == "self"):
            return False
        around = self._script.class_around(node)
        if around is None:
            return False
        if id(around) not in self._counting:
            self._counting[id(around)] = _counting_in(around.body)
        statements = self._counting[id(around)].get(code(node), ())
        return any(map(self._runs_in_steps, statements)) and not self._facts.values.is_tensor(node)

    def _runs_in_steps(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Whether `node` runs in each step, or in each turn of a training loop, also by calls."""
        if self._facts.steps.when(node) in (When.STEP, When.EVERY_STEP):
            return True
        function = self._script.function_around(node)
        if function is not None and id(function.body) in self._facts.steps.beside.functions:
            return True
        calls = self._script.callers.get(id(function), ()) if function is not None else ()
        return depth < MOST_CALLS and any(self._runs_in_steps(call, depth + 1) for call in calls)


def _counting_in(body: cst.BaseSuite) -> dict[str, list[cst.CSTNode]]:
    """Return the statements that make attributes the next number: `self.i += 1`, `self.i = self.i + 1`."""
    statements: dict[str, list[cst.CSTNode]] = defaultdict(list)
    for added in nodes_of(body, cst.AugAssign):
        if isinstance(added.target, cst.Attribute):
            statements[code(added.target)].append(added)
    for assign in nodes_of(body, cst.Assign):
        attributes = [t.target for t in assign.targets if isinstance(t.target, cst.Attribute)]
        if attributes:
            sides = {
                code(side)
                for operation in nodes_of(assign.value, cst.BinaryOperation)
                for side in (operation.left, operation.right)
                if isinstance(side, cst.Attribute)
            }
            for name in {code(attribute) for attribute in attributes} & sides:
                statements[name].append(assign)
    return dict(statements)


def _path(target: cst.BaseExpression, name: str) -> Path | None:
    """Return the position at which `target` binds `name`, or None."""
    if isinstance(target, cst.Name):
        return () if target.value == name else None
    if isinstance(target, cst.Tuple | cst.List):
        for at, element in enumerate(target.elements):
            path = _path(element.value, name)
            if path is not None:
                return (at, *path)
    return None


def _called(value: cst.BaseExpression) -> str:
    return code(value.func).rpartition(".")[2] if isinstance(value, cst.Call) else ""


def _is_model(call: cst.Call, facts: Facts) -> bool:
    name = code(call.func).removesuffix(".forward").rpartition(".")[2]
    return facts.values.kind(call.func) is Kind.MODEL or bool(CALLED_MODEL.fullmatch(name))
