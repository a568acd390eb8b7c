"""The backend that PyTorch would choose for the device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.reading.values.devices import is_accelerator
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

DEFAULT = "torch.distributed.get_default_backend_for_device"


class DefaultBackend(Rule):
    """Name the XLA backend where the script asks for the default backend of its device.

    **What it does.** `torch.distributed.get_default_backend_for_device(device)` knows no XLA device and
    raises `ValueError: Default backend not registered`. For the accelerator it becomes `'xla'`.

    **Left alone.** The backend of the CPU.

    **Reported.** A device that is not known to be the accelerator.

    Source: torch 2.9, torch_xla 2.9 (measured).
    """

    name = "default-backend"
    code = "XLA835"
    nodes = (cst.Call,)
    words = spelled([DEFAULT])
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def setup():
                device: torch.device = torch.accelerator.current_accelerator()
                backend = dist.get_default_backend_for_device(device)
                dist.init_process_group(backend)
            """,
            """
            import torch
            import torch.distributed as dist
            import torch_xla.distributed.xla_backend


            def setup():
                device: torch.device = torch.device("xla")
                backend = "xla"
                dist.init_process_group("xla", init_method="xla://")
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist

            group = dist.new_group(backend="gloo")
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def backend_of(options):
                return dist.get_default_backend_for_device(options.where)
            """,
            "raises for an XLA device",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edits and findings for one query of the default backend."""
        assert isinstance(node, cst.Call)
        if context.qualified_name(node.func) != DEFAULT or len(node.args) != 1:
            return
        if is_accelerator(node.args[0].value, context):
            message = f"{code(node)} → 'xla': it knows no backend for XLA devices"
            xla: cst.BaseExpression = context.string("xla")
            if context.portable:
                shims = context.imports.require("shims")
                xla = cst.parse_expression(f"{shims}.backend().group_backend")
            yield self.edit(node, lambda _: xla, message, consumes=[node.func, *node.args])
            return
        message = f"{code(node)}: raises for an XLA device, whose backend is 'xla'"
        yield from self.report(node, message)
