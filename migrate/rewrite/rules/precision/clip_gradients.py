"""Gradient clipping as XLA can run it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_other
from migrate.catalogue.entry import names
from migrate.catalogue.prescan import spelled
from migrate.check.common import truth
from migrate.check.hazard import Severity
from migrate.model.calls.kind import Kind
from migrate.reading.facts import facts_of
from migrate.reading.values.foreach import TAKES_FOREACH, foreach_of
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import is_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword, nodes_of

CLIPS = names(*torch_other.CLIPS)
# On CUDA they keep the choice, as shims has no function for them.
KEPT = names(*torch_other.NORMS) | {name for name in CLIPS if name.endswith("clip_grad_value_")}
PARAMETERS = ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach")
NORM = "apex.contrib.clip_grad.clip_grad_norm_"


class ClipGradients(Rule):
    """Clip gradients without `foreach` and without apex.

    **What it does.** `foreach=True` goes. apex's `clip_grad_norm_` becomes
    torch's, which has the same arguments and result.

    **Why.** torch has no foreach kernels for XLA: its functions that clip raise with `foreach=True`. So may a
    project's own clipping, which asks `torch.utils._foreach_utils`. The optimizers step with `foreach=True`.

    torch_xla replaces `torch.nn.utils.clip_grad_norm_` when it is imported, so that a name bound earlier
    stays the old function. Both give the same norm; imports of torch_xla are put first all the same.

    **Reported.** A `foreach` whose value the script computes. `foreach=True` for a clipping of the project,
    or of another package, that may choose torch's implementations by it. `error_if_nonfinite=True`,
    which reads the norm in every step.

    Source: torch 2.9 on torch_xla 2.9 (measured).
    """

    name = "clip-gradients"
    code = "XLA812"
    beside_frameworks = True
    nodes = (cst.Call,)
    words = f"foreach|{spelled([*TAKES_FOREACH, NORM])}"
    examples = (
        rewritten(
            """
            import torch


            def clip(model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                torch.nn.utils.clip_grad_value_(model.parameters(), 1.0, True)
                return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()], foreach=True)
            """,
            """
            import torch


            def clip(model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
                return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            """,
        ),
        rewritten(
            """
            from apex.contrib.clip_grad import clip_grad_norm_


            def clip(model):
                clip_grad_norm_(model.parameters(), 1.0)
            """,
            """
            import torch


            def clip(model):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            """,
        ),
        left_alone(
            """
            from torch.nn.utils import clip_grad_norm_


            def clip(model):
                clip_grad_norm_(model.parameters(), max_norm=1.0, foreach=False)
            """
        ),
        reported(
            """
            import torch


            def clip(model, fast):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=fast)
            """,
            "raises for XLA tensors",
        ),
        checked(
            """
            import torch
            from torch.utils._foreach_utils import _device_has_foreach_support


            def own_clip(parameters, limit, foreach=None):
                if foreach and _device_has_foreach_support(parameters[0].device):
                    return torch._foreach_norm(parameters)


            def walk(items, foreach=False):
                return [item for item in items if foreach]


            def clip(model):
                parameters = list(model.parameters())
                own_clip(parameters, 1.0, foreach=True)  # XLA812 warning
                torch.nn.utils.clip_grad_norm_(parameters, 1.0, 2.0, False, True)  # XLA812
                torch.nn.utils.get_total_norm(parameters, foreach=True)  # XLA812
                walk(parameters, foreach=True)
                return torch.optim.SGD(parameters, foreach=True)


            def clip_so(model, foreach):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)  # XLA812 warning


            class Clip:
                def __call__(self, parameters, error_if_nonfinite=False, foreach=None):
                    return torch.nn.utils.clip_grad_norm_(
                        parameters, 1.0, error_if_nonfinite=error_if_nonfinite, foreach=foreach
                    )


            def norms(parameters, error_if_nonfinite=False, foreach=True):
                return torch.nn.utils.clip_grad_norm_(  # XLA812
                    parameters, 1.0, error_if_nonfinite=error_if_nonfinite, foreach=foreach
                )


            def strict(parameters):
                return norms(parameters, error_if_nonfinite=True)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one clipping call."""
        assert isinstance(node, cst.Call)
        name = context.qualified_name(node.func)
        foreach = foreach_of(node, context)
        if name not in TAKES_FOREACH and name != NORM:
            if foreach is not None and not (name or "").startswith("torch."):
                yield from self._own(node, foreach.value, context)
            return
        if context.portable:
            yield from self._portable(node, name, context)
            return
        written = code(foreach.value) if foreach is not None else "None"
        is_true = _truth(foreach.value, context) if foreach is not None else False
        if written != "True" and is_true is not False:
            message = f"foreach={written}: foreach=True raises for XLA tensors; drop it"
            yield from self.report(node, message, None if is_true else Severity.WARNING)
        error = keyword(node, "error_if_nonfinite")
        if error is not None and _truth(error.value, context) is not False:
            message = "error_if_nonfinite reads the norm in every step, which cuts the graph in two"
            yield from self.report(node, message)
        function: cst.BaseExpression | None = None
        if name == NORM:
            torch = context.imports.require("torch")
            function = cst.parse_expression(f"{torch}.nn.utils.clip_grad_norm_")
        drop = foreach if written == "True" else None
        if drop is None and function is None:
            return
        kept = [index for index, arg in enumerate(node.args) if arg is not drop]

        def replace(updated: cst.Call) -> cst.Call:
            changed = with_args(updated, [updated.args[index] for index in kept])
            return changed if function is None else changed.with_changes(func=function)

        gone: list[cst.CSTNode] = [] if drop is None else [drop]
        if function is not None:
            gone.append(node.func)
        message = "torch's clipping" if function is not None else "without foreach=True"
        wrong = "foreach=True raises on XLA: leave it out" if drop is not None else ""
        yield self.edit(node, replace, f"{message}, as XLA runs it", consumes=gone, wrong=wrong)

    def _own(
        self, call: cst.Call, foreach: cst.BaseExpression, context: Workspace
    ) -> Iterable[RuleFinding]:
        """Yield the finding at a function that is not torch's and is given `foreach`."""
        if truth(foreach, facts_of(context)) and _uses_it(call, context):
            message = (
                f"`{code(call.func)}` is given foreach=True, which torch refuses for XLA tensors: "
                "see that it computes without it, and leave it out"
            )
            yield from self.report(call, message, Severity.WARNING)

    def _portable(self, node: cst.Call, name: str | None, context: Workspace) -> Iterable[Edit]:
        """Yield the edit in the portable style; shims leaves the choice of `foreach` to torch."""
        foreach = foreach_of(node, context)
        if name in KEPT:
            if foreach is not None and code(foreach.value) == "True":
                test = is_cuda(context)
                message = "foreach=True: on CUDA only"
                yield self.edit(foreach.value, lambda _: test, message, consumes=[foreach.value])
            return
        bound = bind(node, PARAMETERS)
        if bound is None:
            return
        function = cst.parse_expression(f"{context.imports.require('shims')}.clip_grad_norm")
        kept = [index for index, arg in enumerate(node.args) if arg is not bound.get("foreach")]

        def replace(updated: cst.Call) -> cst.Call:
            args = [updated.args[index] for index in kept]
            return with_args(updated, args).with_changes(func=function)

        gone = [bound["foreach"]] if "foreach" in bound else []
        message = f"{code(node.func)} → shims.clip_grad_norm"
        yield self.edit(node, replace, message, consumes=[node.func, *gone])


def _truth(node: cst.BaseExpression, context: Workspace) -> bool | None:
    """Whether an option is true; a parameter for which no call gives a value has its default."""
    known = truth(node, facts_of(context))
    if known is None and isinstance(node, cst.Name):
        parameter = facts_of(context).bindings.parameter(node)
        if parameter is not None and parameter[1].default is not None:
            function, param = parameter
            options = [*facts_of(context).bindings.passed(function, node.value), param.default]
            values = {truth(value, facts_of(context)) for value in options if value is not None}
            return values.pop() if len(values) == 1 else None
    return known


def _uses_it(call: cst.Call, context: Workspace) -> bool:
    """Whether a function that is not torch's may choose torch's implementations by its `foreach`."""
    if context.values.kind(call) is Kind.OPTIMIZER:
        return False  # those of torch step with it, and `torch._foreach_mul_` runs
    here = context.called(call)
    if not here:
        return bool(context.run_by(call)) or context.qualified_name(call.func) is not None
    return any(
        (isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "foreach")
        or (context.qualified_name(node) or "").startswith("torch.utils._foreach_utils.")
        for function in here
        for kind in (cst.Arg, cst.Name, cst.Attribute)
        for node in nodes_of(function.body, kind)
    )
