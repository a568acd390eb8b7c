"""Functions of complex numbers that torch_xla does not compute."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.values.complex import is_complex
from migrate.syntax.tree import code

# What raises for a complex tensor; `abs` where it is differentiated.
RAISES = frozenset({"mean", "var", "std", "abs"})


class ComplexValues(Hazard):
    """The mean or the absolute value of a complex tensor is taken in a step.

    **Why.** torch_xla raises "Invalid type for NanValue (C64)" where it makes the graph of `mean`, `var` and
    `std` of complex numbers, as in the characteriztic function `(1j * x).exp().mean(0)`. The `abs` of a
    complex number has no gradient there: "abs does not support automatic differentiation for outputs with
    complex dtype". Sums, products and `exp` run.

    **What to do.** Compute with two real tensors: `x.cos().mean(0)` and `x.sin().mean(0)` instead of
    `(1j * x).exp().mean(0)`.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA118"
    name = "complex-values"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(RAISES)
    examples = (
        example(
            """
            import torch


            class Epps(torch.nn.Module):
                def forward(self, x, t):
                    z = 1j * x.unsqueeze(-1) * t
                    freq = torch.fft.fft(x)
                    low = torch.mean(freq, dim=0)  # XLA118
                    size = low.abs()  # XLA118
                    return z.exp().mean(0), size  # XLA118
            """
        ),
        example(
            """
            import numpy as np
            import torch


            class Epps(torch.nn.Module):
                def forward(self, x, t):
                    z = (1j * x.unsqueeze(-1) * t).exp()
                    return z.sum(0) / z.shape[0], z.real.mean(), torch.view_as_real(z).abs().mean()

                @torch.no_grad()
                def size(self, x):
                    return torch.fft.fft(x).abs().mean()


            def signal(wave):
                return np.fft.fft(wave).mean(), (1j * np.arange(3)).mean()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Epps(torch.nn.Module):
            def forward(self, x, t):
                x_t = x.unsqueeze(-1) * t
                return (x_t.cos().mean(0) ** 2 + x_t.sin().mean(0) ** 2).sqrt()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call inside a step."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        last = method(node) if name is None else name.removeprefix("torch.")
        if last not in RAISES or (name is not None and not node.args):
            return
        value = receiver(node) if name is None else node.args[0].value
        if not is_complex(value, facts) or facts.values.kind(value) is Kind.HOST:
            return
        if facts.steps.inside(node):
            message = (
                f"{last} of the complex {code(value)} raises on XLA: compute with two real tensors"
            )
            yield self.hit(node, message)
