"""Generators on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import keyword, last_part
from migrate.reading.values.devices import is_accelerator

OF_CUDA = frozenset({"graphsafe_get_state", "graphsafe_set_state"})


class Generator(Hazard):
    """A generator of random numbers on the device raises.

    **Why.** XLA has one state of random numbers for each device and no generators. Only those of CUDA have
    `graphsafe_get_state` and `graphsafe_set_state`.

    **What to do.** A generator of the CPU for data and masks, moved to the device; `torch_xla.manual_seed`
    for the rest. `get_state` and `set_state` instead of the two: the former returns a copy.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA814"
    name = "generator"
    severity = Severity.ERROR
    spoken_by = ("rng",)
    nodes = (cst.Call,)
    words = "Generator|graphsafe_"
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


            def validate(trainer, before):
                now = trainer.rng.graphsafe_get_state()  # XLA814
                trainer.rng.graphsafe_set_state(before)  # XLA814
                return now
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
        called = last_part(node.func)
        if called in OF_CUDA:
            plain = called.removeprefix("graphsafe_")
            yield self.hit(
                node, f"{called} raises for a generator of the CPU: {plain}, which copies"
            )
            return
        if facts.names.of(node.func) != "torch.Generator":
            return
        device = keyword(node, "device") or (node.args[0] if node.args else None)
        if device is not None and is_accelerator(device.value, facts.context):
            yield self.hit(node, "a generator on the device raises on XLA: one of the CPU")
