"""A function that reads values of the device, called at every step."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.effect import Effect
from migrate.model.calls.kind import TENSORS
from migrate.model.facts import Definition
from migrate.reading.facts import Facts
from migrate.reading.steps.evaluating import evaluating_loop, sampling_loop
from migrate.reading.steps.in_step import When
from migrate.reading.steps.loops import Loop
from migrate.reading.steps.metrics import ROOT, is_gathered, read_by_metric
from migrate.reading.steps.unended import Comprehension, computed_in
from migrate.syntax.origins import at_line
from migrate.syntax.tree import code, dotted, nodes_of

OF_EVALUATION = " of the evaluation"
IN_TURN = (Comprehension, cst.FunctionDef, cst.Lambda, cst.For, cst.While)
OFTEN, AFTER = "every N steps", "after the loop"


class ReadInFunction(Hazard):
    """A function that a loop of training, evaluation or sampling calls in every turn reads from the device.

    **Why.** The host waits for the device at every step, as it does for `.item()` in the loop itself; the
    line in the loop does not show it, and the function may lie in another file.

    The class of an object may be chosen while the script runs, from a registry, a dictionary or by `getattr`:
    then the methods of all classes that are stored there count, whatever stores them. If that is not known,
    the method of a class of the project that is named like the object counts.

    A metric of torchmetrics reads, too: MeanMetric and its like ask at each update whether a value is NaN,
    and `compute()` gathers the states of all replicas.

    A loop that samples runs a model many times for one batch; a schedule on the device of which each turn
    reads a number (`sigmas[i].item()`) makes the host wait as often.

    **What to do.** Let the function return tensors, and read them every N steps, where they are shown (in an
    evaluation: after its loop). Where the loop itself reads (`meter.update(loss.item())`),
    `migrate rewrite --defer-reads` does that. Make an aggregator of torchmetrics with
    `nan_strategy="disable"`, and compute every N steps.
    """

    code = "XLA208"
    name = "read-in-function"
    severity = Severity.INFO
    is_mentioned = True
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
        example(
            """
            import torch
            import torch.distributed as dist
            from torchmetrics import MeanMetric
            from torchmetrics.classification import MulticlassAccuracy


            def train(model, loader, optimizer):
                dist.init_process_group("nccl")
                mean = MeanMetric().cuda()
                quiet = MeanMetric(nan_strategy="disable").cuda()
                accuracy = MulticlassAccuracy(10).to("cuda")
                for step, (x, y) in enumerate(loader):
                    x, y = x.cuda(), y.cuda()
                    output = model(x)
                    loss = torch.nn.functional.cross_entropy(output, y)
                    loss.backward()
                    optimizer.step()
                    mean.update(loss)  # XLA208
                    quiet.update(loss)
                    accuracy.update(output, y)
                    print(accuracy.compute())  # XLA208
                    if step % 100 == 0:
                        print(quiet.compute())
            """
        ),
        example(
            """
            import torch
            import torch_xla


            def advance(output, z, sigmas, i):
                largest = sigmas[1].item()
                return z + (sigmas[i + 1] - sigmas[i]) * output.clamp(max=largest)


            def on_device(output, z, sigmas, i):
                return z + (sigmas[i + 1] - sigmas[i]) * output.clamp(max=sigmas[1])


            @torch.no_grad()
            def sample(model, z, sigmas):
                model.to("xla")
                for i in range(len(sigmas) - 1):
                    z = advance(model(z), z, sigmas, i)  # XLA208
                return z


            @torch.no_grad()
            def sample_on_device(model, z, sigmas):
                model.to("xla")
                for i in range(len(sigmas) - 1):
                    z = on_device(model(z), z, sigmas, i)
                    torch_xla.sync()
                return advance(z, z, sigmas, 0)
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
        if ROOT in facts.names.roots and (hits := list(self._metric(node, facts))):
            yield from hits
            return
        if not facts.context.effects.reads(node):
            yield from self._open(node, facts)
            return
        evaluates = facts.steps.when(node) is not When.EVERY_STEP
        loop = sampling_loop(node, facts) if evaluates else None
        if loop is not None and facts.guards.around(node) is None:
            yield from self._sampling(node, loop, facts)
            return
        if evaluates and not _is_each_step_of_evaluation(node, facts):
            return
        # A function that moves reads a number of the host, too: `torch.tensor(x).cuda()`. What computes a
        # loss and its gradients reads these, whoever moves the batch.
        effects = facts.context.effects
        moves = effects.moves(node) or Effect.BACKWARD in effects.of(node)
        takes_tensor = any(_is_on_device(arg, facts) or _is_loss(arg, facts) for arg in node.args)
        if not moves and not takes_tensor:
            return
        if facts.guards.around(node) is not None:
            return  # XLA305 reports that
        for ran in facts.context.run_by(node)[:1]:
            of = OF_EVALUATION * evaluates
            message = (
                f"{_located(ran, facts)} reads values of the device, at every step{of}: "
                f"the host waits; return tensors from it, and read them {AFTER if evaluates else OFTEN}"
            )
            yield self.hit(node, message)

    def _open(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a call at every step of an object whose class is chosen by name, if its method may read."""
        readers = [ran for ran in facts.context.may_run(node) if ran.reads]
        if not readers or facts.steps.when(node) is not When.EVERY_STEP:
            return
        takes_tensor = any(_is_on_device(arg, facts) or _is_loss(arg, facts) for arg in node.args)
        if takes_tensor and facts.guards.around(node) is None:
            message = (
                f"the class of `{code(node.func)}` is chosen by name: if this runs "
                f"{_located(readers[0], facts)}, it reads values of the device at every step, and the host "
                f"waits; return tensors from it, and read them {OFTEN}"
            )
            yield self.hit(node, message)

    def _sampling(self, node: cst.Call, loop: Loop, facts: Facts) -> Iterable[Hit]:
        """Yield a call that reads in every turn of a sampling loop."""
        computed = computed_in(loop, facts)
        if not any(_is_on_device(arg, facts) or computed.mentions(arg.value) for arg in node.args):
            return
        for ran in facts.context.run_by(node)[:1]:
            message = (
                f"{_located(ran, facts)} reads values of the device in every turn of this loop, which "
                "samples from a model: the host waits, and each turn is cut in two; read what is the same "
                "in all turns once before the loop, and compute the rest with tensors"
            )
            yield self.hit(node, message)

    def _metric(self, node: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield a call of a metric of torchmetrics in the step, or at every step."""
        when = facts.steps.when(node)
        if facts.guards.around(node) is not None:
            return
        if when is When.EVERY_STEP and is_gathered(node, facts):
            message = (
                f"`{code(node)}` gathers from all replicas at every step: compute every N steps"
            )
            yield self.hit(node, message)
        read = read_by_metric(node, facts)
        if read is None:
            return
        if when is When.STEP:
            message = f"{read}: inside the step this cuts its graph in two; call it after the step"
            yield self.hit(node, message, Severity.WARNING)
        elif when is When.EVERY_STEP:
            message = (
                f"{read}: at every step the host waits for the device; every N steps, or at the end"
            )
            yield self.hit(node, message)


def _is_each_step_of_evaluation(node: cst.Call, facts: Facts) -> bool:
    """Whether `node` is in a loop that evaluates, or evaluates a batch for each element of a comprehension.

    A loop around a training loop comes to it seldom.
    """
    loop = evaluating_loop(node, facts)
    if loop is None:
        around = (above for above in facts.context.ancestors(node) if isinstance(above, IN_TURN))
        is_element = isinstance(next(around, None), Comprehension)
        return is_element and facts.context.place(node) in facts.context.calls.evaluating
    inner = nodes_of(loop.body, cst.For | cst.While)  # type: ignore[arg-type]
    return not any(facts.context.effects.is_step_loop(loop) for loop in inner)


def _located(ran: Definition, facts: Facts) -> str:
    """Return the name of a function with its line, and with its file if that is another one."""
    is_here = ran.path == facts.context.file
    return f"{ran.name} ({at_line(ran.line, None if is_here else ran.path)})"


def _is_loss(arg: cst.Arg, facts: Facts) -> bool:
    """Whether the backward pass of the function around an argument begins at it: `loss.backward()`."""
    if not isinstance(arg.value, cst.Name):
        return False
    around = facts.context.function_around(arg.value)
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "backward"
        and call.func.value.deep_equals(arg.value)
        and facts.context.function_around(call) is around
        for call in facts.calls
    )


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
    for value in facts.context.bound_values(name) if isinstance(name, cst.Name) else [name]:
        if isinstance(value, cst.DictComp) and values.on_device(value.value):
            return True
        is_dict = isinstance(value, cst.Call) and dotted(value.func) == "dict"
        if isinstance(value, cst.Call) and is_dict:
            return any(values.on_device(part.value) for part in value.args)
    return False
