"""A reduction of 64 bits that is no sum."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.collectives import TENSORS, called, makes_gloo_group
from migrate.reading.values.wide import wide_dtype
from migrate.syntax.tree import bind, last_part

# The names of the tensors that are reduced, by the collective.
REDUCED = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
}
KINDS = frozenset({"MAX", "MIN", "PRODUCT", "BAND", "BOR"})
OF_XLA = frozenset({"REDUCE_AND", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_MUL", "REDUCE_OR"})


class WideReductions(Hazard):
    """A tensor of 64 bits is reduced by MAX, MIN or PRODUCT.

    **Why.** An int64 or a float64 is two numbers of 32 bits on a TPU, and its compiler lowers only the sum of
    such tensors: "supports lowering only of Sum all-reduce". A Python integer makes an int64:
    `torch.tensor(1)`, `torch.tensor(len(x))`.

    **What to do.** Make the tensor with `dtype=torch.int32`, or convert it for the collective. A sum stays.

    Source: libtpu 0.0.42 (the graphs of torch_xla 2.9, compiled ahead of time for four chips of a v5e).
    """

    code = "XLA829"
    name = "wide-reductions"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = "reduce"
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla.core.xla_model as xm


            def stop(step, device, counts):
                done = torch.tensor(1 if step >= 7 else 0, device=device)
                dist.all_reduce(done, op=dist.ReduceOp.MAX)  # XLA829
                longest = torch.tensor([len(counts)]).cuda()
                dist.all_reduce(longest, dist.ReduceOp.MIN)  # XLA829
                best = counts.long()
                dist.reduce(best, 0, op=dist.ReduceOp.PRODUCT)  # XLA829
                exact = torch.zeros(2, dtype=torch.float64, device=device)
                dist.all_reduce(exact, op=dist.ReduceOp.MAX)  # XLA829
                xm.all_reduce(xm.REDUCE_MAX, torch.tensor(step + 1).long())  # XLA829


            def largest(value):
                dist.all_reduce(value, op=dist.ReduceOp.MAX)  # XLA829


            largest(torch.tensor(3))


            def packed(text):
                data = torch.tensor(list(text.encode())).cuda()
                return data, data.size(0)


            def longest(text, rows):
                data, count = packed(text)
                size = torch.tensor(count).cuda()
                most = size.clone()
                dist.all_reduce(most, op=dist.ReduceOp.MAX)  # XLA829
                height = torch.tensor([rows.shape[0]]).cuda()
                dist.all_reduce(height, op=dist.ReduceOp.MAX)  # XLA829
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def stop(step, device, loss, flags):
                done = torch.tensor(1 if step >= 7 else 0, device=device)
                dist.all_reduce(done)
                dist.all_reduce(done.int(), op=dist.ReduceOp.MAX)
                worst = torch.tensor(0.5, device=device)
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
                dist.all_reduce(loss, op=dist.ReduceOp.MAX)
                small = torch.tensor(step >= 7, dtype=torch.int32)
                dist.all_reduce(small, op=dist.ReduceOp.MAX)
                host = torch.tensor(3)
                dist.all_reduce(host, op=dist.ReduceOp.MAX, group=dist.new_group(backend="gloo"))


            def scaled(text):
                return text, len(text) / 2


            def half(text):
                text, share = scaled(text)
                size = torch.tensor(share).cuda()
                dist.all_reduce(size, op=dist.ReduceOp.MAX)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist


        def stop(step, device):
            done = torch.tensor([step >= 7], dtype=torch.int32, device=device)
            dist.all_reduce(done, op=dist.ReduceOp.MAX)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one collective."""
        assert isinstance(node, cst.Call)
        kind, value = self._reduction(node, facts)
        dtype = wide_dtype(value, facts.context) if kind else ""
        if dtype:
            small = "int32" if dtype == "int64" else "float32"
            message = (
                f"{kind} of {dtype}: the TPU's compiler lowers only the sum of 64 bits; make the tensor with "
                f"dtype=torch.{small}"
            )
            yield self.hit(node, message)

    def _reduction(self, call: cst.Call, facts: Facts) -> tuple[str, cst.CSTNode | None]:
        """Return how `call` reduces, and what. Nothing if that is a sum, or not to be seen."""
        name = facts.names.of(call.func)
        if name == "torch_xla.core.xla_model.all_reduce" and len(call.args) > 1:
            kind = last_part(call.args[0].value)
            return (kind if kind in OF_XLA else ""), call.args[1].value
        function = called(call, facts.context)
        if function not in REDUCED:
            return "", None
        arguments = bind(call, TENSORS[function]) or {}
        group = arguments.get("group")
        if group is not None and makes_gloo_group(group.value, facts.context):
            return "", None
        operation = arguments.get("op")
        kind = last_part(operation.value) if operation is not None else ""
        value = arguments.get(REDUCED[function])
        return (kind if kind in KINDS else ""), value.value if value is not None else None
