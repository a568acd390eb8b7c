"""An optimizer that is made before the model is on the device never changes the weights."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.devices import moves
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported


class OptimizerOrder(Rule):
    """Report an optimizer that may be made before the model is on the device.

    **Why.** `.to('xla')` replaces the parameters of a module. An optimizer that holds the old ones steps
    without an error, and the weights never change.

    **Reported.** A construction of an optimizer of torch in a function that moves nothing to the device
    before it, in a script that does so elsewhere: move the model first, or see that the caller has.
    `torch.__future__.set_swap_module_params_on_conversion(True)`, before anything is moved, lets a move
    keep the parameters themselves, so that the order no longer matters (measured: the optimizer made
    before the move changes the weights).

    Source: torch_xla 2.9 (measured); pytorch/xla#3675, #1764.
    """

    name = "optimizer-order"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    examples = (
        left_alone(
            """
            import torch


            def make(model):
                model.to('xla')
                return model, torch.optim.SGD(model.parameters(), lr=0.1)
            """
        ),
        left_alone(
            """
            import torch


            def make_for_the_cpu(model):
                return torch.optim.SGD(model.parameters(), lr=0.1)
            """
        ),
        reported(
            """
            import torch


            def make(model):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return model.to('xla'), optimizer
            """,
            "before",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Finding]:
        """Yield a finding for one construction of an optimizer."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func) or ""
        parts = name.split(".")
        is_optimizer = name.startswith("torch.optim.") and "lr_scheduler" not in parts
        if not is_optimizer or not parts[-1][:1].isupper() or not context.moves_to_accelerator:
            return
        around = context.function_around(node) or context.module
        here = context.position(node)
        earlier = (
            call
            for call in moves(around, context)
            if (context.position(call).line, context.position(call).column)
            < (here.line, here.column)
        )
        if next(earlier, None) is None:
            yield from self.report(
                node,
                "if the model is moved to the device only after this, its weights never change, with no "
                "error: move it before the optimizer is made, or call "
                "torch.__future__.set_swap_module_params_on_conversion(True) first",
            )
