"""The question whether a tensor is on CUDA: `x.is_cuda`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_cuda import TYPES
from migrate.check.hazard import Severity
from migrate.check.only_cuda import goes_well
from migrate.reading.facts import facts_of
from migrate.reading.values.devices import is_move
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.rules.devices.device_types import KERNEL
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

WRONG = '.is_cuda is False on XLA: device.type != "cpu"'


class IsCuda(Rule):
    """Ask for the type of a tensor's device where the script asks whether it is on CUDA.

    **Why.** `x.is_cuda` is False on XLA: the branch for the CPU is taken, without a word. Where only calls of
    torch.cuda depend on the answer, or a faster way to compute the same, this is information.

    **What it does.** `x.is_cuda` becomes `x.device.type == 'xla'` where it decides whether something is
    moved. An attribute `is_cuda` that a class of the project sets is its own option, and stays.

    **Reported.** Other questions: where the answer may choose a kernel written for CUDA, the way for the CPU
    is the right one.

    Source: torch_xla 2.9 (measured).
    """

    name = "is-cuda"
    code = "XLA701"
    targets = BOTH
    on_torch_tpu = "The type is `'tpu'`."
    severity = Severity.WARNING
    edited = Severity.WARNING
    nodes = (cst.Attribute,)
    words = "is_cuda"
    examples = (
        rewritten(
            """
            import torch


            def move(x):
                if not x.is_cuda:
                    x = x.cuda()
                return x, torch.ones(1).cuda() if x.is_cuda else torch.ones(1)
            """,
            """
            import torch


            def move(x):
                if x.device.type != "xla":
                    x = x.to("xla")
                return x, torch.ones(1).to("xla") if x.device.type == "xla" else torch.ones(1)
            """,
        ),
        left_alone(
            """
            import torch


            def move(x, y, is_cuda):
                return y.to(x.device) if is_cuda else y
            """
        ),
        left_alone(
            """
            import torch


            class Cutout:
                def __init__(self, device, is_cuda=True):
                    self.device, self.is_cuda = device, is_cuda

                def mask(self, batch):
                    mask = torch.ones(batch.shape)
                    return mask.to(self.device) if self.is_cuda else mask
            """
        ),
        reported(
            """
            def filtered(x, kernel, plain):
                return kernel(x) if x.is_cuda else plain(x)
            """,
            "a kernel written for CUDA",
        ),
        checked(
            """
            import torch


            def move(x, y, kernel):
                if x.is_cuda:  # XLA701 info
                    torch.cuda.synchronize()
                if not x.is_cuda:  # XLA701
                    return torch.nn.functional.gelu(x)
                if not x.is_cuda:  # XLA701 info
                    return kernel(x)
                else:
                    with torch.cuda.device(x.device):
                        return kernel(x)
                assert x.is_cuda  # XLA701
                return y.cuda() if x.is_cuda else y  # XLA701


            def activated(x, kernel):
                if not x.is_cuda:  # XLA701 info
                    return torch.nn.functional.gelu(x)
                return kernel(x)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one question, or the finding on one that may choose a kernel."""
        assert isinstance(node, cst.Attribute)
        if node.attr.value != "is_cuda" or context.qualified_name(node) is not None:
            return
        if context.place(node) in context.calls.own_flags or _is_set(node, context):
            return  # an option of the project's own class, which has no device
        severity = Severity.INFO if goes_well(node, facts_of(context)) else Severity.WARNING
        above = context.parent(node)
        test: cst.CSTNode = node
        if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
            test, above = above, context.parent(above)
        branch = (
            above.body if isinstance(above, cst.If | cst.IfExp) and above.test is test else None
        )
        if branch is None or not _moves_something(branch, context):
            yield from self.report(node, f"`{code(node)}` is False on XLA: {KERNEL}", severity)
            return
        xla = context.string("cpu" if context.portable else context.vocabulary.device_name)
        equals = (test is node) is not context.portable

        def replace(updated: cst.Attribute | cst.UnaryOperation) -> cst.Comparison:
            asked = updated.expression if isinstance(updated, cst.UnaryOperation) else updated
            value = cst.ensure_type(asked, cst.Attribute).value
            kind = cst.Attribute(cst.Attribute(value, cst.Name("device")), cst.Name("type"))
            operator = cst.Equal() if equals else cst.NotEqual()
            return cst.Comparison(
                kind, [cst.ComparisonTarget(operator, xla)], lpar=updated.lpar, rpar=updated.rpar
            )

        message = (
            f"`{code(node)}` → whether its device is {'no CPU' if context.portable else 'XLA'}"
        )
        gone = [node.attr]
        yield self.edit(test, replace, message, consumes=gone, wrong=WRONG, severity=severity)


def _is_set(node: cst.Attribute, context: Workspace) -> bool:
    """Whether a statement assigns to `node`: `self.width, self.is_cuda = width, is_cuda`."""
    above = context.parent(node)
    while isinstance(above, cst.Element | cst.Tuple | cst.List):
        above = context.parent(above)
    return isinstance(above, cst.AssignTarget | cst.AnnAssign)


def _moves_something(branch: cst.CSTNode, context: Workspace) -> bool:
    return any(
        is_move(call, context) or context.qualified_name(call.func) in TYPES
        for call in context.below(branch, cst.Call)
    )
