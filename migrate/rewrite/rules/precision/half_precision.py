"""float16 by hand: bfloat16 on a TPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code


class HalfPrecision(Rule):
    """Report `.half()`: a TPU computes in bfloat16.

    **Why.** A TPU has no float16 arithmetic: XLA widens and narrows around every operation. Without a
    gradient scaler small gradients become zero in float16, and `model.half()` says nothing of it.

    **Reported.** `.half()` as a method without arguments, in a script that imports torch: `.bfloat16()`.

    Source: TPU documentation; torch_xla 2.9 (measured: float16 runs, as float16).
    """

    name = "half-precision"
    code = "XLA502"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = "half"
    examples = (
        left_alone(
            """
            from grid import half

            left = half()
            """
        ),
        reported(
            """
            import torch

            model = torch.nn.Linear(2, 2).half()
            """,
            ".bfloat16()",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding for one conversion to float16."""
        assert isinstance(node, cst.Call)
        function = node.func
        if not isinstance(function, cst.Attribute) or function.attr.value != "half" or node.args:
            return
        if context.qualified_name(function) is None and context.references("torch"):
            yield from self.report(node, f"{code(node)}: float16; on a TPU `.bfloat16()`")
