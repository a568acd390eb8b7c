"""A Python number that differs between replicas, in a graph."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import MADE_ON_HOST
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.ranks.parting.cut_out import is_used_cut_out
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.reading.flow.index_numbers import (
    elements,
    follows_index,
    numbers,
    operands,
    takes_index,
)
from migrate.reading.halves.made_arrays import is_container
from migrate.reading.values.parameters import holds_parameters
from migrate.reading.values.parts import holds_views
from migrate.syntax.tree import code

# What to do instead of a position that is the index: to read there, and to write there.
_INDEX = "index with a tensor: torch.tensor([number]).to(device), made on the host"
_MASK = (
    "select with a mask that is made on the host: own = (torch.arange(world_size) == rank).to(device), then "
    "torch.where(own, new, old)"
)
COMPARES = (cst.Equal, cst.NotEqual, cst.LessThan, cst.LessThanEqual, cst.GreaterThan)


class RankInGraph(Hazard):
    """A tensor is computed with the index of the replica as a Python number, or made of it.

    **Why.** A Python number is a part of the graph: 0 and 1 are constants, and sizes, positions, ranges
    and fill values always are. Replicas get graphs of their own, compile them for themselves, and replicas
    with different graphs hang at collectives on a real TPU.

    **What to do.** Make it a tensor on the device, with a dimension:
    `torch.tensor([rank * n], device="xla")`. Without one, 0 and 1 are constants of the graph, too. Or make
    the tensor on the host, and then move it: `torch.arange(rank * n, rank * n + n).to("xla")`. Or compute
    with it in the data loader. A slice `x[a:b]` becomes `x[torch.arange(a, b).to("xla")]`. A table with
    one entry for each replica is made on the host, and then moved.
    To put this replica's own tensor among gathered ones (`parts[rank] = x`), select with a mask:
    `own = (torch.arange(world_size) == rank).to("xla")`, then
    `torch.where(own[:, None, None], x, torch.stack(parts))`.
    Of a list of views of a tensor, `views[rank]` is computed where it is used: `views[rank].clone()` between
    two `torch_xla.sync()` on all replicas is a tensor of its own, and an input of the graphs after it.

    Source: torch_xla 2.9 (measured: `table[i] = 1.0` compiles for each `i`, `x + rank * 4` for ranks 0
    and 1).
    """

    code = "XLA307"
    name = "rank-in-graph"
    severity = Severity.ERROR
    nodes = (cst.BinaryOperation, cst.Subscript, cst.AugAssign, cst.Comparison, cst.Call)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def noise(x):
                rank = dist.get_rank()
                return x.cuda() + rank  # XLA307


            def gathered(value):
                table = torch.zeros(dist.get_world_size(), device="cuda")
                table[dist.get_rank()] = value  # XLA307
                dist.all_reduce(table)
                rank = dist.get_rank()
                part = table[rank * 2 : rank * 2 + 2]  # XLA307
                return table, part
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def labels(x, n):
                x, rank = x.cuda(), dist.get_rank()
                offset = rank * n
                scaled = x * (rank + 1)  # XLA307
                scaled += rank  # XLA307
                own = torch.arange(offset, offset + n, device=x.device)  # XLA307
                filled = torch.full((n,), rank, device="cuda")  # XLA307
                return scaled + n * rank, own + offset, filled.add(rank)  # XLA307
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def labels(x, n):
                x, rank = x.cuda(), dist.get_rank()
                own = torch.arange(rank * n, rank * n + n).to(x.device)
                filled = torch.full((n,), rank).cuda()
                scaled = x * torch.tensor([rank + 1], device="cuda")
                return own, filled, scaled.to(rank)
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            class Owner(torch.optim.Optimizer):
                def __init__(self, params, rank, world_size):
                    self.rank, self.world_size = rank, world_size
                    b = torch.empty(world_size, 8, device="xla")
                    views = [b[i] for i in range(world_size)]
                    super().__init__([dict(params=params, buffer=b, views=views)], {})

                def step(self):
                    for group in self.param_groups:
                        views = group["views"]
                        torch_xla.sync()
                        if self.rank < len(group["params"]):
                            g = group["params"][self.rank].grad.flatten()
                        elif self.rank % 2:
                            g = views[self.rank]  # XLA307
                        else:
                            g = views[self.rank].clone()
                        torch_xla.sync()
                        dist.all_gather_into_tensor(group["buffer"], g)


            def run(params):
                Owner(params, dist.get_rank(), dist.get_world_size()).step()
                rows = torch.zeros(8, 4, device="xla")
                return rows.chunk(8)[dist.get_rank()]  # XLA307
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def own_parameter(model, base):
                rank, params = dist.get_rank(), list(model.cuda().parameters())
                return params[base + rank]


            def seed(x, base):
                rank = dist.get_rank()
                torch.manual_seed(base + rank)
                return x.cuda() + 1, x[rank * 10 : rank * 10 + 10]


            def gathered(value, names):
                table = torch.zeros(dist.get_world_size())
                table[dist.get_rank()] = value
                table = table.to("cuda")
                dist.all_reduce(table)
                return table[0], names[dist.get_rank()]


            def low_rank(x, alpha, rank):
                u, s, v = torch.linalg.svd(x.cuda())
                weights = x.cuda()
                return u[:, :rank], weights[:rank] * (alpha / rank)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist


        def noise(x):
            rank = torch.tensor([dist.get_rank()], device=x.device)
            return x.cuda() + rank


        def gathered(value):
            rank, world_size = dist.get_rank(), dist.get_world_size()
            own = (torch.arange(world_size) == rank).to("cuda")
            table = torch.where(own, value, torch.zeros(world_size, device="cuda"))
            dist.all_reduce(table)
            rows = torch.arange(rank * 2, rank * 2 + 2).to("cuda")
            return table, table[rows]
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one operation on a tensor and the index, one subscript, or one tensor made from the index."""
        if isinstance(node, cst.Subscript):
            # A parameter of a list is an input, no other graph: `owner-computes` reports what follows.
            if (
                facts.values.on_device(node.value)
                and takes_index(node, facts)
                and not (
                    is_container(node.value, facts) and holds_parameters(node.value, facts.context)
                )
            ):
                many = is_container(node.value, facts)
                what = "tensors" if many else "a tensor"
                instead = _MASK if self._is_stored(node, facts) else _rows(node) or _INDEX
                message = (
                    f"the replica's index is a position in {what} on the device, so each replica gets a "
                    f"different graph; {instead}"
                )
                yield self.hit(node, message)
            elif _takes_view(node, facts):
                message = (
                    "the replica's index takes a part of a tensor on the device, which is computed where it "
                    f"is used, so each replica gets a different graph; write `{code(node)}.clone()` between "
                    "two torch_xla.sync() on all replicas"
                )
                yield self.hit(node, message)
        elif isinstance(node, cst.Call):
            if _makes(node, facts):
                message = (
                    "a tensor is made from the replica's index on the device, so each replica gets a "
                    "different graph; make it on the host, and move it"
                )
                yield self.hit(node, message)
            elif _is_given_index(node, facts):
                yield self._number(node)
        elif _computes_with_index(node, facts):
            yield self._number(node)

    @staticmethod
    def _is_stored(node: cst.Subscript, facts: Facts) -> bool:
        """Whether a value is stored at the position."""
        return isinstance(facts.context.parent(node), cst.AssignTarget | cst.AugAssign)

    def _number(self, node: cst.CSTNode) -> Hit:
        message = (
            "the replica's index is a Python number in a graph, so each replica gets a different graph; "
            "compute with a tensor: torch.tensor([number]).to(device), made on the host"
        )
        return self.hit(node, message)


def _rows(node: cst.Subscript) -> str:
    """Return what to write instead of a slice with both ends, `x[a:b]`; "" for another subscript."""
    match node.slice:
        case [cst.SubscriptElement(cst.Slice(lower=cst.BaseExpression() as lower,
                                             upper=cst.BaseExpression() as upper, step=None))]:  # fmt: skip
            rows = f"torch.arange({code(lower)}, {code(upper)}).to(device)"
            return f"take the rows by a tensor that is made on the host: {code(node.value)}[{rows}]"
    return ""


def _takes_view(node: cst.Subscript, facts: Facts) -> bool:
    """Whether `node` is an element of a list of views, by the replica's index, and no graph of its own."""
    if isinstance(facts.context.parent(node), cst.AssignTarget | cst.Del):
        return False
    if not takes_index(node, facts) or not holds_views(node.value, facts):
        return False
    above = facts.context.parent(node)
    copied = isinstance(above, cst.Attribute) and above.attr.value == "clone"
    return not (copied and is_used_cut_out(node, facts))


def _computes_with_index(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether an operation has a tensor of the device on one side, and a number of the index on another."""
    if isinstance(node, cst.AugAssign):
        sides = [node.target, node.value]
    elif isinstance(node, cst.Comparison):
        targets = [t for t in node.comparisons if isinstance(t.operator, COMPARES)]
        sides = [node.left, *(target.comparator for target in targets)]
    else:
        assert isinstance(node, cst.BinaryOperation)
        sides = [node.left, node.right]
    if not any(facts.values.on_device(side) for side in sides):
        return False
    named = isinstance(node, cst.BinaryOperation | cst.AugAssign)
    return any(
        follows_index(side, facts) or (named and facts.values.kind(side) is Kind.INDEX)
        for side in sides
    )


def _makes(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` creates a tensor of the index on the device: `torch.full((4,), rank, device="xla")`."""
    name = facts.context.qualified_name(call.func) or ""
    package, _, last = name.rpartition(".")
    if package != "torch" or last not in MADE_ON_HOST | {"as_tensor"}:
        return False
    if not facts.values.on_device(call):
        return False
    # The elements of a list are sent to the device; a size is a part of the graph.
    sent = last in ("tensor", "as_tensor")
    return any(
        follows_index(part, facts)
        for arg in numbers(call)
        for part in ((arg,) if sent else elements(arg))
    )


def _is_given_index(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` computes with a tensor and the index: `x.mul(rank)`, `torch.add(x, rank)`."""
    return any(map(facts.values.on_device, operands(call, facts))) and takes_index(call, facts)
