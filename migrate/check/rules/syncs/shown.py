"""Tensors that are printed or logged in the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import LOGGING_METHODS, TRACKER_FUNCTIONS, TRACKER_METHODS
from migrate.check.common import method
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.reads import placed
from migrate.reading.facts import Facts
from migrate.syntax.tree import nodes_of


class Shown(Hazard):
    """A tensor is printed, formatted or logged inside the step.

    **Why.** Making text of a tensor reads it, and so does a tracker (`writer.add_scalar("loss", loss)`,
    `wandb.log({"loss": loss})`): the graph is cut and the host waits for the device.

    **What to do.** Print after the step, every N steps; or `xm.add_step_closure(print, args=(loss,))`.
    """

    code = "XLA204"
    name = "print-in-step"
    severity = Severity.WARNING
    nodes = (cst.Call, cst.FormattedStringExpression)
    examples = (
        example(
            """
            import torch


            def train(model, loader, optimizer, logger):
                for x, y in loader:
                    loss = model(x.cuda(), y.cuda())
                    print("loss", loss)  # XLA204
                    logger.info(f"loss {loss:.3f}")  # XLA204
                    loss.backward()
                    optimizer.step()
            """
        ),
        example(
            """
            import torch
            import wandb
            from torch.utils.tensorboard import SummaryWriter


            def train(model, loader, optimizer):
                writer = SummaryWriter()
                for step, (x, y) in enumerate(loader):
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                    writer.add_scalar("loss", loss, step)  # XLA204 info
                    wandb.log({"loss": loss, "step": step})  # XLA204 info
                    wandb.log({"step": step, "loss": loss.detach().cpu()})
                    if step % 50 == 0:
                        writer.add_scalar("seldom", loss, step)
            """
        ),
        example(
            """
            import torch


            def train(model, loader, optimizer):
                for step, (x, y) in enumerate(loader):
                    print("step", step, x.shape, f"{x.dtype}")
                    x = torch.log(x.cuda())
                    loss = model(x.cuda(), y.cuda())
                    loss.backward()
                    optimizer.step()
                print(loss, f"{loss:.3f}")
            """
        ),
    )
    mended = example(
        """
        import torch


        def train(model, loader, optimizer, logger):
            for step, (x, y) in enumerate(loader):
                loss = model(x.cuda(), y.cuda())
                loss.backward()
                optimizer.step()
                if step % 100 == 0:
                    logger.info(f"loss {loss:.3f}")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one text that is formatted from a tensor."""
        if isinstance(node, cst.FormattedStringExpression):
            if facts.values.on_device(node.expression) and not _raises(node, facts):
                yield from placed(self, node.expression, "formatting a tensor", facts)
            return
        assert isinstance(node, cst.Call)
        prints = isinstance(node.func, cst.Name) and node.func.value == "print"
        logs = method(node) in LOGGING_METHODS and (
            facts.names.of(node.func) or "logging"
        ).startswith("logging")
        if prints or logs:
            what, values = "printing a tensor", _values(node)
        elif _is_tracker(node, facts):
            what, values = "logging a tensor", _tracked(node)
        else:
            return
        if any(map(facts.values.on_device, values)):
            yield from placed(self, node, what, facts)


def _is_tracker(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` gives values to a tracker of experiments, which makes numbers of them."""
    if facts.names.of(call.func) in TRACKER_FUNCTIONS:
        return True
    return method(call) in TRACKER_METHODS and not facts.context.run_by(call)


def _tracked(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the arguments of `call`, and the values of dictionaries among them."""
    for arg in call.args:
        if isinstance(arg.value, cst.Dict):
            yield from (element.value for element in arg.value.elements)
        else:
            yield arg.value


def _values(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the printed values, with the operands of `%` and `str.format`."""
    for arg in call.args:
        value = arg.value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.left, cst.BaseString):
            right = value.right
            yield from (
                (e.value for e in right.elements) if isinstance(right, cst.Tuple) else (right,)
            )
        elif method(value) == "format":
            yield from (argument.value for argument in cst.ensure_type(value, cst.Call).args)
        elif not any(nodes_of(value, cst.FormattedString)):
            yield value


def _raises(node: cst.CSTNode, facts: Facts) -> bool:
    return any(isinstance(above, cst.Raise | cst.Assert) for above in facts.context.ancestors(node))
