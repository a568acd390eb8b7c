"""The indices of what is not zero."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import method, receiver, varying
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.new_shapes import SHAPE_OF_VALUES
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts


class Nonzero(Hazard):
    """`nonzero` has a shape that depends on values.

    **Why.** torch_xla cuts the graph, fetches the tensor, finds the indices on the CPU (the fallback
    `aten::nonzero`), and compiles what follows once for every number of indices. Measured: 4 inputs, 4
    compilations.

    **What to do.** Keep the shape: compute on all elements and mask with `torch.where(mask, x, 0)`; take a
    fixed number with `topk`; or find the indices in the data loader.
    """

    code = "XLA101"
    name = "nonzero"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = SHAPE_OF_VALUES
    nodes = (cst.Call,)
    words = "nonzero|argwhere"
    examples = (
        example(
            """
            import torch


            class Head(torch.nn.Module):
                def forward(self, x):
                    index = torch.nonzero(x > 0)  # XLA101
                    return x.view(-1)[(x > 1).nonzero()]  # XLA101


            def prepare(x):
                return torch.nonzero(x.cuda())  # XLA101 info
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def labels(mask: np.ndarray):
                return np.asarray(mask).nonzero(), np.nonzero(mask), mask.nonzero()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Head(torch.nn.Module):
            def forward(self, x):
                best = x.view(-1).topk(8).indices  # as many for every batch
                return torch.where(x > 1, x, torch.zeros_like(x)).view(-1)[best]
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func) or ""
        called = name in ("torch.nonzero", "torch.argwhere")
        asked = method(node) in ("nonzero", "argwhere") and not name
        if called or (asked and facts.values.is_tensor(receiver(node))):
            if called and node.args and facts.values.kind(node.args[0].value) is Kind.HOST:
                return
            message = "a shape that depends on values: a compilation for each; mask, or use topk"
            what = name or f".{method(node)}()"
            value = node.args[0].value if called and node.args else receiver(node)
            yield from varying(self, node, value, f"{what}: {message}", facts)
