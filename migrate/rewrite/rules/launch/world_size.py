"""The world size of a spawning script: counted before the spawn, on a TPU known only after the launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import libcst as cst

from migrate.catalogue.words import LOGGING_METHODS
from migrate.reading.replicas.one_device import one_device
from migrate.reading.values.process_loops import holds
from migrate.rewrite.edits.branch import removed_with_comment
from migrate.rewrite.edits.nodes import insert_first, with_args, without
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.rules.collectives.init_process_group import in_rendezvous_argument
from migrate.rewrite.rules.launch.launching import (
    Mention,
    counted,
    only_counts,
    overwritten_ranks,
    with_aliases,
)
from migrate.rewrite.rules.random.seeds import seeded_by
from migrate.rewrite.rules.ranks.index_sums import added_index
from migrate.rewrite.rules.ranks.object_fields import kept_on
from migrate.rewrite.rules.ranks.sampler_counts import own_count
from migrate.rewrite.rules.ranks.shared_counts import SharedCounts
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, elements, last_part, nodes

SHOWING = LOGGING_METHODS | {"print"}
MOST_PLACES = 3  # that a message names


class WorldSize:
    """Uses of the number of processes that one call of `mp.spawn` starts.

    Args:
        rule: the rule that makes the edits.
        context: the script.
        call: the spawning call.
        bound: its arguments by the names of the parameters.
        first: the worker's parameter that gets the first element of `args`: after the index.
    """

    def __init__(
        self,
        rule: Rule,
        context: Workspace,
        call: cst.Call,
        bound: Mapping[str, cst.Arg],
        first: int = 1,
    ) -> None:
        self._rule = rule
        self._context = context
        self._call = call
        self._fn = bound["fn"].value
        self._count = bound["nprocs"].value if "nprocs" in bound else None
        self._args = elements(bound["args"]) if "args" in bound else []
        self._first = first
        worker = self._launched()
        single = one_device(call, context)
        self._single = [] if single is None else [single[0].test, single[1]]
        self._shared = SharedCounts(
            context, call, self._count, self._args, worker, first, self._single
        )
        self._ranks = list(overwritten_ranks(context, call, self._shared.objects, worker))

    def passed(self) -> cst.BaseElement | None:
        """Return the element of `args=(…)` that passes the number of processes on to the worker."""
        if not isinstance(self._count, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
            return None
        return next((e for e in self._args if e.value.deep_equals(self._count)), None)

    def may_be_dropped(self, passed: cst.BaseElement) -> bool:
        """Whether the worker's signature may change: this launch refers to it, and plain calls."""
        worker = self._worker()
        position = self._position(passed)
        if worker is None or position >= len(worker.params.params):
            return False
        if worker.params.params[position].default is not None:
            return False
        return all(
            position < len(call.args) and call.args[position].value.deep_equals(passed.value)
            for call in self._direct_calls(worker)
        )

    def _launched(self) -> cst.FunctionDef | None:
        if not isinstance(self._fn, cst.Name):
            return None
        return self._context.functions.get(self._fn.value)

    def _worker(self) -> cst.FunctionDef | None:
        """Return the worker if every mention of it is this launch or a call with plain arguments."""
        worker = self._launched()
        if worker is None or isinstance(worker.params.star_arg, cst.Param):
            return None
        for name in self._context.references(worker.name.value):
            if name is not self._fn and name is not worker.name:
                call = self._context.parent(name)
                if not isinstance(call, cst.Call) or call.func is not name:
                    return None
                if any(arg.star or arg.keyword for arg in call.args):
                    return None
        return worker

    def _direct_calls(self, worker: cst.FunctionDef) -> Iterator[cst.Call]:
        for name in self._context.references(worker.name.value):
            call = self._context.parent(name)
            is_call = isinstance(call, cst.Call) and call.func is name
            if is_call and id(call) not in self._context.launch.for_one_device:
                yield cst.ensure_type(call, cst.Call)

    def _position(self, passed: cst.BaseElement) -> int:
        return self._args.index(passed) + self._first

    def edits(
        self, passed: cst.BaseElement | None, besides: Sequence[cst.CSTNode] = ()
    ) -> Iterator[Edit]:
        """Yield the edits by which the worker asks for the number of replicas.

        Args:
            passed: the element of `args=(…)` to remove, with the worker's parameter for it. None: no element.
            besides: code that does not survive.
        """
        worker = self._launched()
        asked = [f"{target} = {self._ask(target)}" for target in self._shared.in_worker()]
        for derived in self._shared.derived:
            asked += derived.in_worker(worker, self._ask("world_size"))
        seeds = [] if worker is None else self._seeds()
        gone: list[cst.CSTNode] = []
        position: int | None = None
        if passed is not None and worker is not None:
            position = self._position(passed)
            parameter = worker.params.params[position]
            name = parameter.name.value
            gone.append(parameter)
            if any(not self._goes_anyway(use) for use in self._uses(parameter, worker)):
                asked.insert(0, f"{name} = {self._ask(name)}")
            yield from self._without_argument(worker, position)
        if worker is not None and (asked or seeds or position is not None):
            yield self._worker_edit(worker, asked, seeds, position, gone)
        names = {"world_size", *_last_names(self._count)}
        elements: dict[cst.CSTNode | None, list[cst.DictElement]] = {}
        for count in self._shared.gone():
            if isinstance(count.node, cst.DictElement):
                elements.setdefault(self._context.parent(count.node), []).append(count.node)
                continue
            message = f"remove `{code(count.node)}`: not known before the launch"
            yield removed_with_comment(self._rule, count.node, names, message, self._context)
        for around, taken in elements.items():
            yield self._without_elements(cst.ensure_type(around, cst.Dict), taken)
        for derived in self._shared.derived:
            message = f"`{_head(derived.statement)}` moved to the worker, which knows the number"
            yield self._rule.edit(
                derived.statement,
                lambda _: cst.RemoveFromParent(),
                message,
                consumes=[derived.statement],
            )
        ask = self._context.vocabulary.say("world size")
        for listed in self._listed_in_worker():
            length = self._length(listed)
            if length is not None and not self._goes_anyway(length):
                asked_there = cst.parse_expression(self._ask("world_size"))
                message = f"`{code(length)}` → {ask}"
                yield self._rule.edit(
                    length, lambda _, there=asked_there: there, message, consumes=[length]
                )
        for assign in self._ranks:
            message = f"remove `{code(assign)}`: the worker's index is the rank"
            yield removed_with_comment(self._rule, assign, names, message, self._context)
        for statement in self._counting(besides):
            message = f"remove `{_head(statement)}`: the launcher counts the devices"
            yield removed_with_comment(self._rule, statement, names, message, self._context)

    def _ask(self, target: str) -> str:
        """Return the call that asks for the number that `target` holds: of this host, or of all."""
        here = "per_node" in target or self._shared.of_one_host(target)
        return self._context.vocabulary.write("local world size" if here else "world size")

    def _seeds(self) -> list[str]:
        """Return the statements with which the worker seeds XLA, as the launching process seeds itself."""
        if self._context.portable:
            return []  # as on CUDA, where the replicas do not inherit the seed either
        worker_seeds = list(seeded_by(self._call, self._context))
        if not worker_seeds:
            return []
        seeds = self._context.vocabulary.write("seed")
        rank = self._context.vocabulary.write("rank")
        return [seed.statement(seeds, rank) for seed in worker_seeds]

    def _worker_edit(
        self,
        worker: cst.FunctionDef,
        asked: list[str],
        seeds: list[str],
        position: int | None,
        gone: list[cst.CSTNode],
    ) -> Edit:
        def replace(updated: cst.FunctionDef) -> cst.FunctionDef:
            if position is not None:
                params = list(updated.params.params)
                last_comma = params[-1].comma
                del params[position]
                if position == len(params) and params:
                    params[-1] = params[-1].with_changes(comma=last_comma)
                updated = updated.with_changes(params=updated.params.with_changes(params=params))
            for line in reversed([*asked, *seeds]):
                updated = insert_first(updated, cst.parse_statement(line))
            return updated

        names = (
            ", ".join(f"`{line.split(' = ')[0]}`" for line in asked if " = " in line.split("\n")[0])
            or "the number of processes"
        )
        said = [f"{names} is asked of the runtime, not passed"] if asked or gone else []
        said += ["it seeds XLA by the launching process's seed and its rank"] if seeds else []
        message = f"{worker.name.value}: {'; '.join(said)}"
        return self._rule.edit(worker, replace, message, consumes=gone)

    def _without_argument(self, worker: cst.FunctionDef, position: int) -> Iterator[Edit]:
        """Drop the argument from the calls that run the worker in this process."""
        for call in self._direct_calls(worker):

            def replace(updated: cst.Call) -> cst.Call:
                return with_args(
                    updated, [arg for i, arg in enumerate(updated.args) if i != position]
                )

            message = f"`{code(call.args[position])}` is asked of the runtime, not passed"
            yield self._rule.edit(call, replace, message, consumes=[call.args[position]])

    def _without_elements(self, around: cst.Dict, taken: Sequence[cst.DictElement]) -> Edit:
        """Take the elements `taken` out of the dictionary `around`."""
        indices = [
            i for i, element in enumerate(around.elements) if any(element is t for t in taken)
        ]

        def replace(updated: cst.CSTNode) -> cst.CSTNode:
            for index in reversed(indices):  # by their places: other edits may have changed them
                updated = without(cst.ensure_type(updated, cst.Dict), index)
            return updated

        message = f"remove `{', '.join(map(code, taken))}`: not known before the launch"
        return self._rule.edit(around, replace, message, consumes=list(taken))

    def _goes_anyway(self, use: cst.CSTNode) -> bool:
        """Whether the mention is in code that the rewrite drops: the rendezvous, a sum for the rank."""
        if in_rendezvous_argument(use, self._context) or self._shared.goes(use):
            return True
        if any(holds(assign, use) for assign in self._ranks) or self._counts_for_sampler(use):
            return True
        return any(
            isinstance(above, cst.BinaryOperation)
            and (added_index(above, self._context) or (None, False))[1]
            for above in self._context.ancestors(use)
        )

    def _counts_for_sampler(self, use: cst.CSTNode) -> bool:
        """Whether `use` passes a sampler a number that the sampler will ask the runtime for."""
        arg = self._context.parent(use)
        call = self._context.parent(arg)
        return isinstance(call, cst.Call) and own_count(call, self._context) is arg is not None

    def _uses(self, parameter: cst.Param, worker: cst.FunctionDef) -> list[cst.Name]:
        """Return the mentions of the worker's parameter in its body, nested functions included."""
        return [
            name
            for name in self._context.references(parameter.name.value)
            if self._context.parent(name) is not parameter
            and self._context.bound_to(name)[0] is worker
        ]

    def _counting(self, besides: Sequence[cst.CSTNode]) -> list[cst.CSTNode]:
        """Return the statements that count the devices, where nothing but the launch needs the count."""
        besides = [*besides, *self._single]
        mentions = (m for m in self._other_mentions() if not self._goes_anyway(m))
        others = [m for m in mentions if not any(holds(root, m) for root in besides)]
        return with_aliases(only_counts(others, self._context) or [], self._context)

    def _listed(self) -> tuple[cst.BaseExpression, cst.Name] | None:
        """Return the list with an item for each process, where `nprocs` is its length, and its variable."""
        count: cst.CSTNode | None = self._count
        if isinstance(count, cst.Name):
            count = self._context.bound_to(count)[1]
        if not isinstance(count, cst.Call) or code(count.func) != "len" or len(count.args) != 1:
            return None
        listed = count.args[0].value
        name = _variable(listed)
        return None if name is None else (listed, name)

    def _listed_in_worker(self) -> list[cst.BaseExpression]:
        """Return where the worker mentions the list of which `nprocs` is the length."""
        length_of, worker = self._listed(), self._launched()
        if length_of is None or worker is None:
            return []
        listed, variable = length_of
        owner = self._context.bound_to(variable)[0]
        spelled = code(listed)
        if variable.value in self._shared.objects:
            owner = worker
            parameter = self._shared.objects[variable.value]
            spelled = parameter + spelled[len(variable.value) :]
            stored = (self._context.parent(name) for name in self._context.references(parameter))
            if any(
                isinstance(above, cst.AssignTarget)
                and self._context.function_around(above) is worker
                for above in stored
            ):
                return []  # another list from there on
        return [
            node
            for node in nodes(worker.body)
            if isinstance(node, cst.Name | cst.Attribute | cst.Subscript)
            and code(node) == spelled
            and (name := _variable(node)) is not None
            and self._context.bound_to(name)[0] is owner
        ]

    def _length(self, listed: cst.BaseExpression) -> cst.Call | None:
        """Return the length of that list, of which `listed` is the argument: the number of processes."""
        call = self._context.parent(self._context.parent(listed))
        return call if isinstance(call, cst.Call) and code(call.func) == "len" else None

    def _other_mentions(self) -> list[Mention]:
        """Return the mentions, outside of the spawn, of the variable or place that holds the count."""
        worker = self._launched()
        calls = [self._call, *(self._direct_calls(worker) if worker is not None else ())]
        inside = {id(node) for call in calls for node in nodes(call)}
        if isinstance(self._count, cst.Attribute | cst.Subscript):
            return [
                node
                for node in self._context.all_of(type(self._count))
                if id(node) not in inside and node.deep_equals(self._count)
            ]
        if not isinstance(self._count, cst.Name):
            return []
        owner, _ = self._context.bound_to(self._count)
        return [
            name
            for name in self._context.references(self._count.value)
            if id(name) not in inside and self._context.bound_to(name)[0] is owner
        ]

    def _read_elsewhere(self) -> tuple[str, ...]:
        """Return where imported files read the number, unless the worker sets it anew."""
        if not isinstance(self._count, cst.Attribute):
            return ()
        if self._count.attr.value in self._shared.words_in_worker():
            return ()
        return self._context.calls.counts_read.get(code(self._count), ())

    def other_uses(self, besides: Iterable[cst.CSTNode] = ()) -> Iterator[tuple[cst.CSTNode, str]]:
        """Yield where the script still uses its own number of processes, and what to do there.

        A sampler with num_replicas=2 of 8 gives the same data to several replicas, without an error.

        Args:
            besides: code that does not survive.
        """
        besides = [*besides, *self._single]
        gone = {id(node) for root in besides for node in nodes(root)}
        gone |= {id(node) for statement in self._counting(besides) for node in counted(statement)}
        ask = self._context.vocabulary.say("world size")
        if isinstance(self._count, cst.Integer):
            for element in self._args:
                if element.value.deep_equals(self._count):
                    yield (
                        element.value,
                        f"`{code(element.value)}` equals nprocs: if the worker takes it for the world "
                        f"size, let it call {ask} instead",
                    )
        for listed in self._listed_in_worker():
            call = self._context.parent(self._context.parent(listed))
            shows = isinstance(call, cst.Call) and last_part(call.func) in SHOWING
            if self._length(listed) is None and not shows and not self._goes_anyway(listed):
                yield (
                    listed,
                    f"`{code(listed)}` has an item for each process that the script asks for; there are as "
                    f"many replicas as the TPU has devices, and an index beyond its end raises: {ask}",
                )
        if places := self._read_elsewhere():
            shown = ", ".join(places[:MOST_PLACES]) + (", …" if len(places) > MOST_PLACES else "")
            spelled = code(self._count) if self._count is not None else ""
            yield (
                self._call,
                f"`{spelled}` is the script's own number of processes, and read in {shown} too: there are "
                f"as many replicas as the TPU has devices, set it to {ask} in the worker",
            )
        for mention in self._other_mentions():
            binds = isinstance(self._context.parent(mention), cst.AssignTarget | cst.Param)
            if not binds and id(mention) not in gone and not self._goes_anyway(mention):
                yield (
                    mention,
                    f"`{code(mention)}` is the script's own number of processes; there are as many "
                    f"replicas as the TPU has devices: {ask}, in the worker",
                )


def _head(statement: cst.CSTNode) -> str:
    if isinstance(statement, cst.If):
        return f"if {code(statement.test)}"
    return code(statement)


def _variable(node: cst.CSTNode) -> cst.Name | None:
    """Return the variable that `node` is, or of which it is a field."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node if isinstance(node, cst.Name) else None


def _last_names(count: cst.BaseExpression | None) -> list[str]:
    """Return the name of a variable, or the last name of an object's field."""
    if isinstance(count, cst.Name):
        return [count.value]
    place = kept_on(count)
    return [] if place is None else [place.word]
