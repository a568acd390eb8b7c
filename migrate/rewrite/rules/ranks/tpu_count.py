"""The number of TPU devices, asked in the parent process and in a rank."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.check.hazard import Severity
from migrate.reading.replicas.launch import Style
from migrate.reading.values.devices import is_device_count
from migrate.reading.values.environment import environment_name
from migrate.rewrite.edits.gpu_conditions import is_asked
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace

COUNT = "torch.accelerator.device_count"
OLD = frozenset({"torch.cuda.device_count", "torch.tpu.device_count"})
LOCAL = "LOCAL_WORLD_SIZE"
IN_A_RANK = (
    "is 1 in a rank, which sees one chip: torch.distributed.get_world_size(), or the number of processes "
    "that were started"
)


class TpuCount(Rule):
    """Ask torch.accelerator how many TPU devices there are.

    **What it does.** `torch.cuda.device_count()` becomes `torch.accelerator.device_count()`, which is the
    number of the host's chips in the process that starts the ranks. In a rank it is 1. Where torchrun starts
    the script, the number of the host's ranks is asked of it: `int(os.environ["LOCAL_WORLD_SIZE"])`. A module
    of a project that starts no ranks itself falls back on the number of chips where no rank asks.

    **Left alone.** `rank % torch.cuda.device_count()` is an index: of one chip it is 0, which is right.

    **Reported.** The number of devices that a worker of `mp.spawn` asks for, or a module that the scripts of
    a project with such workers import: it may run in a rank.

    Source: torch_tpu 0.2.0 (measured on XLA:CPU).
    """

    name = "tpu-count"
    code = "XLA891"
    targets = TPU_ONLY
    nodes = (cst.Call,)
    words = "device_count"
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, count):
                print(rank, count)


            if __name__ == "__main__":
                count = torch.cuda.device_count()
                mp.spawn(worker, args=(count,), nprocs=count)
            """,
            """
            import os

            import torch
            import torch.multiprocessing as mp


            def worker(rank, count):
                os.environ["LOCAL_RANK"] = str(rank)
                print(rank, count)


            if __name__ == "__main__":
                count = torch.accelerator.device_count()
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=count)
                mp.spawn(worker, args=(count,), nprocs=count)
            """,
            target=TPU,
        ),
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def main():
                dist.init_process_group("nccl")
                batch = 256 // torch.cuda.device_count()
                print(batch)


            if __name__ == "__main__":
                main()
            """,
            """
            import os

            import torch.distributed as dist


            def main():
                dist.init_process_group("tpu_dist")
                batch = 256 // int(os.environ["LOCAL_WORLD_SIZE"])
                print(batch)


            if __name__ == "__main__":
                main()
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch

            if torch.accelerator.device_count() > 0:
                print("a TPU")
            """,
            target=TPU,
        ),
        reported(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank):
                print(256 // torch.accelerator.device_count())


            if __name__ == "__main__":
                mp.spawn(worker, nprocs=4)
            """,
            "is 1 in a rank",
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one question, or the finding."""
        assert isinstance(node, cst.Call)
        if not is_device_count(node, context):
            return
        name = context.qualified_name(node.func) or ""
        plain = is_asked(node, context) or _is_modulus(node, context)
        if not plain and context.launch.in_replica(node):
            if context.launch.style not in (Style.MAIN, Style.MODULE):
                yield from self.report(node, f"{name}() {IN_A_RANK}", Severity.WARNING)
                yield from self._renamed(node, name, context)
                return
            os, key = context.imports.require("os"), context.string(LOCAL).value
            size = cst.parse_expression(f"int({os}.environ[{key}])")
            message = f"{name}() → {LOCAL}, which torchrun sets: it is 1 in a rank"
            yield self.edit(node, lambda _: size, message, consumes=[node])
            return
        if not plain and _may_run_in_a_rank(node, context):
            if not context.calls.launches_ranks:
                if not _is_default(node, context):
                    yield self._of_host(node, name, context)
                return
            yield from self.report(node, f"{name}() {IN_A_RANK}", Severity.WARNING)
        yield from self._renamed(node, name, context)

    def _renamed(self, node: cst.Call, name: str, context: Workspace) -> Iterable[Edit]:
        """Yield the edit of a name that does not count TPU devices."""
        if name in OLD:
            torch = context.imports.require("torch")
            count = cst.parse_expression(COUNT.replace("torch", torch, 1))
            yield self.edit(node.func, lambda _: count, f"{name} → {COUNT}", consumes=[node.func])

    def _of_host(self, node: cst.Call, name: str, context: Workspace) -> Edit:
        """Return the edit of a question that a rank, or a process without ranks, may ask."""
        os, torch = context.imports.require("os"), context.imports.require("torch")
        count = COUNT.replace("torch", torch, 1)
        size = cst.parse_expression(
            f"int({os}.environ.get({context.string(LOCAL).value}, {count}()))"
        )
        message = f"{name}() → {LOCAL}, which torchrun sets in a rank: it is 1 there"
        return self.edit(node, lambda _: size, message, consumes=[node])


def _is_default(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` is what a read of the environment gives where the variable is not set."""
    arg = context.parent(node)
    call = context.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or call.args[0] is arg:
        return False
    return environment_name(call.args[0].value, context) == LOCAL


def _may_run_in_a_rank(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` is in a function of a module that the scripts of a distributed project import."""
    calls, around = context.calls, context.function_around(node)
    return (
        calls.replicated
        and calls.imported
        and context.launch.style is Style.NONE
        and around is not None
        and context.position(around.name).line not in calls.at_launch
    )


def _is_modulus(node: cst.Call, context: Workspace) -> bool:
    """Whether `node` bounds an index: `rank % torch.cuda.device_count()`."""
    above = context.parent(node)
    return (
        isinstance(above, cst.BinaryOperation)
        and isinstance(above.operator, cst.Modulo)
        and above.right is node
    )
