"""Find the steps of a script: the blocks for `with torch_xla.step():` and their contents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.check.hazard import Severity
from migrate.check.rules.ranks.guarded_read import GuardedRead
from migrate.check.which_read import first_code
from migrate.reading.facts import facts_of
from migrate.reading.flow.dataflow import overlap
from migrate.reading.flow.reads import DeviceReads
from migrate.reading.steps.block import Body
from migrate.reading.steps.effects import BOTH, Effect
from migrate.reading.steps.leaving import yields
from migrate.reading.steps.loops import Loop, batch_names, has_sync
from migrate.reading.steps.outside import Outside
from migrate.reading.steps.spans import Inner, Span, Trained, given_batches
from migrate.rewrite.rules.step.arrange import DECIDES, Arrangement, arrange, head
from migrate.syntax.origins import at_line
from migrate.syntax.tree import nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


UNSEEN = (
    "the source does not show whether this loop trains on the accelerator: if it does, write "
    "`# migrate: step` above it, if not, `# migrate: cpu`"
)
YIELDED = (
    "`{}` yields in the middle of the step, which would stay open while who takes the value works: yield "
    "below it, then put the step in `with torch_xla.step():`"
)
HOLDS_STEPS = (
    "a function that this runs has steps of its own, by another loop: put what else the turn trains in "
    "`with torch_xla.step():` by hand"
)
FORWARD_ABOVE = (
    "`{}` does more than train: the step goes into it, and the forward above it stays outside, as a graph of "
    "its own in each step, whose activations are all kept: let it only train, and save, log and read below it"
)
ON_CPU = (
    "`# migrate: cpu` says that this loop runs on the CPU, but {} moves something to the "
    "accelerator: take the comment away, or leave what it uses on the CPU"
)


@dataclass(frozen=True)
class TrainingStep:
    """A block that gets one or more steps.

    Args:
        loop: the training loop; the function that is a part of a step, where a loop of another file runs it.
        body: the block: the loop's, or that of a function or an inner loop that it runs.
        batch: the names that the loop around the block binds to a batch.
        parts: arrangements of its statements, one for each `with`, in their order.
    """

    loop: Loop | cst.FunctionDef
    body: Body
    batch: tuple[str, ...]
    parts: tuple[Arrangement, ...]


@dataclass(frozen=True)
class Undecided:
    """A training loop, or a part of one, that gets no step, and why.

    Args:
        node: where it is reported.
        why: the reason, for the user.
        severity: how bad it is.
        code: of the hazard that keeps it from one; empty: of the rule.
    """

    node: cst.CSTNode
    why: str
    severity: Severity = Severity.ERROR
    code: str = ""


class TrainingSteps:
    """The steps of one script, by training loop."""

    def __init__(self, context: Workspace) -> None:
        self._context = context
        self._found: dict[int, list[TrainingStep | Undecided]] = defaultdict(list)
        self._blocks: set[int] = set()
        on_accelerator = trains_on_accelerator(context)
        for loop in context.all_of(cst.For, cst.While):
            marked, hidden = context.effects.is_marked(loop), context.effects.hidden(loop)
            trains = context.effects.is_step_loop(loop)
            where = on_accelerator or (trains and context.effects.on_accelerator(loop))
            said = context.effects.on_cpu(loop)
            if said == 0:
                continue
            if said is not None:
                self._undecided(loop, loop, ON_CPU.format(at_line(said)))
            if not (marked or hidden or where is not False) or has_sync(loop, context):
                continue
            if hidden and not marked:
                self._undecided(loop, loop, hidden)
            if trains and where is None and not marked:
                self._undecided(loop, loop, UNSEEN)
            elif trains:
                self._loop(loop)
            self._hopeless(loop)
        for function in context.all_of(cst.FunctionDef):
            if (
                context.effects.holds_steps(function)
                and isinstance(function.body, cst.IndentedBlock)
                and not has_sync(function, context)
            ):
                self._block(function, function.body, given_batches(function))

        self._leave_to_functions()

    def _leave_to_functions(self) -> None:
        """Take away the steps whose training is in functions that have steps, by another loop.

        `turn(x)` of the training loop, and of a loop over a validation set that calls it in each turn.
        """
        steps = [
            step
            for results in self._found.values()
            for step in results
            if isinstance(step, TrainingStep)
        ]
        blocks = {id(step.body.block): step for step in steps}
        for loop, results in self._found.items():
            for step in [step for step in results if isinstance(step, TrainingStep)]:
                others = {key for key in blocks if blocks[key] is not step}
                statements = [
                    part.body.statements[i] for part in step.parts for i in part.staying()
                ]
                trained = [statement.node for statement in statements if statement.effect]
                running = [node for node in trained if self._runs_one(node, others)]
                if running and len(running) == len(trained):
                    self._found[loop].remove(step)
                elif running:
                    self._found[loop].remove(step)
                    self._undecided(step.loop, running[0], HOLDS_STEPS)

    def _runs_one(self, node: cst.CSTNode, blocks: set[int]) -> bool:
        """Whether `node` calls a function of the script in which one of `blocks` lies."""
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            for call in self._context.below(waiting.pop(), cst.Call):
                for function in self._context.called(call):
                    if id(function) in seen:
                        continue
                    seen.add(id(function))
                    if any(id(part) in blocks for part in nodes_of(function, cst.IndentedBlock)):
                        return True
                    waiting.append(function.body)
        return False

    def of(self, loop: Loop | cst.FunctionDef) -> Sequence[TrainingStep | Undecided]:
        """Return the steps of the training loop `loop`, or of a function that is a part of a step."""
        return self._found.get(id(loop), ())

    def parts(self) -> Iterator[Arrangement]:
        """Yield the arrangements of the statements of every step of the script."""
        for steps in self._found.values():
            for step in steps:
                if isinstance(step, TrainingStep):
                    yield from step.parts

    def _loop(self, loop: Loop) -> None:
        if isinstance(loop.body, cst.IndentedBlock):
            self._block(loop, loop.body, batch_names(loop, self._context))
        else:
            self._undecided(loop, loop, "the step is on the line of the loop: put it on its own")

    def _hopeless(self, loop: Loop) -> None:
        """Note the calls of the loop that train in a way that no step can hold."""
        for call in self._context.below(loop.body, cst.Call):
            why = self._context.effects.obstacle(call)
            inner = next(a for a in self._context.ancestors(call) if isinstance(a, Loop))
            if why is not None and inner is loop:
                self._undecided(loop, call, why)

    def _undecided(
        self, loop: Loop | cst.FunctionDef, node: cst.CSTNode, why: str, code: str = ""
    ) -> None:
        self._found[id(loop)].append(Undecided(node, why, code=code))

    def _step(self, loop: Loop | cst.FunctionDef, span: Span, parts: Sequence[Arrangement]) -> None:
        inside = (part.body.statements[i].node for part in parts for i in part.staying())
        handed = next((node for node in inside if yields(node)), None)
        if handed is not None:
            self._undecided(loop, handed, YIELDED.format(head(handed)))
        elif id(span.body.block) not in self._blocks:  # a function may be run by several loops
            self._blocks.add(id(span.body.block))
            self._found[id(loop)].append(TrainingStep(loop, span.body, span.batch, tuple(parts)))

    def _block(
        self, loop: Loop | cst.FunctionDef, block: cst.IndentedBlock, batch: Sequence[str]
    ) -> None:
        trained = Trained(block, batch, self._context)
        effects = self._context.effects
        if not trained.indices and any(map(effects.nests, nodes_of(block, cst.Call))):
            return  # all of the step is in functions that get its blocks
        if len(trained.indices) == 1:
            at = trained.indices[0]
            inner = _inner(trained, at, trained.accumulates) or _apart(trained, at)
            for part in inner:
                in_function = isinstance(self._context.parent(part[0]), cst.FunctionDef)
                if in_function and _is_given_forward(trained, at):
                    node = trained.body.statements[at].node
                    self._undecided(loop, node, FORWARD_ABOVE.format(head(node)))
                self._block(loop, *part)
            if inner:
                return
        if trained.accumulates:
            self._accumulation(loop, trained)
            return
        span = trained.span()
        if span is None:
            holds = (
                "`# migrate: step` marks this loop, but nothing in it is seen to work on the device"
                if isinstance(loop, Loop) and self._context.effects.is_marked(loop)
                else "no backward pass in plain sight"
            )
            why = f"{holds}: put the step in `with torch_xla.step():` by hand"
            self._undecided(loop, loop, why)
            return
        arrangement = _arranged(span)
        parts = _parts(arrangement)
        if parts is None:
            self._obstacles(loop, arrangement)
        else:
            self._step(loop, span, parts)

    def _obstacles(self, loop: Loop | cst.FunctionDef, arrangement: Arrangement) -> None:
        for index in arrangement.obstacles():
            statement = arrangement.body.statements[index]
            assert statement.outside is not None
            why = arrangement.kept.get(index, "")
            moved = f" and cannot be moved below it as it is ({why})" if why else ""
            hangs = statement.outside is Outside.GUARD
            first = "move it, then"
            if why not in ("", DECIDES):
                first = (
                    "keep what it uses in variables here, on all replicas, do the rest below, then"
                )
            message = (
                f"{statement.outside.value} lies in the middle of the step{moved}: "
                f"{'in the block it would part the graphs of the replicas, which then hang; ' * hangs}"
                f"{first} put the step in `with torch_xla.step():`"
            )
            reads = DeviceReads(arrangement.body.values, self._context).inside(statement.node)
            code = first_code(reads, facts_of(self._context))
            self._undecided(loop, statement.node, message, GuardedRead.code if hangs else code)

    def _accumulation(self, loop: Loop | cst.FunctionDef, trained: Trained) -> None:
        """Find the steps of a loop that accumulates gradients: one a micro-batch, one for the update."""
        spans = trained.accumulated()
        if spans is None:
            message = (
                "gradient accumulation in an inner loop: put `with torch_xla.step():` around one "
                "micro-batch, and another around the optimizer's step"
            )
            self._undecided(loop, loop, message)
            return
        arrangements = [_arranged(span) for span in spans]
        for part in arrangements:
            self._obstacles(loop, part)
        if not any(part.obstacles() for part in arrangements):
            for span, part in zip(spans, arrangements, strict=True):
                self._step(loop, span, _parts(part) or [part])
        for block in trained.leaving:
            self._block(loop, *block)


def _inner(trained: Trained, index: int, accumulates: bool) -> list[Inner]:
    """Return the inner blocks of a statement for the step, if the whole statement cannot be the step.

    All of its branches that train, or none: a turn runs one of them.
    """
    blocks = trained.inner(index)
    return blocks if any(_is_entered(trained, index, b, accumulates) for b in blocks) else []


def _is_entered(trained: Trained, index: int, inner: Inner, accumulates: bool) -> bool:
    """Whether the step is put into a block of the statement at `index`, not around the statement."""
    within = Trained(*inner, trained.context)
    end = trained.body.tails.get(index)
    leaving = end.statements if end is not None else ()
    apart = {s.outside for s in within.body.statements if s.node not in leaving} - {None}
    if _forward_above(trained, index):
        apart.discard(Outside.SCHEDULE)  # better in the step than the forward above it
    return bool(apart) or accumulates or any(_inner(within, i, accumulates) for i in within.indices)


def _forward_above(trained: Trained, index: int) -> bool:
    """Whether a model is called above the statement at `index` for what that one trains with."""
    body = trained.body
    return any(
        body.values.is_state(call) and trained.body.context.values.calls_model(call)
        for statement in body.statements[body.first(index) : index]
        for call in nodes_of(statement.node, cst.Call)
    )


def _is_given_forward(trained: Trained, index: int) -> bool:
    """Whether the statement at `index` calls a function with what a model above it has computed."""
    if not _forward_above(trained, index):
        return False
    body = trained.body
    computed: set[str] = set()
    for statement in body.statements[body.first(index) : index]:
        calls = nodes_of(statement.node, cst.Call)
        runs = any(body.values.is_state(call) for call in calls)
        if runs or overlap(statement.flow.used, computed):
            computed |= set(statement.flow.assigned)
    args = (arg for call in nodes_of(body.statements[index].node, cst.Call) for arg in call.args)
    return any(isinstance(arg.value, cst.Name) and arg.value.value in computed for arg in args)


def _apart(trained: Trained, index: int) -> list[Inner]:
    """Return the block of an `if` that trains, where with it the step would wait for what stands above.

    An agent acts on what its network says, and every so often trains on what came of that.
    """
    node = trained.body.block.body[index]
    blocks = trained.inner(index)
    if not isinstance(node, cst.If) or node.orelse is not None or len(blocks) != 1:
        return []
    span = trained.span()
    waits = span is not None and any(at < index for at in _arranged(span).kept)
    return blocks if waits else []


def _arranged(span: Span) -> Arrangement:
    """Return the arrangement of the statements of a span, up to the first end without obstacles."""
    tried = [arrange(span.body, span.first, end) for end in span.ends]
    return next((arrangement for arrangement in tried if not arrangement.obstacles()), tried[-1])


def _parts(arrangement: Arrangement) -> list[Arrangement] | None:
    """Return the steps into which a run is cut by what lies in its middle, or None if none fit.

    A test that decides whether the rest runs, of a value of the device, lies between two steps. So may an
    evaluation or a save between two whole ones.
    """
    if arrangement.checks:
        return _between_checks(arrangement)
    cuts = arrangement.obstacles()
    if not cuts:
        return [arrangement]
    statements = arrangement.body.statements
    if any(statements[i].outside not in (Outside.SAVE, Outside.EVALUATION) for i in cuts):
        return None
    parts = []
    for start, end in zip(
        [arrangement.first, *(i + 1 for i in cuts)], [*cuts, arrangement.last + 1], strict=True
    ):
        inside = [statements[i].effect for i in range(start, end)]
        trains = Effect.NONE
        for effect in inside:
            trains |= effect
        if trains != BOTH:
            return None
        parts.append(arrange(arrangement.body, start, end - 1))
    return None if any(part.obstacles() for part in parts) else parts


def _between_checks(arrangement: Arrangement) -> list[Arrangement] | None:
    """Return the steps before, between and after the tests that decide whether the rest of the run runs."""
    parts: list[Arrangement] = []
    start = arrangement.first
    for end in (*arrangement.checks, arrangement.last + 1):
        if start < end:
            inner = _parts(arrange(arrangement.body, start, end - 1))
            if inner is None:
                return None
            parts += inner
        start = end + 1
    return [part for part in parts if not _is_idle(part)] or parts


def _is_idle(part: Arrangement) -> bool:
    """Whether the statements of a step only assign names and constants: nothing to compute."""
    computing = cst.Call | cst.BinaryOperation | cst.AugAssign | cst.With | cst.For | cst.While
    return not any(
        True
        for index in range(part.first, part.last + 1)
        for _ in nodes_of(part.body.statements[index].node, computing)  # type: ignore[arg-type]
    )


def trains_on_accelerator(context: Workspace) -> bool:
    """Whether the script means an accelerator: it moves something there, or uses torch.cuda."""
    return context.moves_to_accelerator or any(
        (context.qualified_name(node) or "").startswith("torch.cuda.")
        for node in context.all_of(cst.Attribute)
    )


@lru_cache(maxsize=2)
def steps_of(context: Workspace) -> TrainingSteps:
    """Return the steps of a script; found once, for the rules ask for every loop."""
    return TrainingSteps(context)
