"""The number of GPUs, asked in a replica, is that of the host's TPU devices."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import named
from migrate.check.hazard import Severity
from migrate.model.calls.devices import COUNTS
from migrate.reading.values.devices import is_device_count
from migrate.reading.values.shown import is_shown
from migrate.rewrite.edits.gpu_conditions import is_asked
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.devices.gpu_test_severity import SHOWN, as_bad_as_it_is
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class DeviceCount(Rule):
    """Ask the runtime how many devices the host has, where a replica asks.

    **What it does.** `torch.cuda.device_count()` and `torch.accelerator.device_count()` are 0 on a TPU: a
    script that wants two GPUs ends without an error and without a step. In code that runs in a replica, also
    in a function of a module that joins the process group, they become
    `torch_xla.runtime.local_device_count()`, the devices of this host.

    **Left alone.** `torch.cuda.device_count() > 0`, which asks whether there is a GPU
    ([cuda-available](cuda-available.md)).

    **Reported.** A range over the devices in a replica, which sees one. Everything in code that no replica
    is seen to run, unless another rule knows what the number is for (the processes to start): before the
    launch the runtime must not be asked.

    Source: torch_xla 2.9 (torch_xla/runtime.py; measured on two simulated replicas).
    """

    name = "device-count"
    code = "XLA704"
    edited = Severity.WARNING
    nodes = (cst.Call,)
    words = named(COUNTS)
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def enough(least=2):
                count = torch.accelerator.device_count()
                return count >= least


            def main():
                if torch.cuda.device_count() < 2 or not enough():
                    raise SystemExit("two devices are needed")
                dist.init_process_group("nccl")


            if __name__ == "__main__":
                main()
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def enough(least=2):
                count = xr.local_device_count()
                return count >= least


            def main():
                if xr.local_device_count() < 2 or not enough():
                    raise SystemExit("two devices are needed")
                dist.init_process_group("xla", init_method="xla://")


            def _mp_fn(index):
                if "TORCHELASTIC_RUN_ID" not in os.environ:  # else torchrun has set them
                    os.environ["RANK"] = str(index)
                    os.environ["LOCAL_RANK"] = str(xr.local_ordinal())
                    os.environ["WORLD_SIZE"] = str(xr.world_size())
                    os.environ["LOCAL_WORLD_SIZE"] = str(xr.local_device_count())
                main()


            if __name__ == "__main__":
                torch_xla.launch(_mp_fn)
            """,
        ),
        rewritten(
            """
            import os

            import torch
            import torch.distributed as dist


            def join(args):
                args.gpu = int(os.environ["RANK"]) % torch.cuda.device_count()
                dist.init_process_group("nccl")
            """,
            """
            import os

            import torch.distributed as dist
            import torch_xla.distributed.xla_backend
            import torch_xla.runtime as xr


            def join(args):
                args.gpu = int(os.environ["RANK"]) % xr.local_device_count()
                dist.init_process_group("xla", init_method="xla://")
            """,
        ),
        left_alone(
            """
            import torch_xla.runtime as xr

            print(xr.local_device_count() > 1)
            """
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def main():
                dist.init_process_group("nccl")
                for index in range(torch.cuda.device_count()):
                    torch.ones(1, device=f"cuda:{index}")


            if __name__ == "__main__":
                main()
            """,
            "a replica sees one device",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one query of the number of devices."""
        assert isinstance(node, cst.Call)
        return as_bad_as_it_is(self._found(node, context), node, context)

    def _found(self, node: cst.Call, context: Workspace) -> Iterable[Edit | RuleFinding]:
        if not is_device_count(node, context):
            return
        if not context.launch.in_replica(node):
            if is_shown(node, context):
                yield from self.report(node, f"{code(node)} {SHOWN.format(0)}", Severity.INFO)
            return
        if is_asked(node, context):
            return  # whether there is a GPU: another rule answers
        above = context.parent(context.parent(node))
        if isinstance(above, cst.Call) and code(above.func) == "range":
            yield from self.report(node, f"{code(above)}: a replica sees one device of the host's")
            return
        count = context.vocabulary.expression("local world size")
        message = f"{context.qualified_name(node.func)}() → {code(count)}"
        yield self.edit(node, lambda _: count, message, consumes=[node.func])
