"""Names that torch_xla 2.9 still has, and warns of."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class DeprecatedInTorchXla(NamedHazard):
    """Names that torch_xla 2.9 still has, and warns of.

    **Why.** They go in a later release.

    **What to do.** What the message says; `migrate rewrite` does it.

    Source: torch_xla 2.9.
    """

    code = "XLA820"
    name = "deprecated-in-torch-xla"
    severity = Severity.INFO
    examples = (
        example(
            """
            import torch_xla.core.xla_model as xm

            device = xm.xla_device()  # XLA820
            xm.mark_step()  # XLA820
            """
        ),
        example(
            """
            import torch_xla

            device = torch_xla.device()
            torch_xla.sync()
            """
        ),
    )
    mended = example(
        """
        import torch_xla

        device = torch_xla.device()
        torch_xla.sync()
        """
    )
