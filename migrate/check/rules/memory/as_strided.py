"""`as_strided`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, placed, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts


class AsStrided(Hazard):
    """`as_strided` reads memory in an order of its own.

    **Why.** A tensor on XLA has no strides: torch_xla makes a gather with an index for every element, which
    on a TPU is slow, and wrong for tensors whose memory the script lays out itself.

    **What to do.** `view`, `permute`, or slices that are stacked (`unfold` runs on the CPU).
    """

    code = "XLA603"
    name = "as-strided"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = "as_strided"
    examples = (
        example(
            """
            import torch


            class Windows(torch.nn.Module):
                def forward(self, x):
                    return x.as_strided((2, 2), (2, 1)) + torch.as_strided(x, (2, 2), (1, 1))  # XLA603
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Windows(torch.nn.Module):
                def forward(self, x):
                    return x.unfold(0, 3, 1)


            def windows(x):
                return np.lib.stride_tricks.as_strided(x, (2, 2), (2, 1))
            """
        ),
    )
    mended = example(
        """
        import torch


        class Windows(torch.nn.Module):
            def forward(self, x):
                return torch.stack((x[:-1], x[1:]), 1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        called = name == "torch.as_strided"
        asked = method(node) in ("as_strided", "as_strided_") and name is None
        if called or (asked and facts.values.is_tensor(receiver(node))):
            message = (
                "as_strided becomes a gather of every element: view, or slices that are stacked"
            )
            value = node.args[0].value if name and node.args else receiver(node)
            yield from placed(self, node, value, message, facts)
