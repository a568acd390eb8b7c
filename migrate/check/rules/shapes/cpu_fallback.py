"""Operations that torch_xla runs on the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.prescan import spelled

FALLBACKS = frozenset({"bincount", "multinomial", "histc", "combinations", "complex"})


class CpuFallback(Hazard):
    """An operation inside the step runs on the CPU.

    **Why.** torch_xla 2.9 has no lowering of `multinomial`, `bincount`, `histc`, `combinations` and
    `complex`: it cuts the graph, fetches the inputs, computes on the CPU and sends the result back.

    **What to do.** `multinomial` of one sample: add Gumbel noise to the logits and take `argmax`. `bincount`:
    `zeros(n).scatter_add(0, index, ones)`. Else compute it in the data loader, or after the step.

    Source: torch_xla 2.9, counters `aten::…` of `torch_xla.debug.metrics`, measured.
    """

    code = "XLA111"
    name = "cpu-fallback"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = spelled(FALLBACKS)
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
        name = facts.names.of(node.func) or ""
        if name:
            last = name.removeprefix("torch.")
            used = last in FALLBACKS and any(facts.values.is_tensor(a.value) for a in node.args)
        else:
            last = method(node)
            used = last in FALLBACKS and facts.values.is_tensor(receiver(node))
        if used and facts.steps.inside(node):
            yield self.hit(
                node, f"{last} runs on the CPU: the graph is cut and the inputs are fetched"
            )
