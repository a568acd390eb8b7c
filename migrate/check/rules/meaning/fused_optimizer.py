"""Fused optimizers."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword


class FusedOptimizer(Hazard):
    """`fused=True` raises on XLA.

    **Why.** The fused optimizers are kernels for CUDA.

    **What to do.** Leave it out: XLA fuses the plain form.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA807"
    name = "fused-optimizer"
    severity = Severity.ERROR
    spoken_by = ("fused-optimizer",)
    nodes = (cst.Call,)
    words = "fused"
    examples = (
        example(
            """
            import torch


            def make(model):
                return torch.optim.AdamW(model.parameters(), fused=True)  # XLA807
            """
        ),
        example(
            """
            import torch


            def make(model):
                conv = model.conv(fused=True)
                return torch.optim.AdamW(model.parameters(), fused=False)
            """
        ),
    )
    mended = example(
        """
        import torch


        def make(model):
            return torch.optim.AdamW(model.parameters())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one construction."""
        assert isinstance(node, cst.Call)
        fused = keyword(node, "fused")
        if (
            fused is None
            or code(fused.value) in ("False", "None")
            or "device_type()" in code(fused)
        ):
            return
        if (facts.names.of(node.func) or "").startswith("torch.optim."):
            yield self.hit(node, f"fused={code(fused.value)} raises on XLA: leave it out")
