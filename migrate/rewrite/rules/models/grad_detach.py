"""Gradients that are views are not detached in place."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.edits.imports import bindings
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, is_dotted_name


class GradDetach(Rule):
    """Detach gradients without changing them in place.

    **What it does.** `p.grad.detach_()`, which scripts with a `zero_grad` of their own call before
    `p.grad.zero_()`, becomes `p.grad = p.grad.detach()`. The rewritten DistributedDataParallel has its
    gradients as views of its buckets, and a view raises when it is detached in place.

    **Left alone.** `detach_()` of anything but a gradient.

    **Reported.** A call whose result is used.

    Source: torch 2.9 (measured: "Can't detach views in-place").
    """

    name = "grad-detach"
    code = "XLA843"
    nodes = (cst.Call,)
    words = "detach_"
    examples = (
        rewritten(
            """
            import torch


            def zero_grad(parameters):
                for p in parameters:
                    if p.grad is not None:
                        p.grad.detach_()
                        p.grad.zero_()

            """,
            """
            import torch


            def zero_grad(parameters):
                for p in parameters:
                    if p.grad is not None:
                        p.grad = p.grad.detach()
                        p.grad.zero_()

            """,
        ),
        left_alone(
            """
            import torch

            state = torch.ones(3)
            state.detach_()
            """
        ),
        reported(
            """
            import torch


            def norms(parameters):
                return [p.grad.detach_().norm() for p in parameters]
            """,
            "raises",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one call, or the finding."""
        assert isinstance(node, cst.Call)
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "detach_":
            return
        gradient = node.func.value
        if not isinstance(gradient, cst.Attribute) or gradient.attr.value != "grad":
            return
        if not any(binding.target.split(".")[0] == "torch" for binding in bindings(context.module)):
            return
        statement = context.parent(node)
        if not isinstance(statement, cst.Expr) or not is_dotted_name(gradient):
            message = (
                f"{code(node)} raises where the gradients are views of DDP's buckets: `.detach()`, not "
                "in place"
            )
            yield from self.report(node, message)
            return
        detached = cst.parse_expression(f"{code(gradient)}.detach()")
        yield self.edit(
            statement,
            lambda _: cst.Assign(targets=[cst.AssignTarget(gradient)], value=detached),
            f"{code(node)} → {code(detached)}: the gradients are views of DDP's buckets",
            consumes=[node],
        )
