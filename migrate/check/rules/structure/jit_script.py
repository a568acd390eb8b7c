"""TorchScript."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.check.common import NamedHazard, method
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import nodes_of


class JitScript(NamedHazard):
    """TorchScript brings nothing on XLA.

    **Why.** XLA compiles the graph itself. A scripted function runs (measured), but its control flow on
    tensors syncs at each turn where no tool sees it, and scripted modules cannot be rewritten or traced for
    shapes. The fusers of TorchScript are for CUDA, and autocast is not applied to functions that are scripted
    before the region.

    **What to do.** Leave the decorator out; `torch.compile(backend="openxla")` where a compiler is wanted.
    """

    code = "XLA709"
    name = "jit-script"
    words = "jit"
    severity = Severity.INFO
    is_mentioned = True
    examples = (
        example(
            """
            import torch


            @torch.jit.script  # XLA709
            def gelu(x):
                return x * torch.sigmoid(1.702 * x)


            def export(model, x):
                torch.jit.trace(model, x).save("model.pt")  # XLA709
                torch.jit.script(model).save("scripted.pt")  # XLA709
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
    mended = example(
        """
        import torch


        def gelu(x):
            return x * torch.sigmoid(1.702 * x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use; `migrate rewrite` is silent about a trace, which syncs nothing, and an export."""
        for hit in super().find(node, facts):
            harmless = facts.names.of(node) == "torch.jit.trace" or self._exports(node, facts)
            yield replace(hit, is_shown=False) if harmless else hit

    def _exports(self, node: cst.CSTNode, facts: Facts) -> bool:
        """Whether a model is scripted in a function that saves one."""
        above = facts.context.parent(node)
        around = facts.context.function_around(node)
        if around is None or not (isinstance(above, cst.Call) and above.func is node):
            return False
        if facts.exports:
            return True
        calls = nodes_of(around.body, cst.Call)
        return any(facts.names.of(c.func) == "torch.jit.save" or method(c) == "save" for c in calls)
