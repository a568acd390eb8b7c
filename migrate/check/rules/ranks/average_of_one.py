"""Averages of the weights on one replica only, updated between the collectives of the steps."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import STEPS
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.collectives.computing import updates_copy
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code


class AverageOfOne(Hazard):
    """A single replica updates a copy of the weights while it trains.

    **Why.** `ema = EMA(model) if rank == 0 else None` costs nothing on GPUs. On XLA the update is a part of
    the graph of that replica. The replicas then run different graphs, and wait for each other in the
    collectives in these graphs.

    **What to do.** Make and update the average on all replicas, whose weights are the same; save it on one.

    Source: torch_xla 2.9: collectives are part of the compiled graph.
    """

    code = "XLA311"
    name = "average-of-one"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "update|step|accumulate|average"  # see UPDATES
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def train(model, loader, optimizer):
                rank = dist.get_rank()
                average = torch.optim.swa_utils.AveragedModel(model).cuda() if rank == 0 else None
                for x, y in loader:
                    loss = (model(x.cuda()) - y.cuda()).pow(2).mean()
                    loss.backward()
                    optimizer.step()
                    if average is not None:
                        average.update_parameters(model)  # XLA311
                if average is not None:
                    torch.save(average.state_dict(), "average.pt")
            """
        ),
        example(
            """
            import torch
            from averages import Shadow


            class Trainer:
                def __init__(self, net, optimizer, rank):
                    self.net, self.optimizer = net.cuda(), optimizer
                    if rank == 0:
                        self.shadow = Shadow(self.net, decay=0.99)
                    else:
                        self.shadow = None

                def fit(self, loader):
                    for x in loader:
                        self.net(x.cuda()).mean().backward()
                        self.optimizer.step()
                        if self.shadow is not None:
                            self.shadow.update()  # XLA311
            """
        ),
        example(
            """
            import torch
            from averages import Board, Shadow


            def train(model, loader, optimizer, rank, decay):
                average = Shadow(model) if decay else None
                board = Board("runs") if rank == 0 else None
                saver = Board(model) if rank == 0 else None
                for x in loader:
                    model(x.cuda()).mean().backward()
                    optimizer.step()
                    if average is not None:
                        average.update(model)
                    if board is not None:
                        board.update()
                    if saver is not None:
                        saver.write(decay)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        def train(model, loader, optimizer):
            average = torch.optim.swa_utils.AveragedModel(model).to("xla")
            for x, y in loader:
                with torch_xla.step():
                    loss = (model(x.to("xla")) - y.to("xla")).pow(2).mean()
                    loss.backward()
                    optimizer.step()
                    average.update_parameters(model)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one update below a test of the rank, or of a value that other replicas lack."""
        assert isinstance(node, cst.Call)
        if not updates_copy(node, facts):
            return
        guards = facts.guards
        guard = guards.around(node) or guards.around_what_some_hold(node)
        if guard is None or facts.steps.when(node) is When.ELSEWHERE or _ends(guard, facts):
            return
        line = facts.context.position(guard).line
        yield self.hit(
            node,
            f"`{code(node.func)}` updates a copy of the weights on some replicas only "
            f"({at_line(line)}): their "
            "graph is another one, and all wait in the next collective; make and update it on all "
            "replicas, and save it on one",
        )


def _ends(guard: cst.CSTNode, facts: Facts) -> bool:
    """Whether the code below `guard` ends the graph itself."""
    return any(facts.names.of(call.func) in STEPS for call in facts.below(guard, cst.Call))
