"""A call of `torch.cuda` or `torch.accelerator` that raises without CUDA."""

from __future__ import annotations

from migrate.check.common import CudaHazard
from migrate.check.hazard import Severity, example


class CudaCalls(CudaHazard):
    """A call of `torch.cuda` or `torch.accelerator` that raises without CUDA.

    **Why.** There is no CUDA device on a TPU host: these raise as soon as they are called
    (`set_rng_state` is worse: it waits for a GPU, without a word). Below `if torch.cuda.is_available():`
    nothing calls them there, and this is information.

    **What to do.** What the message says; `migrate rewrite` does most of it.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA801"
    name = "cuda-calls"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch


            def start(rank):
                torch.cuda.set_device(rank)  # XLA801
                torch.cuda.synchronize()  # XLA801
                return torch.cuda.Event(enable_timing=True)  # XLA801


            def ask(path):
                torch.cuda.reset_max_memory_cached()  # XLA801
                torch.cuda.random.set_rng_state(torch.load(path))  # XLA801
                torch.accelerator.synchronize()  # XLA801
                print(torch.cuda.utilization(), torch.cuda.FloatTensor(3))  # XLA801


            def wait(x):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # XLA801 info
                if x.is_cuda and x.device.type == "cuda":
                    torch.cuda.synchronize(x.device)  # XLA801 info
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
        import time

        import torch_xla


        def start():
            torch_xla.sync(wait=True)
            return time.perf_counter()
        """
    )
