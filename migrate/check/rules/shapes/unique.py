"""`unique`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import method, receiver, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts


class Unique(Hazard):
    """`unique` has a shape that depends on values.

    **Why.** It runs on the CPU (the fallbacks `aten::_unique2` and `aten::unique_consecutive`), and what
    follows is compiled for every number of different values.

    **What to do.** Do it in the data loader; or count into a table of known size with `scatter_add`.
    """

    code = "XLA105"
    name = "unique"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Call,)
    words = "unique"
    examples = (
        example(
            """
            import torch


            class Router(torch.nn.Module):
                def forward(self, expert):
                    used = torch.unique(expert)  # XLA105
                    return used, expert.unique(return_counts=True)  # XLA105
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def classes(labels):
                return np.unique(labels), labels.unique()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Router(torch.nn.Module):
            def forward(self, expert):
                every = torch.arange(8, device=expert.device)
                counts = (expert.view(-1, 1) == every).sum(0)
                return counts > 0, counts
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        called = name in ("torch.unique", "torch.unique_consecutive")
        if called and node.args and facts.values.kind(node.args[0].value) is Kind.HOST:
            return
        asked = method(node) in ("unique", "unique_consecutive") and name is None
        if called or (asked and facts.values.is_tensor(receiver(node))):
            message = "unique: a compilation for each number of values; do it in the data loader"
            value = node.args[0].value if name and node.args else receiver(node)
            yield from varying(self, node, value, message, facts)
