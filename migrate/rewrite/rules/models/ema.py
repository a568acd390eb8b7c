"""Averages of the model's weights."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.tree import code
from migrate.reading.values.devices import moves
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

AVERAGES = frozenset(
    {
        "torch.optim.swa_utils.AveragedModel",
        "copy.deepcopy",
        "timm.utils.ModelEma",
        "timm.utils.ModelEmaV2",
    }
)


class Ema(Rule):
    """Report a copy of the model that may be made before the model is on the device.

    **Why.** A copy or an average of the weights stays on the device where the model was when it was
    made. Made before the move it is on the CPU, and every update reads all weights from the device.
    `AveragedModel` and `copy.deepcopy` work on XLA, in the step as everything else.

    **Reported.** A copy of something called model or net in a function that moves that very name to the
    accelerator only afterwards.

    Source: torch 2.9 on torch_xla 2.9 (measured: averages of a model on the device stay on it).
    """

    name = "ema"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    examples = (
        left_alone(
            """
            import copy


            def build(model):
                model.to('xla')
                return model, copy.deepcopy(model)
            """
        ),
        reported(
            """
            from torch.optim.swa_utils import AveragedModel


            def build(model):
                average = AveragedModel(model)
                model = model.to('xla')
                return model, average
            """,
            "move `model` first",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding for one copy."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in AVERAGES or not node.args:
            return
        model = code(node.args[0].value)
        around = context.function_around(node) or context.module
        moved = [c for c in moves(around, context) if _receiver(c) == model]
        here = context.position(node).line
        if moved and all(context.position(call).line > here for call in moved):
            message = f"{code(node)} is made on the CPU and stays there: move `{model}` first"
            yield from self.report(node, message)


def _receiver(call: cst.Call) -> str:
    return code(call.func.value) if isinstance(call.func, cst.Attribute) else ""
