"""CUDA devices become the XLA device."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.devices import device_argument, is_cuda_device, is_move, names_cuda
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.tree import bind, code, keyword_arg, with_args


class Device(Rule):
    """Move models and tensors to the XLA device.

    **What it does.** `x.to(rank)`, `x.to('cuda:0')`, `x.cuda(rank)` become `x.to('xla')`, and
    `torch.device(f'cuda:{rank}')` becomes `torch.device('xla')`. Always `'xla'`, never `'xla:3'`: a
    replica sees one device, and its index is not the rank. The rank is followed from the launched
    worker through direct calls and assignments (`self.gpu_id = gpu_id`).

    **Left alone.** What may be something else than a device: `x.to(dtype)`, `x.to(other)`.

    **Reported.** `.cuda()` with arguments that cannot be read.

    Source: torch_xla 2.9 (measured: `xla:3` fails in a replica).
    """

    name = "device"
    nodes = (cst.Call,)
    examples = (
        rewritten(
            """
            import torch.multiprocessing as mp


            class Trainer:
                def __init__(self, model, gpu_id):
                    self.gpu_id = gpu_id
                    self.model = model.to(gpu_id)  # to this process's device

                def move(self, batch):
                    return batch.to(self.gpu_id, non_blocking=True)


            def worker(rank, model):
                Trainer(model, rank).move(model.weight.cuda())


            def main(model):
                mp.spawn(worker, args=(model,), nprocs=2)
            """,
            """
            import torch_xla


            class Trainer:
                def __init__(self, model, gpu_id):
                    self.gpu_id = gpu_id
                    self.model = model.to("xla")  # to this process's device

                def move(self, batch):
                    return batch.to("xla", non_blocking=True)


            def worker(rank, model):
                Trainer(model, rank).move(model.weight.to("xla"))


            def main(model):
                torch_xla.launch(worker, args=(model,))
            """,
        ),
        rewritten(
            """
            import torch

            device = torch.device('cuda:0')
            weight = torch.zeros(3, device='cuda').to(device)
            """,
            """
            import torch

            device = torch.device('xla')
            weight = torch.zeros(3, device='xla').to(device)
            """,
        ),
        left_alone(
            """
            import torch


            def convert(x, other):
                return x.to(torch.bfloat16).to(other).to('cpu')
            """
        ),
        reported(
            """
            def move(x, options):
                return x.cuda(**options)
            """,
            "cannot be read",
        ),
    )

    def find(self, node: cst.CSTNode, context: Context) -> Iterable[Edit | Finding]:
        """Yield the edit of one call that names a CUDA device."""
        assert isinstance(node, cst.Call)
        if is_move(node, context):
            yield from self._move(node, context)
            return
        if context.qualified_name(node.func) == "torch.device":
            first = node.args[0] if node.args else None
            if first is not None and is_cuda_device(first.value, context):
                xla = context.string("xla", like=first.value)
                yield self.edit(
                    node,
                    lambda call: call.with_changes(
                        args=[cst.Arg(xla, keyword=call.args[0].keyword, equal=call.args[0].equal)]
                    ),
                    f"{code(node)} → 'xla'",
                    consumes=node.args,
                )
            return
        for arg in node.args:
            named_device = arg.keyword is not None and arg.keyword.value == "device"
            if named_device and names_cuda(arg.value):
                yield self._literal(arg.value, context)

    def _move(self, node: cst.Call, context: Context) -> Iterable[Edit | Finding]:
        assert isinstance(node.func, cst.Attribute)
        if node.func.attr.value == "to":
            arg = device_argument(node)
            assert arg is not None
            if is_cuda_device(arg.value, context):
                yield self._literal(arg.value, context)
            return
        bound = bind(node, ("device", "non_blocking", "memory_format"))
        if bound is None:
            yield from self.report(node, "the arguments of .cuda() cannot be read: edit by hand")
            return
        kept = [(name, node.args.index(arg)) for name, arg in bound.items() if name != "device"]
        xla = cst.Arg(context.string("xla"))

        def replace(updated: cst.Call) -> cst.Call:
            named = [keyword_arg(name, updated.args[index].value) for name, index in kept]
            to = updated.func.with_changes(attr=cst.Name("to"))
            return with_args(updated, [xla, *named]).with_changes(func=to)

        yield self.edit(node, replace, ".cuda() → .to('xla')", consumes=[node.func.attr])

    def _literal(self, value: cst.BaseExpression, context: Context) -> Edit:
        xla = context.string("xla", like=value)
        return self.edit(value, lambda _: xla, f"device {code(value)} → 'xla'", consumes=[value])
