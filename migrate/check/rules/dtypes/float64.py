"""float64."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

NAMES = frozenset(
    {"torch.float64", "torch.double", "torch.DoubleTensor", "torch.cuda.DoubleTensor"}
)


class Float64Hazard(Hazard):
    """float64 is accepted, and slow.

    **Why.** A TPU has no float64: XLA emulates it with several operations each.

    **What to do.** float32 on the device. Sums that need more are made on the host, after the step.
    """

    code = "XLA501"
    name = "float64"
    severity = Severity.WARNING
    targets = BOTH
    nodes = (cst.Name, cst.Attribute, cst.Call)
    words = "float64|[dD]ouble"
    of_names = True
    examples = (
        example(
            """
            import torch


            class Norm(torch.nn.Module):
                def forward(self, x):
                    return x.double().mean() + x.to(torch.float64).mean()  # XLA501


            total = torch.zeros(1, dtype=torch.float64)  # XLA501 info
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def mean(rows):
                rows.double(2)
                return np.float64(rows).astype(np.double), torch.float32
            """
        ),
    )
    mended = example(
        """
        import torch


        class Norm(torch.nn.Module):
            def forward(self, x):
                return x.float().mean()


        total = torch.zeros(1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one dtype or conversion."""
        what = facts.names.of(node) if not isinstance(node, cst.Call) else None
        if what not in NAMES:
            is_call = isinstance(node, cst.Call) and method(node) == "double" and not node.args
            if not is_call or not facts.values.is_tensor(receiver(cst.ensure_type(node, cst.Call))):
                return
            what = ".double()"
        compared = isinstance(facts.context.parent(node), cst.Comparison | cst.ComparisonTarget)
        if not compared and not _in_table(node, facts):
            message = "float64 is emulated on a TPU, slowly: float32"
            once = not facts.steps.inside(node)
            yield self.hit(node, f"{what}: {message}", Severity.INFO if once else None)


def _in_table(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the dtype stands in a table or tuple of dtypes: nothing is computed there."""
    above = facts.context.parent(node)
    return isinstance(above, cst.BaseDictElement | cst.Element)
