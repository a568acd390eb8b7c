"""The world size of a spawning script: counted before the spawn, on a TPU known only after the launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.rule import Edit, Rule
from migrate.rewrite.rules.init_process_group import in_rendezvous_argument
from migrate.rewrite.tree import code, elements, insert_first, nodes

ASK = "torch_xla.runtime.world_size()"


class WorldSize:
    """What a script does with the number of processes that one call of `mp.spawn` starts.

    Args:
        rule: in whose name the edits are made.
        context: the script.
        call: the spawning call.
        bound: its arguments by the names of the parameters.
    """

    def __init__(
        self, rule: Rule, context: Context, call: cst.Call, bound: Mapping[str, cst.Arg]
    ) -> None:
        self._rule = rule
        self._context = context
        self._call = call
        self._fn = bound["fn"].value
        self._count = bound["nprocs"].value if "nprocs" in bound else None
        self._args = elements(bound["args"]) if "args" in bound else []

    def passed(self) -> cst.BaseElement | None:
        """Return the element of `args=(…)` that passes the number of processes on to the worker."""
        if not isinstance(self._count, cst.Name | cst.Attribute | cst.Call):
            return None
        return next((e for e in self._args if e.value.deep_equals(self._count)), None)

    def may_be_dropped(self, passed: cst.BaseElement) -> bool:
        """Whether the worker's signature may change: only this launch refers to it."""
        worker = self._worker()
        return worker is not None and self._position(passed) < len(worker.params.params)

    def _worker(self) -> cst.FunctionDef | None:
        if not isinstance(self._fn, cst.Name):
            return None
        worker = self._context.functions.get(self._fn.value)
        mentions = [
            name for name in self._context.references(self._fn.value) if name is not self._fn
        ]
        if worker is None or mentions != [worker.name]:
            return None
        plain = all(parameter.default is None for parameter in worker.params.params)
        return worker if plain and not isinstance(worker.params.star_arg, cst.Param) else None

    def _position(self, passed: cst.BaseElement) -> int:
        return self._args.index(passed) + 1  # after the replica's index

    def asked_by_the_worker(self, passed: cst.BaseElement) -> Iterator[Edit]:
        """Yield the edits that take it out of the worker's signature and let the worker ask for it."""
        worker = self._worker()
        assert worker is not None
        position = self._position(passed)
        parameter = worker.params.params[position]
        name = parameter.name.value
        statement: cst.BaseStatement | None = None
        if any(
            not in_rendezvous_argument(use, self._context) for use in self._uses(parameter, worker)
        ):
            runtime = self._context.imports.require("torch_xla.runtime", "xr")
            statement = cst.parse_statement(f"{name} = {runtime}.world_size()")

        def replace(updated: cst.FunctionDef) -> cst.FunctionDef:
            params = list(updated.params.params)
            last_comma = params[-1].comma
            del params[position]
            if position == len(params):
                params[-1] = params[-1].with_changes(comma=last_comma)
            updated = updated.with_changes(params=updated.params.with_changes(params=params))
            return insert_first(updated, statement) if statement is not None else updated

        message = f"{worker.name.value}: `{name}` is asked of the runtime, not passed"
        yield self._rule.edit(worker, replace, message, consumes=[parameter])
        yield from self._count_removed()

    def _uses(self, parameter: cst.Param, worker: cst.FunctionDef) -> list[cst.Name]:
        """Return the mentions of the worker's parameter in its body, nested functions included."""
        return [
            name
            for name in self._context.references(parameter.name.value)
            if self._context.parent(name) is not parameter
            and self._context.bound_to(name)[0] is worker
        ]

    def _count_removed(self) -> Iterator[Edit]:
        """Remove `world_size = torch.cuda.device_count()` where nothing but the spawn uses it."""
        others = self._other_mentions()
        if len(others) != 1:
            return
        assign = self._context.parent(self._context.parent(others[0]))
        if (
            isinstance(assign, cst.Assign)
            and len(assign.targets) == 1
            and isinstance(assign.value, cst.Call)
            and self._context.qualified_name(assign.value.func) == "torch.cuda.device_count"
        ):
            message = f"`{code(assign)}` goes: the launcher counts the devices"
            yield self._rule.edit(
                assign, lambda _: cst.RemoveFromParent(), message, consumes=[assign]
            )

    def _other_mentions(self) -> list[cst.Name | cst.Attribute]:
        """Return the mentions, outside of the spawn, of the variable or attribute that holds the count."""
        inside = {id(node) for node in nodes(self._call)}
        if isinstance(self._count, cst.Attribute):
            return [
                node
                for node in self._context.nodes
                if isinstance(node, cst.Attribute)
                and id(node) not in inside
                and node.deep_equals(self._count)
            ]
        if not isinstance(self._count, cst.Name):
            return []
        owner, _ = self._context.bound_to(self._count)
        return [
            name
            for name in self._context.references(self._count.value)
            if id(name) not in inside and self._context.bound_to(name)[0] is owner
        ]

    def other_uses(self) -> Iterator[tuple[cst.CSTNode, str]]:
        """Yield where the script goes on using its own number of processes, and what to do there.

        A sampler that is told 2 of 8 replicas gives the same data to several of them, without an error.
        """
        if isinstance(self._count, cst.Integer):
            for element in self._args:
                if element.value.deep_equals(self._count):
                    yield (
                        element.value,
                        f"`{code(element.value)}` equals nprocs: if the worker takes it for the world "
                        f"size, let it call {ASK} instead",
                    )
        for mention in self._other_mentions():
            binds = isinstance(self._context.parent(mention), cst.AssignTarget | cst.Param)
            if not binds and not in_rendezvous_argument(mention, self._context):
                yield (
                    mention,
                    f"`{code(mention)}` is the script's own number of processes; there are as many "
                    f"replicas as the TPU has devices: {ASK}, in the worker",
                )
