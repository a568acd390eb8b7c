"""Autocast for CUDA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.catalogue import torch_cuda
from migrate.reading.catalogue.entry import names
from migrate.reading.catalogue.torch_other import TYPED_AUTOCAST
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, keyword, string_value

OLD = names(*torch_cuda.AUTOCAST)
NEW = names(*TYPED_AUTOCAST)


class Amp(Hazard):
    """Autocast for CUDA silently computes in float32 on XLA.

    **Why.** Autocast switches operations of the device that it names. On XLA, autocast for CUDA warns at
    most, and everything is computed in float32.

    **What to do.** `torch.autocast("xla", dtype=torch.bfloat16)`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA803"
    name = "autocast"
    severity = Severity.ERROR
    spoken_by = ("autocast", "autocast-functions")
    nodes = (cst.Call, cst.Decorator)
    examples = (
        example(
            """
            import torch
            from torch.cuda.amp import autocast


            def step(model, x):
                with autocast():  # XLA803
                    y = model(x)
                with torch.autocast("cuda", dtype=torch.float16):  # XLA803
                    return model(y)
            """
        ),
        example(
            """
            import torch


            def step(model, x, device):
                with torch.autocast("xla", dtype=torch.bfloat16):
                    y = model(x)
                with torch.autocast(device.type), torch.autocast("cpu"):
                    return model(y)
            """
        ),
    )
    mended = example(
        """
        import torch


        def step(model, x):
            with torch.autocast("xla", dtype=torch.bfloat16):
                return model(x)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one autocast for CUDA."""
        message = 'silently computes in float32 on XLA: torch.autocast("xla", dtype=torch.bfloat16)'
        if isinstance(node, cst.Decorator):
            if facts.names.of(node.decorator) in OLD:
                yield self.hit(node.decorator, f"autocast for CUDA {message}")
            return
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        arg = keyword(node, "device_type") or (node.args[0] if node.args else None)
        for_cuda = arg is not None and string_value(arg.value) == "cuda"
        enabled = keyword(node, "enabled")
        if enabled is not None and code(enabled.value) == "False":
            return
        if name in OLD or (name in NEW and for_cuda):
            yield self.hit(node, f"autocast for CUDA {message}")
