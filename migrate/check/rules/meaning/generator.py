"""Generators on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import keyword
from migrate.reading.values.devices import is_accelerator


class Generator(Hazard):
    """A generator of random numbers on the device raises.

    **Why.** XLA has one state of random numbers for each device and no generators.

    **What to do.** A generator of the CPU for data and masks, moved to the device; `torch_xla.manual_seed`
    for the rest.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA814"
    name = "generator"
    severity = Severity.ERROR
    spoken_by = ("rng",)
    nodes = (cst.Call,)
    words = "Generator"
    examples = (
        example(
            """
            import torch

            generator = torch.Generator(device="cuda")  # XLA814
            """
        ),
        example(
            """
            import torch

            generator = torch.Generator().manual_seed(0)
            other = torch.Generator(device="cpu")
            """
        ),
    )
    mended = example(
        """
        import torch

        generator = torch.Generator()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one construction."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) != "torch.Generator":
            return
        device = keyword(node, "device") or (node.args[0] if node.args else None)
        if device is not None and is_accelerator(device.value, facts.context):
            yield self.hit(node, "a generator on the device raises on XLA: one of the CPU")
