"""Seeds in the process that starts the ranks of torch_tpu."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.target import TPU, TPU_ONLY
from migrate.catalogue.torch_other import CPU_SEEDS
from migrate.check.hazard import Severity
from migrate.check.rules.structure.module_level import seeds_before_launch
from migrate.reading.facts import facts_of
from migrate.reading.replicas.launch import is_guard
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
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

OF_ALL = names(*CPU_SEEDS)
OF_DEVICES = frozenset(
    {
        *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all"),
        *("torch.tpu.manual_seed", "torch.tpu.manual_seed_all"),
    }
)
HOST = "torch.default_generator.manual_seed"
DEVICE = "torch.tpu.manual_seed_all"


class TpuSeeds(Rule):
    """Seed the host alone in the process that starts the ranks.

    **Why.** `torch.manual_seed` seeds the TPU too, and opens it for that. In the process that starts the
    ranks it must stay closed: `torch.accelerator.device_count()` is 1 then, with no error, and the ranks
    cannot open it.

    **What it does.** `torch.manual_seed(s)` becomes `torch.default_generator.manual_seed(s)` there, which
    seeds the host; `torch.cuda.manual_seed_all(s)` goes. At module level each rank runs the line too, when it
    imports the script: its worker begins with `torch.tpu.manual_seed_all(s)`.

    **Reported.** A seed under the guard or in a function: the ranks are processes that it does not reach, in
    the original neither. A seed whose value the worker cannot see.

    Source: torch_tpu 0.2.0 (measured with 2 ranks on XLA:CPU).
    """

    name = "tpu-seeds"
    code = "XLA706"
    targets = TPU_ONLY
    stage = Stage.LAUNCH
    nodes = (cst.Call,)
    words = "seed"
    examples = (
        rewritten(
            """
            import torch
            import torch.multiprocessing as mp

            torch.manual_seed(0)
            torch.cuda.manual_seed_all(0)


            def worker(rank):
                print(torch.rand(1, device="cuda"))


            if __name__ == "__main__":
                mp.spawn(worker, nprocs=4)
            """,
            """
            import os

            import torch
            import torch.multiprocessing as mp

            torch.default_generator.manual_seed(0)


            def worker(rank):
                os.environ["LOCAL_RANK"] = str(rank)
                torch.tpu.manual_seed_all(0)
                print(torch.rand(1, device="tpu"))


            if __name__ == "__main__":
                torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=4)
                mp.spawn(worker, nprocs=4)
            """,
            target=TPU,
        ),
        left_alone(
            """
            import torch

            torch.manual_seed(0)
            print(torch.rand(1))
            """,
            target=TPU,
        ),
        reported(
            """
            import torch
            import torch.multiprocessing as mp


            def worker(rank, seed):
                print(torch.rand(1, device="cuda"))


            def main(seed):
                torch.manual_seed(seed)
                mp.spawn(worker, args=(seed,), nprocs=4)
            """,
            "does not reach the ranks",
            target=TPU,
        ),
        checked(
            """
            import torch
            import torch.multiprocessing as mp

            torch.manual_seed(0)  # XLA706


            def worker(rank):
                print(rank)


            if __name__ == "__main__":
                mp.spawn(worker, nprocs=4)
            """,
            target=TPU,
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits of one seed, or the finding."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        if name not in OF_ALL and name not in OF_DEVICES:
            return
        if not seeds_before_launch(node, facts_of(context)):
            return
        in_ranks = _is_in_ranks(node, context)
        wrong = f"{name} opens the TPU in the process that starts the ranks: seed the host there"
        line = context.statement_around(node)
        alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
        alone = alone and isinstance(context.parent(node), cst.Expr)
        torch = context.imports.require("torch")
        if name in OF_ALL:
            host = cst.parse_expression(HOST.replace("torch", torch, 1))
            message = f"{name} → {HOST}: the TPU stays closed in the process that starts the ranks"
            yield self.edit(node.func, lambda _: host, message, consumes=[node.func], wrong=wrong)
        elif alone:
            message = (
                f"remove {code(node)}: the TPU stays closed in the process that starts the ranks"
            )
            yield self.edit(
                line, lambda _: cst.RemoveFromParent(), message, consumes=[node], wrong=wrong
            )
        else:
            yield from self.report(node, wrong)
        if in_ranks and seed_lines(context) is None:
            message = f"{code(node)}: {DEVICE}(…) in the worker, which has to seed its TPU"
            yield from self.report(node, message)
        elif not in_ranks and name in OF_ALL:
            message = (
                f"{code(node)} does not reach the ranks, which start at torch's default seed, in the "
                "original too: seed them in the worker"
            )
            yield from self.report(node, message, Severity.INFO)


def seed_lines(context: Workspace) -> list[str] | None:
    """Return the lines that seed the TPU in a worker as the script's module level did; None: unknown."""
    facts = facts_of(context)
    seeds = [
        call
        for call in context.all_of(cst.Call)
        if context.qualified_name(call.func) in OF_ALL | OF_DEVICES
        and _is_in_ranks(call, context)
        and seeds_before_launch(call, facts)
    ]
    if not seeds:
        return []
    value = seeds[-1].args[0].value if len(seeds[-1].args) == 1 else None  # the last one counts
    if not isinstance(value, cst.Integer | cst.Name):
        return None
    torch = context.imports.require("torch")
    return [f"{DEVICE.replace('torch', torch, 1)}({code(value)})"]


def _is_in_ranks(node: cst.Call, context: Workspace) -> bool:
    """Whether each rank runs `node` too, when it imports the script."""
    return context.function_around(node) is None and not any(
        isinstance(above, cst.If) and is_guard(above) for above in context.ancestors(node)
    )
