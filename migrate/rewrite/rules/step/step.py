"""Put the training step in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
from migrate.model.calls.scopes import CPU_MARK, MARK
from migrate.rewrite.rule import (
    Edit,
    Rule,
    RuleFinding,
    Stage,
    Wrap,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.rules.step.inputs import UnknownInputs, left_to_the_wrapper, unmoved_inputs
from migrate.rewrite.rules.step.steps import TrainingStep, Undecided, steps_of
from migrate.rewrite.rules.step.wrapping import Wrapping
from migrate.rewrite.workspace import Workspace


class StepRule(Rule):
    """Put the training step in `with torch_xla.step():`.

    **What it does.** On XLA operations are recorded and run at the end of a step. The loop that gets the
    step is the innermost one whose body runs both a backward pass and an optimizer step, also through
    functions and methods of the script. Into the block goes the part of the body from the statement
    that moves or produces the inputs of the forward to the last optimizer, `zero_grad` or
    weight-averaging statement. Inputs that the script does not move are moved:
    `inputs, labels = inputs.to('xla'), labels.to('xla')`.

    *Values that are read* (`loss.item()`, meters, prints) come right below the block, in their order, so
    that meters show the same numbers at the same steps. Where a later statement of the step changes the
    tensor (`loss /= accum_iter`), a copy is made at the old place. With `--defer-reads` what is only
    logged is read once for each print ([defer-reads](defer-reads.md)).

    *Tests that decide whether the rest of the step runs* (`if not math.isfinite(loss.item()): sys.exit(1)`,
    `continue`, `raise`, `assert`, a function that raises) keep their place: the block ends above the
    test, and another block begins below it. A loss that is not finite reaches no weights, whether or not
    somebody catches the exception. The program has one more graph.

    *Gradient accumulation.* By modulo, the loop over batches is the step loop, and the `if` is in the
    block. With an inner loop over micro-batches each of them is a step, and the update of the weights is
    another: in one step the inner loop would be unrolled.

    *A step in a step.* A function that a step calls may have a training loop of its own (five updates of a
    discriminator, an inner loop of meta-learning). Then each iteration of that loop is a step, and the rest
    of the function gets a block of its own, whichever file it is in. The call itself gets no block.

    *By hand.* A comment `# migrate: step` on a loop, or right above it, makes each iteration of the loop a
    step. Use it if the source does not show that the loop trains: for example, if the class of `model` in
    `model.optimize_parameters()` comes from a registry or is named by a string.

    A comment `# migrate: cpu` says that the loop runs on the CPU. The loop then gets no step. Use it if the
    source does not show where a training or evaluation loop runs. If the loop moves something to the
    accelerator nevertheless, that is reported, and the comment is ignored.

    *A loop over `MpDeviceLoader`* gets none: the loader ends the graph before it gives the next batch.

    *Settings of the learning rate* between the move of the inputs and the forward go above the block.

    **Reported.** Values that the step itself needs: each step waits for them. Evaluation, saves, logging
    and code of some replicas in the middle of a step, if moving it below the block would change what it
    does; then there is no block. Inputs that may not be tensors. Loops that may train through an object whose
    class is chosen by name, and marks that make no step.

    Source: torch_xla 2.9, `torch_xla.step`; the choice of the loop and the kinds of reads: measured on 82
    public scripts; copies before in-place edits, micro-batches: measured on torch_xla.
    """

    name = "step"
    code = "XLA214"
    stage = Stage.STEP
    edited = Severity.WARNING
    nodes = (cst.For, cst.While, cst.FunctionDef, cst.Comment)
    examples = (
        rewritten(
            """
            def train(loader, loss_fn):
                model = Net().cuda()
                optimizer = make_optimizer(model)
                for step, (inputs, labels) in enumerate(loader):
                    adjust_learning_rate(optimizer, step)

                    # forward
                    outputs = model(inputs)
                    loss = loss_fn(outputs, labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

                    if step % 10 == 0:
                        print(loss.item())
            """,
            """
            import torch_xla


            def train(loader, loss_fn):
                model = Net().to("xla")
                optimizer = make_optimizer(model)
                for step, (inputs, labels) in enumerate(loader):
                    adjust_learning_rate(optimizer, step)

                    with torch_xla.step():
                        inputs, labels = inputs.to("xla"), labels.to("xla")
                        # forward
                        outputs = model(inputs)
                        loss = loss_fn(outputs, labels)
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()

                    if step % 10 == 0:
                        print(loss.item())
            """,
        ),
        left_alone(
            """
            def train_on_cpu(model, loader, optimizer, loss_fn):
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss_fn(model(inputs), labels).backward()
                    optimizer.step()
            """
        ),
        left_alone(
            """
            import torch_xla


            def train(model, loader, optimizer, loss_fn):
                model.to('xla')
                for inputs, labels in loader:
                    with torch_xla.step():
                        loss_fn(model(inputs.to('xla')), labels.to('xla')).backward()
                        optimizer.step()
            """
        ),
        left_alone(
            """
            import torch_xla
            from torch_xla.distributed.parallel_loader import MpDeviceLoader


            def train(model, loader, optimizer, loss_fn):
                model.to('xla')
                for inputs, labels in MpDeviceLoader(loader, torch_xla.device()):
                    loss_fn(model(inputs), labels).backward()
                    optimizer.step()
            """
        ),
        rewritten(
            """
            def train(loader, meter, accum_iter):
                model = Net().cuda()
                optimizer = make_optimizer(model)
                for step, x in enumerate(loader):
                    x = x.cuda()
                    loss = model(x).mean()
                    loss_value = loss.item()

                    if not math.isfinite(loss_value):
                        sys.exit(1)

                    loss /= accum_iter
                    loss.backward()
                    if (step + 1) % accum_iter == 0:
                        optimizer.step()
                        optimizer.zero_grad()
                    meter.update(loss_value)
            """,
            """
            import torch_xla


            def train(loader, meter, accum_iter):
                model = Net().to("xla")
                optimizer = make_optimizer(model)
                for step, x in enumerate(loader):
                    with torch_xla.step():
                        x = x.to("xla")
                        loss = model(x).mean()
                    loss_value = loss.item()

                    if not math.isfinite(loss_value):
                        sys.exit(1)

                    with torch_xla.step():
                        loss /= accum_iter
                        loss.backward()
                        if (step + 1) % accum_iter == 0:
                            optimizer.step()
                            optimizer.zero_grad()
                    meter.update(loss_value)
            """,
        ),
        rewritten(
            """
            def train(loader, meter, accum_iter):
                model = Net().cuda()
                optimizer = make_optimizer(model)
                for x in loader:
                    x = x.cuda()
                    loss = model(x).mean()
                    loss_value = loss.item()
                    loss /= accum_iter
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    meter.update(loss_value)
            """,
            """
            import torch_xla


            def train(loader, meter, accum_iter):
                model = Net().to("xla")
                optimizer = make_optimizer(model)
                for x in loader:
                    with torch_xla.step():
                        x = x.to("xla")
                        loss = model(x).mean()
                        loss_value = loss.detach().clone()
                        loss /= accum_iter
                        loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    loss_value = loss_value.item()
                    meter.update(loss_value)
            """,
        ),
        rewritten(
            """
            def train(loader):
                model = Net().cuda()
                optimizer = make_optimizer(model)
                for micro_batches in loader:
                    for x in micro_batches:
                        x = x.cuda()
                        model(x).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            """,
            """
            import torch_xla


            def train(loader):
                model = Net().to("xla")
                optimizer = make_optimizer(model)
                for micro_batches in loader:
                    for x in micro_batches:
                        with torch_xla.step():
                            x = x.to("xla")
                            model(x).mean().backward()
                    with torch_xla.step():
                        optimizer.step()
                        optimizer.zero_grad()
            """,
        ),
        reported(
            """
            import torch_xla


            def train(model, loader, optimizer, rank):
                model.to('xla')
                for x, y in loader:
                    loss = (model(x.to('xla')) - y.to('xla')).mean()
                    loss.backward()
                    if rank == 0:
                        log_gradients(model)
                    optimizer.step()
            """,
            "in the middle of the step",
        ),
        reported(
            """
            import torch_xla


            def train(model, loader, optimizer):
                model.to('xla')
                for x, y in loader:
                    loss = (model(x.to('xla')) - y.to('xla')).mean()
                    scale = min(loss.item(), 1.0)
                    (loss * scale).backward()
                    optimizer.step()
            """,
            "each step waits for it",
        ),
        reported(
            """
            from registry import MODELS


            @MODELS.register()
            class Classifier:
                def train_on(self, x):
                    self.optimizer.zero_grad()
                    self.network(x.cuda()).mean().backward()
                    self.optimizer.step()


            def main(name, loader):
                model = MODELS.get(name)()
                for x in loader:
                    model.train_on(x)
            """,
            "which class it is of is decided while the script runs",
        ),
        rewritten(
            """
            from registry import MODELS


            @MODELS.register()
            class Classifier:
                def train_on(self, x):
                    self.optimizer.zero_grad()
                    self.network(x.cuda()).mean().backward()
                    self.optimizer.step()


            def main(name, loader):
                model = MODELS.get(name)()
                for count, x in enumerate(loader):  # migrate: step
                    model.train_on(x)
                    print(count)
            """,
            """
            from registry import MODELS
            import torch_xla


            @MODELS.register()
            class Classifier:
                def train_on(self, x):
                    self.optimizer.zero_grad()
                    self.network(x.to("xla")).mean().backward()
                    self.optimizer.step()


            def main(name, loader):
                model = MODELS.get(name)()
                for count, x in enumerate(loader):  # migrate: step
                    with torch_xla.step():
                        model.train_on(x)
                    print(count)
            """,
        ),
        reported(
            """
            import torch

            model = torch.nn.Linear(2, 2).cuda()
            # migrate: step
            model(torch.ones(2).cuda()).sum().backward()
            """,
            "the mark makes no step: no loop starts",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Wrap | RuleFinding]:
        """Yield the blocks of one training loop, and what in them cuts the graph."""
        if isinstance(node, cst.Comment):
            why = context.calls.unused_marks.get(context.position(node).line)
            if why is not None and MARK.search(node.value):
                yield from self.report(node, f"the mark makes no step: {why}")
            elif why is not None and CPU_MARK.search(node.value):
                yield from self.report(node, f"the mark says nothing: {why}")
            return
        assert isinstance(node, cst.For | cst.While | cst.FunctionDef)
        steps = list(steps_of(context).of(node))
        if not any(isinstance(step, TrainingStep) and step.batch for step in steps):
            left = left_to_the_wrapper(node, context)
            if left is not None:
                yield from self.report(node, left.message, left.severity)
        for step in steps:
            if isinstance(step, Undecided):
                yield from self.report(step.node, step.why, step.severity, code=step.code)
                continue
            moved = unmoved_inputs(step, context)
            if isinstance(moved, UnknownInputs):
                yield from self.report(node, moved.message, moved.severity)
                moved = []
            yield from Wrapping(self.name, context, step.parts, moved).found()
