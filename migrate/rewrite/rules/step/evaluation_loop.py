"""Put the forward of an evaluation loop in `with torch_xla.step():`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Severity
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
from migrate.rewrite.rules.step.evaluation import evaluation_steps
from migrate.rewrite.rules.step.inputs import UnknownInputs, unmoved_inputs
from migrate.rewrite.rules.step.steps import TrainingStep, Undecided
from migrate.rewrite.rules.step.wrapping import Wrapping
from migrate.rewrite.workspace import Workspace


class EvaluationLoop(Rule):
    """Put the forward of an evaluation loop in `with torch_xla.step():`.

    **What it does.** A batch of an evaluation is one graph too: the move of the inputs, the forward and
    what is computed from it go in the block, values are read below it, in their order. Without it the
    first `.item()` ends the graph wherever it stands, and what comes after it is another one. A statement
    that computes a value and reads it, `total += loss_fn(model(x), y).item()`, becomes two: the value gets
    a name in the block, and is read below it. The forward may stand in a function or a method that the loop
    calls, in whatever file, if that reads no value and loops over no model: the call goes in the block.

    **Left alone.** Loops with gradients, loops over parameters or in an optimizer (a part of the training
    step), loops in a model's own methods, and those whose forward stands in a statement that copies the
    output to the host (`outputs.append(model(x).cpu())`): they work as they are.

    **Reported.** Values that are read in the middle of what is computed on the device. Loops that take the
    time of the model. Loops of which the project does not show where they run: a comment
    `# migrate: step` says on the accelerator, `# migrate: cpu` on the CPU ([step](step.md)).

    Source: torch_xla 2.9, `torch_xla.step`.
    """

    name = "evaluation-loop"
    code = "XLA215"
    reported_as = "XLA116"  # at the head of the loop
    stage = Stage.STEP
    edited = Severity.WARNING
    nodes = (cst.For, cst.While)
    examples = (
        rewritten(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader, loss_fn, meter):
                model.cuda().eval()
                for images, labels in loader:
                    images, labels = images.cuda(), labels.cuda()

                    # the loss of the batch
                    outputs = model(images)
                    loss = loss_fn(outputs, labels)
                    meter.update(loss.item(), len(images))
            """,
            """
            import torch
            import torch_xla


            @torch.no_grad()
            def evaluate(model, loader, loss_fn, meter):
                model.to("xla").eval()
                for images, labels in loader:
                    with torch_xla.step():
                        images, labels = images.to("xla"), labels.to("xla")

                        # the loss of the batch
                        outputs = model(images)
                        loss = loss_fn(outputs, labels)
                    meter.update(loss.item(), len(images))
            """,
        ),
        rewritten(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader, loss_fn):
                model.cuda().eval()
                total, correct = 0.0, 0
                for images, labels in loader:
                    images, labels = images.cuda(), labels.cuda()
                    total += loss_fn(model(images), labels).item() * len(images)
                    correct += (model(images).argmax(1) == labels).sum().item()
                return total, correct
            """,
            """
            import torch
            import torch_xla


            @torch.no_grad()
            def evaluate(model, loader, loss_fn):
                model.to("xla").eval()
                total, correct = 0.0, 0
                for images, labels in loader:
                    with torch_xla.step():
                        images, labels = images.to("xla"), labels.to("xla")
                        loss = loss_fn(model(images), labels)
                        batch_correct = (model(images).argmax(1) == labels).sum()
                    total += loss.item() * len(images)
                    correct += batch_correct.item()
                return total, correct
            """,
        ),
        left_alone(
            """
            import torch


            def embed(model, loader, features):
                model.to('xla')
                with torch.no_grad():
                    for images, _ in loader:
                        features.append(model(images.to('xla')).cpu())
            """
        ),
        reported(
            """
            import torch


            def evaluate(model, loader, threshold):
                model.to('xla')
                with torch.no_grad():
                    for images, _ in loader:
                        images = images.to('xla')
                        if images.max() > threshold:
                            images = images / images.max()
                        outputs = model(images)
            """,
            "each step waits for it",
        ),
        reported(
            """
            import time

            import torch


            @torch.no_grad()
            def throughput(model, loader):
                model.to('xla')
                for images, _ in loader:
                    images = images.to('xla')
                    for _ in range(10):
                        model(images)
                    torch.cuda.synchronize()
                    start = time.time()
                    for _ in range(30):
                        model(images)
                    torch.cuda.synchronize()
                    print(time.time() - start)
                    return
            """,
            "takes the time of the model",
        ),
        reported(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader, device):
                for images, _ in loader:
                    outputs = model(images.to(device))
                    print(outputs.argmax(1).tolist())
            """,
            "does not show whether this evaluation runs on the accelerator",
        ),
        left_alone(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader, device):
                for images, _ in loader:  # migrate: cpu
                    outputs = model(images.to(device))
                    print(outputs.argmax(1).tolist())
            """
        ),
        reported(
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader):
                # migrate: cpu
                for images, _ in loader:
                    outputs = model(images.to('xla'))
                    print(outputs.argmax(1).tolist())
            """,
            "but line 8 moves something to the accelerator",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Wrap | RuleFinding]:
        """Yield the block of one evaluation loop, and what in it cuts the graph."""
        assert isinstance(node, cst.For | cst.While)
        for step in evaluation_steps(node, context):
            if isinstance(step, Undecided):
                yield from self.report(step.node, step.why, step.severity, code=step.code)
            else:
                yield from self._wrapped(step, context)

    def _wrapped(
        self, step: TrainingStep, context: Workspace
    ) -> Iterable[Edit | Wrap | RuleFinding]:
        moved = unmoved_inputs(step, context)
        # An evaluation with inputs on the host fails at once: there is nothing to warn of.
        names = [] if isinstance(moved, UnknownInputs) else moved
        yield from Wrapping(self.name, context, step.parts, names).found()
