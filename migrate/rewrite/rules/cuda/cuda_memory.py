"""Memory figures and properties of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.tree import code
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import HARMLESS, is_cuda, only_on_cuda
from migrate.rewrite.workspace import Workspace

# Statements that only tell the CUDA allocator something.
GONE = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "empty_cache",
        "init",
        "ipc_collect",
        "memory.empty_cache",
        "memory.reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
        "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
    )
)

GET = "torch_xla.core.xla_model.get_memory_info()"
ZERO = "silently 0 on XLA"
RAISES = "raises on XLA"
SILENT = {
    "memory_allocated": "bytes_used",
    "max_memory_allocated": "peak_bytes_used",
    "memory_reserved": "bytes_used",
    "max_memory_reserved": "peak_bytes_used",
    "memory_cached": "bytes_used",
    "max_memory_cached": "peak_bytes_used",
}
ADVICE = {
    **{f"torch.cuda.{n}": f"{ZERO}: {GET}['{key}'], on a TPU only" for n, key in SILENT.items()},
    "torch.cuda.memory_stats": f"empty on XLA: {GET}, on a TPU only",
    "torch.cuda.memory_summary": f"{RAISES}: {GET}, on a TPU only",
    "torch.cuda.memory_snapshot": f"empty on XLA: {GET}, on a TPU only",
    "torch.cuda.mem_get_info": f"{RAISES}: {GET} has bytes_used and bytes_limit, on a TPU only",
    "torch.cuda.get_device_properties": f"{RAISES}: for the memory, {GET}['bytes_limit']",
    "torch.cuda.get_device_name": f"{RAISES}: torch_xla.core.xla_model.xla_device_hw('xla')",
    "torch.cuda.get_device_capability": f"{RAISES}: a TPU has none; take the branch for bfloat16",
    "torch.cuda.utilization": f"{RAISES}: tpu-info, on the command line",
    "torch.cuda.temperature": f"{RAISES}: remove it",
    "torch.cuda.power_draw": f"{RAISES}: remove it",
    "torch.cuda.list_gpu_processes": "lists no TPU process: tpu-info, on the command line",
    "torch.cuda.is_initialized": "is False on XLA: what it guards is skipped",
}
# In the portable style what of `shims.memory()` says the same.
FIELDS = {"torch.cuda.memory_allocated": "used", "torch.cuda.max_memory_allocated": "peak"}
FIGURES = frozenset(ADVICE) - {"torch.cuda.is_initialized"}


class CudaMemory(Rule):
    """Remove calls that only manage the memory of a GPU, and report figures that nothing answers.

    **What it does.** `torch.cuda.empty_cache()`, `reset_peak_memory_stats()` and their like go: XLA plans
    the memory of a whole graph.

    **Reported.** Memory figures, which are silently 0 on XLA, and the name and properties of the GPU, which
    raise: `torch_xla.core.xla_model.get_memory_info()` has the bytes in use, at the peak and at most. They
    are not put in, since the CPU, where a rewritten script is tried first, does not have them.

    Source: torch_xla 2.9 (measured: memory_allocated() is 0, get_device_properties() raises,
    get_memory_info() is unimplemented on the CPU).
    """

    name = "cuda-memory"
    nodes = (cst.Expr, cst.Call)
    examples = (
        rewritten(
            """
            import torch


            def train(model, epochs):
                for epoch in range(epochs):
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                    model(epoch)
            """,
            """
            def train(model, epochs):
                for epoch in range(epochs):
                    model(epoch)
            """,
        ),
        left_alone(
            """
            from pool import empty_cache, memory_allocated

            empty_cache()
            print(memory_allocated())
            """
        ),
        reported(
            """
            import torch

            print(f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MB")
            """,
            "peak_bytes_used",
        ),
        reported(
            """
            import torch

            properties = torch.cuda.get_device_properties(0)
            """,
            "raises on XLA",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the removal of a statement, or the finding on a figure."""
        if isinstance(node, cst.Expr):
            call = node.value
            told = context.qualified_name(call.func) if isinstance(call, cst.Call) else None
            if context.portable:
                if told in GONE and told not in HARMLESS:
                    yield only_on_cuda(self, node, context, "nothing else has its memory")
                return
            if told in GONE:
                message = f"{code(node)} goes: XLA plans the memory of a whole graph"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            return
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func) or ""
        if context.portable and name in FIELDS:
            shims = context.imports.require("shims")
            figure = cst.parse_expression(f"{shims}.memory(missing=0).{FIELDS[name]}")
            yield self.edit(
                node, lambda _: figure, f"{code(node)} → {code(figure)}", consumes=[node]
            )
        elif context.portable and name in ADVICE:
            asked = code(is_cuda(context))
            yield from self.report(node, f"{name}: 0, empty or an error elsewhere: ask if {asked}")
        elif name in ADVICE:
            yield from self.report(node, f"{name}: {ADVICE[name]}")
