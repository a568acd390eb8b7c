"""A tensor whose `.data` is replaced by itself on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.devices import is_move
from migrate.syntax.tree import code

# Methods between a tensor and its move.
BETWEEN = frozenset({"clone", "contiguous", "detach", "pin_memory"})


class MovedData(Hazard):
    """A parameter is moved by an assignment to its `.data`.

    **Why.** `p.data = p.data.to(device)` moves a parameter to a GPU and keeps the object that the
    optimizer holds. To the device of XLA it raises: the two "have incompatible tensor type".

    **What to do.** Move the module, `model.to("xla")`, before its optimizer is made.

    Source: torch 2.9, torch_xla 2.9, measured.
    """

    code = "XLA837"
    name = "moved-data"
    severity = Severity.ERROR
    targets = BOTH
    on_torch_tpu = "The assignment raises the same (measured)."
    nodes = (cst.Assign,)
    words = ".data"
    examples = (
        example(
            """
            import torch


            def place(model, device="cuda"):
                for p in model.parameters():
                    p.data = p.data.to(device)  # XLA837
                for b in model.buffers():
                    b.data = b.cuda()  # XLA837
            """
        ),
        example(
            """
            import torch


            def place(model, state, dtype):
                for name, p in model.named_parameters():
                    p.data = p.data.to(dtype)
                    p.data = state[name].to("cuda")
                    p.data = p.data.to("cpu")
            """
        ),
    )
    mended = example(
        """
        import torch


        def place(model):
            model.to("xla")
            return torch.optim.SGD(model.parameters(), lr=0.1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one assignment."""
        assert isinstance(node, cst.Assign)
        target, value = node.targets[0].target, node.value
        if not isinstance(target, cst.Attribute) or target.attr.value != "data":
            return
        if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
            return
        if is_move(value, facts.context) and _origin(value.func.value) == code(target.value):
            message = (
                f"{code(target)} of the device raises where {code(target.value)} is on the host: move the "
                "module, `.to()`, before its optimizer is made"
            )
            yield self.hit(node, message)


def _origin(moved: cst.BaseExpression) -> str:
    """Return what is moved, without `.data` and calls such as `.detach()`."""
    while True:
        if isinstance(moved, cst.Call) and isinstance(moved.func, cst.Attribute):
            if moved.func.attr.value not in BETWEEN:
                return code(moved)
            moved = moved.func.value
        elif isinstance(moved, cst.Attribute) and moved.attr.value == "data":
            moved = moved.value
        else:
            return code(moved)
