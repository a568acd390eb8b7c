"""`masked_select`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import method, receiver, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.reading.facts import Facts


class MaskedSelect(Hazard):
    """`masked_select` has a shape that depends on values.

    **Why.** It runs on the CPU (the fallback `aten::masked_select`): the graph is cut, and what follows is
    compiled for every number of selected elements.

    **What to do.** `torch.where(mask, x, 0)`, and divide sums by `mask.sum()`.
    """

    code = "XLA104"
    name = "masked-select"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Call,)
    words = "masked_select"
    examples = (
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, mask):
                    return torch.masked_select(x, mask).sum() + x.masked_select(mask).sum()  # XLA104
            """
        ),
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def forward(self, x, mask):
                    return x.masked_fill(mask, 0.0).sum() / mask.sum()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, x, mask):
                return torch.where(mask, x, 0.0).sum()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        asked = method(node) == "masked_select" and name is None
        if name == "torch.masked_select" or (asked and facts.values.is_tensor(receiver(node))):
            message = (
                "masked_select: a compilation for each number selected; torch.where(mask, x, 0); a mean "
                "is its sum / mask.sum(), and below a logarithm fill with 1"
            )
            value = node.args[0].value if name and node.args else receiver(node)
            yield from varying(self, node, value, message, facts)
