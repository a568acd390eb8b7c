"""`torch.multiprocessing.spawn` becomes `torch_xla.launch`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.rules.init_process_group import in_rendezvous_argument
from migrate.rewrite.tree import bind, code, insert_first, nodes_of, with_args

SPAWN = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.spawn.spawn"})
PARAMETERS = ("fn", "args", "nprocs", "join", "daemon", "start_method")


class MpSpawn(Rule):
    """Launch the workers with `torch_xla.launch` instead of `torch.multiprocessing.spawn`.

    **What it does.** `mp.spawn(fn, args=A, nprocs=N)` becomes `torch_xla.launch(fn, args=A)`. The number
    of processes is not given: there is one per TPU device, and `nprocs=` is a TypeError there.

    **World size.** A CUDA script counts its devices before it spawns and passes the count on. On a TPU
    nothing may touch the runtime before the launch, so the worker asks for it:
    `world_size = torch_xla.runtime.world_size()` becomes its first statement, and the parameter, the
    argument and the count go. Where the worker does not use it, no statement is added.

    **Reported.** A spawn that does not wait (`join=False`), a call with `*args` or `**kwargs`; a world
    size that is passed to a worker whose definition is not in the script; other uses of the script's
    own number of processes, such as `DistributedSampler(num_replicas=WORLD_SIZE)`.

    Source: torch_xla 2.9, `torch_xla.launch`; the worker's index is the global ordinal.
    """

    name = "mp-spawn"
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, world_size, epochs):
                print(rank, world_size, epochs)


            if __name__ == '__main__':
                world_size = torch.cuda.device_count()
                # One process per device
                mp.spawn(worker, args=(world_size, 10), nprocs=world_size, join=True)
            """,
            """
            import torch_xla
            import torch_xla.runtime as xr


            def worker(rank, epochs):
                world_size = xr.world_size()
                print(rank, world_size, epochs)


            if __name__ == '__main__':
                # One process per device
                torch_xla.launch(worker, args=(10,))
            """,
        ),
        left_alone(
            """
            from pool import mp

            mp.spawn(print, nprocs=2)
            """
        ),
        reported(
            """
            import torch.multiprocessing as mp


            def worker(rank):
                pass


            if __name__ == '__main__':
                context = mp.spawn(worker, nprocs=2, join=False)
            """,
            "join=False",
        ),
        reported(
            """
            import torch.multiprocessing as mp
            from torch.utils.data import DistributedSampler

            WORLD_SIZE = 2


            def worker(rank, dataset):
                return DistributedSampler(dataset, num_replicas=WORLD_SIZE, rank=rank)


            def main(dataset):
                mp.spawn(worker, args=(dataset,), nprocs=WORLD_SIZE)
            """,
            "as many replicas as the TPU has devices",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Edit | Finding]:
        """Yield the edits of one spawning call, its worker and its count of devices."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in SPAWN:
            return
        bound = bind(node, PARAMETERS)
        if bound is None or "fn" not in bound:
            yield from self.report(
                node, "mp.spawn with * or ** arguments: write torch_xla.launch by hand"
            )
            return
        if "join" in bound and code(bound["join"].value) != "True":
            message = "torch_xla.launch always waits for its replicas: join=False has no equivalent"
            yield from self.report(node, message)
            return
        count = bound["nprocs"].value if "nprocs" in bound else None
        position = self._position_of_count(bound.get("args"), count)
        dropped: cst.BaseElement | None = None
        if position is not None and count is not None:
            worker = self._worker(context, bound["fn"].value)
            if worker is not None and position + 1 < len(worker.params.params):
                dropped = _elements(bound["args"])[position]
                yield from self._world_size(node, context, worker, position + 1, count)
            else:
                yield Finding(
                    self.name,
                    node,
                    f"the worker receives `{code(count)}`, which is not known before the launch: "
                    "let it call torch_xla.runtime.world_size() instead",
                )
        yield from self._fixed_counts(node, context, bound, count)
        yield self._launch(node, context, bound, dropped)

    def _launch(
        self,
        node: cst.Call,
        context: Context,
        bound: dict[str, cst.Arg],
        dropped: cst.BaseElement | None,
    ) -> Edit:
        launch = f"{context.imports.require('torch_xla')}.launch"
        gone = {id(bound[name]) for name in ("nprocs", "join", "daemon") if name in bound}
        index_of = {id(arg): index for index, arg in enumerate(node.args)}
        keep = [index_of[id(arg)] for arg in node.args if id(arg) not in gone]
        args_index = index_of[id(bound["args"])] if "args" in bound else None
        drop_at = None if dropped is None else _elements(bound["args"]).index(dropped)

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in keep]
            if drop_at is not None and args_index is not None:
                at = keep.index(args_index)
                args[at] = args[at].with_changes(value=_without(args[at].value, drop_at))
            return with_args(updated, args).with_changes(func=cst.parse_expression(launch))

        consumed: list[cst.CSTNode] = [node.func, *(a for a in node.args if id(a) in gone)]
        if dropped is not None:
            consumed.append(dropped)
        return self.edit(node, replace, f"{code(node.func)} → torch_xla.launch", consumes=consumed)

    def _fixed_counts(
        self,
        node: cst.Call,
        context: Context,
        bound: dict[str, cst.Arg],
        count: cst.BaseExpression | None,
    ) -> Iterable[Finding]:
        """Report where the script goes on using its own number of processes.

        A sampler that is told 2 of 8 replicas gives the same data to several of them, without an error.
        """
        if isinstance(count, cst.Integer):
            same = (
                element.value
                for element in (_elements(bound["args"]) if "args" in bound else [])
                if isinstance(element, cst.Element) and element.value.deep_equals(count)
            )
            for value in same:
                message = (
                    f"`{code(value)}` equals nprocs: if the worker takes it for the world size, let it "
                    "call torch_xla.runtime.world_size() instead"
                )
                yield Finding(self.name, value, message)
            return
        if not isinstance(count, cst.Name):
            return
        owner, _ = context.bound_to(count)
        inside = {id(name) for name in nodes_of(node, cst.Name)}
        for mention in context.references(count.value):
            if id(mention) in inside or context.bound_to(mention)[0] is not owner:
                continue
            bound_here = isinstance(context.parent(mention), cst.AssignTarget | cst.Param)
            if not bound_here and not in_rendezvous_argument(mention, context):
                message = (
                    f"`{count.value}` is the script's own number of processes; there are as many "
                    "replicas as the TPU has devices: torch_xla.runtime.world_size(), in the worker"
                )
                yield Finding(self.name, mention, message)

    def _position_of_count(
        self, args: cst.Arg | None, count: cst.BaseExpression | None
    ) -> int | None:
        """Return where in `args=(…)` the number of processes is passed on to the worker."""
        if args is None or not isinstance(count, cst.Name | cst.Attribute | cst.Call):
            return None
        for index, element in enumerate(_elements(args)):
            if isinstance(element, cst.Element) and element.value.deep_equals(count):
                return index
        return None

    def _worker(self, context: Context, fn: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the worker's definition if its signature may change: only this launch refers to it."""
        if not isinstance(fn, cst.Name):
            return None
        worker = context.functions.get(fn.value)
        mentions = [name for name in context.references(fn.value) if name is not fn]
        if worker is None or mentions != [worker.name]:
            return None
        plain = all(p.default is None for p in worker.params.params)
        return worker if plain and not isinstance(worker.params.star_arg, cst.Param) else None

    def _world_size(
        self,
        call: cst.Call,
        context: Context,
        worker: cst.FunctionDef,
        position: int,
        count: cst.BaseExpression,
    ) -> Iterable[Edit]:
        """Take the world size out of the worker's signature and let the worker ask for it."""
        parameter = worker.params.params[position]
        name = parameter.name.value
        used = any(
            mention.value == name and not in_rendezvous_argument(mention, context)
            for mention in context.references(name)
            if context.function_around(mention) is worker
            and context.parent(mention) is not parameter
        )
        statement: cst.BaseStatement | None = None
        if used:
            runtime = context.imports.require("torch_xla.runtime", "xr")
            statement = cst.parse_statement(f"{name} = {runtime}.world_size()")

        def replace(updated: cst.FunctionDef) -> cst.FunctionDef:
            params = [p for i, p in enumerate(updated.params.params) if i != position]
            if params and position == len(params):
                params[-1] = params[-1].with_changes(comma=updated.params.params[-1].comma)
            updated = updated.with_changes(params=updated.params.with_changes(params=params))
            return insert_first(updated, statement) if statement is not None else updated

        message = f"{worker.name.value}: `{name}` is asked of the runtime, not passed"
        yield self.edit(worker, replace, message, consumes=[parameter])
        yield from self._device_count(call, context, count)

    def _device_count(
        self, call: cst.Call, context: Context, count: cst.BaseExpression
    ) -> Iterable[Edit]:
        """Remove `world_size = torch.cuda.device_count()` where nothing but the spawn uses it."""
        if not isinstance(count, cst.Name):
            return
        scope = context.function_around(call)
        inside = {id(name) for arg in call.args for name in nodes_of(arg, cst.Name)}
        others = [
            name
            for name in context.references(count.value)
            if context.function_around(name) is scope and id(name) not in inside
        ]
        if len(others) != 1:
            return
        assign = context.parent(context.parent(others[0]))
        if (
            isinstance(assign, cst.Assign)
            and len(assign.targets) == 1
            and isinstance(assign.value, cst.Call)
            and context.qualified_name(assign.value.func) == "torch.cuda.device_count"
        ):
            message = f"`{code(assign)}` goes: the launcher counts the devices"
            yield self.edit(assign, lambda _: cst.RemoveFromParent(), message, consumes=[assign])


def _elements(args: cst.Arg) -> list[cst.BaseElement]:
    value = args.value
    return list(value.elements) if isinstance(value, cst.Tuple | cst.List) else []


def _without(value: cst.BaseExpression, index: int) -> cst.BaseExpression:
    """Return the tuple or list `value` without one element; a tuple of one keeps its comma."""
    assert isinstance(value, cst.Tuple | cst.List)
    elements = list(value.elements)
    last_comma = elements[-1].comma
    del elements[index]
    if elements and index == len(elements):
        elements[-1] = elements[-1].with_changes(comma=last_comma)
    if isinstance(value, cst.Tuple) and len(elements) == 1:
        elements[0] = elements[0].with_changes(comma=cst.Comma())
    return value.with_changes(elements=elements)
