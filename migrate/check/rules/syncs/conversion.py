"""`float(loss)` in the step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import CHECKS, placed
from migrate.reading.facts import Facts
from migrate.reading.values.words import NUMBERS


class Conversion(Hazard):
    """A tensor becomes a Python number inside the step: `float(loss)`, `bool(flag)`, `math.isnan(norm)`.

    **Why.** It is a read like `.item()`: the graph is cut and the host waits for the device.

    **What to do.** Keep the tensor in the step, convert after it, and only when the number is shown.
    """

    code = "XLA202"
    name = "float-in-step"
    severity = Severity.WARNING
    spoken_by = ("step", "evaluation-loop")
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer):
                total = 0.0
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    total += float(loss)  # XLA202
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import math

            import torch


            def train(model, loader, optimizer):
                for x, y in loader:
                    model(x.cuda(), y.cuda()).backward()
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    overflow = math.isnan(norm)  # XLA202
                    optimizer.step()
                    print("over" if overflow else "in range")
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, args):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda()) * float(args.scale) / int(x.shape[0])
                    loss.backward()
                    optimizer.step()
                return float(loss)
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer):
            total = torch.zeros(())
            for x, y in loader:
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                total = total + loss.detach()
            return float(total)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one conversion of a tensor."""
        assert isinstance(node, cst.Call)
        name = node.func.value if isinstance(node.func, cst.Name) else ""
        asked = facts.names.of(node.func) or ""
        name = asked if asked in CHECKS else name if name in NUMBERS else ""
        if name and len(node.args) == 1:
            if not facts.values.on_device(node.args[0].value):
                return
            yield from placed(self, node, f"{name}() of a tensor", facts)
