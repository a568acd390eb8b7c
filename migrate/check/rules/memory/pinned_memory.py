"""Pinned memory."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts
from migrate.reading.values.devices import pins
from migrate.reading.values.pinned import makes_tensor
from migrate.syntax.tree import keyword


class PinnedMemory(Hazard):
    """Memory is pinned for copies to a GPU.

    **Why.** There is nothing to pin for: a DataLoader with `pin_memory=True` warns and copies for nothing.
    `torch.empty(n, pin_memory=True)` and `tensor.pin_memory()` raise on a host without a GPU: "Found no
    NVIDIA driver on your system".

    **What to do.** `pin_memory=False`, and the tensor without `.pin_memory()`.

    Source: torch 2.9, measured without a GPU.
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
            host = torch.empty(32, pin_memory=True)  # XLA605 error
            like = host.new_zeros(32, pin_memory=True)  # XLA605 error
            array = torch.from_numpy(images).pin_memory()  # XLA605 error
            if torch.cuda.is_available():
                host = host.pin_memory()  # XLA605
            """
        ),
        example(
            """
            import torch

            loader = torch.utils.data.DataLoader(images, pin_memory=False)
            other = torch.utils.data.DataLoader(images, pin_memory=args.pin)
            host = torch.empty(32, pin_memory=False)


            class Batch:
                def pin_memory(self):
                    return self

                def ready(self):
                    return self.pin_memory()
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
        pinned = arg.value if arg is not None and truth(arg.value, facts) else None
        if pinned is not None and not makes_tensor(node, facts.context):
            yield self.hit(
                pinned, "pin_memory=True: there is no pinned memory on a TPU host, leave it out"
            )
            return
        where = node if pins(node, facts.context) else pinned
        if where is None:
            return
        around = facts.context.function_around(node)
        # A loader calls `pin_memory` of a batch only where it is told to pin.
        by_loader = isinstance(around, cst.FunctionDef) and around.name.value == "pin_memory"
        never = by_loader or only_with_cuda(node, facts)
        spelled = "pin_memory=True" if where is pinned else ".pin_memory()"
        message = f"{spelled} of a tensor raises without a GPU: leave it out"
        yield self.hit(where, message, None if never else Severity.ERROR)
