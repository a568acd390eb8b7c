"""Tensors of the CPU in collectives."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import named
from migrate.reading.values.collectives import TENSORS, called, makes_gloo_group
from migrate.reading.values.host import is_on_the_cpu
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code

OTHERS = frozenset({"group", "op", "async_op", "src", "dst", "group_src", "group_dst"})
DEFAULTS = frozenset({"torch.set_default_device", "torch.set_default_tensor_type", "torch.device"})


class CollectiveInputs(Rule):
    """Report tensors of the CPU that are given to collectives.

    **Why.** A script for gloo may reduce tensors of the CPU. Simulated replicas take them too; on a TPU a
    collective takes tensors of the device only, and raises.

    **Reported.** A tensor that the script plainly makes on the CPU (`torch.tensor(…)` without `device`,
    `x.cpu()`) and gives to a collective. Where the group takes tensors of the CPU too (no backend,
    `"cpu:gloo,cuda:nccl"`), also by way of other functions and files. What is computed with it has to be on
    the device too, so the rule does not move it.

    **Left alone.** Tensors whose making the function does not show; collectives of a group that is made
    with `backend="gloo"`; scripts that set a default device.

    Source: torch_xla 2.9, `torch_xla/core/xla_model.py` (read; simulated replicas: measured).
    """

    name = "collective-inputs"
    code = "XLA312"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = named(TENSORS)
    examples = (
        left_alone(
            """
            import torch
            import torch.distributed as dist


            def total(count, losses):
                seen = torch.tensor(count, device="xla")
                dist.all_reduce(seen)
                dist.all_reduce(losses)
                rows = torch.zeros(3)
                dist.broadcast(rows, src=0, group=dist.new_group(backend="gloo"))
                return seen.item(), losses, rows
            """
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def total(count):
                seen = torch.tensor([count])
                dist.all_reduce(seen)
                return seen.item()
            """,
            "`seen` is on the CPU",
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def gather(x, world_size):
                parts = [torch.zeros(3) for _ in range(world_size)]
                dist.all_gather(parts, x)
                return parts
            """,
            "`parts` is on the CPU",
        ),
        reported(
            """
            import torch
            import torch.distributed as dist


            def counted(counts):
                values = []
                for count in counts:
                    values.append(torch.tensor([count]))
                values = torch.cat(values)
                dist.all_reduce(values)
                return values
            """,
            "`values` is on the CPU",
        ),
        left_alone(
            """
            import torch
            import torch.distributed as dist


            def reduced(results):
                values = []
                for key in sorted(results):
                    values.append(results[key])
                values = torch.stack(values)
                dist.all_reduce(values)
                return values
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield a finding for each tensor of the CPU that one collective is given."""
        assert isinstance(node, cst.Call)
        parameters = TENSORS.get(called(node, context) or "")
        bound = bind(node, parameters) if parameters is not None else None
        if bound is None or _has_default(context):
            return
        group = bound.get("group")
        if group is not None and makes_gloo_group(group.value, context):
            return
        for name, arg in bound.items():
            if name in OTHERS:
                continue
            host_tensor = context.calls.host_tensors.get(context.place(arg.value))
            if host_tensor is not None or is_on_the_cpu(arg.value, context):
                since = f" ({host_tensor})" if host_tensor is not None else ""
                message = (
                    f"`{code(arg.value)}` is on the CPU{since}: simulated replicas take it in a collective, "
                    "a TPU does not: make it on the replica's device, or use a group made by "
                    "dist.new_group(backend='gloo')"
                )
                yield from self.report(arg.value, message)


def _has_default(context: Workspace) -> bool:
    """Whether the script sets the device on which tensors are made."""
    calls = (call for call in context.all_of(cst.Call))
    names = {context.qualified_name(call.func) for call in calls if not _is_argument(call, context)}
    return bool(names & DEFAULTS)


def _is_argument(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is no statement or context of its own: `torch.device(…)` as an argument."""
    return not isinstance(context.parent(call), cst.Expr | cst.WithItem)
