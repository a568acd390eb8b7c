"""Pinned memory."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, keyword


class PinnedMemory(Hazard):
    """Memory is pinned for copies to a GPU.

    **Why.** There is nothing to pin for: a DataLoader with `pin_memory=True` warns and copies for nothing,
    `tensor.pin_memory()` raises for a tensor on the device.

    **What to do.** `pin_memory=False`.
    """

    code = "XLA605"
    name = "pinned-memory"
    severity = Severity.INFO
    spoken_by = ("pinned-memory",)
    nodes = (cst.Call,)
    words = "pin_memory"
    examples = (
        example(
            """
            import torch

            loader = torch.utils.data.DataLoader(images, pin_memory=True)  # XLA605
            """
        ),
        example(
            """
            import torch

            loader = torch.utils.data.DataLoader(images, pin_memory=False)
            other = torch.utils.data.DataLoader(images, pin_memory=args.pin)
            """
        ),
    )
    mended = example(
        """
        import torch

        loader = torch.utils.data.DataLoader(images)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one loader or tensor."""
        assert isinstance(node, cst.Call)
        arg = keyword(node, "pin_memory")
        message = "there is no pinned memory on a TPU host: leave it out"
        if arg is not None and code(arg.value) == "True":
            yield self.hit(arg.value, f"pin_memory=True: {message}")
        elif method(node) == "pin_memory" and facts.values.is_tensor(receiver(node)):
            yield self.hit(node, f".pin_memory(): {message}")
