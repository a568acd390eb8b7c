"""The process group of torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.reading.names.bindings import passed_for
from migrate.reading.replicas.launch import INIT, JOINS, Style
from migrate.reading.values.collectives import called
from migrate.reading.values.environment import environment_name, sets
from migrate.rewrite.edits.nodes import argument, with_args
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    checked,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.collectives.init_process_group import PARAMETERS
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword, nodes_of, string_value

BACKEND = "tpu_dist"
TORCHRUN = (
    "torchrun needs the environment of torch_tpu, in the shell before it: "
    "eval $(python -m torch.tpu.distributed | sed 's/^/export /')"
)
STARTED = (
    "what starts the ranks has to set RANK, LOCAL_RANK and WORLD_SIZE in each, and the environment of "
    "torch_tpu: eval $(python -m torch.tpu.distributed | sed 's/^/export /')"
)


class TpuProcessGroup(Rule):
    """Join the process group of torch_tpu instead of NCCL's or Gloo's.

    **What it does.** The backend is `"tpu_dist"`; rank, world size and address stay as they are.
    `"cpu:gloo,cuda:nccl"` becomes `"cpu:gloo,tpu:tpu_dist"`. `device_id=` goes, and so does `device_ids=` of
    `dist.barrier`, which takes no other index than 0. Where a spawned worker gives its rank and the world
    size, they are set as `RANK` and `WORLD_SIZE` too: torch_tpu reads them there.

    **Reported.** What torchrun needs in its environment, at the call of a script that it starts: also at
    `init_device_mesh`, which joins the group if nothing did before. A group
    over gloo or MPI of a script that uses no accelerator, and `**` arguments.

    Source: torch_tpu 0.2.0 (measured over gloo with its name; its own group needs TPUs).
    """

    name = "tpu-process-group"
    code = "XLA823"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = "init_process_group|init_device_mesh|barrier"
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def worker(rank, size):
                dist.init_process_group(backend="nccl", rank=rank, world_size=size)
                torch.ones(1).cuda(rank)
                dist.barrier(device_ids=[rank])


            if __name__ == "__main__":
                mp.spawn(worker, args=(4,), nprocs=4)
            """,
            """
            import os

            import torch
            import torch.distributed as dist
            import torch.multiprocessing as mp


            def worker(rank, size):
                os.environ["LOCAL_RANK"] = str(rank)
                os.environ["RANK"] = str(rank)
                os.environ["WORLD_SIZE"] = str(size)
                dist.init_process_group(backend="tpu_dist", rank=rank, world_size=size)
                torch.ones(1).to("tpu")
                dist.barrier()


            if __name__ == "__main__":
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=4)
                mp.spawn(worker, args=(4,), nprocs=4)
            """,
            target=TPU,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def main():
                dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda"))
                torch.ones(1).cuda()


            if __name__ == "__main__":
                main()
            """,
            """
            import torch
            import torch.distributed as dist


            def main():
                dist.init_process_group("cpu:gloo,tpu:tpu_dist")
                torch.ones(1).to("tpu")


            if __name__ == "__main__":
                main()
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch.distributed as dist


            def count():
                dist.barrier()
                return dist.get_world_size()
            """,
            target=TPU,
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def main():
                dist.init_process_group("nccl")
                torch.ones(1).cuda()


            if __name__ == "__main__":
                main()
            """,
            "eval $(python -m torch.tpu.distributed",
            target=TPU,
        ),
        reported(
            """
            import torch
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import DTensor, Shard, distribute_tensor

            mesh = init_device_mesh("tpu", (2,))
            weight = distribute_tensor(torch.ones(4, requires_grad=True), mesh, [Shard(0)])
            weight.sum().backward()
            """,
            "eval $(python -m torch.tpu.distributed",
            target=TPU,
        ),
        checked(
            """
            import torch
            import torch.distributed as dist


            def join(rank, options):
                dist.init_process_group("nccl")  # XLA823
                dist.init_process_group(**options)  # XLA823
                torch.ones(1).cuda()
            """,
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one call that joins the group, or for one barrier."""
        assert isinstance(node, cst.Call)
        if called(node, context) == "barrier":
            devices = keyword(node, "device_ids")
            if devices is not None:
                yield self._without(node, devices, "a rank sees one chip")
        elif context.qualified_name(node.func) in INIT:
            bound = bind(node, PARAMETERS)
            if bound is None:
                message = f"{code(node.func)} with * or ** arguments: its backend is '{BACKEND}'"
                yield from self.report(node, message)
                return
            yield from self._joined(node, bound, context)
        elif context.qualified_name(node.func) in JOINS and context.launch.joining() is node:
            yield from self._started(node, context)

    def _joined(
        self, node: cst.Call, bound: dict[str, cst.Arg], context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        if "backend" in bound:
            yield from self._backend(bound["backend"].value, context)
        method = bound.get("init_method")
        if method is not None and string_value(method.value) == "xla://":
            yield self._without(node, method, "the ranks meet at MASTER_ADDR")
        if "device_id" in bound:
            yield self._without(node, bound["device_id"], "a rank sees one chip")
        if "pg_options" in bound:
            message = f"{argument(bound['pg_options'])}: options of another backend, remove them"
            yield from self.report(node, message)
        if context.uses_rpc:
            yield from self.report(node, "RPC has no equivalent on a TPU")
        passed = "rank" in bound and "world_size" in bound
        if passed and context.launch.style not in (Style.MAIN, Style.MODULE):
            yield from self._variables(node, bound, context)
            values = (bound["rank"].value, bound["world_size"].value)
            elsewhere = any(_variables_in(value, context) for value in values)
            if elsewhere and not context.launch.spawns:
                yield from self.report(node, STARTED, Severity.INFO)
        else:
            yield from self._started(node, context)

    def _started(self, node: cst.Call, context: Workspace) -> Iterator[RuleFinding]:
        """Yield what starts the ranks from outside has to set."""
        if context.launch.style in (Style.MAIN, Style.MODULE):
            yield from self.report(node, TORCHRUN, Severity.INFO)
        elif not context.launch.spawns:
            yield from self.report(node, STARTED, Severity.INFO)

    def _backend(
        self, backend: cst.BaseExpression, context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edits of the literals among which the backend is chosen."""
        literals = list(dict.fromkeys(_literals(backend, context)))
        values = [string_value(literal) or "" for literal in literals]
        direct = {id(literal) for literal in context.below(backend, cst.SimpleString)}
        only_gloo = bool(values) and all(value == "gloo" for value in values)
        moves = context.moves_to_accelerator or context.calls.run_on_accelerator
        for literal, value in zip(literals, values, strict=True):
            new = value
            if value == "gloo" and only_gloo and moves:
                message = (
                    f"'gloo' → '{BACKEND}': collectives of tensors on the CPU need a group of their own, "
                    'torch.distributed.new_group(backend="gloo")'
                )
                yield from self.report(literal, message, Severity.INFO)
                new = BACKEND
            elif value == "xla" and id(literal) in direct:
                new = BACKEND
            elif id(literal) in direct:  # others are the rule nccl's
                new = value.replace("cuda:nccl", f"tpu:{BACKEND}").replace("nccl", BACKEND)
            if value == "mpi":
                yield from self.report(literal, f"'mpi': the backend on a TPU is '{BACKEND}'")
            if new != value:
                yield self._named(literal, new, context)

    def _named(self, literal: cst.SimpleString, new: str, context: Workspace) -> Edit:
        ours = context.string(new, like=literal)
        wrong = f"there is no NCCL on a TPU, it raises: '{BACKEND}'"
        return self.edit(
            literal,
            lambda _: ours,
            f"backend {code(literal)} → '{new}'",
            consumes=[literal],
            wrong=wrong if "nccl" in code(literal) else "",
        )

    def _without(self, call: cst.Call, gone: cst.Arg, why: str) -> Edit:
        at = call.args.index(gone)

        def replace(updated: cst.Call) -> cst.Call:
            return with_args(updated, [*updated.args[:at], *updated.args[at + 1 :]])

        return self.edit(call, replace, f"remove {argument(gone)}: {why}", consumes=[gone])

    def _variables(
        self, node: cst.Call, bound: dict[str, cst.Arg], context: Workspace
    ) -> Iterator[Edit | RuleFinding]:
        """Yield the edit that sets the rank and the world size in the environment, above the call."""
        values = {"RANK": bound["rank"].value, "WORLD_SIZE": bound["world_size"].value}
        names = [
            name
            for name, value in values.items()
            if not sets(name, context) and name not in _variables_in(value, context)
        ]
        if not names:
            return
        line = context.statement_around(node)
        if not isinstance(line, cst.SimpleStatementLine):
            message = 'set os.environ["RANK"] and os.environ["WORLD_SIZE"] before it: torch_tpu reads them'
            yield from self.report(node, message)
            return
        os = context.imports.require("os")
        added = [
            f"{os}.environ[{context.string(name).value}] = str({code(values[name])})"
            for name in names
        ]

        def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
            lines = [cst.parse_statement(text) for text in added]
            lines[0] = lines[0].with_changes(leading_lines=updated.leading_lines)
            return cst.FlattenSentinel([*lines, updated.with_changes(leading_lines=[])])

        yield self.edit(line, replace, f"{', '.join(names)} in the environment, for torch_tpu")


def _variables_in(value: cst.BaseExpression, context: Workspace) -> set[str]:
    """Return the environment variables that `value` reads."""
    literals = nodes_of(value, cst.SimpleString)
    return {name for literal in literals if (name := environment_name(literal, context))}


def _literals(
    value: cst.BaseExpression, context: Workspace, depth: int = 3
) -> Iterator[cst.SimpleString]:
    """Yield the literals that `value` may be, also through names, options and parameters."""
    if not isinstance(value, cst.Name | cst.Attribute):
        yield from nodes_of(value, cst.SimpleString)
        return
    sources = context.values.given_to(value)
    if isinstance(value, cst.Name):
        sources = [*sources, *passed_for(value, context)]
    for source in sources if depth else ():
        yield from _literals(source, context, depth - 1)
