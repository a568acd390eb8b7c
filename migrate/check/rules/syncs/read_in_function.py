"""A function that reads values of the device, called at every step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import TENSORS
from migrate.reading.facts import Facts
from migrate.reading.steps.evaluating import in_evaluation
from migrate.reading.steps.in_step import When
from migrate.syntax.tree import dotted

OF_EVALUATION = " of the evaluation"
OFTEN, AFTER = "every N steps", "after the loop"


class ReadInFunction(Hazard):
    """A function that the training loop, or an evaluation, calls at every step reads values of the device.

    **Why.** The host waits for the device at every step, as it does for `.item()` in the loop itself; the
    line in the loop does not show it, and the function may lie in another file.

    **What to do.** Let the function return tensors, and read them every N steps, where they are shown (in an
    evaluation: after its loop). Where the loop itself reads (`meter.update(loss.item())`),
    `migrate rewrite --defer-reads` does that.
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
        example(
            """
            import torch


            def compute(output, target):
                right = (output.argmax(1) == target).float().mean()
                return {"accuracy": right.item()}


            @torch.no_grad()
            def evaluate(model, loader, history):
                model.cuda().eval()
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    output = model(x)
                    history.append(compute(output, y))  # XLA208
                return compute(output, y)
            """
        ),
        example(
            """
            import torch


            class Meters:
                def update(self, **values):
                    for name, value in values.items():
                        self.totals[name] += value.item() if torch.is_tensor(value) else value


            def train(model, loader, optimizer):
                meters = Meters()
                for x, y in loader:
                    x, y = x.cuda(), y.cuda()
                    losses = model(x, y)
                    loss = sum(losses.values())
                    loss.backward()
                    optimizer.step()
                    scaled = {f"{name}_scaled": 2 * value for name, value in losses.items()}
                    shown = dict(loss=loss, rate=0.1)
                    filled = {}
                    filled["loss"] = loss
                    rates = dict(rate=optimizer.param_groups[0]["lr"])
                    meters.update(**losses)  # XLA208
                    meters.update(**scaled)  # XLA208
                    meters.update(**shown)  # XLA208
                    meters.update(**filled)  # XLA208
                    meters.update(**rates)
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def mean_of_all(x):
                mean = torch.tensor(x).cuda()
                dist.all_reduce(mean)
                return mean.item() / dist.get_world_size()


            def train(model, loader, optimizer, log):
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    loss = model(x, y)
                    loss.backward()
                    optimizer.step()
                    value = loss.item()  # XLA201 info
                    log.append(mean_of_all(value))  # XLA208
                    if step % 100 == 0:
                        print(mean_of_all(value))
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
        if not facts.context.effects.reads(node):
            return
        evaluates = facts.steps.when(node) is not When.EVERY_STEP
        if evaluates and not in_evaluation(node, facts):
            return
        moves = facts.context.effects.moves(
            node
        )  # a number of the host too: `torch.tensor(x).cuda()`
        if not moves and not any(_is_on_device(arg, facts) for arg in node.args):
            return
        if facts.guards.around(node) is not None:
            return  # XLA305 speaks of that
        for ran in facts.context.run_by(node):
            where = "" if ran.path == facts.context.file else f"{ran.path.name}:"
            line = f"line {ran.line}" if not where else f"{where}{ran.line}"
            message = (
                f"{ran.name} ({line}) reads values of the device, at every step{OF_EVALUATION * evaluates}: "
                f"the host waits; return tensors from it, and read them {AFTER if evaluates else OFTEN}"
            )
            yield self.hit(node, message)
            return


def _is_on_device(arg: cst.Arg, facts: Facts) -> bool:
    """Whether an argument is a tensor on the device, or a dictionary of arguments with one in it."""
    values = facts.values
    if values.on_device(arg.value):
        return True
    if arg.star != "**":
        return False
    if values.kind(arg.value) in TENSORS:
        return True
    name = arg.value
    for made in facts.context.bound_values(name) if isinstance(name, cst.Name) else [name]:
        if isinstance(made, cst.DictComp) and values.on_device(made.value):
            return True
        is_dict = isinstance(made, cst.Call) and dotted(made.func) == "dict"
        if isinstance(made, cst.Call) and is_dict:
            return any(values.on_device(part.value) for part in made.args)
    return False
