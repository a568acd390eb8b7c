"""Functions that are imported before torch_xla replaces them."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

PATCHED = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"})


class ImportOrder(Hazard):
    """`clip_grad_norm_` is imported before torch_xla.

    **Why.** torch_xla replaces the function when it is imported. A name that was bound before stays the old
    one, which reads the norm on the host.

    **What to do.** `import torch_xla` first, or call it as `torch.nn.utils.clip_grad_norm_`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA821"
    name = "import-order"
    severity = Severity.WARNING
    nodes = (cst.ImportFrom,)
    words = spelled(PATCHED)
    examples = (
        example(
            """
            from torch.nn.utils import clip_grad_norm_  # XLA821
            import torch_xla
            """
        ),
        example(
            """
            import torch_xla
            from torch.nn.utils import clip_grad_norm_
            """
        ),
    )
    mended = example(
        """
        import torch_xla
        from torch.nn.utils import clip_grad_norm_
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one import above that of torch_xla."""
        if not facts.uses_xla or PATCHED.isdisjoint(facts.imported(node)):
            return
        first = next(
            (
                other
                for other in facts.context.all_of(cst.Import, cst.ImportFrom)
                if any(name.split(".")[0] == "torch_xla" for name in facts.imported(other))
            ),
            None,
        )
        if first is not None:
            here, there = facts.context.position(node), facts.context.position(first)
            if here.line < there.line:
                yield self.hit(node, "bound before torch_xla replaces it: import torch_xla first")
