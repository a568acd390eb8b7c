"""Activation checkpointing of `torch.utils.checkpoint`."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class Checkpointing(NamedHazard):
    """Activation checkpointing of `torch.utils.checkpoint`.

    **Why.** It asks for the state of the device's random numbers, which XLA does not give that way, and
    raises.

    **What to do.** `from torch_xla.utils.checkpoint import checkpoint`: the same call.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA808"
    name = "activation-checkpoint"
    severity = Severity.ERROR
    examples = (
        example(
            """
            from torch.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x)  # XLA808
            """
        ),
        example(
            """
            from torch_xla.utils.checkpoint import checkpoint


            def forward(block, x):
                return checkpoint(block, x)
            """
        ),
    )
    mended = example(
        """
        from torch_xla.utils.checkpoint import checkpoint


        def forward(block, x):
            return checkpoint(block, x)
        """
    )
