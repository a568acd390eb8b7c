"""Hazard of in-place writes to views."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts

VIEWS = frozenset({"view", "t", "transpose", "permute", "narrow", "select", "expand", "diagonal"})


class ViewWrites(Hazard):
    """A view is written in place, inside the step.

    **Why.** On XLA nothing is written in place: the write becomes a new tensor of the whole base, with the
    view's part replaced. The values are right (measured); in a loop the copies are slow.

    **What to do.** `torch.where`, `torch.cat`, or one `scatter` for all parts.
    """

    code = "XLA604"
    name = "view-writes"
    severity = Severity.INFO
    nodes = (cst.Call,)
    words = r"[^\W_]_\b"  # methods that work in place
    examples = (
        example(
            """
            import torch


            class Shift(torch.nn.Module):
                def forward(self, x):
                    x.view(2, -1)[0].add_(1)  # XLA604
                    x[:, 0].mul_(2)  # XLA604
                    return x
            """
        ),
        example(
            """
            import torch


            class Shift(torch.nn.Module):
                def forward(self, x):
                    x = x.view(2, -1) + 1
                    x.relu_()
                    return x


            def initialize(weight):
                weight.view(-1).zero_()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Shift(torch.nn.Module):
            def forward(self, x):
                first, rest = x[:, :1] * 2, x[:, 1:]
                return torch.cat([first, rest], 1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one in-place method of a view."""
        assert isinstance(node, cst.Call)
        name = method(node)
        if not name.endswith("_") or name.startswith("_") or name == "requires_grad_":
            return
        base = receiver(node)
        is_view = isinstance(base, cst.Subscript) or method(base) in VIEWS
        if is_view and facts.values.is_tensor(base) and facts.steps.inside(node):
            yield self.hit(
                node, f".{name}() of a view copies the whole base: where, cat or scatter"
            )
