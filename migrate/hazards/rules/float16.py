"""float16."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.common import is_a_type, method, receiver
from migrate.hazards.entries import Kind
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hazard, Hit, Severity, example

NAMES = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})


class Float16(Hazard):
    """float16 instead of bfloat16.

    **Why.** The matrix unit of a TPU works in bfloat16; float16 is converted, has too small a range without
    a loss scaler, and torch_xla has none in 2.9.

    **What to do.** `torch.bfloat16`, without a scaler.
    """

    code = "XLA502"
    name = "float16"
    severity = Severity.WARNING
    spoken_by = ("half-precision",)
    nodes = (cst.Name, cst.Attribute, cst.Call)
    examples = (
        example(
            """
            import torch


            def load(x):
                model = torch.nn.Linear(3, 3)
                model.half()  # XLA502
                return model(x.to("cuda", dtype=torch.float16))  # XLA502
            """
        ),
        example(
            """
            import torch


            def middle(x, half):
                if x.dtype == torch.float16:
                    x = x.float()
                half(x)
                return x.to(torch.bfloat16), {"fp16": torch.float16}
            """
        ),
    )
    mended = example(
        """
        import torch


        def load(x):
            model = torch.nn.Linear(3, 3)
            model.to(torch.bfloat16)
            return model(x.to("cuda", dtype=torch.bfloat16))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one dtype or conversion."""
        message = "a TPU computes in bfloat16, float16 needs a loss scaler: bfloat16, without one"
        if isinstance(node, cst.Call):
            asked = method(node) == "half" and not node.args
            if asked and facts.tensors.kind(receiver(node)) in (
                Kind.DEVICE,
                Kind.TENSOR,
                Kind.MODEL,
            ):
                yield self.hit(node, f".half(): {message}")
            return
        name = facts.names.of(node)
        above = facts.context.parent(node)
        listed = isinstance(
            above, cst.Comparison | cst.ComparisonTarget | cst.BaseDictElement | cst.Element
        )
        if isinstance(above, cst.Arg) and is_a_type(node, facts):
            return  # isinstance(x, torch.HalfTensor)
        call = facts.context.parent(above)
        if isinstance(call, cst.Call) and isinstance(above, cst.Arg):
            listed = listed or method(call).startswith("assert")  # assertEqual(x.dtype, torch.half)
        if name in NAMES and not listed:
            yield self.hit(node, f"{name}: {message}")
