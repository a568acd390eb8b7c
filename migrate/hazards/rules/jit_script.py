"""TorchScript."""

from __future__ import annotations

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.hazard import Severity, example


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
