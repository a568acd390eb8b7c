"""`torch.inference_mode` in a script that runs on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.inference import INFERENCE_MODE, is_switched_off


class InferenceMode(Hazard):
    """A model is evaluated in inference mode.

    **Why.** Under `torch.inference_mode()` torch_xla raises "Cannot set version_counter for inference tensor"
    in `nn.Linear`, `nn.Conv1d` and in-place writes to a part of a tensor.

    **What to do.** `torch.no_grad()`, which computes the same values.

    Source: torch 2.9, torch_xla 2.9, measured.
    """

    code = "XLA836"
    name = "inference-mode"
    severity = Severity.ERROR
    spoken_by = ("inference-mode",)
    nodes = (cst.Name, cst.Attribute)
    of_names = True
    words = "inference_mode"
    examples = (
        example(
            """
            import torch


            @torch.inference_mode()  # XLA836
            def evaluate(model, loader):
                return sum(model(x.cuda()).sum() for x in loader)
            """
        ),
        example(
            """
            import torch


            def summary(model):
                with torch.inference_mode():
                    return model(torch.zeros(1, 3))
            """
        ),
    )
    mended = example(
        """
        import torch


        @torch.no_grad()
        def evaluate(model, loader):
            return sum(model(x.cuda()).sum() for x in loader)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use of inference mode in a file that has to do with an accelerator."""
        if facts.names.of(node) not in INFERENCE_MODE or not facts.context.calls.accelerated:
            return
        above = facts.context.parent(node)
        if isinstance(above, cst.Call) and above.func is node and is_switched_off(above):
            return
        message = "inference_mode: a Linear raises in it on XLA; torch.no_grad()"
        yield self.hit(node, message)
