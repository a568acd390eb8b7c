"""Two ends of the graph in one step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import SYNCS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import is_step
from migrate.syntax.tree import nodes_of


class DoubleSync(Hazard):
    """A step ends its graph twice.

    **Why.** `MpDeviceLoader` ends the graph before it gives the next batch, and `with torch_xla.step():`
    ends it too: with both, the second launch runs an empty or a tiny graph at every step, and shifts what
    belongs to which step. The same holds for `mark_step()` or `sync()` inside `with torch_xla.step():`.

    **What to do.** One of them: `torch_xla.step()` with a plain loader, or `MpDeviceLoader` alone.

    Source: torch_xla 2.9, `parallel_loader.py`.
    """

    code = "XLA206"
    name = "double-sync"
    severity = Severity.WARNING
    nodes = (cst.With, cst.Call)
    examples = (
        example(
            """
            import torch_xla
            import torch_xla.core.xla_model as xm
            import torch_xla.distributed.parallel_loader as pl


            def train(model, loader, optimizer):
                for x, y in pl.MpDeviceLoader(loader, torch_xla.device()):
                    with torch_xla.step():  # XLA206
                        model(x, y).backward()
                        optimizer.step()
            """
        ),
        example(
            """
            import torch_xla


            class Critic:
                def update(self, x):
                    for _ in range(5):
                        with torch_xla.step():  # XLA206
                            self.net(x).mean().backward()
                            self.optimizer.step()


            def wait():
                torch_xla.sync(wait=True)  # XLA206


            def train(model, loader, optimizer):
                critic = Critic()
                for x in loader:
                    with torch_xla.step():
                        x = x.to("xla")
                        critic.update(x)
                        model(x).mean().backward()
                        wait()
                        optimizer.step()
            """
        ),
        example(
            """
            import torch_xla


            class Critic:
                def update(self, x):
                    for _ in range(5):
                        with torch_xla.step():
                            self.net(x).mean().backward()
                            self.optimizer.step()


            def wait():
                torch_xla.sync(wait=True)


            def train(model, loader, optimizer):
                critic = Critic()
                for x in loader:
                    x = x.to("xla")
                    critic.update(x)
                    with torch_xla.step():
                        model(x).mean().backward()
                        optimizer.step()
                    wait()
            """
        ),
        example(
            """
            import torch_xla
            import torch_xla.distributed.parallel_loader as pl


            def train(model, loader, optimizer):
                for x, y in loader:
                    with torch_xla.step():
                        model(x.to("xla"), y.to("xla")).backward()
                        optimizer.step()


            def train_with_the_loader(model, loader, optimizer):
                for x, y in pl.MpDeviceLoader(loader, torch_xla.device()):
                    model(x, y).backward()
                    optimizer.step()
            """
        ),
    )
    mended = example(
        """
        import torch_xla


        def train(model, loader, optimizer):
            for x, y in loader:
                with torch_xla.step():
                    model(x.to("xla"), y.to("xla")).backward()
                    optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one marked step with a second end, or a second end in a function that a marked step calls."""
        if isinstance(node, cst.Call):
            yield from self._called(node, facts)
            return
        assert isinstance(node, cst.With)
        if not is_step(node, facts.context):
            return
        calls = list(nodes_of(node.body, cst.Call))
        loop = next((a for a in facts.context.ancestors(node) if isinstance(a, cst.For)), None)
        syncs = [call for call in calls if facts.names.of(call.func) in SYNCS]
        if any(not _is_beside_a_test_of_the_rank(call, facts) for call in syncs):
            yield self.hit(node.items[0].item, "a sync inside torch_xla.step(): remove one of them")
        elif loop is not None and facts.values.kind(loop.iter) is Kind.DEVICE_LOADER:
            message = "MpDeviceLoader and torch_xla.step() both end the graph: remove one of them"
            yield self.hit(node.items[0].item, message)
        elif facts.steps.called_in_mark(node) or facts.steps.in_marked_block(node):
            message = (
                "a step in a step: the inner one ends the graph of the outer one in its "
                "middle; where a loop trains inside, its turns are the steps, else the outer one is"
            )
            yield self.hit(node.items[0].item, message)

    def _called(self, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a sync in a function that a marked step calls."""
        if facts.names.of(call.func) not in SYNCS | {"shims.synchronize"}:
            return
        if facts.steps.called_in_mark(call) and not facts.steps.in_marked_block(call):
            message = (
                "a sync in a function that a step calls: it ends the graph of the step in its middle, and "
                "what follows is another graph; call it below the step"
            )
            yield self.hit(call, message)


def _is_beside_a_test_of_the_rank(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` ends the graph next to a statement that only some replicas compute on the device."""
    statement = facts.context.statement_around(call)
    block = facts.context.parent(statement)
    if not isinstance(block, cst.IndentedBlock):
        return False
    at = block.body.index(statement)
    beside = block.body[max(at - 1, 0) : at + 2]
    return any(
        isinstance(statement, cst.If) and facts.guards.asks(statement.test) for statement in beside
    )
