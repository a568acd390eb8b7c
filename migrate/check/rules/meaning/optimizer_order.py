"""An optimizer that is made before the model is on the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts


class OptimizerOrder(Hazard):
    """The optimizer is made before the model is on the device.

    **Why.** `.to('xla')` replaces the parameters of a module. The optimizer holds the old ones, steps without
    an error, and the weights never change. The optimizer is known by what makes it, and the move may stand in
    another function or file.

    **What to do.** Move the model first, or call
    `torch.__future__.set_swap_module_params_on_conversion(True)` before the move.

    Source: torch_xla 2.9, measured; pytorch/xla#3675, #1764.
    """

    code = "XLA805"
    name = "optimizer-before-move"
    severity = Severity.ERROR
    spoken_by = ("optimizer-order",)
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def make(net):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # XLA805
                net.cuda()
                return optimizer
            """
        ),
        example(
            """
            import torch


            def make(net, loss_fn):
                net.to("xla")
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                loss_fn.cuda()
                return optimizer


            def make_there(Net, device):
                net = Net().to("cuda")
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                net.cpu()
                net.to("cuda")
                return optimizer


            def make_for_the_cpu(net):
                return torch.optim.SGD(net.parameters(), lr=0.1)


            def make_before(net):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                torch.__future__.set_swap_module_params_on_conversion(True)
                net.to("xla")
                torch.__future__.set_swap_module_params_on_conversion(False)
                return optimizer
            """
        ),
    )
    mended = example(
        """
        import torch


        def make(net):
            net.to("xla")
            return torch.optim.SGD(net.parameters(), lr=0.1)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield an optimizer whose model moves only later, in whatever function or file."""
        assert isinstance(node, cst.Call)
        optimizers = facts.context.calls.optimizers
        if not optimizers.early:
            return
        early = optimizers.early.get(facts.context.place(node))
        if early is None:
            return
        path, line = early.moves[0]
        here = path == facts.context.file.resolve()
        where = f"line {line}" if here else f"{path.name}:{line}"
        yield self.hit(node, f"the model moves only in {where}: these weights would never change")
