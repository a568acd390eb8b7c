"""`clip_grad_norm_` with `foreach=True`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import truth
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.foreach import TAKES_FOREACH, foreach_of
from migrate.syntax.tree import code, nodes_of


class ForeachClip(Hazard):
    """`clip_grad_norm_(…, foreach=True)` raises on XLA.

    **Why.** torch has no foreach kernels for XLA: its functions that clip raise with `foreach=True`. So may a
    project's own clipping, which asks `torch.utils._foreach_utils`. The optimizers step with `foreach=True`.

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
        example(
            """
            import torch
            from torch.utils._foreach_utils import _device_has_foreach_support


            def own_clip(parameters, limit, foreach=None):
                if foreach and _device_has_foreach_support(parameters[0].device):
                    return torch._foreach_norm(parameters)


            def walk(items, foreach=False):
                return [item for item in items if foreach]


            def clip(model):
                parameters = list(model.parameters())
                own_clip(parameters, 1.0, foreach=True)  # XLA812 warning
                torch.nn.utils.clip_grad_norm_(parameters, 1.0, 2.0, False, True)  # XLA812
                torch.nn.utils.get_total_norm(parameters, foreach=True)  # XLA812
                walk(parameters, foreach=True)
                return torch.optim.SGD(parameters, foreach=True)


            def clip_so(model, foreach):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)  # XLA812 warning
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
        foreach = foreach_of(node, facts.context)
        is_true = truth(foreach.value, facts) if foreach is not None else False
        name = facts.names.of(node.func) or ""
        if foreach is None or is_true is False:
            return
        if is_true is None:
            if name in TAKES_FOREACH:
                message = f"foreach=True raises on XLA, and `{code(foreach.value)}` may be true: leave it out"
                yield self.hit(node, message, Severity.WARNING)
            return
        if name in TAKES_FOREACH:
            yield self.hit(node, "foreach=True raises on XLA: leave it out")
        elif not name.startswith("torch.") and _uses_it(node, facts):
            message = (
                f"`{code(node.func)}` is given foreach=True, which torch refuses for XLA tensors: "
                "see that it computes without it, and leave it out"
            )
            yield self.hit(node, message, Severity.WARNING)


def _uses_it(call: cst.Call, facts: Facts) -> bool:
    """Whether a function that is not torch's may choose torch's implementations by its `foreach`."""
    context = facts.context
    if facts.values.kind(call) is Kind.OPTIMIZER:
        return False  # those of torch step with it, and `torch._foreach_mul_` runs
    here = context.called(call)
    if not here:
        return bool(context.run_by(call)) or facts.names.of(call.func) is not None
    return any(
        (isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "foreach")
        or (context.qualified_name(node) or "").startswith("torch.utils._foreach_utils.")
        for function in here
        for kind in (cst.Arg, cst.Name, cst.Attribute)
        for node in nodes_of(function.body, kind)
    )
