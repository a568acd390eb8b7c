"""`clip_grad_norm_` with `foreach=True`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.catalogue import torch_other
from migrate.reading.catalogue.entry import names
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, keyword

CLIPS = names(*torch_other.CLIPS)


class ForeachClip(Hazard):
    """`clip_grad_norm_(…, foreach=True)` raises on XLA.

    **Why.** torch has no foreach kernels for XLA.

    **What to do.** Leave `foreach` out.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA812"
    name = "foreach-clip"
    severity = Severity.ERROR
    spoken_by = ("clip-gradients",)
    nodes = (cst.Call,)
    words = "foreach"
    examples = (
        example(
            """
            import torch


            def clip(model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)  # XLA812
            """
        ),
        example(
            """
            import torch


            def clip(model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            """
        ),
    )
    mended = example(
        """
        import torch


        def clip(model):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        foreach = keyword(node, "foreach")
        clips = facts.names.of(node.func) in CLIPS
        if clips and foreach is not None and code(foreach.value) == "True":
            yield self.hit(node, "foreach=True raises on XLA: leave it out")
