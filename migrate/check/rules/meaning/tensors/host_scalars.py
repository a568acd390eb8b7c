"""A tensor of one number on the host, given to an operator beside tensors of the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import wrong_operators as wrong
from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import lies_on_device
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword

FUNCTIONAL = "torch.nn.functional"
DEEPEST = 4


class HostScalars(Hazard):
    """A tensor of one number on the host meets tensors of the device where XLA takes none.

    **Why.** CUDA lets a tensor of one number stay on the host: `torch.where(mask, x, torch.tensor(0.0))`
    runs. On XLA sums, products and comparisons do, too, but `where`, `clamp`, `lerp`, `remainder`, `atan2`,
    `xlogy`, `index_fill` and the losses `mse_loss` and `smooth_l1_loss` raise "Expected XLA tensor. Got:
    torch.FloatTensor".

    **What to do.** Give the number itself, `torch.where(mask, x, 0.0)`; or make the tensor on the device:
    `torch.tensor(0.0, device=x.device)`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA881"
    name = "host-scalars"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(wrong.ONLY_OF_DEVICE | wrong.LOSSES)
    examples = (
        example(
            """
            import torch
            import torch.nn.functional as F

            ZERO = torch.tensor(0.0)


            class Loss(torch.nn.Module):
                def forward(self, x, y):
                    x = torch.where(x > 0, x, torch.tensor(0.0))  # XLA881
                    x = torch.where(y > 0, ZERO, x)  # XLA881
                    x = x.clamp(min=torch.tensor(1e-6))  # XLA881
                    return F.mse_loss(x.mean(), torch.tensor(1.0))  # XLA881
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Loss(torch.nn.Module):
                def forward(self, x, y):
                    zero = torch.tensor(0.0, device=x.device)
                    one = torch.tensor(1.0).to(x)
                    x = torch.where(x > 0, x, zero) + torch.where(y > 0, x, 0.0)
                    x = x.clamp(min=one) * torch.tensor(2.0) + torch.maximum(x, torch.tensor(3.0))
                    return F.mse_loss(x.mean(), one)


            def host(x):
                return torch.where(torch.arange(3) > 1, torch.tensor(0.0), torch.tensor(1.0))
            """
        ),
    )
    mended = example(
        """
        import torch


        class Loss(torch.nn.Module):
            def forward(self, x, y):
                x = torch.where(x > 0, x, 0.0)
                return x.clamp(min=1e-6).mean()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that is given a tensor of one number of the host."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if name is None:
            if method(node) not in wrong.ONLY_OF_DEVICE:
                return
            values = [receiver(node), *(arg.value for arg in node.args)]
        elif name.removeprefix("torch.") in wrong.ONLY_OF_DEVICE or (
            name.removeprefix(f"{FUNCTIONAL}.") in wrong.LOSSES
        ):
            values = [arg.value for arg in node.args]
        else:
            return
        hosts = [value for value in values if _is_host_scalar(value, facts)]
        others = [value for value in values if value not in hosts]
        if hosts and any(lies_on_device(other, facts) for other in others):
            what = f"{code(hosts[0])} lies on the host, and {code(node.func)} raises on XLA"
            yield self.hit(node, f"{what}: give the number itself, or device=")


def _is_host_scalar(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is surely a tensor of one number that is made on the host: `torch.tensor(0.0)`."""
    if isinstance(node, cst.Name) and depth < DEEPEST:
        values = facts.values.given_to(node)
        return bool(values) and all(_is_host_scalar(value, facts, depth + 1) for value in values)
    if not isinstance(node, cst.Call) or facts.names.of(node.func) != "torch.tensor":
        return False
    if keyword(node, "device") is not None or not node.args or facts.values.on_device(node):
        return False
    number = node.args[0].value
    while isinstance(number, cst.UnaryOperation):
        number = number.expression
    return isinstance(number, cst.Integer | cst.Float)
