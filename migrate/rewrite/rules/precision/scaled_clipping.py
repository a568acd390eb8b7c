"""Gradients that are clipped while a gradient scaler still has them scaled."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH
from migrate.rewrite.rule import Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.rules.precision.clip_gradients import CLIPS
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of


class ScaledClipping(Rule):
    """Report gradients that are clipped before the scaler has unscaled them.

    **Why.** With `scaler.scale(loss).backward()` and no `scaler.unscale_(optimizer)`, `clip_grad_norm_`
    measures gradients that are 65536 times too large: the script clips nearly always, at a limit of
    `max_norm / 65536`. On XLA there is no scaler, and the limit is what is written: the two train
    otherwise.

    **Reported.** Such a call, between `scaler.scale` and `scaler.step` of one function. Nothing is to be done
    where the written limit is meant; else divide it by the scale that the original trains with.

    Source: torch 2.9's GradScaler; `migrate prove` shows it as another gradient norm.
    """

    name = "scaled-clipping"
    code = "XLA845"
    targets = BOTH
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = spelled(CLIPS)
    examples = (
        left_alone(
            """
            import torch


            def step(model, scaler, optimizer, loss):
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
            """
        ),
        left_alone(
            """
            import torch


            def step(model, scaler, optimizer, loss, mixed):
                if mixed:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                else:
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            """
        ),
        reported(
            """
            import torch


            def step(model, scaler, optimizer, loss):
                scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
            """,
            "still scaled",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding on one call that clips."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in CLIPS:
            return
        here = context.position(node).line
        calls = list(nodes_of(context.function_around(node) or context.module, cst.Call))
        for scaler in _receivers("scale", calls, context, last=here):
            after = _receivers("step", calls, context, first=here)
            if scaler in after and scaler not in _receivers("unscale_", calls, context, last=here):
                yield from self.report(
                    node,
                    f"the gradients are still scaled here, as `{scaler}.unscale_` is not called before: the "
                    "original clips at this limit divided by the scale, the rewrite at the limit",
                )


def _receivers(
    method: str, calls: Iterable[cst.Call], context: Workspace, first: int = 0, last: int = 10**9
) -> set[str]:
    """Return what `method` is called on from the line `first` to `last`."""
    return {
        code(call.func.value)
        for call in calls
        if isinstance(call.func, cst.Attribute)
        and call.func.attr.value == method
        and first <= context.position(call).line <= last
    }
