"""Memory figures and properties of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import OnXla, names
from migrate.catalogue.prescan import spelled
from migrate.catalogue.torch_cuda import ASKED, IGNORED, INITIALIZED
from migrate.check.hazard import Severity
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import is_cuda, only_on_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

GONE = names(*IGNORED)
# Of these, what raises where there is no GPU.
RAISING = names(*(entry for entry in IGNORED if entry.on_xla is OnXla.RAISES))
FIGURES = names(*ASKED)
ASKING = FIGURES | names(*INITIALIZED)
# In the portable style what of `shims.memory()` says the same.
FIELDS = {"torch.cuda.memory_allocated": "used", "torch.cuda.max_memory_allocated": "peak"}


class CudaMemory(Rule):
    """Remove calls that only manage the memory of a GPU, and report figures that nothing answers.

    **What it does.** `torch.cuda.empty_cache()`, `reset_peak_memory_stats()` and their like go: XLA plans
    the memory of a whole graph.

    **Reported.** Memory figures, which are silently 0 on XLA, so that logs and limits that use them are
    wrong, and the name and properties of the GPU, which raise: `torch_xla.core.xla_model.get_memory_info()`
    has the bytes in use, at the peak and at most. They are not put in, since the CPU, where a rewritten
    script is tried first, does not have them.

    Source: torch_xla 2.9 (measured: memory_allocated() is 0, get_device_properties() raises,
    get_memory_info() is unimplemented on the CPU).
    """

    name = "cuda-memory"
    code = "XLA802"
    beside_frameworks = True
    edited = Severity.WARNING
    nodes = (cst.Expr, cst.Call)
    words = spelled(GONE | ASKING)
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
        checked(
            """
            import torch

            print(torch.cuda.max_memory_allocated() / 2**20)  # XLA802 error
            print(len(torch.cuda.memory_snapshot()))  # XLA802 error
            torch.cuda.empty_cache()  # XLA802 info
            torch.cuda.reset_max_memory_cached()  # XLA802 error
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of a statement, or the finding on a figure."""
        if isinstance(node, cst.Expr):
            call = node.value
            callee = context.qualified_name(call.func) if isinstance(call, cst.Call) else None
            if context.portable:
                if callee in RAISING:
                    yield only_on_cuda(self, node, context, "nothing else has its memory")
            elif callee in GONE:
                message = f"remove {code(node)}: XLA plans the memory of a whole graph"
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
        elif name in ASKING and context.portable:
            asked = code(is_cuda(context))
            yield from self.report(node, f"{name}: 0, empty or an error elsewhere: ask if {asked}")
        elif name in ASKING and (entry := catalogue.of(name)):
            yield from self.report(node, f"{name}: {entry.says()}", subject=name)
