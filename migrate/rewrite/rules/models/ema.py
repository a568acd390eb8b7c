"""Averages of the model's weights."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.catalogue.target import BOTH
from migrate.check.hazard import Severity
from migrate.reading.values.devices import moves
from migrate.rewrite.rule import (
    Rule,
    RuleFinding,
    StatementRun,
    Wrap,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, is_attribute_of_self, keyword, used

AVERAGES = frozenset(
    {
        "torch.optim.swa_utils.AveragedModel",
        "copy.deepcopy",
        "timm.utils.ModelEma",
        "timm.utils.ModelEmaV2",
    }
)


DOUBLE = frozenset({"torch.float64", "torch.double"})


class Ema(Rule):
    """Make a copy of the model when the model is on the device.

    **Why.** A copy or an average of the weights stays on the device where the model was when it was
    made. Made before the move it is on the CPU, and every update reads all weights from the device.
    `AveragedModel` and `copy.deepcopy` work on XLA, in the step as everything else.

    **What it does.** The rule handles a copy of something called model or net that is made before the same
    function moves that name to the accelerator. The copy is then made right after the move, if the statements
    between the two use neither the copy nor the model.

    **Left alone.** A copy that is moved itself: `copy.deepcopy(model).to(device)`, `ema.to(device)` later, or
    `device=` in the call that copies. A copy in float64: averages on the host are kept so.

    **Reported.** A copy before the move with other uses between the two: it is on the CPU, as it was on CUDA.

    Source: torch 2.9 on torch_xla 2.9 (measured: averages of a model on the device stay on it).
    """

    name = "ema"
    code = "XLA842"
    targets = BOTH
    severity = Severity.WARNING
    nodes = (cst.Call,)
    words = spelled(AVERAGES)
    examples = (
        rewritten(
            """
            import copy


            def build(model, args):
                # the average
                average = copy.deepcopy(model)
                print(args)
                model.cuda()
                return model, average
            """,
            """
            import copy


            def build(model, args):
                print(args)
                model.to("xla")
                # the average
                average = copy.deepcopy(model)
                return model, average
            """,
        ),
        left_alone(
            """
            import copy

            import torch


            def build(model):
                model.to('xla')
                return model, copy.deepcopy(model)


            def build_both(model):
                first = copy.deepcopy(model).to('xla')
                second = copy.deepcopy(model)
                model.to('xla')
                second.to('xla')
                return model, first, second


            def build_on_the_host(model):
                average = copy.deepcopy(model).to(torch.float64)
                model.reset()
                model.to('xla')
                return model, average
            """
        ),
        reported(
            """
            from torch.optim.swa_utils import AveragedModel


            def build(model):
                average = AveragedModel(model)
                model.load()
                model = model.to('xla')
                return model, average
            """,
            "every update reads all weights from the device",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Wrap | RuleFinding]:
        """Yield the edits and findings for one copy."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) not in AVERAGES or not node.args:
            return
        model = code(node.args[0].value)
        around = context.function_around(node) or context.module
        moving = list(moves(around, context))
        moved = [call for call in moving if _receiver(call) == model]
        here = context.position(node).line
        if not moved or any(context.position(call).line <= here for call in moved):
            return
        copy = _copy(node, context)
        own = [call for call in moving if _receiver(call) == copy or _receiver(call) == code(node)]
        if own or keyword(node, "device") is not None or _is_made_double(node, context):
            return
        wrap = self._after_the_move(node, copy, model, moved[0], context)
        if wrap is not None:
            yield wrap
            return
        message = (
            f"{code(node)} stays on the CPU, and every update reads all weights from the device: "
            f"make it after `{model}` is moved"
        )
        yield from self.report(node, message)

    def _after_the_move(
        self, node: cst.Call, copy: str, model: str, move: cst.Call, context: Workspace
    ) -> Wrap | None:
        """Return the change of order of the copy and the move, where nothing between them minds."""
        line, last = context.statement_around(node), context.statement_around(move)
        block = context.parent(line)
        if not copy or not isinstance(block, cst.IndentedBlock | cst.Module):
            return None
        if not all(isinstance(statement, cst.SimpleStatementLine) for statement in (line, last)):
            return None
        run = [s for s in block.body if context.position(s).line >= context.position(line).line]
        at = next((index for index, statement in enumerate(run) if statement is last), None)
        if at is None or not _is_plain_move(last, model):
            return None
        names = {model, copy}
        if any(code(name) in names for statement in run[1:at] for name in used(statement)):
            return None

        def make(updated: StatementRun) -> list[cst.BaseStatement]:
            return [
                statement for part in (*updated.parts[1:], updated.parts[0]) for statement in part
            ]

        message = f"{code(node)} is made after the move of `{model}`, on the device"
        return Wrap(self.name, block, line, last, make, message)


def _copy(node: cst.Call, context: Workspace) -> str:
    """Return the name under which the copy `node` is kept. Empty if there is none."""
    assign = context.parent(node)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        return code(target) if isinstance(target, cst.Name) or is_attribute_of_self(target) else ""
    return ""


def _is_made_double(copy: cst.Call, context: Workspace) -> bool:
    """Whether a copy is `copy.deepcopy(model).double()`, or the same by `.to(torch.float64)`."""
    method = context.parent(copy)
    call = context.parent(method)
    if (
        not isinstance(method, cst.Attribute)
        or not isinstance(call, cst.Call)
        or call.func is not method
    ):
        return False
    if method.attr.value == "double":
        return True
    names = [context.qualified_name(arg.value) for arg in call.args]
    return method.attr.value == "to" and not DOUBLE.isdisjoint(names)


def _is_plain_move(statement: cst.CSTNode, model: str) -> bool:
    """Whether `statement` moves `model` and does nothing else: `model = model.to(device)`."""
    assert isinstance(statement, cst.SimpleStatementLine)
    line = statement.body[0]
    if not isinstance(line, cst.Assign | cst.Expr) or len(statement.body) > 1:
        return False
    if isinstance(line, cst.Assign) and [code(target.target) for target in line.targets] != [model]:
        return False
    return isinstance(line.value, cst.Call) and _receiver(line.value) == model


def _receiver(call: cst.Call) -> str:
    return code(call.func.value) if isinstance(call.func, cst.Attribute) else ""
