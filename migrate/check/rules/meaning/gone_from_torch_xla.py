"""Names that torch_xla 2.9 no longer has."""

from __future__ import annotations

import libcst as cst

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
    spoken_by = ("old-torch-xla",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        (
            "torch_xla.core.xla_model.get_ordinal",
            "is gone in 2.9: torch_xla.runtime.global_ordinal()",
        ),
        (
            "torch_xla.core.xla_model.get_local_ordinal",
            "is gone in 2.9: torch_xla.runtime.local_ordinal()",
        ),
        (
            "torch_xla.core.xla_model.xrt_world_size",
            "is gone in 2.9: torch_xla.runtime.world_size()",
        ),
        (
            "torch_xla.amp.autocast",
            'raises with a device as its argument: torch.autocast("xla", dtype=torch.bfloat16)',
        ),
    )
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
