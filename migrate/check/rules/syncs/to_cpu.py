"""`.cpu()` and `.numpy()` in the step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import is_returned_elsewhere, placed
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import string_value


class ToCpu(Hazard):
    """A tensor is fetched inside the step: `.cpu()`, `.numpy()`, `.to('cpu')`.

    **Why.** The graph is cut, the host waits for the device and copies.

    **What to do.** Keep the tensor and fetch it after the step; in evaluation, fetch once a batch or, better,
    once at the end.
    """

    code = "XLA203"
    name = "cpu-in-step"
    severity = Severity.WARNING
    spoken_by = ("step", "evaluation-loop")
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            class Metric(torch.nn.Module):
                def forward(self, x):
                    return x.mean().detach().cpu()  # XLA203


            def train(model, loader, optimizer):
                for x, y in loader:
                    out = model(x.cuda())
                    seen = out.to("cpu")  # XLA203
                    out.mean().backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader):
                rows = []
                for x, y in loader:
                    rows.append(model(x.cuda()).cpu().numpy())
                return rows


            class Metric(torch.nn.Module):
                def forward(self, x):
                    if not self.training:
                        self.seen = x.mean().cpu()
                    return x.mean()


            def save(model):
                torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "model.pt")
            """
        ),
    )
    mended = example(
        """
        import torch


        class Metric(torch.nn.Module):
            def forward(self, x):
                return x.mean().detach()


        def train(model, loader, optimizer):
            for step, (x, y) in enumerate(loader):
                out = model(x.cuda())
                out.mean().backward()
                optimizer.step()
                if step % 100 == 0:
                    seen = out.to("cpu")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one fetch of a tensor."""
        assert isinstance(node, cst.Call)
        name = method(node)
        to_cpu = name == "to" and node.args and string_value(node.args[0].value) == "cpu"
        if not (name in ("cpu", "numpy") or to_cpu):
            return
        fetched = receiver(node)
        if facts.values.on_device(fetched) or is_returned_elsewhere(fetched, facts):
            yield from placed(self, node, f".{name}({'...' if to_cpu else ''})", facts)
