"""Reads in the step that only some replicas make."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.words import READ_METHODS


class GuardedRead(Hazard):
    """A value is read inside the step by some replicas only.

    **Why.** The read ends the graph in the replicas that make it and not in the others: from there on they
    run different graphs, their collectives no longer match, and all hang. This is worse than a slow step.

    **What to do.** Read after the step. Where all replicas read, only the printing goes under the condition.
    """

    code = "XLA305"
    name = "guarded-read"
    severity = Severity.ERROR
    spoken_by = ("step",)
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer, rank):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    if rank == 0:
                        print(loss.item())  # XLA305
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer, rank):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    if rank == 0:
                        print(loss.item())
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer, rank):
            for step, (x, y) in enumerate(loader):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if rank == 0 and step % 100 == 0:
                    print(loss.item())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one read under a condition of the rank, inside a step."""
        assert isinstance(node, cst.Call)
        read: cst.BaseExpression | None = None
        if method(node) in READ_METHODS:
            read = receiver(node)
        elif isinstance(node.func, cst.Name) and node.func.value in ("print", "float", "int"):
            read = next((a.value for a in node.args if facts.tensors.on_device(a.value)), None)
        if read is None or not facts.tensors.on_device(read) or not facts.steps.inside(node):
            return
        guard = facts.guards.around(node)
        if guard is not None:
            line = facts.context.position(guard).line
            message = (
                f"read in some replicas only (line {line}), inside the step: graphs part, all hang"
            )
            yield self.hit(node, message)
