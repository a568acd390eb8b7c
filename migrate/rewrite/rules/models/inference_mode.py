"""Evaluation in inference mode, in which torch_xla computes no Linear."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.values.inference import INFERENCE_MODE, is_switched_off
from migrate.rewrite.edits.nodes import with_args
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

RAISES = "inference_mode: a Linear raises in it on XLA; torch.no_grad()"
REASON = "in inference mode a Linear raises on XLA"


class InferenceMode(Rule):
    """Evaluate with `torch.no_grad()` instead of `torch.inference_mode()`.

    **What it does.** `torch.inference_mode()` becomes `torch.no_grad()`, around a block and as a decorator:
    under it `nn.Linear`, `nn.Conv1d` and an in-place write to a part of a tensor raise on XLA, "Cannot set
    version_counter for inference tensor". Both modes compute the same values. A mode that is switched,
    `torch.inference_mode(flag)`, becomes `torch.set_grad_enabled(not flag)`.

    **Left alone.** `torch.inference_mode(False)`, and a file that has to do with no accelerator.

    **Reported.** A mode that is given arguments of another form.

    Source: torch 2.9 on torch_xla 2.9 (measured).
    """

    name = "inference-mode"
    code = "XLA836"
    beside_frameworks = True
    nodes = (cst.Name, cst.Attribute)
    of_names = True
    words = "inference_mode"
    examples = (
        rewritten(
            """
            import torch


            @torch.inference_mode()
            def evaluate(model, loader):
                return sum(model(x.cuda()).sum() for x in loader)
            """,
            """
            import torch


            @torch.no_grad()
            def evaluate(model, loader):
                return sum(model(x.to("xla")).sum() for x in loader)
            """,
        ),
        rewritten(
            """
            import torch

            device = torch.device('xla')


            def predict(model, x, train):
                with torch.inference_mode(mode=not train):
                    y = model(x)
                with torch.inference_mode(train):
                    return y, model(x)
            """,
            """
            import torch

            device = torch.device('xla')


            def predict(model, x, train):
                with torch.set_grad_enabled(not (not train)):
                    y = model(x)
                with torch.set_grad_enabled(not train):
                    return y, model(x)
            """,
        ),
        left_alone(
            """
            import torch


            def summary(model):
                with torch.inference_mode():
                    return model(torch.zeros(1, 3))
            """
        ),
        left_alone(
            """
            import torch

            device = torch.device('xla')


            def train(model, x):
                with torch.inference_mode(False):
                    return model(x.to(device))
            """
        ),
        reported(
            """
            import torch

            device = torch.device('xla')


            def predict(model, x, modes):
                with torch.inference_mode(*modes):
                    return model(x.to(device))
            """,
            "a Linear raises on XLA",
        ),
        checked(
            """
            import torch


            @torch.inference_mode()  # XLA836
            def evaluate(model, loader):
                return sum(model(x.cuda()).sum() for x in loader)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one use of inference mode, or why it is left."""
        if context.qualified_name(node) not in INFERENCE_MODE or not context.calls.accelerated:
            return
        above = context.parent(node)
        call = above if isinstance(above, cst.Call) and above.func is node else None
        if call is not None and is_switched_off(call):
            return
        torch = context.imports.require("torch")
        no_grad = cst.parse_expression(f"{torch}.no_grad")
        message = f"torch.inference_mode → torch.no_grad: {REASON}"
        if isinstance(above, cst.IfExp) and _is_no_grad(above, node, context):
            yield self.edit(above, lambda _: no_grad, message, consumes=[node], wrong=RAISES)
            return
        if call is None or not call.args:
            yield self.edit(node, lambda _: no_grad, message, wrong=RAISES)
            return
        argument = call.args[0]
        named = argument.keyword is not None and argument.keyword.value != "mode"
        if len(call.args) > 1 or argument.star or named:
            yield from self.report(node, f"{code(call)}: {REASON}; torch.no_grad()")
            return
        if isinstance(argument.value, cst.Name) and argument.value.value == "True":
            replaced = with_args(call.with_changes(func=no_grad), [])
        else:
            text = code(argument.value)
            simple = isinstance(argument.value, cst.Name | cst.Attribute | cst.Call)
            flag = text if simple else f"({text})"
            replaced = cst.ensure_type(
                cst.parse_expression(f"{torch}.set_grad_enabled(not {flag})"), cst.Call
            )
            message = f"torch.inference_mode → torch.set_grad_enabled: {REASON}"
        yield self.edit(call, lambda _: replaced, message, consumes=[node], wrong=RAISES)


def _is_no_grad(choice: cst.IfExp, node: cst.CSTNode, context: Workspace) -> bool:
    """Whether the other side of a choice is `torch.no_grad`."""
    other = choice.orelse if choice.body is node else choice.body
    return choice.test is not node and context.qualified_name(other) == "torch.no_grad"
