"""Operators of torch_tpu without a gradient."""

from __future__ import annotations

from migrate.catalogue.target import TPU_ONLY
from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class LostGradients(NamedHazard):
    """A layer has no gradient on torch_tpu.

    **Why.** `avg_pool1d` computes its output, and nothing goes back through it: the layers before it get no
    gradient and do not train, with no error.

    **What to do.** Compute the same with `avg_pool2d`, which has a gradient. In a model that is only
    evaluated the layer is right.

    Source: torch_tpu 0.2.0 with torch 2.13 (measured on XLA:CPU).
    """

    code = "XLA893"
    name = "lost-gradient"
    severity = Severity.WARNING
    targets = TPU_ONLY
    words = "[aA]vg_?[pP]ool1d"
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F

            pool = torch.nn.AvgPool1d(2)  # XLA893


            def shrink(x):
                return F.avg_pool1d(x, 2)  # XLA893
            """
        ),
        example(
            """
            import torch

            pool = torch.nn.AvgPool2d(2)
            most = torch.nn.MaxPool1d(2)
            """
        ),
    )
    mended = example(
        """
        import torch.nn.functional as F


        def shrink(x):
            return F.avg_pool2d(x.unsqueeze(-2), (1, 2)).squeeze(-2)
        """
    )
