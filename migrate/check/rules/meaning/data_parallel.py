"""`nn.DataParallel` does not parallelise on XLA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts


class DataParallel(NamedHazard):
    """`nn.DataParallel` does not parallelise on XLA.

    **Why.** It copies the model to the CUDA devices of one process. A replica on a TPU sees one device:
    the script runs on that alone.

    **What to do.** `DistributedDataParallel` and `torch_xla.launch`.

    Source: `torch/nn/parallel/data_parallel.py` (it asks for the CUDA devices of the process).
    """

    code = "XLA815"
    name = "data-parallel"
    severity = Severity.WARNING
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.nn.DataParallel", "uses one device on XLA: DistributedDataParallel"),
        ("torch.nn.parallel.DataParallel", "uses one device on XLA: DistributedDataParallel"),
        (
            "torch.nn.parallel.data_parallel.DataParallel",
            "uses one device on XLA: DistributedDataParallel",
        ),
        ("torch.nn.parallel.data_parallel", "uses one device on XLA: DistributedDataParallel"),
        ("torch.nn.DataParallel.", "uses one device on XLA: DistributedDataParallel"),
    )
    examples = (
        example(
            """
            import torch


            def wrap(model):
                return torch.nn.DataParallel(model)  # XLA815


            def forward(main, x, gpus):
                if (x.is_cuda or x.is_xpu) and gpus > 1:
                    return torch.nn.parallel.data_parallel(main, x, range(gpus))  # XLA815 info
                return main(x)
            """
        ),
        example(
            """
            import torch


            def wrap(model):
                return torch.nn.parallel.DistributedDataParallel(model)
            """
        ),
    )
    mended = example(
        """
        import torch


        def wrap(model):
            return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use; information where only tensors of CUDA come to it."""
        for hit in super().find(node, facts):
            never = only_with_cuda(node, facts)
            yield replace(hit, severity=Severity.INFO) if never else hit
