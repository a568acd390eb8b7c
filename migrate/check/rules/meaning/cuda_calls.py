"""A call of `torch.cuda` or `torch.accelerator` that raises without CUDA."""

from __future__ import annotations

from migrate.check.common import CudaHazard
from migrate.check.hazard import Severity, example


class CudaCalls(CudaHazard):
    """A call of `torch.cuda` or `torch.accelerator` that raises without CUDA.

    **Why.** There is no CUDA device on a TPU host: these raise as soon as they are called. Below `if
    torch.cuda.is_available():` nothing calls them there, and this is information.

    **What to do.** What the message says. Devices, streams, timing, memory, seeds and types of CUDA have
    codes of their own (XLA802, XLA813, XLA827, XLA828, XLA832, XLA833).

    Source: torch_xla 2.9, measured.
    """

    code = "XLA801"
    name = "cuda-calls"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch


            def capture(rank):
                graph = torch.cuda.CUDAGraph()  # XLA801
                with torch.cuda.graph(graph):  # XLA801
                    pass
                print(torch.cuda.cudart())  # XLA801
                if torch.cuda.is_available():
                    print(torch.cuda.cudart())  # XLA801 info
            """
        ),
        example(
            """
            import torch

            torch.cuda.empty_cache()
            torch.cuda.is_initialized()
            torch.backends.cudnn.benchmark = True
            """
        ),
    )
    mended = example(
        """
        def capture(step, x):
            return step(x)
        """
    )
