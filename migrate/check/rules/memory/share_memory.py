"""Tensors in shared memory."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts


class ShareMemory(Hazard):
    """A tensor or a model is put in shared memory.

    **Why.** `share_memory_()` raises on XLA: replicas do not share memory.

    **What to do.** Load the weights in every replica, or broadcast them. On CPU tensors, before the launch,
    it works.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA602"
    name = "share-memory"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "share_memory"
    examples = (
        example(
            """
            import torch


            def start(model):
                model.cuda()
                model.share_memory()  # XLA602
            """
        ),
        example(
            """
            import torch

            counter = torch.zeros(1).share_memory_()
            """
        ),
    )
    mended = example(
        """
        import torch


        def worker(index, make, path):  # every replica loads its own
            model = make()
            model.load_state_dict(torch.load(path, map_location="cpu"))
            return model.to("xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        if method(node) not in ("share_memory_", "share_memory"):
            return
        if facts.values.kind(receiver(node)) in (Kind.ON_DEVICE, Kind.MODEL, Kind.TENSOR):
            yield self.hit(node, "share_memory raises on XLA: load or broadcast in every replica")
