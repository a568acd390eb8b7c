"""TorchScript."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.hazard import Severity
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace

SCRIPTED = frozenset({"torch.jit.script", "torch.jit.trace", "torch.jit.fuser"})


class JitScript(Rule):
    """Report TorchScript: XLA compiles the operations either way.

    **Why.** A scripted function runs on XLA tensors, operation by operation, as it would without the
    decorator: there is nothing to gain, its fusers are for CUDA, and autocast is not applied to functions
    scripted before the region.

    **Reported.** `torch.jit.script`, `torch.jit.trace` and `torch.jit.fuser`, once in a script.

    Source: torch 2.9 on torch_xla 2.9 (measured: scripted and traced modules run).
    """

    name = "jit-script"
    code = "XLA709"
    edited = Severity.INFO
    severity = Severity.INFO
    safety = Safety.REPORT_ONLY
    nodes = (cst.Module,)
    words = spelled(SCRIPTED)
    examples = (
        left_alone(
            """
            from jax import jit

            step = jit(step)
            """
        ),
        reported(
            """
            import torch


            @torch.jit.script
            def gate(x: torch.Tensor) -> torch.Tensor:
                return x * torch.sigmoid(x)
            """,
            "runs on XLA",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding at the first use."""
        for use in context.all_of(cst.Attribute, cst.Name):
            if context.qualified_name(use) not in SCRIPTED:
                continue
            if isinstance(context.parent(use), cst.ImportAlias | cst.ImportFrom):
                continue
            message = "TorchScript runs on XLA, with nothing to gain: it can be dropped"
            yield from self.report(use, message)
            return
