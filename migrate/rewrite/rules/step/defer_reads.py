"""`--defer-reads`: read logged values when something uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import libcst as cst

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.step.deferral.deferring import Deferring
from migrate.rewrite.workspace import Workspace


class DeferReads(Rule):
    """Read logged values once for each print, with `--defer-reads`.

    **Why.** By default a value that a step logs is read right below `with torch_xla.step():`. The numbers
    are those of the CUDA script, and there is one graph; but the host waits for the device in every step.

    **What it does.** A value that is only added to something (`running_loss += loss.item()`,
    `losses.update(loss.item(), n)`, `history.append(loss.item())`, also through a variable) stays on the
    device, in a list. The list is read where the sum is used, in an `if` of the loop or after it. It is read
    in one transfer (of up to 500 values) and added up on the host, in the old order and in float64. The
    result has the same bits, with 6 transfers for 60 steps and a print every 10. A value that is only shown
    in such an `if` is read there. Under a test of the rank all replicas read: a graph that only one of them
    runs may keep the others waiting.

    A tensor that is changed in place before it is read, `loss /= 4`, is copied at its old position. Nothing
    is added up on the device: the sum in float32 is another number. What the script computes below the block
    for the log alone joins the graph of the next step: one more graph is compiled.

    **Left alone.** Without `--defer-reads`, everything. Reads that already are below an `if`.

    **Reported**, once for each loop: the values that every step still reads. Such a value decides what
    comes next (a check for NaN, an early stop), is shown in every step by a progress bar or a log, or is
    added to a sum that other code sees: an attribute, an argument, a global variable of another function, an
    iterator that prints. A closure (`xm.add_step_closure`) would not help: it blocks on its read too.

    Source: torch_xla 2.9 (measured on two replicas: the printed bits, the number of transfers; a stack of
    1000 scalars compiles in 0.8 s, one of 5000 in 8 s).
    """

    name = "defer-reads"
    code = "XLA889"
    nodes = (cst.For, cst.While)
    options: ClassVar[RewriteOptions] = RewriteOptions(defer_reads=True)
    after = True
    examples = (
        rewritten(
            """
            import torch


            def train(model, loader, optimizer, rank):
                running_loss = 0.0
                for i, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    loss = (model(x) - y).abs().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

                    running_loss += loss.item()
                    if i % 10 == 9 and rank == 0:
                        print(i, running_loss / 10)
                        running_loss = 0.0
            """,
            """
            import torch
            import torch_xla


            def read_values(pending):
                \"\"\"Read the scalars of `pending` from the device, 500 in one transfer, and empty it.\"\"\"
                values = []
                for start in range(0, len(pending), 500):
                    values += torch.stack(pending[start : start + 500]).flatten().tolist()
                pending.clear()
                return values


            def train(model, loader, optimizer, rank):
                running_loss = 0.0
                running_loss_pending = []
                for i, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        x, y = x.to("xla"), y.to("xla")
                        loss = (model(x) - y).abs().mean()
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()

                    running_loss_pending.append(loss.detach())
                    if i % 10 == 9:
                        for value in read_values(running_loss_pending):
                            running_loss += value
                    if i % 10 == 9 and rank == 0:
                        print(i, running_loss / 10)
                        running_loss = 0.0
            """,
        ),
        left_alone(
            """
            import torch_xla


            def train(model, loader, optimizer, rank):
                for i, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        loss = (model(x.to("xla")) - y.to("xla")).abs().mean()
                        loss.backward()
                        optimizer.step()
                    if i % 10 == 9:
                        print(i, loss.item())
            """
        ),
        reported(
            """
            import torch_xla


            def train(model, loader, optimizer, rank):
                total = 0.0
                for i, (x, y) in enumerate(loader):
                    with torch_xla.step():
                        loss = (model(x.to("xla")) - y.to("xla")).abs().mean()
                        loss.backward()
                        optimizer.step()
                    total += loss.item()
                    if total > 100:
                        break
            """,
            "decides what comes next",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for the values that one loop reads, and for reads that stay."""
        assert isinstance(node, cst.For | cst.While)
        if not isinstance(node.body, cst.IndentedBlock):
            return
        deferring = Deferring(node, context)
        for edited, replace, message in deferring.edits():
            yield self.edit(edited, replace, message)
        if stays := deferring.stays:
            listed = "; ".join(f"`{what}` {why}" for what, why in stays)
            message = f"values that are still read in every step: {listed}"
            yield from self.report(node, message)
