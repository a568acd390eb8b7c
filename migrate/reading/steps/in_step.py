"""Code that runs inside of a training step, and how often the other code runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cached_property

import libcst as cst

from migrate.catalogue.words import CACHE, EVALUATION, NO_GRADIENTS, SAVE
from migrate.reading.script import Script
from migrate.reading.steps.beside import EveryStepFunctions, is_fixed, unconditional
from migrate.reading.steps.effects import BOTH
from migrate.reading.steps.loops import Loop, batch_names
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.spans import Span, Trained, given_batches
from migrate.reading.values.entries import StepFunction
from migrate.reading.values.values import is_forward, is_hook, is_update
from migrate.syntax.tree import code, last_part, nodes, nodes_of

# Calls that may be inside of a step without being part of its work.
APART = (Outside.SAVE, Outside.EVALUATION, Outside.STEPS)


class When(Enum):
    """Frequency at which a piece of code runs."""

    STEP = auto()  # inside of the step: forward, backward, update, and the functions they call
    EVERY_STEP = auto()  # in the training loop, at every step, but outside of it
    SOMETIMES = auto()  # in the training loop, under a condition
    ELSEWHERE = auto()


class StepCode:
    """Steps of a script: training loops, forwards, optimizer updates, and the functions these call.

    A step that torch_xla marks (`with torch_xla.step():`) is exactly the marked block. Other steps are those
    that the rewrite finds, with all code in them as the script stands.

    Args:
        context: the script.
        entries: the functions, by the lines of their `def`, that steps of other files run.
    """

    def __init__(self, context: Script, entries: Mapping[int, StepFunction] | None = None) -> None:
        self._context = context
        self._inside: dict[int, str] = {}  # with the location of the call in another file
        self._bodies: dict[int, str] = {}
        self.calls: list[tuple[cst.Call, str]] = []  # nodes of the steps, with the same
        self._marked: set[int] = set()  # nodes of the steps that run within a mark
        self._called_in_marks: set[int] = set()  # bodies of the functions that these run
        self._trains: set[int] = set()  # ids of nodes inside of a step, and of calls: in training
        self._edges: list[
            tuple[cst.Call, cst.FunctionDef]
        ] = []  # calls, and the functions they run
        # Functions that training loops of other files call at every step, with the location of the call.
        self._called_beside: list[tuple[cst.FunctionDef, str]] = []
        self._entered: list[cst.FunctionDef] = []  # the functions that steps of other files call
        self._followed = 0
        self._asks_training = bool(context.references("training"))
        marked = [block for block in context.all_of(cst.With) if is_step(block, context)]
        in_marks = {id(above) for block in marked for above in context.ancestors(block)}
        self.loops: list[Loop] = [
            loop
            for loop in context.all_of(cst.For, cst.While)
            if context.effects.is_step_loop(loop)
        ]
        for block in marked:
            trains = bool(context.effects.of(block.body))
            self._take(block.body, marked=True, trains=trains)
        for loop in self.loops:
            self._bodies[id(loop.body)] = ""
            if id(loop) not in in_marks:
                self._take_steps(loop.body, batch_names(loop, self._context))
        for function in context.all_of(cst.FunctionDef):
            if is_update(function, context):
                self._take(function.body)
        # Not for a forward that nothing calls.
        self._of_steps = {id(call) for call, _ in self.calls}
        for function in context.all_of(cst.FunctionDef):
            # Nodes that are in a step only because a step calls them.
            runs = is_forward(function, context) or is_hook(function, context)
            if runs and not self._without_gradients(function):
                self._take(function.body)
        self._follow()
        # Whether a step of another file runs a function of this file.
        self.knows_more = False
        for entry in (entries or {}).values():
            entered = context.function_at(entry.line)
            if entered is not None and entry.beside:
                self._called_beside.append((entered, entry.origin))
            elif entered is not None:
                self.knows_more |= id(entered.body) in self._inside
                self._entered.append(entered)
                self._enter(entered, entry.origin, entry.marked, entry.trains)
        self._follow()

    @property
    def found(self) -> bool:
        """Whether the script has a training loop, a marked step or a module's forward."""
        return bool(self._inside)

    def when(self, node: cst.CSTNode) -> When:
        """Return when `node` runs."""
        tests: list[cst.BaseExpression] = []
        below = node
        for above in (node, *self._context.ancestors(node)):
            if id(above) in self._inside:
                return When.STEP
            if id(above) in self._bodies:
                loop = self._context.parent(above)
                every = not tests or (
                    isinstance(loop, cst.For | cst.While)
                    and all(is_fixed(test, loop) for test in tests)
                )
                return When.EVERY_STEP if every else When.SOMETIMES
            if type(above) is cst.FunctionDef or type(above) is cst.ClassDef:
                return When.ELSEWHERE
            if type(above) is cst.If and below is not above.test and above is not node:
                if self._asks_training and _evaluates(above, below):
                    return When.ELSEWHERE
                if not self._asks_rank_alone(above.test):
                    tests.append(above.test)
            below = above
        return When.ELSEWHERE

    def _asks_rank_alone(self, test: cst.BaseExpression) -> bool:
        """Whether `test` asks for the rank alone: some replica runs the code below it at every step."""
        if isinstance(test, cst.BooleanOperation):
            return self._asks_rank_alone(test.left) and self._asks_rank_alone(test.right)
        return self._context.guards.asks(test)

    def inside(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs inside of a step."""
        return self.when(node) is When.STEP

    def between(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs between steps: in a training loop, or in a loop whose turns train."""
        when = self.when(node)
        if when is not When.ELSEWHERE:
            return when is not When.STEP
        effects = self._context.effects
        for above in self._context.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return False
            if isinstance(above, cst.For | cst.While) and (
                effects.is_step_loop(above)
                or any(map(effects.is_step_loop, nodes_of(above.body, cst.For | cst.While)))  # type: ignore[arg-type]
                or any(map(effects.has_steps, nodes_of(above.body, cst.Call)))
            ):
                return True
        return False

    @cached_property
    def entered(self) -> frozenset[int]:
        """Ids of the nodes that steps of other files run, and of all nodes below and above them.

        If such a node is a step of its own, such as a `forward`, all steps of the file count: more is known
        of their arguments.
        """
        ids: set[int] = set()
        for node in self._context.all_of(cst.FunctionDef):
            beside = self.beside.functions.get(id(node.body))
            if beside or self.origin(node.body) or (self.knows_more and self.inside(node.body)):
                ids.update(id(below) for below in nodes(node))
                ids.update(id(above) for above in self._context.ancestors(node))
        return frozenset(ids)

    def origin(self, node: cst.CSTNode) -> str:
        """Return where a step of another file calls the function around `node`; empty if none does."""
        for above in (node, *self._context.ancestors(node)):
            if id(above) in self._inside or id(above) in self._bodies:
                return self._inside.get(id(above)) or self._bodies.get(id(above), "")
        return self.beside.origin(node)

    @cached_property
    def beside(self) -> EveryStepFunctions:
        """Functions that run at every step, but outside of it: metrics and their logging."""
        collected = EveryStepFunctions(self._context)
        for body in (*self._bodies, *self._turning):
            for call in self._beside_calls(body):
                collected.take(call, self._bodies.get(body, ""))
        for function, origin in self._called_beside:
            collected.enter(function, origin)
        return collected

    def _beside_calls(self, body: int) -> Iterator[cst.Call]:
        """Yield the calls that every turn of a training loop makes outside of its step."""
        for call in self._calls_by_body.get(body, ()):
            if not self.inside(call) and unconditional(call, body, self._context):
                yield call

    @cached_property
    def _turning(self) -> frozenset[int]:
        """Ids of the bodies of loops that take a few updates in each turn: `for _ in range(updates)`.

        Such a loop acts in an environment, and has as many turns as steps. One that goes over epochs has few.
        """
        return frozenset(
            id(above.body)
            for loop in self.loops
            if isinstance(loop, cst.For) and isinstance(loop.iter, cst.Call)
            if code(loop.iter.func) in ("range", "trange")
            for above in [self._context.loop_around(loop)]
            if above is not None
        )

    @cached_property
    def _calls_by_body(self) -> Mapping[int, Sequence[cst.Call]]:
        """Calls of the training loops that run functions of the project, by the id of the body."""
        calls: dict[int, list[cst.Call]] = {}
        bodies = {*self._bodies, *self._turning}
        for call in self._context.all_of(cst.Call) if bodies else ():
            for above in self._context.ancestors(call):
                if id(above) in bodies:
                    if self._context.run_by(call):
                        calls.setdefault(id(above), []).append(call)
                    break
                if isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Lambda):
                    break
        return calls

    def calls_it(self, function: cst.CSTNode | None) -> bool:
        """Whether steps of this file or another call a function; false for a forward that nothing calls."""
        return id(function) in self._called

    @cached_property
    def _called(self) -> frozenset[int]:
        """Ids of the functions that steps call, directly or through others."""
        called = {id(function) for function in self._entered}
        pending = self._edges
        while True:
            later = []
            for call, callee in pending:
                around = self._context.function_around(call)
                if id(call) in self._of_steps or id(around) in called:
                    called.add(id(callee))
                else:
                    later.append((call, callee))
            if len(later) == len(pending):
                return frozenset(called)
            pending = later

    def in_mark(self, call: cst.Call) -> bool:
        """Whether a call of the steps, one of `calls`, runs within `with torch_xla.step():`."""
        return id(call) in self._marked

    def called_in_mark(self, node: cst.CSTNode) -> bool:
        """Whether `with torch_xla.step():`, in any file, calls the function around `node`."""
        function = self._context.function_around(node)
        return function is not None and id(function.body) in self._called_in_marks

    def in_marked_block(self, node: cst.CSTNode) -> bool:
        """Whether `node` is in the block of `with torch_xla.step():`, in the same function."""
        for above in self._context.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return False
            if isinstance(above, cst.With) and is_step(above, self._context):
                return True
        return False

    def _without_gradients(self, function: cst.FunctionDef) -> bool:
        decorators = (decorator.decorator for decorator in function.decorators)
        return self._context.names_any(decorators, NO_GRADIENTS)

    def trains(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs inside of a step that trains, not of one that only evaluates."""
        return any(
            id(ancestor) in self._trains for ancestor in (node, *self._context.ancestors(node))
        )

    def in_training(self, call: cst.Call) -> bool:
        """Whether a call of the steps, one of `calls`, runs in a step that trains."""
        return id(call) in self._trains

    def _take(
        self, node: cst.CSTNode, origin: str = "", marked: bool = False, trains: bool = True
    ) -> None:
        """Record that `node` runs inside of a step, together with the functions it calls."""
        if id(node) not in self._inside or (trains and id(node) not in self._trains):
            self._inside.setdefault(id(node), origin)
            calls = [
                call
                for call in self._context.below(node, cst.Call)
                if not self._in_evaluation(call, node)
            ]
            self.calls.extend((call, origin) for call in calls)
            if marked:
                self._marked.update(map(id, calls))
            if trains:
                self._trains.update((id(node), *map(id, calls)))

    def _in_evaluation(self, call: cst.Call, step: cst.CSTNode) -> bool:
        """Whether a call in a step runs in evaluation only, as below `if not self.training:`."""
        if _is_of_cache(call) or self._is_apart(call):
            return True
        below: cst.CSTNode = call
        for above in self._context.ancestors(call):
            if type(above) is cst.If and _evaluates(above, below):
                return True
            if above is step:
                return False
            below = above
        return False

    def _is_apart(self, call: cst.Call) -> bool:
        """Whether a call evaluates or saves, by the name of the project function that it runs.

        The result of a function that a step runs is a part of the step: `return self.pipeline.inference(x)`.
        """
        if isinstance(self._context.parent(call), cst.Return):
            return False
        effects = self._context.effects
        name = last_part(call.func)
        named = EVALUATION.fullmatch(name) or SAVE.fullmatch(name)
        if not named or effects.of(call) or not self._context.run_by(call):
            return False
        return not is_forward(self._context.function_around(call), self._context)

    def _take_steps(self, suite: cst.BaseSuite, batch: Sequence[str], origin: str = "") -> None:
        """Collect the steps of a block that trains: a loop's, or that of a function that is a whole step."""
        self._bodies[id(suite)] = origin
        if not isinstance(suite, cst.IndentedBlock):
            self._take(suite, origin)
            return
        trained = Trained(suite, batch, self._context)
        for statement in trained.body.statements:
            for call in statement.nesting:
                self._take(call, origin)
        at = trained.indices[0] if len(trained.indices) == 1 else -1
        inner = trained.inner(at) if at >= 0 else []
        whole = self._whole(suite.body[at]) if at >= 0 else []
        if inner or whole:
            for index in range(trained.body.first(at), at):
                if trained.body.statements[index].outside not in APART:
                    self._take(suite.body[index], origin)
            for call in whole:
                self._take(call, origin)
            for block, names in inner:
                if id(block) not in self._bodies:
                    self._take_steps(block, names, origin)
            return
        spans = trained.accumulated() if trained.accumulates else None
        for block, names in trained.leaving if spans is not None else ():
            self._take_steps(block, names, origin)
        span_of_all = trained.span() if spans is None else None
        for span in spans or ((span_of_all,) if span_of_all is not None else ()):
            for node in _nodes(span):
                self._take(node, origin)

    def _whole(self, statement: cst.CSTNode) -> list[cst.Call]:
        """Return the calls in a simple statement that run a whole step in functions of the project."""
        if not isinstance(statement, cst.SimpleStatementLine):
            return []
        effects = self._context.effects
        return [
            call
            for call in self._context.below(statement, cst.Call)
            if effects.of(call) == BOTH and self._context.run_by(call)
        ]

    def _follow(self) -> None:
        """Add the functions of the script that the steps call."""
        while self._followed < len(self.calls):
            call, origin = self.calls[self._followed]
            self._followed += 1
            ran = (
                *self._context.run_by(call),
                *self._context.run_later(call),
                *self._context.may_run(call),
            )
            for callee in self._context.here(ran):
                self._edges.append((call, callee))
                self._enter(callee, origin, self.in_mark(call), self.in_training(call))

    def _enter(
        self, function: cst.FunctionDef, origin: str, marked: bool, trains: bool = True
    ) -> None:
        if marked:
            self._called_in_marks.add(id(function.body))
        seen = id(function.body) in self._inside
        again = seen and trains and id(function.body) not in self._trains
        if id(function.body) in self._bodies or (seen and not again):
            return
        if marked or again:  # the whole function runs before the mark ends the step
            self._take(function.body, origin, marked, trains)
        elif self._context.effects.of(function.body) & BOTH == BOTH:
            # A function that is the whole step: code below the update is not in it.
            self._take_steps(function.body, given_batches(function), origin)
        else:
            self._take(function.body, origin, trains=trains)


def _is_of_cache(call: cst.Call) -> bool:
    """Whether a call is of a cache, or of its method: `self.kv_cache(k, v)`, `cache.get_pos()`."""
    func = call.func
    parts = [last_part(func), last_part(func.value) if isinstance(func, cst.Attribute) else ""]
    return any(CACHE.fullmatch(part) for part in parts if part)


def is_step(block: cst.With, context: Script) -> bool:
    """Whether `block` is `with torch_xla.step():`."""
    return any(
        isinstance(item.item, cst.Call)
        and context.qualified_name(item.item.func) in ("shims.step", "torch_xla.step")
        for item in block.items
    )


def _evaluates(condition: cst.If, branch: cst.CSTNode) -> bool:
    """Whether `branch` of `condition` runs only if a module does not train."""
    if not any(part.attr.value == "training" for part in nodes_of(condition.test, cst.Attribute)):
        return False  # before its text is made, which takes longer
    test = code(condition.test)
    if not test.endswith(".training"):
        return False
    return branch is condition.body if test.startswith("not ") else branch is condition.orelse


def _nodes(span: Span) -> Iterator[cst.CSTNode]:
    """Yield the statements of a step up to its earliest end; of the last one, the part before its end."""
    last = span.ends[-1]
    for index in range(span.first, last + 1):
        if span.body.statements[index].outside in APART:
            continue
        end = span.body.tails.get(index) if index == last else None
        if end is None:
            yield span.body.block.body[index]
        else:
            yield from (s for s in end.block.body if s not in end.statements)
