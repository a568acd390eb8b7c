"""Comparisons with "nccl"."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import guards_cuda_only
from migrate.reading.facts import Facts
from migrate.syntax.tree import string_value


class BackendCheck(Hazard):
    """The backend is compared with "nccl".

    **Why.** On XLA it is "xla": the branch for gloo and the CPU is taken, and tensors go to the CPU before
    each collective.

    **What to do.** Ask for "gloo" instead, or drop the branch.
    """

    code = "XLA703"
    name = "backend-check"
    severity = Severity.WARNING
    nodes = (cst.Comparison,)
    words = "nccl"
    examples = (
        example(
            """
            import torch.distributed as dist


            def reduce(x):
                if dist.get_backend() == "nccl":  # XLA703
                    x = x.cuda()
                dist.all_reduce(x)
            """
        ),
        example(
            """
            import torch.distributed as dist


            def reduce(x):
                if dist.get_backend() == "gloo":
                    x = x.cpu()
                dist.all_reduce(x)
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist


        def reduce(x):
            if dist.get_backend() != "gloo":
                x = x.to("xla")
            dist.all_reduce(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one comparison."""
        assert isinstance(node, cst.Comparison)
        values = (node.left, *(target.comparator for target in node.comparisons))
        if any(string_value(value) == "nccl" for value in values):
            message = 'the backend on XLA is "xla", not "nccl": compare with "gloo"'
            severity = Severity.INFO if guards_cuda_only(node, facts) else None
            yield self.hit(node, message, severity)
