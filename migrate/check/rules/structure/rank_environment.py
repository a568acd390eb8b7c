"""Ranks from the environment."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.replicas.launch import declares_local_rank
from migrate.reading.replicas.single import is_of_one_process
from migrate.reading.values.environment import (
    access,
    environment_name,
    is_read,
    of_torchrun_alone,
    sets,
)

VARIABLES = {
    "RANK": "torch_xla.runtime.global_ordinal()",
    "LOCAL_RANK": "torch_xla.runtime.local_ordinal()",
    "WORLD_SIZE": "torch_xla.runtime.world_size()",
}


class RankEnvironment(Hazard):
    """The ranks are read from the environment.

    **Why.** `torch_xla.launch` does not set RANK, LOCAL_RANK and WORLD_SIZE: `os.environ["RANK"]` raises, and
    `os.environ.get("RANK", 0)` makes every replica the first.

    The same goes for MASTER_ADDR, MASTER_PORT, GROUP_RANK and what else torchrun sets.

    **What to do.** Ask `torch_xla.runtime`, inside of the launched function. An address is not needed:
    `init_process_group("xla", init_method="xla://")` finds the hosts.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA710"
    name = "rank-environment"
    severity = Severity.WARNING
    nodes = (cst.SimpleString,)
    examples = (
        example(
            """
            import os
            import torch.distributed as dist

            rank = int(os.environ["RANK"])  # XLA710
            world_size = int(os.environ.get("WORLD_SIZE", 1))  # XLA710
            url = f"tcp://{os.environ['MASTER_ADDR']}:1234"  # XLA710
            """
        ),
        example(
            """
            import os
            import torch.distributed as dist

            home = os.environ["HOME"]
            host = os.environ.get("MASTER_ADDR", "localhost")
            os.environ["RANK"] = "0"


            def add_options(parser):
                parser.add_argument("--local_rank", default=int(os.environ.get("LOCAL_RANK", 0)))


            row = {"RANK": 1}["RANK"]
            """
        ),
        example(
            """
            import os
            import torch_xla
            import torch_xla.runtime as xr


            def worker(index):
                os.environ["RANK"] = str(index)
                print(os.environ["RANK"])
            """
        ),
        example(
            """
            import os
            import torch.multiprocessing as mp


            def worker(index):
                os.environ["RANK"], os.environ["LOCAL_RANK"] = str(index), str(index)
                print(os.environ["RANK"], os.environ["LOCAL_RANK"])
                del os.environ["WORLD_SIZE"]


            if __name__ == "__main__":
                mp.spawn(worker, nprocs=8)
            """
        ),
        example(
            """
            import os
            import torch_xla
            import torch_xla.runtime as xr


            def port():
                if "LOCAL_RANK" in os.environ:
                    return os.environ["MASTER_PORT"]  # XLA710
                return "29500"


            def worker(index):
                os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                os.environ["MASTER_PORT"] = port()


            torch_xla.launch(worker)
            """
        ),
    )
    mended = example(
        """
        import torch_xla.runtime as xr

        rank = xr.global_ordinal()
        world_size = xr.world_size()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one question to the environment."""
        context = facts.context
        name = environment_name(node, context)
        if name in VARIABLES:
            if not is_read(node, context) or name in facts.sets_ranks or sets(name, context):
                return
            asked = access(node, context)
            if isinstance(asked, cst.Call) and (
                is_of_one_process(asked, name, context) or self._is_an_options_default(asked, facts)
            ):
                return
            if not isinstance(asked, cst.Comparison):  # which asks whether torchrun started it
                advice = f"set it in each replica, or ask {VARIABLES[name]}"
                yield self.hit(node, f"{name} is not set by torch_xla.launch: {advice}")
        elif of_torchrun_alone(node, context, spawns=context.launch.spawns):
            message = f"{name} is not set by torch_xla.launch: this raises without torchrun"
            yield self.hit(node, message)

    def _is_an_options_default(self, asked: cst.Call, facts: Facts) -> bool:
        """Whether it is the default of `--local_rank`, for the scripts that add it to their options."""
        declared = (
            ancestor
            for ancestor in facts.context.ancestors(asked)
            if isinstance(ancestor, cst.Call)
        )
        return any(declares_local_rank(call) for call in declared)
