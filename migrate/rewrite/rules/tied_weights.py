"""Weights that two modules share are no longer shared after the move to the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.tree import code


class TiedWeights(Rule):
    """Report weights that are tied before the model is on the device.

    **Why.** On XLA, `model.to('xla')` makes a new parameter for every name: `lm_head.weight` and
    `wte.weight`, one tensor before, are two after, and are trained apart with no error (measured).

    **Reported.** `self.lm_head.weight = self.wte.weight` in a class. Repeat the assignment after the move,
    before the optimizer is made, or call `torch.__future__.set_swap_module_params_on_conversion(True)`
    before the move, which then keeps the tie (measured).

    Source: torch_xla 2.9 (measured).
    """

    name = "tied-weights"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Assign,)
    examples = (
        left_alone(
            """
            import torch.nn as nn


            class Layer(nn.Module):
                def __init__(self, other):
                    super().__init__()
                    self.weight = other.weight
                    self.linear.weight = nn.Parameter(other.weight)
            """
        ),
        reported(
            """
            import torch.nn as nn


            class Model(nn.Module):
                def __init__(self, size, width):
                    super().__init__()
                    self.wte = nn.Embedding(size, width)
                    self.lm_head = nn.Linear(width, size, bias=False)
                    self.lm_head.weight = self.wte.weight
            """,
            "no longer tied",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Finding]:
        """Yield a finding for one assignment that ties two weights."""
        assert isinstance(node, cst.Assign)
        places = [*(target.target for target in node.targets), node.value]
        if all(_is_weight_of_part(place) for place in places):
            message = (
                f"`{code(node)}`: after .to('xla') they are no longer tied; repeat it after the move, or "
                "call torch.__future__.set_swap_module_params_on_conversion(True) before it"
            )
            yield from self.report(node, message)


def _is_weight_of_part(node: cst.BaseExpression) -> bool:
    """Whether `node` is `self.PART.weight`, the part being as deep as it likes."""
    text = code(node)
    return text.startswith("self.") and text.count(".") > 1 and text.endswith(".weight")
