"""Operations that torch_xla runs on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.prescan import spelled
from migrate.reading.tree.tree import keyword, string_value

FALLBACKS = frozenset({"bincount", "multinomial", "histc", "combinations", "complex"})
# Functions of torch.nn.functional and torch.linalg, and the losses that call them.
OF_FUNCTIONAL = frozenset({"ctc_loss", "grid_sample"})
OF_LINALG = frozenset({"cholesky", "cholesky_ex", "det", "inv", "qr"})
CTC = "torch.nn.CTCLoss"


class CpuFallback(Hazard):
    """An operation inside the step runs on the CPU.

    **Why.** torch_xla 2.9 has no lowering of `multinomial`, `bincount`, `histc`, `combinations`, `complex`,
    `ctc_loss`, `grid_sample`, bicubic `interpolate`, `torch.fft` and of `qr`, `cholesky`, `det` and `inv` of
    `torch.linalg`: it cuts the graph, fetches the inputs, computes on the CPU and sends the result back, in
    the backward pass once more. `one_hot` without `num_classes` reads the greatest class.

    **What to do.** `one_hot`: pass `num_classes`. `interpolate`: `mode="bilinear"`. `multinomial` of one
    sample: add Gumbel noise to the logits and take `argmax`. `bincount`:
    `zeros(n).scatter_add(0, index, ones)`. Else compute it in the data loader, or after the step.

    Source: torch_xla 2.9, counters `aten::…` of `torch_xla.debug.metrics`, measured.
    """

    code = "XLA111"
    name = "cpu-fallback"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = spelled(
        FALLBACKS | OF_FUNCTIONAL | OF_LINALG | {"CTCLoss", "bicubic", "fft", "one_hot"}
    )
    examples = (
        example(
            """
            import torch


            class Sampler(torch.nn.Module):
                def forward(self, logits):
                    index = torch.multinomial(logits.softmax(-1), 1)  # XLA111
                    return index.bincount()  # XLA111
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.ctc = torch.nn.CTCLoss(blank=0)

                def forward(self, x, grid, target, lengths):
                    x = F.grid_sample(x, grid)  # XLA111
                    x = F.interpolate(x, size=32, mode="bicubic")  # XLA111
                    x = torch.fft.rfft(x).real  # XLA111
                    x = x + torch.linalg.qr(x[0, 0]).Q.sum()  # XLA111
                    x = x + F.one_hot(target).sum()  # XLA111
                    return self.ctc(x, target, lengths, lengths)  # XLA111
            """
        ),
        example(
            """
            import torch
            import torch.nn.functional as F


            class Net(torch.nn.Module):
                def forward(self, x, target):
                    x = F.interpolate(x, size=32, mode="bilinear")
                    x = x + torch.linalg.svdvals(x[0, 0]).sum() + torch.linalg.vector_norm(x)
                    return x + F.one_hot(target, 10).sum() + F.one_hot(target, num_classes=4).sum()


            def frequencies(rows):
                return torch.fft.rfft(rows), F.one_hot(rows)
            """
        ),
        example(
            """
            import numpy as np
            import torch


            def weights(labels):
                return np.bincount(labels), torch.multinomial(torch.ones(10), 2)
            """
        ),
    )
    mended = example(
        """
        import torch


        class Sampler(torch.nn.Module):
            def forward(self, logits):
                noise = -torch.log(-torch.log(torch.rand_like(logits)))
                index = (logits + noise).argmax(-1)
                return torch.nn.functional.one_hot(index, logits.shape[-1]).sum(0)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call inside a step."""
        assert isinstance(node, cst.Call)
        if not facts.steps.inside(node):
            return
        name = facts.names.of(node.func) or ""
        if name:
            last = _function(name, node)
            used = any(facts.values.is_tensor(arg.value) for arg in node.args)
        else:
            last, used = _method(node, facts)
        if not last or not used:
            return
        if last == "one_hot":
            message = "one_hot without num_classes reads the greatest class: the graph is cut; num_classes=…"
        else:
            message = f"{last} runs on the CPU: the graph is cut and the inputs are fetched"
        yield self.hit(node, message)


def _function(name: str, call: cst.Call) -> str:
    """Return what a call of the function `name` runs on the CPU; nothing where it runs on the device."""
    package, _, last = name.rpartition(".")
    if package == "torch" and last in FALLBACKS:
        return last
    if package == "torch.nn.functional":
        if last == "one_hot" and len(call.args) == 1:
            return last
        if last == "interpolate":
            mode = keyword(call, "mode")
            return "bicubic interpolation" if mode and string_value(mode.value) == "bicubic" else ""
        return last if last in OF_FUNCTIONAL else ""
    if package == "torch.linalg" and last in OF_LINALG:
        return name
    is_transform = package == "torch.fft" and "fft" in last and last[-4:] not in ("freq", "hift")
    return name if is_transform else ""


def _method(call: cst.Call, facts: Facts) -> tuple[str, bool]:
    """Return what a method, or a module that the script keeps, runs on the CPU, and whether of a tensor."""
    if _is_ctc(call.func, facts):
        return "ctc_loss", any(facts.values.is_tensor(arg.value) for arg in call.args)
    last = method(call)
    return (last, facts.values.is_tensor(receiver(call))) if last in FALLBACKS else ("", False)


def _is_ctc(func: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `func` is a `CTCLoss` that the script makes."""
    if not isinstance(func, cst.Name | cst.Attribute):
        return False
    made = facts.values.given_to(func)
    return any(isinstance(v, cst.Call) and facts.names.of(v.func) == CTC for v in made)
