"""`torch.where` with one argument."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts


class WhereIndices(Hazard):
    """`torch.where(condition)` has a shape that depends on values.

    **Why.** With one argument it is `nonzero`: the graph is cut, the CPU finds the indices, and what
    follows is compiled once for every number of them.

    **What to do.** `torch.where(condition, x, other)` with three arguments keeps the shape.
    """

    code = "XLA102"
    name = "where-indices"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Call,)
    words = "where"
    examples = (
        example(
            """
            import torch


            class Loss(torch.nn.Module):
                def forward(self, logits, target):
                    rows = torch.where(target != -100)[0]  # XLA102
                    return logits[rows].mean()
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Loss(torch.nn.Module):
                def forward(self, logits, target):
                    return torch.where(target != -100, logits, 0.0).mean()


            def rows(table):
                return np.where(table > 0)
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, logits, target):
                valid = target != -100
                return torch.where(valid, logits.mean(-1), 0.0).sum() / valid.sum()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call with one argument."""
        assert isinstance(node, cst.Call)
        if len(node.args) != 1 or facts.names.of(node.func) != "torch.where":
            return
        if node.args[0].star or facts.values.kind(node.args[0].value) is Kind.HOST:
            return
        message = "one argument: indices whose number depends on values; give it three"
        yield from varying(self, node, node.args[0].value, f"torch.where: {message}", facts)
