"""`.is_cuda`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.only_cuda import goes_well
from migrate.reading.facts import Facts


class IsCuda(Hazard):
    """`.is_cuda` is False on XLA.

    **Why.** The branch for the CPU is taken, without a word.

    **What to do.** `x.device.type != "cpu"`, or no branch at all.
    """

    code = "XLA701"
    name = "is-cuda"
    severity = Severity.WARNING
    spoken_by = ("device-types",)
    nodes = (cst.Attribute,)
    words = "is_cuda"
    examples = (
        example(
            """
            import torch


            def move(x, y, kernel):
                if x.is_cuda:  # XLA701 info
                    torch.cuda.synchronize()
                if not x.is_cuda:  # XLA701 info
                    return torch.nn.functional.gelu(x)
                if not x.is_cuda:  # XLA701 info
                    return kernel(x)
                else:
                    with torch.cuda.device(x.device):
                        return kernel(x)
                assert x.is_cuda  # XLA701
                return y.cuda() if x.is_cuda else y  # XLA701
            """
        ),
        example(
            """
            import torch


            def move(x, y, is_cuda):
                return y.to(x.device) if is_cuda else y
            """
        ),
    )
    mended = example(
        """
        import torch


        def move(x, y):
            return y.to(x.device)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one question."""
        assert isinstance(node, cst.Attribute)
        if node.attr.value == "is_cuda" and facts.names.of(node) is None:
            message = '.is_cuda is False on XLA: device.type != "cpu"'
            severity = Severity.INFO if goes_well(node, facts) else None
            yield self.hit(node, message, severity)
