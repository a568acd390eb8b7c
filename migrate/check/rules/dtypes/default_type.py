"""The type or device of new tensors is set for the whole program."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

SETTERS = frozenset(
    {"torch.set_default_tensor_type", "torch.set_default_dtype", "torch.set_default_device"}
)
WRONG = ("cuda", "double", "float64", "half", "float16")


class DefaultType(Hazard):
    """The default type of tensors is CUDA, float64 or float16.

    **Why.** A CUDA type raises on a machine without CUDA; float64 is emulated on a TPU; float16 needs a loss
    scaler that XLA does not have.

    **What to do.** Leave the default (float32), name the device where a tensor is made, and use
    `torch.autocast('xla', dtype=torch.bfloat16)`.
    """

    code = "XLA504"
    name = "default-type"
    severity = Severity.ERROR
    targets = BOTH
    nodes = (cst.Call,)
    words = spelled(SETTERS)
    examples = (
        example(
            """
            import torch

            torch.set_default_tensor_type("torch.cuda.FloatTensor")  # XLA504
            torch.set_default_device("cuda")  # XLA504
            """
        ),
        example(
            """
            import torch

            torch.set_default_dtype(torch.float32)
            torch.set_default_device("cpu")
            """
        ),
    )
    mended = example(
        """
        import torch

        weights = torch.ones(3, device="xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if name in SETTERS and node.args:
            text = code(node.args[0].value).lower()
            if any(word in text for word in WRONG):
                yield self.hit(
                    node, f"{name}({text}): raises or is slow on a TPU; name it per tensor"
                )
