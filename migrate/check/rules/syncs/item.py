"""`.item()` in the step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import is_read, placed
from migrate.reading.facts import Facts


class Item(Hazard):
    """A value is read inside the step: `.item()`, `.tolist()`.

    **Why.** The graph ends at the read, the host waits for the device, and what follows becomes a graph of
    its own: the step takes several launches instead of one. Read at every step after the step, it still
    keeps the host from running ahead. Read one by one in an evaluation (`for i in range(n): x[i].item()`),
    each element is a wait of its own, and each index a graph of its own.

    **What to do.** Return the tensor, read it after the step, and only when it is shown; or
    `xm.add_step_closure(fn, args=(loss,))`. An in-place edit of the tensor after the read changes what
    is read later: keep a `.detach().clone()`. Elements: `x = x.cpu()` once before their loop.

    Source: torch_xla 2.9 (measured: 16 graphs for `x[i].item()` of 16 indices).
    """

    code = "XLA201"
    name = "item-in-step"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer, meter):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    meter.update(loss.item())  # XLA201
                    loss.backward()
                    optimizer.step()
                    total = loss.item()  # XLA201 info
            """
        ),
        example(
            """
            import torch


            def evaluate(model, loader, names):
                model.cuda().eval()
                right, scores = [], []
                with torch.no_grad():
                    for x, y in loader:
                        out = model(x.cuda()).softmax(1)
                        parts = [out[:, 0].sum(), out[:, 1].sum()]
                        for i in range(len(out)):
                            scores.append(out[i][1].item())  # XLA201
                        right += [out[i, 0].item() for i in range(x.shape[0])]  # XLA201
                        right += [parts[i].item() for i in range(len(parts))]
                        right += [out[0, i].item() for i in range(3)]
                        out = out.cpu()
                        for i, name in enumerate(names):
                            scores.append((name, out[i].item()))
                return right, scores
            """
        ),
        example(
            """
            import torch


            class Attention(torch.nn.Module):
                def forward(self, x, cache, scale=1.0):
                    end = cache["end"].item()  # XLA201
                    return x * end * scale
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                for step, (x, y) in enumerate(loader):
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if step % 100 == 0:
                        print(step, loss.item())
                print(loss.item())


            class Trainer:
                def run_batch(self, x, y):
                    loss = self.model(x.cuda(), y.cuda())
                    loss.backward()
                    self.optimizer.step()
                    if self.count % 10 == 0:
                        print(loss.item())

                def train(self, loader):
                    for x, y in loader:
                        self.run_batch(x, y)


            def names(record):
                return record.item(), record["rows"].tolist()
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer, meter):
            for step, (x, y) in enumerate(loader):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if step % 100 == 0:
                    meter.update(loss.item())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one read of a tensor."""
        assert isinstance(node, cst.Call)
        if is_read(node, facts):
            yield from placed(self, node, f".{method(node)}()", facts)
