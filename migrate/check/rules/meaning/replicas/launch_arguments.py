"""Arguments of the launcher."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword


class LaunchArguments(Hazard):
    """A number of processes for the launcher.

    **Why.** `torch_xla.launch` has no `nprocs`, a TypeError; `xmp.spawn` takes only 1 or None. There are as
    many replicas as the host has devices.

    **What to do.** Leave it out.

    Source: torch_xla 2.9, measured; pytorch/xla#8715.
    """

    code = "XLA822"
    name = "launch-arguments"
    severity = Severity.ERROR
    spoken_by = ("old-torch-xla", "mp-spawn")
    nodes = (cst.Call,)
    words = "nprocs"
    examples = (
        example(
            """
            import torch_xla
            import torch_xla.distributed.xla_multiprocessing as xmp


            def start(worker):
                torch_xla.launch(worker, nprocs=8)  # XLA822
                xmp.spawn(worker, nprocs=8)  # XLA822
            """
        ),
        example(
            """
            import torch_xla
            import torch_xla.distributed.xla_multiprocessing as xmp


            def start(worker):
                torch_xla.launch(worker)
                xmp.spawn(worker, nprocs=None)
            """
        ),
    )
    mended = example(
        """
        import torch_xla


        def start(worker):
            torch_xla.launch(worker)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one launch."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        count = keyword(node, "nprocs")
        if count is None:
            return
        spawns = name == "torch_xla.distributed.xla_multiprocessing.spawn"
        if name == "torch_xla.launch" or (spawns and code(count.value) not in ("1", "None")):
            yield self.hit(
                node, f"nprocs={code(count.value)} raises: a replica for each device, always"
            )
