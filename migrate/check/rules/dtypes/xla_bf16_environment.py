"""Environment variables that change every dtype."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.prescan import spelled
from migrate.reading.tree.tree import string_value

VARIABLES = frozenset({"XLA_USE_BF16", "XLA_DOWNCAST_BF16"})


class XlaBf16Environment(Hazard):
    """XLA_USE_BF16 makes every float32 tensor bfloat16.

    **Why.** The variable still acts in torch_xla 2.9 and warns: weights and the optimizer's state lose 16 of
    their bits without that the script shows it.

    **What to do.** `torch.autocast('xla', dtype=torch.bfloat16)`, or `model.to(torch.bfloat16)`.
    """

    code = "XLA505"
    name = "bf16-environment"
    severity = Severity.WARNING
    nodes = (cst.SimpleString,)
    words = spelled(VARIABLES)
    examples = (
        example(
            """
            import os

            os.environ["XLA_USE_BF16"] = "1"  # XLA505
            """
        ),
        example(
            """
            import os

            os.environ["PJRT_DEVICE"] = "TPU"
            help_text = "XLA_USE_BF16 is not set by this script"
            """
        ),
    )
    mended = example(
        """
        import torch


        def step(model, x):
            with torch.autocast("xla", dtype=torch.bfloat16):
                return model(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one mention of a variable."""
        value = string_value(node)
        if value in VARIABLES:
            yield self.hit(
                node, f"{value} makes every float32 bfloat16, weights too: torch.autocast"
            )
