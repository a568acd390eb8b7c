"""`nn.DataParallel` does not parallelise on XLA."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import CudaHazard
from migrate.check.hazard import Severity, example


class DataParallel(CudaHazard):
    """`nn.DataParallel` does not parallelise on XLA.

    **Why.** It copies the model to the CUDA devices of one process. A replica on a TPU sees one device:
    the script runs on that alone.

    **What to do.** `DistributedDataParallel` and `torch_xla.launch`.

    Source: `torch/nn/parallel/data_parallel.py` (it asks for the CUDA devices of the process).
    """

    code = "XLA815"
    name = "data-parallel"
    severity = Severity.WARNING
    targets = BOTH
    on_torch_tpu = "`nn.DataParallel` raises: no attribute `_scatter` (measured)."
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
