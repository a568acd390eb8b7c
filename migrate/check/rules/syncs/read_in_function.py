"""A function that reads values of the device, called at every step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When


class ReadInFunction(Hazard):
    """A function that the training loop calls at every step reads values of the device.

    **Why.** The host waits for the device at every step, as it does for `.item()` in the loop itself; the
    line in the loop does not show it, and the function may lie in another file.

    **What to do.** Let the function return tensors, and read them every N steps, where they are shown. Where
    the loop itself reads (`meter.update(loss.item())`), `migrate rewrite --defer-reads` does that.
    """

    code = "XLA208"
    name = "read-in-function"
    severity = Severity.INFO
    spoken_by = ("step", "defer-reads")
    nodes = (cst.Call,)
    examples = (
        example(
            """
            import torch


            def compute(output, target):
                right = (output.argmax(1) == target).float().mean()
                return {"accuracy": right.item()}


            def train(model, loader, optimizer, history):
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    output = model(x)
                    loss = torch.nn.functional.cross_entropy(output, y)
                    loss.backward()
                    optimizer.step()
                    metrics = compute(output, y)  # XLA208
                    history.append(metrics)
            """
        ),
        example(
            """
            import torch


            def compute(output, target):
                return (output.argmax(1) == target).float().mean()


            def show(output, target):
                print(compute(output, target).item())


            def train(model, loader, optimizer, history):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    output = model(x)
                    loss = torch.nn.functional.cross_entropy(output, y)
                    loss.backward()
                    optimizer.step()
                    history.append(compute(output, y))
                    if step % 100 == 0:
                        show(output, y)
            """
        ),
    )
    mended = example(
        """
        import torch


        def compute(output, target):
            return {"accuracy": (output.argmax(1) == target).float().mean()}


        def train(model, loader, optimizer):
            for step, (x, y) in enumerate(loader):
                x, y = x.cuda(), y.cuda()
                output = model(x)
                loss = torch.nn.functional.cross_entropy(output, y)
                loss.backward()
                optimizer.step()
                metrics = compute(output, y)
                if step % 100 == 0:
                    print(metrics["accuracy"].item())
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one call of such a function."""
        assert isinstance(node, cst.Call)
        if not facts.context.effects.reads(node) or facts.steps.when(node) is not When.EVERY_STEP:
            return
        if not any(facts.values.on_device(arg.value) for arg in node.args):
            return
        if facts.guards.around(node) is not None:
            return  # XLA305 speaks of that
        for ran in facts.context.run_by(node):
            where = "" if ran.path == facts.context.file else f"{ran.path.name}:"
            line = f"line {ran.line}" if not where else f"{where}{ran.line}"
            message = (
                f"{ran.name} ({line}) reads values of the device, at every step: the host waits; return "
                "tensors from it, and read them every N steps"
            )
            yield self.hit(node, message)
            return
