"""Gathering tensors of unequal shapes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.check.common import method, receiver
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import code, nodes_of

GATHERS = frozenset(
    {
        "torch.distributed.all_gather",
        "torch.distributed.all_gather_into_tensor",
        "torch.distributed.gather",
    }
)
# Collectives that send one tensor, and write into it.
SENDS = frozenset(
    {
        "torch.distributed.all_reduce",
        "torch.distributed.broadcast",
        "torch.distributed.reduce",
    }
)
REDUCES = frozenset({"torch.distributed.all_reduce", "torch.distributed.all_gather_object"})
PADS = frozenset({"torch.nn.functional.pad", "torch.cat", "torch.concat"})
COPIES = frozenset({"clone", "contiguous", "detach"})
ENDS = frozenset({"torch_xla.sync", "torch_xla.core.xla_model.mark_step", "shims.step"})


class UnequalGather(Hazard):
    """Replicas gather tensors of unequal shapes.

    **Why.** On XLA the shape is a part of the graph: replicas with other shapes run other graphs, and the
    collective hangs instead of raising. So does a broadcast or a reduction of a tensor that is padded in its
    graph.

    **What to do.** Pad to one length that is the same everywhere, end the graph there
    (`torch_xla.sync()`: the padding itself has another shape on each replica), gather that and the true
    length, and cut after the step.

    Source: pytorch/xla#8660.
    """

    code = "XLA303"
    name = "unequal-gather"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(GATHERS | SENDS)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def gather(x, sizes):
                out = [torch.empty(size) for size in sizes]
                dist.all_gather(out, x)  # XLA303


            def gather_found(x, out):
                dist.all_gather(out, x[x > 0].cuda())  # XLA303
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            import torch.nn.functional as F


            def gather(x, world_size):
                size = torch.tensor([x.shape[0]], device=x.device)
                sizes = [torch.zeros_like(size) for _ in range(world_size)]
                dist.all_gather(sizes, size)
                most = int(torch.stack(sizes).max())
                padded = torch.zeros(most, 4, device=x.device)
                padded[: x.shape[0]] = x
                parts = [torch.zeros_like(padded) for _ in range(world_size)]
                dist.all_gather(parts, padded)  # XLA303
                wide = F.pad(x, (0, 0, 0, most - len(x)))
                dist.all_gather(parts, wide)  # XLA303
                return parts


            def exchange(data, world_size):
                most = torch.tensor(len(data), dtype=torch.int32, device=data.device)
                dist.all_reduce(most, op=dist.ReduceOp.MAX)
                if len(data) < most.item():
                    padded = F.pad(data, (0, most.item() - len(data)))
                else:
                    padded = data.clone()
                for rank in range(world_size):
                    received = padded.clone()
                    dist.broadcast(received, src=rank)  # XLA303
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def gather(x):
                out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(out, x)
                dist.all_gather([torch.zeros_like(x) for rank in range(8)], x)
                row = torch.cat([x, x])
                dist.all_gather(row, x)


            def gather_rows(x, parts):
                rows = torch.cat([x, x])
                dist.all_gather(parts, rows)


            def totals(x, loss, count):
                dist.all_reduce(loss)
                sums = torch.cat([loss, count])
                dist.all_reduce(sums)
                wide = torch.nn.functional.pad(x, (1, 1))
                dist.broadcast(wide, src=0)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist
        import torch_xla


        def gather(x, count, world_size, most=128):
            padded = torch.zeros(most, device=x.device)
            padded[: x.shape[0]] = x
            torch_xla.sync()
            out = [torch.zeros_like(padded) for _ in range(world_size)]
            dist.all_gather(out, padded)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one gather of tensors with different shapes."""
        assert isinstance(node, cst.Call)
        name = facts.names.of(node.func)
        if name in SENDS and node.args:
            yield from self._padded(node.args[0].value, node, facts)
        if name not in GATHERS or not node.args:
            return
        parts = node.args[0].value
        if isinstance(parts, cst.Name):
            _, bound = facts.context.bound_to(parts)
            parts = bound if isinstance(bound, cst.BaseExpression) else parts
        sent = node.args[1].value if len(node.args) > 1 else None
        message = (
            "gathers tensors of unequal shapes: replicas with different graphs hang; pad them, and end the "
            "graph (torch_xla.sync()) before the gather"
        )
        if (isinstance(parts, cst.ListComp) and _varies(parts)) or (
            sent is not None
            and any(
                isinstance(index.slice, cst.Index) and isinstance(index.slice.value, cst.Comparison)
                for index in nodes_of(sent, cst.SubscriptElement)
            )
        ):
            yield self.hit(node, message)
        elif sent is not None:
            yield from self._padded(sent, node, facts)

    def _padded(self, sent: cst.BaseExpression, call: cst.Call, facts: Facts) -> Iterable[Hit]:
        """Yield the collective `call` if what it sends is padded in its graph."""
        gathers = facts.names.of(call.func) in GATHERS
        for name in _copied(sent, facts):
            if _is_padded(name, call, facts, gathers=gathers):
                kind = "gather" if gathers else "collective"
                message = (
                    f"`{name.value}` is padded from another length on each replica, in one graph with the "
                    f"{kind}: replicas with different graphs hang; torch_xla.sync() between the two"
                )
                yield self.hit(call, message)
                return


def _copied(sent: cst.BaseExpression, facts: Facts) -> Iterable[cst.Name]:
    """Yield the name of a tensor, and the names of the tensors of which it is a copy."""
    if isinstance(sent, cst.Call) and method(sent) in COPIES:
        yield from _copied(receiver(sent), facts)
    if isinstance(sent, cst.Name):
        yield sent
        for value in facts.context.bound_values(sent):
            if isinstance(value, cst.Call) and method(value) in COPIES:
                copied = receiver(value)
                if isinstance(copied, cst.Name) and copied.value != sent.value:
                    yield copied


def _is_padded(sent: cst.Name, gather: cst.Call, facts: Facts, *, gathers: bool) -> bool:
    """Whether `sent` is padded in the graph of `gather`, in a function that exchanges lengths before it."""
    function = facts.context.function_around(gather)
    if function is None:
        return False
    at = facts.context.position(gather).line
    lines = [
        facts.context.position(filled).line
        for filled in facts.below(function.body, cst.Assign)
        if _pads(filled, sent.value, facts, joins=gathers)
    ]
    last = max((line for line in lines if line < at), default=None)
    if last is None:
        return False
    exchanged = ended = False
    for call in facts.below(function.body, cst.Call):
        name, line = facts.names.of(call.func), facts.context.position(call).line
        exchanged = exchanged or (name in GATHERS | REDUCES and line < last)
        ended = ended or (name in ENDS and last <= line < at)
    return exchanged and not ended


def _pads(filled: cst.Assign, name: str, facts: Facts, *, joins: bool) -> bool:
    """Whether `filled` pads the tensor `name`: `padded[:n] = x`, `padded = F.pad(x, (0, most - n))`.

    Args:
        filled: the assignment.
        name: name of the tensor.
        facts: what is known of the script.
        joins: whether `torch.cat` pads whatever it joins; otherwise only what has a difference as its size.
    """
    target = filled.targets[0].target
    if isinstance(target, cst.Subscript) and code(target.value) == name:
        part = target.slice[0].slice
        bound = part.upper if isinstance(part, cst.Slice) else None
        return bound is not None and not isinstance(bound, cst.Integer)
    if not isinstance(target, cst.Name) or target.value != name:
        return False
    values = filled.value
    if not isinstance(values, cst.Call) or facts.names.of(values.func) not in PADS:
        return False
    return joins or any(
        isinstance(part.operator, cst.Subtract) for part in nodes_of(values, cst.BinaryOperation)
    )


def _varies(parts: cst.ListComp) -> bool:
    """Whether the elements depend on the variable of the comprehension."""
    names = {name.value for name in nodes_of(parts.for_in.target, cst.Name)}
    return "range" not in code(parts.for_in.iter) and any(
        name.value in names for name in nodes_of(parts.elt, cst.Name)
    )
