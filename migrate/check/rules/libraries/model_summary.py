"""A summary of a model's layers, by a library that knows only CUDA and the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import moved_before, option
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts

TORCHINFO = "torchinfo.summary"
TORCHSUMMARY = frozenset({"torchsummary.summary", "torchsummary.summary_string"})


class ModelSummary(Hazard):
    """A summary of the layers of a model that is on the device.

    **Why.** `torchinfo.summary(model, input_size=…)` takes a device other than CUDA for the CPU, and moves
    the model there. Its parameters are new objects: the first batch on the device raises, and an optimizer
    that exists already trains nothing from then on. `torchsummary.summary` makes its input on the CPU, and
    raises for a model on XLA.

    **What to do.** Call it before the model moves. `torchinfo.summary` also takes `device="xla"`, or
    `input_data=` with a tensor on the device.

    Source: torch_xla 2.9, torchinfo 1.8.0, torchsummary 1.5.1 (measured).
    """

    code = "XLA421"
    name = "model-summary"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "torchinfo|torchsummary"
    examples = (
        example(
            """
            import torch
            import torchsummary
            from torchinfo import summary


            class Trainer:
                def __init__(self, model, x):
                    self.model = model.to("xla")
                    summary(self.model, input_size=(1, 2))  # XLA421
                    summary(self.model, (1, 2), device="cpu")  # XLA421
                    torchsummary.summary(self.model, (2,))  # XLA421
                    summary(self.model)
                    summary(self.model, input_data=x.to("xla"))
                    summary(self.model, (1, 2), device="xla")
                    self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            """
        ),
        example(
            """
            import torch
            from torchinfo import summary

            model = torch.nn.Linear(2, 2)
            summary(model, (1, 2))
            model.to("xla")
            """
        ),
    )
    mended = example(
        """
        import torch
        from torchinfo import summary

        model = torch.nn.Linear(2, 2).to("xla")
        summary(model, (1, 2), device="xla")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a call that gets a model on the device."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if not node.args or name not in {TORCHINFO, *TORCHSUMMARY}:
            return
        model = node.args[0].value
        if not facts.context.moves_to_accelerator or not moved_before(model, node, facts):
            return
        if name in TORCHSUMMARY:
            message = (
                "makes its input on the CPU, and raises for a model on XLA: call it before the move"
            )
            yield self.hit(node, f"{name} {message}")
        elif not _keeps_device(node, facts):
            message = (
                "moves the model to the CPU, with new parameters, as it is not on CUDA: call it before "
                'the move, or pass device="xla"'
            )
            yield self.hit(node, f"{name} {message}")


def _keeps_device(call: cst.Call, facts: Facts) -> bool:
    """Whether a call of torchinfo leaves the model where it is: it has a device, data, or no input at all."""
    device = option(call, "device", facts)
    if device is not None:
        return facts.values.device(device) is not Kind.CPU
    sizes = len([arg for arg in call.args if arg.keyword is None]) > 1
    sized = sizes or option(call, "input_size", facts) is not None
    return not sized or option(call, "input_data", facts) is not None
