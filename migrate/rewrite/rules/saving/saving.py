"""Move the saves of a script so that all replicas take part in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.catalogue.words import SAFETENSORS_SAVES
from migrate.check.hazard import Severity
from migrate.check.ignores import ignores
from migrate.model.pure import bound_with_effects, is_pure, same_everywhere
from migrate.reading.facts import facts_of
from migrate.reading.replicas.first_alone import calls_of, guards_of_first
from migrate.reading.replicas.first_replica import Rest, is_local, off_first, on_first
from migrate.reading.replicas.guards import Guard
from migrate.reading.replicas.options import same_on_all
from migrate.reading.replicas.own_values import decided_alone, made_equal
from migrate.reading.values.saved import arguments, is_of_host, is_save
from migrate.rewrite.edits.lift import lifted, marked
from migrate.rewrite.rule import Edit, Rule, RuleFinding
from migrate.rewrite.rules.saving.early_returns import WaysOut, leaves_before, ways_out
from migrate.rewrite.rules.saving.evaluations import evaluations
from migrate.rewrite.rules.saving.first_alone import with_nothing_pending
from migrate.rewrite.rules.saving.moved_files import moved_by_first, statements_after
from migrate.rewrite.rules.saving.no_device import saves_of_the_host
from migrate.rewrite.rules.saving.own_files import own_files, share_of
from migrate.rewrite.rules.saving.own_paths import key_in_path, names_replica
from migrate.rewrite.rules.saving.safetensors_calls import as_safetensors_save
from migrate.rewrite.rules.saving.save_calls import (
    TO_CPU_FIRST,
    as_shims_save,
    as_xla_save,
    by_hand,
    into_memory,
    refused,
)
from migrate.rewrite.rules.saving.unguard import alone, keep_to_first, or_none, without_guard
from migrate.rewrite.rules.saving.unknown_conditions import unseen_condition
from migrate.rewrite.workspace import Workspace
from migrate.syntax.origins import at_line, at_lines
from migrate.syntax.tree import bind, code, first_line, targets, used

# Packages that a script imports once it is rewritten.
_REWRITTEN = frozenset({"torch_xla", "shims"})
ON_ALL_RANKS = "must be called on all ranks"
MAY_DIFFER = "may differ between the replicas"
DECIDES_ALONE = "each decides by its own"
MAKES_SAME = "makes it so"
STAYS_ON_FIRST = "stays on the first replica"
# `if dp_rank == 0:` with a file for each tensor-parallel rank: neither one writer nor all of them.
WRITERS_OF_GROUPS = (
    "one replica of each group writes a file of its own; move the values to the CPU on all replicas, before "
    "the test, and save those"
)


@dataclass
class Guarded:
    """A test of the rank, and the statements below it that save."""

    guard: cst.If
    rest: Rest
    statements: list[cst.BaseStatement] = field(default_factory=list)


@dataclass(frozen=True)
class SaveMove:
    """Move of saves out of a test of the rank.

    Args:
        out: the statements to move, in order.
        alone: the expressions in them that only the writing replica computes.
        obstacle: why the saves cannot move. Empty if they can.
    """

    out: tuple[cst.BaseStatement, ...] = ()
    alone: tuple[cst.BaseExpression, ...] = ()
    obstacle: str = ""


class Saving:
    """The saves of one script.

    Args:
        rule: the rule that makes the edits.
        context: the script.
    """

    def __init__(self, rule: Rule, context: Workspace) -> None:
        self._rule = rule
        self._context = context
        self._guarded: dict[int, Guarded] = {}
        self._functions: dict[int, tuple[cst.FunctionDef, bool]] = {}
        self._ways: dict[int, SaveMove] = {}
        self._calls_out: list[tuple[cst.Call, cst.If]] = []  # that save in another file
        # Calls of functions that save, by their ids, which stay below a test of the rank, and why.
        self._left: dict[int, tuple[cst.CSTNode, str]] = {}
        self._of_moving: cst.FunctionDef | None = None  # the function whose calls are to move

    def all(self, calls: Sequence[cst.Call]) -> Iterator[Edit | RuleFinding]:
        """Yield the edits and findings for `calls` of torch.save, and for calls that save in other files."""
        calls = [call for call in calls if not saves_of_the_host(call, self._context)]
        if not self._is_for_accelerators():
            for call in calls:
                if is_of_host(call, self._context):
                    continue
                share = share_of(call, self._context)
                if (stays := into_memory(call, self._context)) is not None:
                    yield from self._rule.report(call, stays, self._severity(call))
                elif share is not None:
                    yield from own_files(self._rule, call, share, self._context)
                elif self._context.qualified_name(call.func) not in SAFETENSORS_SAVES:
                    own = names_replica(call, self._context)
                    saved = by_hand(self._context, own_file=own)
                    yield from self._rule.report(
                        call,
                        f"if it is on the device: {saved} on all ranks{self._first_does(call)}",
                    )
            return
        moved: list[cst.Call] = []
        unmoved: list[tuple[cst.Call, str]] = []
        for call in calls:
            if is_of_host(call, self._context) or self._context.launch.before(call):
                continue
            share = share_of(call, self._context)
            tested = self._context.guards.around(call) is not None
            if share is not None and (
                share.by_error or (share.by_loop and (tested or not self._context.portable))
            ):
                yield from own_files(self._rule, call, share, self._context)
                continue
            if (stays := into_memory(call, self._context)) is not None:
                yield from self._rule.report(call, stays, self._severity(call))
                continue
            if (
                where := self._context.calls.saves_in_threads.get(self._context.place(call))
            ) is not None:
                if where:
                    yield from self._rule.report(call, self._in_thread(where))
                continue
            reason = refused(call, self._context) or self._place(call)
            if reason is None:
                moved.append(call)
                self._keep_rest(call)
            elif reason:
                unmoved.append((call, reason))
        led = list(self._elsewhere())  # calls that save in other files, and why they stay
        for node, line in evaluations(self._context):
            if self._refusal(node, line) is None:
                self._note(node, line)
        self._ways = {key: self._way(guarded, moved) for key, guarded in self._guarded.items()}
        stuck = self._stuck()
        unmoved += [
            (call, f"{stuck[id(guard)]}: {self._by_hand}")
            for call in moved
            if (guard := self._context.guards.around(call)) is not None and id(guard) in stuck
        ]
        staying = self._staying(moved, [call for call, _ in unmoved])
        stuck = self._stuck()
        for mention, reason in self._left.values():
            yield from self._rule.report(mention, reason)
        for call, reason in unmoved:
            if call not in staying:
                yield from self._rule.report(call, self._words(call, reason))
        for call in staying:
            yield self._save_alone(call)
        for guard in dict.fromkeys(guard for guards in staying.values() for guard in guards):
            yield with_nothing_pending(self._rule, guard, self._context)
        out_of_reach = {*staying, *(call for call, _ in unmoved)}
        moved = [call for call in moved if call not in out_of_reach]
        for call in moved:
            yield self._save(call, self._context.guards.around(call))
            if (condition := unseen_condition(call, self._context)) is not None:
                yield from self._rule.report(
                    call,
                    f"see that {condition} lets all replicas save: {by_hand(self._context)} must be "
                    "called on all ranks, and waits for those that do not",
                    Severity.INFO,
                )
            yield from self._by_keys(call, calls)
        led += [
            (call, f"{stuck[id(guard)]}: {self._on_all(call)}")
            for call, guard in self._calls_out
            if id(guard) in stuck
        ]
        yield from self._once(led)
        for key, guarded in self._guarded.items():
            if key not in stuck:
                way = self._ways[key]
                yield from without_guard(
                    self._rule, self._context, guarded.guard, guarded.rest, way.out
                )
                yield from alone(self._rule, self._context, guarded.guard, guarded.rest, way.alone)
        for key, (function, local) in self._functions.items():
            if key not in stuck:
                yield from self._kept(function, local, moved)
        yield from moved_by_first(
            self._rule, [c for c in moved if self._all_make(c)], self._context
        )

    def _staying(
        self, moved: Sequence[cst.Call], unmoved: Sequence[cst.Call]
    ) -> dict[cst.Call, tuple[cst.If, ...]]:
        """Return the saves that the first replica makes alone, each with the outermost tests around it.

        They are those that cannot move, where nothing else is against `xm.save`, and all others below the
        same tests. Where these keep something else that all replicas have to run (an evaluation), none stays.
        """
        if not facts_of(self._context).names.roots.isdisjoint(_REWRITTEN):
            return {}  # tests of the rewrite itself may stand around what could not go out of the user's
        run_by_all = {id(guard) for guard, _ in evaluations(self._context)}
        saves = {
            call: guards
            for call in (*moved, *unmoved)
            if refused(call, self._context, alone=True) is None
            and (guards := guards_of_first(call, self._context))
            and not any(id(guard) in run_by_all for guard in guards)
        }
        paths = {call: self._calls_to(call) for call in saves}
        by_others = (
            self._context.calls.saved_by_first
        )  # functions that other files call on the first one
        for call, calls in paths.items():
            functions = map(self._context.function_around, (call, *calls))
            lines = {self._context.position(f.name).line for f in functions if f is not None}
            if not lines.isdisjoint(by_others):
                del saves[call]
        known = {id(call) for call in (*saves, *(c for calls in paths.values() for c in calls))}
        left = {id(node) for node, _ in self._left.values()}
        asking = {call for call in unmoved if call in saves}
        asking |= {call for call in saves if any(_is_left(c, left) for c in paths[call])}
        # All saves below a test stay, or none does.
        tests = {id(guard) for call in asking for guard in saves[call]}
        staying = {c: guards for c, guards in saves.items() if tests & set(map(id, guards))}
        tests = {id(guard) for guards in staying.values() for guard in guards}
        for guarded in self._guarded.values():
            outermost = {id(g) for g in guards_of_first(guarded.statements[0], self._context)}
            if outermost & tests and not all(
                any(id(call) in known for call in self._context.below(statement, cst.Call))
                for statement in guarded.statements
            ):
                return {}
        for call in staying:
            for reached in (call, *paths[call]):
                self._guarded.pop(id(self._context.guards.around(reached)), None)
                self._functions.pop(id(self._context.function_around(reached)), None)
                for node in (reached, reached.func):
                    self._left.pop(id(node), None)
                    self._left.pop(id(getattr(node, "attr", None)), None)
        return staying

    def _calls_to(self, node: cst.CSTNode) -> list[cst.Call]:
        """Return the calls by which tests of the first replica lead to `node` in a function."""
        around = self._context.guards.around(node)
        while isinstance(around, cst.If):
            around = self._context.guards.around(around)
        calls = calls_of(around, self._context) if isinstance(around, cst.FunctionDef) else None
        return [c for call in calls or () for c in (call, *self._calls_to(call))]

    def _in_thread(self, where: str) -> str:
        """Return what is wrong with a save in a thread that is started at `where`."""
        return (
            f"runs in a thread ({where}), while its replica traces the next step: the weights are then "
            "part of that graph, with its collectives, and replicas that run it at other points wait for "
            f"ever: move what it saves {TO_CPU_FIRST}, on all replicas and before the thread starts; "
            "torch.save stays"
        )

    def _by_keys(self, call: cst.Call, saves: Sequence[cst.Call]) -> Iterator[RuleFinding]:
        """Yield that the files of the other replicas are not written, if their names are others.

        Only where tests of the rank stand around other saves: there the author knows who writes what.
        """
        if self._context.guards.around(call) is not None or names_replica(call, self._context):
            return
        key = key_in_path(call, self._context)
        if key is None or all(self._context.guards.around(other) is None for other in saves):
            return
        yield from self._rule.report(
            call,
            f"see that `{key}` in the path is the same on all replicas, as the first one alone writes; where "
            "each has keys of its own, torch.save of what is on the CPU (`x.cpu()`) stays",
            Severity.WARNING,
        )

    def _all_make(self, call: cst.Call) -> bool:
        """Whether all replicas make the save `call` for the file of one, with what follows the save."""
        if self._context.guards.around(call) is not None or names_replica(call, self._context):
            return False
        if share_of(call, self._context) is not None:
            return False
        return id(self._context.function_around(call)) not in self._functions

    def _first_does(self, call: cst.Call) -> str:
        """Return that the first replica alone changes the file after `call`; empty where nothing does."""
        after = next(statements_after(call, self._context), None)
        if after is None:
            return ""
        line = self._context.position(after).line
        return f", and what changes the file next ({at_line(line)}) on the first replica"

    def _severity(self, call: cst.Call) -> Severity | None:
        """Return how bad a save in memory is: one replica alone would read the device."""
        return Severity.INFO if self._context.guards.around(call) is None else None

    def _words(self, call: cst.Call, reason: str) -> str:
        """Return `reason` in the words of safetensors, where `call` is one of its functions."""
        if self._context.qualified_name(call.func) not in SAFETENSORS_SAVES:
            return reason
        copies = "copies on the CPU, `{name: value.cpu() for name, value in weights.items()}`,"
        return reason.replace(by_hand(self._context), copies).replace(
            "must be called", "must be made"
        )

    def _is_for_accelerators(self) -> bool:
        """Whether the script has to do with replicas or devices: else its saves are the caller's affair."""
        context = self._context
        if context.moves_to_accelerator or context.calls.saves or context.calls.saved_by_first:
            return True
        if context.calls.run_on_accelerator:
            return True
        roots = ("torch.distributed", "torch.cuda", "torch_xla")
        names = (context.qualified_name(node) for node in context.all_of(cst.Attribute))
        if any(name is not None and name.startswith(roots) for name in names):
            return True
        tests = (node.test for node in context.all_of(cst.If))
        return any(context.guards.asks(test) for test in tests)

    def _keep_rest(self, call: cst.Call) -> None:
        """Record that other files call the function around `call` on the first replica only."""
        function = self._context.function_around(call)
        if function is not None:
            line = self._context.position(function.name).line
            local = self._context.calls.saved_by_first.get(line)
            if local is not None:
                self._functions[id(function)] = (function, local)

    def _once(self, led: Sequence[tuple[cst.Call, str]]) -> Iterator[RuleFinding]:
        """Yield one finding for all calls that lead to one save, with the lines of the others.

        A line with a comment that ignores findings has a finding of its own: it silences no other line.
        """
        context = self._context
        lines = {id(call): context.position(call).line for call, _ in led}
        silenced = ignores(context)
        groups: dict[object, list[tuple[cst.Call, str]]] = defaultdict(list)
        for call, reason in sorted(led, key=lambda call: lines[id(call[0])]):
            saved = context.effects.saves(call)
            own = lines[id(call)] in silenced or saved is None
            groups[call if own or saved is None else saved.where].append((call, reason))
        for (call, reason), *others in groups.values():
            more = sorted({lines[id(other)] for other, _ in others} - {lines[id(call)]})
            also = f"; calls of {at_lines(more)} lead to the same save" if more else ""
            yield from self._rule.report(call, f"{reason}{also}")

    def _elsewhere(self) -> Iterator[tuple[cst.Call, str]]:
        """Record the calls that save in other files and move. Yield the others, and why they do not."""
        context = self._context
        for call in context.all_of(cst.Call) if context.calls.saves else ():
            saved = context.effects.saves(call)
            if saved is None:
                continue
            if (reason := self._decided_alone(call, self._on_all(call))) is not None:
                if reason:
                    yield call, reason
                continue
            guard = context.guards.around(call)
            if guard is None:
                continue
            statement = context.statement_around(call)
            reason = "this call saves"
            if saved.moves and isinstance(guard, cst.If) and _is_call(statement, call):
                statement = self._unit(guard, statement)
                reason = self._refusal(guard, statement)
            if reason is not None:
                yield call, f"{reason}: {self._on_all(call)}"
                continue
            assert isinstance(guard, cst.If)
            self._note(guard, statement)
            self._calls_out.append((call, guard))

    def _on_all(self, call: cst.Call) -> str:
        """Return what is to be done by hand about a call that saves in another file."""
        saved = self._context.effects.saves(call)
        where = saved.where if saved is not None else ""
        first = f"; {saved.follows} {STAYS_ON_FIRST}" if saved is not None and saved.follows else ""
        return f"{code(call.func)} ({where}) {ON_ALL_RANKS}, outside of a test of the rank{first}"

    def _place(self, call: cst.Call) -> str | None:
        """Take note of where `call` has to move out of; return why it cannot, or None.

        Empty if that is reported elsewhere: at the calls of the function with `call`.
        """
        guard = self._context.guards.around(call)
        todo = f"{by_hand(self._context)} {ON_ALL_RANKS}"
        # The calls of a function for some replicas are examined one by one.
        by_calls = isinstance(guard, cst.FunctionDef) and not guard.decorators
        if (reason := self._decided_alone(call, todo, callers=not by_calls)) is not None:
            return reason
        if guard is None:
            return None
        statement = self._context.statement_around(call)
        if isinstance(guard, cst.If):
            statement = self._unit(guard, statement)
            reason = self._refusal(guard, statement)
            if reason is None:
                self._note(guard, statement)
            if reason is not None and self._context.guards.asks_for_a_group(guard.test):
                return f"{reason}: {WRITERS_OF_GROUPS}"
            return reason and f"{reason}: {self._by_hand}"
        if not isinstance(guard, cst.FunctionDef):
            line = self._context.position(guard).line
            return (
                f"for the replicas alone that a test of the rank lets pass ({at_line(line)}): "
                f"{self._by_hand}"
            )
        if self._context.parent(statement) is not guard.body:
            return f"saves below a condition or in a block, for one replica only: {self._by_hand}"
        if not self._may_split(guard):
            return (
                f"{guard.name.value} is called on one replica only{self._called_in(guard)}, and returns a "
                f"value: {self._by_hand}"
            )
        ways = self._ways_out(guard)
        if ways.obstacle:
            return f"{ways.obstacle}: {self._by_hand}"
        staying = {id(statement) for statement in ways.stays}
        if missing := bound_with_effects(
            guard.body.body, lambda s: self._saves(s) or id(s) in staying
        ):
            return f"`{missing}`, which is saved, is made with side effects: {self._by_hand}"
        if missing := self._missing(guard):
            return f"{missing}: {self._by_hand}"
        mentions = self._calls(guard)
        if guard.decorators or not mentions:
            return f"runs on one replica only: {self._by_hand}"
        moving = []
        self._of_moving = guard
        for mention in mentions:
            test = self._context.guards.around(mention)
            if not isinstance(test, cst.If):
                return f"runs on one replica only: {self._by_hand}"
            called = self._unit(test, self._context.statement_around(mention))
            above = self._context.parent(mention)
            todo = f"{guard.name.value} {ON_ALL_RANKS}, with {by_hand(self._context)} in it"
            if isinstance(above, cst.Call) and above.func is mention:
                reason = self._decided_alone(above, todo)
                if reason is not None:
                    if reason:
                        self._left.setdefault(id(above), (above, reason))
                    continue
            reason = self._refusal(test, called)
            if reason is None:
                moving.append((test, called))
            else:
                self._left.setdefault(id(mention), (mention, f"{reason}: {todo}"))
        self._of_moving = None
        if not moving:
            return ""  # reported at the calls
        local = False
        for test, called in moving:
            local = is_local(self._note(test, called).rest.asked) or local
        self._functions[id(guard)] = (guard, local)
        return None

    def _decided_alone(self, call: cst.Call, todo: str, *, callers: bool = True) -> str | None:
        """Return why not all replicas make `call`: each decides by its own value. None if all make it.

        Args:
            call: a save, or the call of a function that saves.
            todo: what all replicas have to do.
            callers: whether conditions around the calls of the function with `call` count.
        """
        if not self._context.calls.replicated:
            return None
        alone = decided_alone(call, self._context, callers=callers)
        if alone is None:
            return None
        condition, value = alone.condition, alone.value
        line = self._context.position(condition).line
        if alone.unfollowed is not None:
            called = code(alone.unfollowed.func)
            reason = (
                f"`{code(condition.test)}` ({at_line(line)}) is the same on all replicas only if `{called}` "
                f"{MAKES_SAME}. Check that it does, as {todo}"
            )
        else:
            reason = (
                f"`{code(condition.test)}` ({at_line(line)}) {MAY_DIFFER}: {DECIDES_ALONE} "
                f"`{code(value)}`. Make the condition the same on all replicas, as {todo}"
            )
        if alone.call is None:
            return reason
        self._left.setdefault(id(alone.call), (alone.call, reason))
        return ""

    def _saves(self, statement: cst.CSTNode) -> bool:
        """Whether `statement` holds a call of torch.save."""
        return any(True for _ in self._saves_in(statement))

    def _ways_out(self, function: cst.FunctionDef) -> WaysOut:
        return ways_out(function, self._saves, self._context)

    def _saves_in(self, statement: cst.CSTNode) -> Iterator[cst.Call]:
        for call in self._context.below(statement, cst.Call):
            if is_save(call, self._context):
                yield call

    def _missing(self, function: cst.FunctionDef) -> str:
        """Return what the saves of `function` need that some replicas do not have; empty for nothing.

        A path may be: the replica that writes has it.
        """
        names, _ = self._of_some(function)
        for call in self._saves_in(function.body):
            path = self._path(call)
            for name in used(call, () if path is None else (path,)):
                if code(name) in names:
                    return names[code(name)]
        return ""

    def _of_some(self, function: cst.FunctionDef) -> tuple[dict[str, str], set[int]]:
        """Return the names in `function` that only some replicas have, with the reason, and what makes them.

        These are the statements, by their ids, that need such names and compute: of `path =
        os.path.join(run_dir, "last")` also `path`.
        """
        names: dict[str, str] = {}
        for name in used(function.body):
            guard = self._context.partly_bound.missing(name)
            inside = guard is not None and any(
                above is function for above in self._context.ancestors(guard)
            )
            if guard is not None and not inside:
                names[code(name)] = self._needs(name, guard)
        moved: set[int] = set()
        body = cst.ensure_type(function.body, cst.IndentedBlock).body if names else ()
        for statement in body:
            needs = next((code(n) for n in used(statement) if code(n) in names), None)
            if needs is None or self._saves(statement):
                continue
            moved.add(id(statement))
            targeted = {
                n.value for t in targets(statement) for n in self._context.below(t, cst.Name)
            }
            names |= dict.fromkeys(targeted - set(names), names[needs])
        return names, moved

    def _called_in(self, function: cst.FunctionDef) -> str:
        """Return the lines of this file that call `function`, in words; empty if there are none."""
        lines = sorted({self._context.position(mention).line for mention in self._calls(function)})
        return f" ({at_lines(lines)})" if lines else ""

    def _calls(self, function: cst.FunctionDef) -> list[cst.Name]:
        """Return the mentions of `function` beside its definition; `torch.save` is none of a `save`."""
        context = self._context
        mentions = context.guards.mentions_of(function)
        return [
            mention
            for mention in mentions
            if context.qualified_name(context.parent(mention)) is None
        ]

    def _refusal(self, guard: cst.If, statement: cst.CSTNode) -> str | None:
        """Return why `statement` cannot go out of `guard`, or None."""
        rest = on_first(guard.test, self._context)
        above = self._context.parent(guard)
        mixed = (
            [part for part in rest.asked if self._context.guards.told(part) is False]
            if rest
            else []
        )
        if mixed:
            return f"not every call passes a test for the first replica as `{code(mixed[0])}`"
        if (
            rest is None
            or guard.orelse is not None
            or not isinstance(guard.body, cst.IndentedBlock)
        ):
            return f"under `if {code(guard.test)}:`"
        if not isinstance(above, cst.IndentedBlock | cst.Module):
            return f"under `elif {code(guard.test)}:`"
        if self._context.parent(statement) is not guard.body:
            return self._inner_block(guard, statement)
        different = [
            part
            for part in rest.others
            if not (same_on_all(part, self._context) or made_equal(part, self._context))
        ]
        if different:
            return f"`{code(different[0])}` {MAY_DIFFER}"
        if self._context.guards.around(guard) is not None:
            return "under two tests of the rank"
        if self._is_together(guard):
            return f"under `if {code(guard.test)}:`"
        return None

    def _inner_block(self, guard: cst.If, statement: cst.CSTNode) -> str:
        """Return that a block below `guard` keeps `statement`, with the line of the block."""
        blocks = [
            above
            for above in self._context.ancestors(statement)
            if isinstance(above, cst.BaseCompoundStatement)
        ]
        block = blocks[0]
        line = at_line(self._context.position(block).line)
        if isinstance(block, cst.If):
            return f"`{code(block.test)}` ({line}), below `if {code(guard.test)}:`, {MAY_DIFFER}"
        return f"in `{first_line(block)}` ({line}), below `if {code(guard.test)}:`"

    def _is_together(self, guard: cst.If) -> bool:
        """Whether `guard` is what `together` has left to the first replica of a branch that was its own.

        In the branch as it was, the save could not go out.
        """
        return any(
            isinstance(item.item, cst.Call)
            and self._context.qualified_name(item.item.func) == "shims.together"
            for above in self._context.ancestors(guard)
            if isinstance(above, cst.With)
            for item in above.items
        )

    def _unit(self, guard: cst.If, statement: cst.CSTNode) -> cst.CSTNode:
        """Return what moves out of `guard` with `statement`: itself, or an `if` around it that only saves.

        The condition of that `if` is the same on all replicas.
        """
        body = self._context.parent(statement)
        around = self._context.parent(body)
        if body is guard.body or not isinstance(around, cst.If) or around.orelse is not None:
            return statement
        alike = body is around.body and (
            same_everywhere(around.test) or made_equal(around.test, self._context, around)
        )
        if not alike or not all(self._may_go(statement) for statement in around.body.body):
            return statement
        return self._unit(guard, around)

    def _may_go(self, statement: cst.CSTNode) -> bool:
        """Whether `statement` may run on all replicas: it computes something, or saves as they all may."""
        if is_pure(statement):
            return True
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return isinstance(statement, cst.If) and all(map(self._may_go, statement.body.body))
        line = statement.body[0]
        call = line.value if isinstance(line, cst.Expr) else None
        if not isinstance(call, cst.Call):
            return False
        saved = self._context.effects.saves(call)
        if saved is not None:
            return saved.moves
        if self._of_moving is not None and self._of_moving in self._context.called(call):
            return True
        return is_save(call, self._context) and refused(call, self._context) is None

    def _note(self, guard: cst.If, statement: cst.CSTNode) -> Guarded:
        """Record that `statement` moves out of `guard`."""
        rest = on_first(guard.test, self._context)
        assert rest is not None
        assert isinstance(statement, cst.BaseStatement)
        noted = self._guarded.setdefault(id(guard), Guarded(guard, rest))
        if all(other is not statement for other in noted.statements):
            noted.statements.append(statement)
        return noted

    def _way(self, guarded: Guarded, moved: Sequence[cst.Call]) -> SaveMove:
        """Return how the statements of `guarded` go out of its test.

        If not all replicas can compute a path, only the writing replica does.
        """
        way = self._way_without(guarded, ())
        if not way.obstacle:
            return way
        alone = self._of_the_writer(guarded, moved)
        with_none = self._way_without(guarded, alone)
        if with_none.obstacle:
            return way
        for path in alone:  # those that all replicas can compute stay as they are
            fewer = tuple(other for other in with_none.alone if other is not path)
            tried = self._way_without(guarded, fewer)
            with_none = with_none if tried.obstacle else tried
        return with_none

    def _way_without(self, guarded: Guarded, alone: tuple[cst.BaseExpression, ...]) -> SaveMove:
        """Return how the statements of `guarded` go out where only the writer computes `alone`."""
        assert isinstance(guarded.guard.body, cst.IndentedBlock)
        wanted = {id(statement) for statement in guarded.statements}
        body = guarded.guard.body.body
        out = lifted(body, lambda s: id(s) in wanted, alone)
        if out is None:
            test = code(guarded.guard.test)
            return SaveMove(
                obstacle=f"what it is given is made with side effects below `if {test}:`"
            )
        leaving = leaves_before(list(body), out)
        if leaving is not None:
            line = self._context.position(leaving).line
            return SaveMove(
                obstacle=f"{at_line(line)} may leave before it, on some of the replicas only"
            )
        for root in (*out, *guarded.rest.others):
            for name in used(root, alone):
                if self._is_unset(name):
                    return SaveMove(
                        obstacle=f"needs `{code(name)}`, which is None on the other replicas"
                    )
                guard = self._context.partly_bound.missing(name, out)
                if guard is not None:
                    return SaveMove(obstacle=self._needs(name, guard))
        return SaveMove(tuple(out), alone)

    def _needs(self, name: cst.CSTNode, guard: cst.If | cst.IfExp | cst.FunctionDef) -> str:
        """Return that `name` is needed, which only the replicas have that `guard` lets pass."""
        line = self._context.position(guard).line
        some = (
            f"run `{guard.name.value}` ({at_line(line)})"
            if isinstance(guard, cst.FunctionDef)
            else f"pass `if {code(guard.test)}:` in {at_line(line)}"
        )
        return f"needs `{code(name)}`, which only the replicas have that {some}"

    def _is_unset(self, name: cst.Name | cst.Attribute) -> bool:
        """Whether `name` is a parameter for what another file makes None on all replicas but the first."""
        if not isinstance(name, cst.Name) or name.value not in self._context.calls.unset:
            return False
        return any(isinstance(binding.node, cst.Param) for binding in self._context.bindings(name))

    def _of_the_writer(
        self, guarded: Guarded, moved: Sequence[cst.Call]
    ) -> tuple[cst.BaseExpression, ...]:
        """Return the expressions in the statements of `guarded` that only the replica that writes needs."""
        expressions: list[cst.BaseExpression] = []
        for statement in guarded.statements:
            for call in self._context.below(statement, cst.Call):
                if any(call is save for save in moved):
                    path = self._path(call)
                    expressions += [path] if path is not None else []
                called = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
                for function, _ in self._functions.values():
                    if any(called is mention for mention in self._calls(function)):
                        expressions += self._passed_for_writer(call, function, moved)
        return (*expressions, *self._of_runs(guarded.guard.body, expressions))

    def _of_runs(
        self, body: cst.CSTNode, besides: Sequence[cst.BaseExpression]
    ) -> Iterator[cst.BaseExpression]:
        """Yield what is asked below `body` of a run that a tracker has begun on some replicas only.

        Of `wandb.run.dir`, all of it: where the path of a save is computed by the writer, nothing of it.
        """
        for name in used(body, besides):
            if self._context.partly_bound.of_run(name) is None:
                continue
            asked: cst.CSTNode = name
            above = self._context.parent(asked)
            while isinstance(above, cst.Attribute) or (
                isinstance(above, cst.Call) and above.func is asked
            ):
                asked, above = above, self._context.parent(above)
            if isinstance(above, cst.Arg):  # `dict(wandb.config)`
                call = self._context.parent(above)
                assert isinstance(call, cst.Call)
                if isinstance(call.func, cst.Name) and call.func.value in ("dict", "str"):
                    asked = call
            assert isinstance(asked, cst.BaseExpression)
            yield asked

    def _passed_for_writer(
        self, call: cst.Call, function: cst.FunctionDef, moved: Sequence[cst.Call]
    ) -> Iterator[cst.BaseExpression]:
        """Yield the arguments of `call` that `function` uses for its paths and on the first replica only."""
        names = [parameter.name.value for parameter in function.params.params]
        names = names[names[:1] == ["self"] :]
        of_writer = [
            *self._others(function, moved),
            *(path for save in moved if (path := self._path(save)) is not None),
        ]
        everywhere = {code(name) for name in used(function.body, of_writer)}
        for name, arg in (bind(call, names) or {}).items():
            if name not in everywhere:
                yield arg.value

    def _path(self, call: cst.Call) -> cst.BaseExpression | None:
        """Return the path of the save `call`, where one replica writes it."""
        path = (arguments(call, self._context) or {}).get("f")
        return None if path is None or names_replica(call, self._context) else path.value

    def _stuck(self) -> dict[int, str]:
        """Return why tests, and functions called below them, must keep their saves; by their ids."""
        stuck = {key: way.obstacle for key, way in self._ways.items() if way.obstacle}
        more = True
        while more:  # a function moves only where all its calls do, and with it they do
            more = False
            for key, (function, _) in self._functions.items():
                around = self._tests_around_calls(function)
                why = next((stuck[other] for other in around if other in stuck), None)
                if key not in stuck and why is not None:
                    stuck |= dict.fromkeys((key, *(around - set(stuck))), why)
                    more = True
        return stuck

    def _tests_around_calls(self, function: cst.FunctionDef) -> set[int]:
        return {id(self._context.guards.around(mention)) for mention in self._calls(function)}

    def _save_alone(self, call: cst.Call) -> Edit:
        """Return the edit of a save that stays below tests of the first replica."""
        guards = guards_of_first(call, self._context)
        rests = [
            on_first(guard.test, self._context) or off_first(guard.test, self._context)
            for guard in guards
        ]
        local = any(rest is not None and is_local(rest.asked) for rest in rests)
        if self._context.qualified_name(call.func) in SAFETENSORS_SAVES:
            name, replace = as_safetensors_save(call, local, self._context)
        else:
            name = self._context.vocabulary.write("save")
            replace = (
                as_shims_save(name, call, local, False, self._context)
                if self._context.portable
                else as_xla_save(name, ("master_only", "False"))
            )
        message = f"{code(call.func)} → {name}, which the first replica calls alone"
        return self._rule.edit(call, replace, message, consumes=[call.func])

    def _save(self, call: cst.Call, guard: Guard | None) -> Edit:
        local = False
        if isinstance(guard, cst.If):
            local = is_local(self._guarded[id(guard)].rest.asked)
        elif isinstance(guard, cst.FunctionDef):
            local = self._functions[id(guard)][1]
        if self._context.qualified_name(call.func) in SAFETENSORS_SAVES:
            name, safe = as_safetensors_save(call, local, self._context)
            message = f"{code(call.func)} → {name}, which all replicas call"
            return self._rule.edit(call, safe, message, consumes=[call.func])
        divided = share_of(call, self._context) is not None
        own_file = divided or (guard is None and names_replica(call, self._context))
        name = self._context.vocabulary.write("save")
        if self._context.portable:
            replace = as_shims_save(name, call, local, own_file, self._context)
        else:
            option = ("master_only", "False") if own_file else ("global_master", "True")
            replace = as_xla_save(name, None if local else option)
        message = f"torch.save → {name}, which all replicas call"
        return self._rule.edit(call, replace, message, consumes=[call.func])

    @property
    def _by_hand(self) -> str:
        return f"{by_hand(self._context)} must be called on all ranks, outside of it"

    def _may_split(self, function: cst.FunctionDef) -> bool:
        """Whether what follows the save in `function` may be left to the first replica."""
        results = [
            *(node.value for node in self._context.below(function.body, cst.Return)),
            *(node.value for node in self._context.below(function.body, cst.Yield)),
        ]
        has_result = any(result is not None for result in results)
        return not has_result and isinstance(function.body, cst.IndentedBlock)

    def _others(
        self, function: cst.FunctionDef, moved: Sequence[cst.Call]
    ) -> list[cst.BaseStatement]:
        """Return the statements of `function` that only the first replica is to run."""
        assert isinstance(function.body, cst.IndentedBlock)
        saves = [self._context.statement_around(call) for call in moved]
        saves += self._ways_out(function).stays
        _, of_some = self._of_some(function)
        return [
            statement
            for statement in function.body.body
            if all(statement is not save for save in saves)
            and (id(statement) in of_some or not is_pure(statement))
        ]

    def _kept(
        self, function: cst.FunctionDef, local: bool, moved: Sequence[cst.Call]
    ) -> Iterator[Edit]:
        """Yield the edits that leave what is not saved of `function` to the first replica."""
        others = self._others(function, moved)
        test = self._context.vocabulary.expression("is first here" if local else "is first")
        names, _ = self._of_some(function)
        for call in moved:
            path = self._path(call) if self._context.function_around(call) is function else None
            if path is not None and any(code(name) in names for name in used(path)):
                message = "computed by the first replica, where alone it is used"
                yield self._rule.edit(path, or_none(test), message)
        for block, statements in self._ways_out(function).guarded:
            for statement in statements:
                yield self._rule.edit(statement, marked, "runs on the first replica")
            yield self._rule.edit(block, keep_to_first(test), "the rest runs on all replicas")
        if not others:
            return
        name = function.name.value
        message = f"{name}: the rest runs on the first replica"
        wrong = f"all replicas must call {name} for its save, but only the first may do what else it does"
        for statement in others:
            yield self._rule.edit(statement, marked, message, wrong=wrong)
        yield self._rule.edit(function.body, keep_to_first(test), message, wrong=wrong)


def _is_call(statement: cst.CSTNode, call: cst.Call) -> bool:
    """Whether `statement` is `call` and nothing else."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    line = statement.body[0]
    return isinstance(line, cst.Expr) and line.value is call


def _is_left(call: cst.Call, left: Container[int]) -> bool:
    """Whether a call, or the name that it calls, is among nodes of these ids."""
    name = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return any(id(node) in left for node in (call, call.func, name))
