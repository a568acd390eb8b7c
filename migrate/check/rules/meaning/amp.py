"""Autocast for CUDA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.torch_other import TYPED_AUTOCAST
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.region_types import WIDE
from migrate.syntax.tree import code, keyword, string_value

OLD = names(*torch_cuda.AUTOCAST)
NEW = names(*TYPED_AUTOCAST)


class Amp(Hazard):
    """Autocast for CUDA silently computes in float32 on XLA.

    **Why.** Autocast switches operations of the device that it names. On XLA, autocast for CUDA warns at
    most, and everything is computed in float32. A region for XLA in float32 is switched off: inputs in
    bfloat16 stay bfloat16, which CUDA would make float32.

    **What to do.** `torch.autocast("xla", dtype=torch.bfloat16)`, and for a region in float32
    `torch.set_autocast_dtype("xla", torch.float32)` as the first statement in it.

    The region for XLA has other lists than that for CUDA: of bfloat16 inputs, `exp`, `log` and their kin,
    `rsqrt`, `reciprocal`, `sum`, `cumsum`, `cumprod`, `logsumexp`, `norm`, `normalize`, `cosine_similarity`,
    `dist`, `softplus`, and `layer_norm` and `group_norm` without weights in float32, give bfloat16 on XLA and
    float32 on CUDA. `softmax`, `log_softmax`, `prod`, `x ** n` and nearly all losses give float32 on both.
    Where that counts, compute it of `x.float()` within `with torch.autocast("xla", enabled=False):`.

    Source: torch_xla 2.9, measured with the lists of torch's own tests of autocast.
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
        example(
            """
            import torch


            def embed(layer, x):
                with torch.autocast("xla", dtype=torch.float32):  # XLA803 warning
                    y = layer(x)
                with torch.autocast("xla", dtype=torch.float32, enabled=False):
                    y = layer(y)
                with torch.autocast("xla", dtype=torch.bfloat16):
                    torch.set_autocast_dtype("xla", torch.float32)
                    return layer(y)
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
        elif name in NEW and arg is not None and string_value(arg.value) == "xla":
            dtype = keyword(node, "dtype") or (node.args[1] if len(node.args) > 1 else None)
            if dtype is not None and facts.names.of(dtype.value) in WIDE:
                message = (
                    "XLA's autocast refuses float32 and switches itself off: "
                    'torch.set_autocast_dtype("xla", torch.float32) in a region in torch.bfloat16'
                )
                yield self.hit(node, message, Severity.WARNING)
