"""`torch.compile` with its default backend."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import keyword


class CompileBackend(Hazard):
    """`torch.compile` without a backend raises on XLA.

    **Why.** Its default, inductor, makes code for CUDA and the CPU.

    **What to do.** Drop it: XLA compiles in any case. Or `backend="openxla"`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA806"
    name = "compile-backend"
    severity = Severity.ERROR
    spoken_by = ("compile",)
    nodes = (cst.Call, cst.Decorator)
    words = "compile"
    examples = (
        example(
            """
            import torch


            @torch.compile  # XLA806
            def norm(x):
                return x / x.norm()


            def make(model):
                return torch.compile(model)  # XLA806
            """
        ),
        example(
            """
            import re

            import torch


            def make(model):
                return torch.compile(model, backend="openxla"), re.compile("a")
            """
        ),
    )
    mended = example(
        """
        import torch


        @torch.compile(backend="openxla")
        def norm(x):
            return x / x.norm()


        def make(model):
            return model  # XLA compiles it anyway
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call or decorator."""
        message = 'torch.compile: its default backend raises on XLA; drop it, or backend="openxla"'
        if isinstance(node, cst.Decorator):
            if facts.names.of(node.decorator) == "torch.compile":
                yield self.hit(node.decorator, message)
            return
        assert isinstance(node, cst.Call)
        chosen = keyword(node, "backend") is not None or any(arg.star == "**" for arg in node.args)
        if facts.names.of(node.func) == "torch.compile" and not chosen:
            yield self.hit(node, message)
