"""DistributedDataParallel with CUDA devices."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.launchers import DDP
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword


class DeviceIds(Hazard):
    """DistributedDataParallel is told CUDA devices.

    **Why.** On XLA `device_ids=[3]` fails in the first forward; `[0]` passes by luck.

    **What to do.** Leave `device_ids` and `output_device` out; `migrate rewrite` does it.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA824"
    name = "device-ids"
    severity = Severity.ERROR
    spoken_by = ("ddp",)
    nodes = (cst.Call,)
    words = "device_ids"
    examples = (
        example(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model, rank):
                return DDP(model, device_ids=[rank], output_device=rank)  # XLA824
            """
        ),
        example(
            """
            from torch.nn.parallel import DistributedDataParallel as DDP


            def wrap(model):
                return DDP(model, device_ids=None), DDP(model, gradient_as_bucket_view=True)
            """
        ),
    )
    mended = example(
        """
        from torch.nn.parallel import DistributedDataParallel as DDP


        def wrap(model):
            return DDP(model, gradient_as_bucket_view=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one construction."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) in DDP:
            ids = keyword(node, "device_ids")
            if ids is not None and code(ids.value) != "None":
                yield self.hit(node, f"device_ids={code(ids.value)} fails in forward: leave it out")
