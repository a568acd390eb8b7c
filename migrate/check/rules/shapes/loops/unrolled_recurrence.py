"""Hazard of a loop over a size of a tensor, in which each iteration needs the one before."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.manual_work import ManualWork
from migrate.reading.facts import Facts
from migrate.reading.recurrences.recurrences import recurrence
from migrate.reading.steps.in_step import When
from migrate.reading.steps.unended import ends_graph, unended_call


class UnrolledRecurrence(Hazard):
    """A loop over the length of a tensor is unrolled in the graph of a step.

    **Why.** Python runs the loop while XLA records: the graph gets as many copies of the body as the tensor
    is long, and as many again for the backward pass. A scan over 4096 positions takes minutes or hours to
    compile, and another length is another graph. On a GPU such a loop is only slow; often it is the fallback
    of a CUDA extension that does not import on a TPU. Each turn needs the one before, so that the
    compiler cannot merge them. A loop that only collects or adds up, and one over the layers of a model, is
    not reported.

    **What to do.** `torch_xla.experimental.scan.scan(step, start, inputs)` compiles the body once: `step`
    gets what is carried and one slice of the inputs, whose first dimension is the length. Or a parallel form:
    `torch.cumsum` and `torch.cumprod`, a convolution, a matrix of decays for each chunk.

    Source: torch_xla 2.9 (measured on the CPU: 256 turns of `h = a * h + b` with their backward pass took
    66 s to compile and run, a scan of them less than one).
    """

    code = "XLA119"
    name = "unrolled-recurrence"
    severity = Severity.WARNING
    nodes = (cst.For,)
    words = r"\.shape|\.size\(|unbind|len\("
    other_work = ManualWork.STEP
    examples = (
        example(
            """
            import torch


            def selective_scan(a, b, c):
                batch, channels, length, states = a.shape
                h = a.new_zeros((batch, channels, states))
                ys = []
                for t in range(length):  # XLA119
                    h = a[:, :, t] * h + b[:, :, t]
                    ys.append((h * c[:, :, t]).sum(-1))
                return torch.stack(ys, dim=2)


            class Layer(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.cell = torch.nn.LSTMCell(8, 8)

                def forward(self, x, a, b, c):
                    y = selective_scan(a, b, c)
                    h = torch.zeros(x.size(0), 8, device=x.device)
                    state = h
                    for step in x.unbind(1):  # XLA119
                        h, state = self.cell(step, (h, state))
                    return y, h
            """
        ),
        example(
            """
            import torch

            try:
                import selective_scan_cuda
            except ImportError:
                selective_scan_cuda = None


            class Scan(torch.autograd.Function):
                @staticmethod
                def forward(ctx, a, b):
                    return selective_scan_cuda.fwd(a, b)


            def scan_torch(a: torch.Tensor, b: torch.Tensor):
                h = torch.zeros_like(a[..., 0])
                for t in range(a.size(-1)):  # XLA119
                    h = a[..., t] * h + b[..., t]
                return h


            def scan(a, b):
                function = scan_torch if selective_scan_cuda is None else Scan.apply
                return function(a, b)
            """
        ),
        example(
            """
            import torch


            class Layer(torch.nn.Module):
                def forward(self, x, parts):
                    total, rows = 0, []
                    for t in range(x.shape[1]):
                        total = total + x[:, t].mean()
                        rows.append(x[:, t] * 2)
                    for index in range(len(self.layers)):
                        x = self.layers[index](x)
                    for layer in self.layers:
                        x = layer(x)
                    for scale in range(3):
                        x = x * x
                    for index in range(len(parts)):
                        x = x * parts[index]
                    return x, total, rows
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch_xla.experimental.scan import scan


        class Layer(torch.nn.Module):
            def forward(self, a, b):
                def step(h, inputs):
                    decay, new = inputs
                    h = decay * h + new
                    return h, h.clone()

                start = torch.zeros_like(a[:, 0])
                return scan(step, start, (a.transpose(0, 1), b.transpose(0, 1)))[1]
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the number of turns of one loop."""
        assert isinstance(node, cst.For)
        pair = recurrence(node, facts)
        if pair is None or not _may_be_in_step(node, facts):
            return
        if unended_call(node, facts) is not None or ends_graph(node, facts):
            return
        carries, size = pair
        message = (
            f"unrolled: the graph gets a copy of the body for each of {size}, and `{carries}` goes from "
            "one to the next: minutes or hours to compile; torch_xla.experimental.scan, or a parallel form"
        )
        yield self.hit(node.iter, message)


def _may_be_in_step(loop: cst.For, facts: Facts) -> bool:
    """Whether a step runs `loop`, or its function is one of several that a step chooses from.

    Calls of such a function are not followed: `scan = scan_torch if kernel is None else Scan.apply`.
    """
    when = facts.steps.when(loop)
    function = facts.context.function_around(loop)
    if when is not When.ELSEWHERE or function is None:
        return when is When.STEP
    return any(
        isinstance(facts.context.parent(mention), cst.IfExp)
        for mention in facts.context.mentions(function.name)
    )
