"""Names that torch_xla 2.9 no longer has."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class GoneFromTorchXla(NamedHazard):
    """Names that torch_xla 2.9 no longer has.

    **Why.** Older guides and scripts call them; they raise AttributeError.

    **What to do.** `torch_xla.runtime`; `migrate rewrite` does it.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA819"
    name = "gone-from-torch-xla"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch_xla.core.xla_model as xm

            print(xm.get_ordinal(), xm.xrt_world_size())  # XLA819
            """
        ),
        example(
            """
            import torch_xla.runtime as xr

            print(xr.global_ordinal(), xr.world_size())
            """
        ),
    )
    mended = example(
        """
        import torch_xla.runtime as xr

        print(xr.global_ordinal(), xr.world_size())
        """
    )
