"""NVIDIA DALI is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class Dali(ImportHazard):
    """NVIDIA DALI is imported.

    **Why.** Its pipelines run on GPUs and give CUDA tensors.

    **What to do.** A `torch.utils.data.DataLoader` with worker processes; a TPU host has many cores.
    """

    code = "XLA406"
    name = "dali"
    severity = Severity.ERROR
    targets = BOTH
    examples = (
        example(
            """
            import nvidia.dali.fn as fn  # XLA406
            from nvidia.dali.pipeline import Pipeline  # XLA406
            """
        ),
        example(
            """
            from torch.utils.data import DataLoader
            """
        ),
    )
    mended = example(
        """
        import torch


        def make(images):
            return torch.utils.data.DataLoader(images, batch_size=64, num_workers=8, drop_last=True)
        """
    )
