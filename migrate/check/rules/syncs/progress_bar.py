"""Tensors in a progress bar."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.words import SHOWING_METHODS
from migrate.check.common import method
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When
from migrate.syntax.tree import nodes


class ProgressBar(Hazard):
    """A progress bar shows a tensor at every step.

    **Why.** The bar makes text of it at each turn: the host waits for the device at every step, also
    where the value is seldom drawn.

    **What to do.** Give the bar a number that was read every N steps.
    """

    code = "XLA205"
    name = "progress-bar"
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = spelled(SHOWING_METHODS)
    examples = (
        example(
            """
            import torch
            from tqdm import tqdm


            def train(model, loader, optimizer):
                bar = tqdm(loader)
                for x, y in bar:
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    bar.set_postfix(loss=loss.item())  # XLA205
            """
        ),
        example(
            """
            import torch
            from tqdm import tqdm


            def train(model, loader, optimizer, scheduler):
                bar = tqdm(loader)
                for step, (x, y) in enumerate(bar):
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    bar.set_postfix(step=step)
                    if step % 50 == 0:
                        bar.set_description(f"loss {loss.item():.3f}")
            """
        ),
    )
    mended = example(
        """
        import torch
        from tqdm import tqdm


        def train(model, loader, optimizer):
            bar = tqdm(loader)
            for step, (x, y) in enumerate(bar):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if step % 100 == 0:
                    bar.set_postfix(loss=loss.item())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call that shows a tensor."""
        assert isinstance(node, cst.Call)
        if method(node) not in SHOWING_METHODS:
            return
        if facts.steps.when(node) not in (When.STEP, When.EVERY_STEP):
            return
        if facts.guards.around(node) is None and any(
            isinstance(part, cst.Name) and facts.values.on_device(part)
            for arg in node.args
            for part in nodes(arg.value)
        ):
            message = (
                "a progress bar that shows a tensor: the host waits at every step; every N steps"
            )
            yield self.hit(node, message)
