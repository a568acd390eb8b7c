"""TorchScript."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hit, Severity, example


class JitScript(NamedHazard):
    """TorchScript brings nothing on XLA.

    **Why.** XLA compiles the graph itself. A scripted function runs (measured), but its control flow on
    tensors syncs at each turn where no tool sees it, and scripted modules cannot be rewritten or traced for
    shapes.

    **What to do.** Leave the decorator out; `torch.compile(backend="openxla")` where a compiler is wanted.
    """

    code = "XLA709"
    name = "jit-script"
    severity = Severity.WARNING
    spoken_by = ("jit-script",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.jit.script", "brings nothing on XLA, and hides syncs: leave it out"),
        ("torch.jit.script_method", "brings nothing on XLA, and hides syncs: leave it out"),
        ("torch.jit.trace", "brings nothing on XLA: leave it out"),
    )
    examples = (
        example(
            """
            import torch


            @torch.jit.script  # XLA709
            def gelu(x):
                return x * torch.sigmoid(1.702 * x)


            def export(model, x):
                torch.jit.trace(model, x).save("model.pt")  # XLA709 info
            """
        ),
        example(
            """
            import torch


            @torch.jit.ignore
            def gelu(x):
                return x * torch.sigmoid(1.702 * x)
            """
        ),
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use; a trace, which syncs nothing and mostly exports a model, is information."""
        traced = facts.names.of(node) == "torch.jit.trace"
        for hit in super().find(node, facts):
            yield replace(hit, severity=Severity.INFO) if traced else hit
