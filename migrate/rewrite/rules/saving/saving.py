"""Where the saves of a script go, so that all replicas take part in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.reading.replicas.first_replica import Rest, is_local, on_first, same_everywhere
from migrate.reading.tree.tree import code, nodes_of
from migrate.reading.values.saved import is_on_cpu
from migrate.rewrite.edits.lift import is_pure, lifted, marked
from migrate.rewrite.rule import Edit, Finding, Rule
from migrate.rewrite.rules.saving.save_calls import (
    as_shims_save,
    as_xla_save,
    by_hand,
    names_replica,
    refused,
)
from migrate.rewrite.rules.saving.unguard import keep_to_first, without_guard
from migrate.rewrite.workspace import Workspace


@dataclass
class Guarded:
    """A test of the rank, and the statements below it that save."""

    guard: cst.If
    rest: Rest
    statements: list[cst.BaseStatement] = field(default_factory=list)


class Saving:
    """The saves of one script.

    Args:
        rule: in whose name the edits are made.
        context: the script.
    """

    def __init__(self, rule: Rule, context: Workspace) -> None:
        self._rule = rule
        self._context = context
        self._guarded: dict[int, Guarded] = {}
        self._functions: dict[int, tuple[cst.FunctionDef, bool]] = {}

    def all(self, calls: Sequence[cst.Call]) -> Iterator[Edit | Finding]:
        """Yield what becomes of `calls`, the calls of torch.save."""
        if not self._is_for_accelerators():
            for call in calls:
                if not is_on_cpu(call, self._context):
                    yield from self._rule.report(
                        call,
                        f"if it is on the device: {by_hand(self._context)} on all ranks",
                    )
            return
        moved = []
        for call in calls:
            if is_on_cpu(call, self._context):
                continue
            reason = refused(call, self._context) or self._place(call)
            if reason is None:
                moved.append(call)
            else:
                yield from self._rule.report(call, reason)
        stuck = self._stuck()
        for call in moved:
            guard = self._context.guards.around(call)
            if guard is not None and id(guard) in stuck:
                message = (
                    f"a test of the rank computes its arguments with side effects: {self._by_hand}"
                )
                yield from self._rule.report(call, message)
            else:
                yield self._save(call, guard)
        for key, guarded in self._guarded.items():
            if key not in stuck:
                yield from without_guard(
                    self._rule, self._context, guarded.guard, guarded.rest, self._out(guarded)
                )
        for key, (function, local) in self._functions.items():
            if key not in stuck:
                yield from self._kept(function, local, moved)

    def _is_for_accelerators(self) -> bool:
        """Whether the script has to do with replicas or devices: else its saves are the caller's affair."""
        context = self._context
        if context.moves_to_accelerator:
            return True
        roots = ("torch.distributed", "torch.cuda", "torch_xla")
        names = (context.qualified_name(node) for node in context.all_of(cst.Attribute))
        if any(name is not None and name.startswith(roots) for name in names):
            return True
        tests = (node.test for node in context.all_of(cst.If))
        return any(context.guards.asks(test) for test in tests)

    def _place(self, call: cst.Call) -> str | None:
        """Take note of where `call` has to move out of; return why it cannot, or None."""
        guard = self._context.guards.around(call)
        if guard is None:
            return None
        statement = self._context.statement_around(call)
        if isinstance(guard, cst.If):
            reason = self._refusal(guard, statement)
            if reason is None:
                self._note(guard, statement)
            return reason
        if self._context.parent(statement) is not guard.body:
            return f"saves below a condition or in a block, for one replica only: {self._by_hand}"
        if not self._may_split(guard):
            return f"{guard.name.value} is called on one replica only, and returns a value: {self._by_hand}"
        mentions = self._calls(guard)
        if guard.decorators or not mentions:
            return f"runs on one replica only: {self._by_hand}"
        tests = [
            (self._context.guards.around(m), self._context.statement_around(m)) for m in mentions
        ]
        for test, called in tests:
            if not isinstance(test, cst.If):
                return f"runs on one replica only: {self._by_hand}"
            reason = self._refusal(test, called)
            if reason is not None:
                return reason
        local = False
        for test, called in tests:
            assert isinstance(test, cst.If)
            local = is_local(self._note(test, called).rest.asked) or local
        self._functions[id(guard)] = (guard, local)
        return None

    def _calls(self, function: cst.FunctionDef) -> list[cst.Name]:
        """Return the mentions of `function` beside its definition."""
        mentions = self._context.references(function.name.value)
        return [mention for mention in mentions if mention is not function.name]

    def _refusal(self, guard: cst.If, statement: cst.CSTNode) -> str | None:
        """Return why `statement` cannot go out of `guard`, or None."""
        rest = on_first(guard.test, self._context)
        above = self._context.parent(guard)
        if (
            rest is None
            or guard.orelse is not None
            or not isinstance(guard.body, cst.IndentedBlock)
        ):
            return f"under `if {code(guard.test)}:`: {self._by_hand}"
        if not isinstance(above, cst.IndentedBlock | cst.Module):
            return f"under `elif {code(guard.test)}:`: {self._by_hand}"
        if self._context.parent(statement) is not guard.body:
            return (
                f"under `if {code(guard.test)}:` and a condition that may differ between the replicas, "
                f"or in a block of its own: {self._by_hand}"
            )
        different = [part for part in rest.others if not same_everywhere(part)]
        if different:
            return f"`{code(different[0])}` may differ between the replicas: {self._by_hand}"
        if self._context.guards.around(guard) is not None:
            return f"under two tests of the rank: {self._by_hand}"
        return None

    def _note(self, guard: cst.If, statement: cst.CSTNode) -> Guarded:
        """Take note that `statement` goes out of `guard`."""
        rest = on_first(guard.test, self._context)
        assert rest is not None
        assert isinstance(statement, cst.BaseStatement)
        noted = self._guarded.setdefault(id(guard), Guarded(guard, rest))
        if all(other is not statement for other in noted.statements):
            noted.statements.append(statement)
        return noted

    def _out(self, guarded: Guarded) -> list[cst.BaseStatement] | None:
        assert isinstance(guarded.guard.body, cst.IndentedBlock)
        wanted = {id(statement) for statement in guarded.statements}
        return lifted(guarded.guard.body.body, lambda s: id(s) in wanted, self._context)

    def _stuck(self) -> set[int]:
        """Return the ids of the tests whose saves cannot go out, and of the functions called there."""
        stuck = {key for key, guarded in self._guarded.items() if self._out(guarded) is None}
        more = True
        while more:  # a function moves only where all its calls do, and with it they do
            more = False
            for key, (function, _) in self._functions.items():
                around = self._tests_around_calls(function)
                if key not in stuck and around & stuck:
                    stuck |= {key} | around
                    more = True
        return stuck

    def _tests_around_calls(self, function: cst.FunctionDef) -> set[int]:
        return {id(self._context.guards.around(mention)) for mention in self._calls(function)}

    def _save(self, call: cst.Call, guard: cst.If | cst.FunctionDef | None) -> Edit:
        local = False
        if isinstance(guard, cst.If):
            local = is_local(self._guarded[id(guard)].rest.asked)
        elif guard is not None:
            local = self._functions[id(guard)][1]
        own_file = guard is None and names_replica(call, self._context)
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
            *(node.value for node in nodes_of(function.body, cst.Return)),
            *(node.value for node in nodes_of(function.body, cst.Yield)),
        ]
        has_result = any(result is not None for result in results)
        return not has_result and isinstance(function.body, cst.IndentedBlock)

    def _kept(
        self, function: cst.FunctionDef, local: bool, moved: Sequence[cst.Call]
    ) -> Iterator[Edit]:
        """Yield the edits that leave what is not saved of `function` to the first replica."""
        assert isinstance(function.body, cst.IndentedBlock)
        saves = [self._context.statement_around(call) for call in moved]
        others = [
            statement
            for statement in function.body.body
            if all(statement is not save for save in saves)
            and not is_pure(statement, self._context)
        ]
        if not others:
            return
        test = self._context.vocabulary.expression("is first here" if local else "is first")
        message = f"{function.name.value}: the rest runs on the first replica"
        for statement in others:
            yield self._rule.edit(statement, marked, message)
        yield self._rule.edit(function.body, keep_to_first(test), message)
