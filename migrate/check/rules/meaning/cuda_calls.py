"""A call of `torch.cuda` that raises without CUDA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts


class CudaCalls(NamedHazard):
    """A call of `torch.cuda` that raises without CUDA.

    **Why.** There is no CUDA device on a TPU host: these raise as soon as they are called. Below
    `if torch.cuda.is_available():` nothing calls them there, and this is information.

    **What to do.** What the message says; `migrate rewrite` does most of it.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA801"
    name = "cuda-calls"
    severity = Severity.ERROR
    spoken_by = ("set-device", "cuda-memory", "cuda-streams", "cuda-timing")
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.cuda.set_device", "raises: a replica sees one device, remove it"),
        ("torch.cuda.current_device", "raises: torch_xla.device()"),
        ("torch.cuda.device", "raises: a replica sees one device, remove it"),
        ("torch.cuda.synchronize", "raises: torch_xla.sync(wait=True)"),
        ("torch.cuda.Event", "raises: time.perf_counter() after torch_xla.sync(wait=True)"),
        ("torch.cuda.Stream", "raises: XLA orders its own work, remove it"),
        ("torch.cuda.current_stream", "raises: XLA orders its own work, remove it"),
        ("torch.cuda.default_stream", "raises: XLA orders its own work, remove it"),
        ("torch.cuda.get_rng_state", "raises: xm.get_rng_state()"),
        ("torch.cuda.set_rng_state", "raises: xm.set_rng_state(state)"),
        ("torch.cuda.get_device_properties", "raises: there is no CUDA device"),
        ("torch.cuda.get_device_name", "raises: there is no CUDA device"),
        ("torch.cuda.get_device_capability", "raises: there is no CUDA device"),
        ("torch.cuda.memory_summary", "raises: xm.get_memory_info()"),
        ("torch.cuda.reset_peak_memory_stats", "raises: remove it"),
        ("torch.cuda.reset_max_memory_allocated", "raises: remove it"),
        ("torch.cuda.mem_get_info", "raises: xm.get_memory_info()"),
        ("torch.cuda.CUDAGraph", "raises: XLA replays its graphs by itself"),
        ("torch.cuda.graph", "raises: XLA replays its graphs by itself"),
        ("torch.cuda.make_graphed_callables", "raises: XLA replays its graphs by itself"),
        ("torch.cuda.nvtx.", "raises: torch_xla.debug.profiler.Trace"),
        ("torch.cuda.nccl.", "raises: there is no NCCL"),
        ("torch.cuda.comm.", "raises: torch.distributed"),
    )
    examples = (
        example(
            """
            import torch


            def start(rank):
                torch.cuda.set_device(rank)  # XLA801
                torch.cuda.synchronize()  # XLA801
                return torch.cuda.Event(enable_timing=True)  # XLA801


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

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use; information where only a run on CUDA comes to it."""
        for hit in super().find(node, facts):
            never = only_with_cuda(node, facts)
            yield replace(hit, severity=Severity.INFO) if never else hit
