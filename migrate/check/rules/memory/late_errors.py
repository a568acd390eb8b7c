"""An error of the device that is caught where nothing has run yet."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, nodes, string_value

MEMORY = "out of memory"
ERRORS = frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"})


class LateErrors(Hazard):
    """Running out of memory is caught inside of a step.

    **Why.** In a step nothing runs yet: the graph is compiled and executed where the step ends, and the
    error (`RESOURCE_EXHAUSTED`) is raised there, outside of the `try`. The handler, which skips the batch or
    halves it, never runs, and the program ends.

    **What to do.** Leave the handler out: the memory of a graph is known when it is compiled, and equal
    shapes need as much in every step (`migrate fit` says how much). Else put the `try` around
    `with torch_xla.step():`, on all replicas alike.

    Source: torch_xla 2.9, `torch_xla.step` (read).
    """

    code = "XLA607"
    name = "late-error"
    severity = Severity.INFO
    is_mentioned = True
    nodes = (cst.Try,)
    examples = (
        example(
            """
            import torch
            import torch_xla


            def train(model, loader, optimizer):
                for x, y in loader:
                    with torch_xla.step():
                        try:  # XLA607
                            model(x.to("xla"), y.to("xla")).backward()
                        except RuntimeError as error:
                            if "out of memory" not in str(error):
                                raise
                            optimizer.zero_grad()
                        try:  # XLA607
                            optimizer.step()
                        except torch.OutOfMemoryError:
                            optimizer.zero_grad()
            """
        ),
        example(
            """
            import torch_xla


            def backward(loss, optimizer):
                try:  # XLA607
                    loss.backward()
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    optimizer.zero_grad()


            def train(model, loader, optimizer):
                for x, y in loader:
                    with torch_xla.step():
                        backward(model(x.to("xla"), y.to("xla")), optimizer)
                        optimizer.step()
            """
        ),
        example(
            """
            import torch
            import torch_xla


            def train(model, loader, optimizer):
                for x, y in loader:
                    try:
                        with torch_xla.step():
                            model(x.to("xla"), y.to("xla")).backward()
                            optimizer.step()
                    except RuntimeError as error:
                        if "out of memory" not in str(error):
                            raise
                    with torch_xla.step():
                        try:
                            path = x.path
                        except AttributeError:
                            path = "out of memory"
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_xla


        def train(model, loader, optimizer):
            for x, y in loader:
                with torch_xla.step():
                    model(x.to("xla"), y.to("xla")).backward()
                    optimizer.step()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one `try` in a step that catches running out of memory."""
        assert isinstance(node, cst.Try)
        steps = facts.steps
        if not steps.in_marked_block(node) and not steps.called_in_mark(node):
            return
        if any(_catches_memory(handler, facts) for handler in node.handlers):
            message = (
                "running out of memory is caught here, and raised where the step ends: the handler never "
                "runs; leave it out, or put the `try` around the step"
            )
            yield self.hit(node, message)


def _catches_memory(handler: cst.ExceptHandler, facts: Facts) -> bool:
    if handler.type is None:
        return False
    types = (
        [part.value for part in handler.type.elements]
        if isinstance(handler.type, cst.Tuple)
        else []
    )
    named = {facts.names.of(kind) or code(kind) for kind in types or [handler.type]}
    if named & ERRORS:
        return True
    asks = any(MEMORY in (string_value(part) or "").lower() for part in nodes(handler.body))
    return asks and not named.isdisjoint({"RuntimeError", "Exception"})
