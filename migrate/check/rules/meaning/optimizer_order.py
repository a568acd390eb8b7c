"""An optimizer that is made before the model is on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import code, nodes_of, targets
from migrate.reading.values.devices import is_move
from migrate.reading.values.kind import Kind

SWITCH = "torch.__future__.set_swap_module_params_on_conversion"


class OptimizerOrder(Hazard):
    """The optimizer is made before the model is on the device.

    **Why.** `.to('xla')` replaces the parameters of a module. The optimizer holds the old ones, steps without
    an error, and the weights never change.

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
        """Yield one construction with a move of the same model below it."""
        assert isinstance(node, cst.Call)
        models = set(_models(node))
        if not models or facts.values.kind(node) is not Kind.OPTIMIZER:
            return
        here = facts.context.position(node)
        around = facts.context.function_around(node) or facts.context.module
        lines: dict[bool, list[int]] = {True: [], False: []}
        for call in nodes_of(around, cst.Call):
            if is_move(call, facts.context) and code(receiver(call)) in models:
                line = facts.context.position(call).line
                lines[line > here.line].append(line)
        made = any(_made_there(name, around, facts) for name in models)
        if lines[True] and not lines[False] and not made and not _keeps(min(lines[True]), facts):
            message = (
                f"the model moves only in line {lines[True][0]}: these weights would never change"
            )
            yield self.hit(node, message)


def _keeps(line: int, facts: Facts) -> bool:
    """Whether torch was told last, before the move in `line`, to keep the parameters themselves."""
    told = {
        facts.context.position(call).line: code(call.args[0].value)
        for call in facts.context.all_of(cst.Call)
        if call.args and facts.names.of(call.func) == SWITCH
    }
    before = [at for at in told if at < line]
    return bool(before) and told[max(before)] == "True"


def _made_there(name: str, around: cst.CSTNode, facts: Facts) -> bool:
    """Whether the model `name` is moved where it is made: `net = Net().to(device)`."""
    for target in targets(around):
        assign = facts.context.parent(facts.context.parent(target))
        if code(target) == name and isinstance(assign, cst.Assign):
            moves = [c for c in nodes_of(assign.value, cst.Call) if is_move(c, facts.context)]
            if any(not code(move).startswith(f"{name}.") for move in moves):
                return True
    return False


def _models(call: cst.Call) -> Iterator[str]:
    """Yield the modules whose parameters an optimizer is given."""
    for arg in call.args:
        for inner in nodes_of(arg.value, cst.Call):
            if method(inner) in ("parameters", "named_parameters"):
                yield code(receiver(inner))
