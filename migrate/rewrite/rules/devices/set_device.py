"""Remove the choice of a process's current CUDA device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import torch_cuda
from migrate.catalogue.entry import names
from migrate.catalogue.target import BOTH
from migrate.reading.replicas.launch import INIT
from migrate.rewrite.edits.branch import unwrapped
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Stage, left_alone, reported, rewritten
from migrate.rewrite.styles.cuda_only import contexts_on_cuda, only_on_cuda
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code

SETTERS = names(*torch_cuda.SETTERS)
CONTEXTS = names(*torch_cuda.DEVICE_CONTEXTS)
# A `with` that has one of these, too, is the rule cuda-streams' to edit.
STREAM_CONTEXTS = names(*torch_cuda.STREAM_CONTEXTS)


class SetDevice(Rule):
    """Remove what makes one of several GPUs the current one.

    **What it does.** `torch.cuda.set_device(local_rank)` goes: a replica sees one device, and on XLA the
    call raises. So does `with torch.cuda.device(i):` around a block, which stays, and
    `torch.cuda.device(i)` as a statement of its own, which does nothing. A branch that held nothing else
    goes too.

    **Reported.** Uses other than as a statement of its own, as in `pick = torch.cuda.set_device`.

    Source: torch_xla 2.9 (measured: both raise).
    """

    name = "set-device"
    code = "XLA827"
    targets = BOTH
    on_torch_tpu = "An index other than 0 raises: a rank sees one device."
    beside_frameworks = True
    stage = Stage.DEVICE
    nodes = (cst.Expr, cst.With, cst.Name, cst.Attribute)
    of_names = True
    examples = (
        rewritten(
            """
            import torch
            from torch.cuda import set_device


            def start(args, model):
                # one process per device
                torch.cuda.set_device(args.gpu)
                torch.cuda.device(args.gpu)
                if args.gpu is not None:
                    set_device(args.gpu)
                with torch.cuda.device(args.gpu):
                    # warm up
                    model(1)
                return model
            """,
            """
            def start(args, model):
                # one process per device
                # warm up
                model(1)
                return model
            """,
        ),
        rewritten(
            """
            import torch

            with torch.no_grad(), torch.cuda.device(0):
                print(torch.ones(3))
            """,
            """
            import torch

            with torch.no_grad():
                print(torch.ones(3))
            """,
        ),
        left_alone(
            """
            from radio import cuda

            cuda.set_device(3)
            """
        ),
        reported(
            """
            import torch

            pick = torch.cuda.set_device
            """,
            "a replica sees one device",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the removal of a statement or of a `with`, or the finding on another use."""
        if isinstance(node, cst.Expr):
            name = _called(node.value, context)
            if name in CONTEXTS:
                message = f"remove {code(node)}: without a `with` it does nothing"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
            elif name in SETTERS and context.portable and not _joins(context):
                yield only_on_cuda(self, node, context, "another replica sees one device")
            elif name in SETTERS:
                message = f"remove {code(node)}: a replica sees one device"
                yield self.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
        elif isinstance(node, cst.With) and context.portable:
            yield from contexts_on_cuda(self, node, CONTEXTS, context)
        elif isinstance(node, cst.With):
            if not any(_called(item.item, context) in STREAM_CONTEXTS for item in node.items):
                yield from unwrapped(self, node, CONTEXTS, "a replica sees one device", context)
        elif context.qualified_name(node) in SETTERS and not _is_part(node, context):
            message = f"{code(node)}: remove it, a replica sees one device"
            yield from self.report(node, message)


def _joins(context: Workspace) -> bool:
    """Whether the script joins the process group, for which shims makes the replica's GPU the current one."""
    return any(
        context.qualified_name(call.func) in INIT | {"shims.init_distributed"}
        for call in context.below(context.module, cst.Call)
    )


def _called(node: cst.BaseExpression, context: Workspace) -> str | None:
    return context.qualified_name(node.func) if isinstance(node, cst.Call) else None


def _is_part(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is a part of a longer name, what an import binds, or a statement's call."""
    above = context.parent(node)
    if isinstance(above, cst.Attribute | cst.ImportAlias | cst.ImportFrom | cst.AsName):
        return True
    return isinstance(above, cst.Call) and isinstance(context.parent(above), cst.Expr)
