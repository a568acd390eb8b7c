"""The NVIDIA management library is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class Nvml(ImportHazard):
    """The NVIDIA management library is imported.

    **Why.** There is no NVIDIA driver on a TPU host: the first call raises.

    **What to do.** `xm.get_memory_info()` for memory, which raises on the CPU, or `tpu-info` on the command
    line.
    """

    code = "XLA407"
    name = "nvml"
    severity = Severity.WARNING
    targets = BOTH
    examples = (
        example(
            """
            import pynvml  # XLA407
            """
        ),
        example(
            """
            import psutil
            """
        ),
    )
    mended = example(
        """
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        if xr.device_type() == "TPU":
            print(xm.get_memory_info("xla"))
        """
    )
