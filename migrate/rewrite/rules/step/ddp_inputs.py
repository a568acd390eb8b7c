"""Inputs that DistributedDataParallel moved to the GPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.tree.tree import code
from migrate.reading.values.host import is_on_the_cpu
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace


class DdpInputs(Rule):
    """Move the inputs that DistributedDataParallel moved to the GPU itself.

    **What it does.** With `device_ids` DDP moves the inputs of the model to the GPU. It has none on XLA, and
    a tensor of the CPU stops the model (`Expected XLA tensor`). A tensor that is made in the call of the
    model, `ddp_model(torch.randn(20, 10))`, is moved there, whatever file wraps the model. The batches of a
    loop are moved by [step](step.md) and [evaluation-loop](evaluation-loop.md).

    **Left alone.** Inputs that are made on a device; a model that is wrapped without device ids.

    **Reported.** A tensor that the same function made on the CPU and that nothing moves.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    name = "ddp-inputs"
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to(rank), device_ids=[rank])
                return ddp_model(torch.randn(20, 10)).sum()
            """,
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to("xla"), gradient_as_bucket_view=True)
                return ddp_model(torch.randn(20, 10).to("xla")).sum()
            """,
        ),
        left_alone(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model):
                ddp_model = DDP(model.to("xla"), gradient_as_bucket_view=True)
                return ddp_model(torch.randn(20, 10, device="xla")).sum()
            """
        ),
        reported(
            """
            import torch
            from torch.nn.parallel import DistributedDataParallel as DDP


            def step(model, rank):
                ddp_model = DDP(model.to(rank), device_ids=[rank])
                batch = torch.randn(20, 10)
                return ddp_model(batch).sum()
            """,
            "move it: batch.to('xla')",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield what becomes of the arguments of one call of a wrapped model."""
        assert isinstance(node, cst.Call)
        if not context.effects.moves_inputs(node):
            return
        for arg in node.args:
            value = arg.value
            if isinstance(value, cst.Call) and is_on_the_cpu(value, context):
                device = context.vocabulary.device(value)
                said = context.vocabulary.device_said
                message = f"{code(value)} → moved to {said}, as DDP did it with device_ids"
                yield self.edit(value, lambda made, to=device: _moved(made, to), message)
            elif isinstance(value, cst.Name):
                _, made = context.bound_to(value)
                if made is not None and isinstance(made, cst.Call) and is_on_the_cpu(made, context):
                    message = (
                        f"{value.value} is on the CPU, and DDP moves no inputs to XLA: "
                        f"move it: {value.value}.to({context.vocabulary.device_said})"
                    )
                    yield from self.report(value, message)


def _moved(made: cst.BaseExpression, device: cst.BaseExpression) -> cst.Call:
    return cst.Call(cst.Attribute(made, cst.Name("to")), [cst.Arg(device)])
