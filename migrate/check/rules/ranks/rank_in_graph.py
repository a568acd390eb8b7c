"""A Python number that differs between replicas, in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.catalogue.words import MADE_ON_HOST, RANK_NAME
from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.facts import Facts
from migrate.syntax.tree import last_part, nodes_of

# Methods whose argument is a device, or that run nothing on the device.
OF_DEVICES = frozenset(
    {"cuda", "get_device", "pin_memory", "record_stream", "to", "to_empty", "type"}
)
# Functions of torch that put their arguments into a graph.
COMPUTING = ("torch", "torch.nn.functional", "torch.special", "torch.linalg")
# Names of the number of replicas: what stands beside it as `rank` is which of them this is.
SIZES = frozenset({"num_replicas", "num_tasks", "world_size", "world"})
# How many assignments are followed from an operation to the index.
DEEPEST = 4
COMPARES = (cst.Equal, cst.NotEqual, cst.LessThan, cst.LessThanEqual, cst.GreaterThan)


class RankInGraph(Hazard):
    """A tensor is computed with the index of the replica as a Python number, or made of it.

    **Why.** A Python number is a part of the graph: 0 and 1 are constants, and sizes, positions, ranges
    and fill values always are. Replicas get graphs of their own, compile them for themselves, and replicas
    with different graphs hang at collectives on a real TPU.

    **What to do.** Make it a tensor on the device, with a dimension:
    `torch.tensor([rank * n], device="xla")`. Without one, 0 and 1 are constants of the graph, too. Or make
    the tensor on the host, and then move it: `torch.arange(rank * n, rank * n + n).to("xla")`. Or compute
    with it in the data loader. A table with one entry for each replica is made on the host, and then moved.

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
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one operation of a tensor and the index, one position, or one tensor made of it."""
        if isinstance(node, cst.Subscript):
            at = [part for element in node.slice for part in _positions(element.slice)]
            if facts.values.on_device(node.value) and any(_follows(p, facts) for p in at):
                message = (
                    "the replica's index as a position in a tensor of the device: each replica gets "
                    "another graph"
                )
                yield self.hit(node, message)
        elif isinstance(node, cst.Call):
            if _makes(node, facts):
                message = (
                    "a tensor made on the device of the replica's index: each replica gets another graph; "
                    "make it on the host, and move it"
                )
                yield self.hit(node, message)
            elif _is_given_index(node, facts):
                yield self._number(node)
        elif _computes_with_index(node, facts):
            yield self._number(node)

    def _number(self, node: cst.CSTNode) -> Hit:
        message = (
            "the replica's index as a Python number in a graph: each replica gets another graph"
        )
        return self.hit(node, message)


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
        _follows(side, facts) or (named and facts.values.kind(side) is Kind.INDEX) for side in sides
    )


def _makes(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` makes a tensor on the device of the index: `torch.full((4,), rank, device="xla")`."""
    name = facts.context.qualified_name(call.func) or ""
    package, _, last = name.rpartition(".")
    if package != "torch" or last not in MADE_ON_HOST | {"as_tensor"}:
        return False
    if not facts.values.on_device(call):
        return False
    # The elements of a list are sent to the device; a size is a part of the graph.
    sent = last in ("tensor", "as_tensor")
    return any(
        _follows(part, facts)
        for arg in _numbers(call)
        for part in ((arg,) if sent else _elements(arg))
    )


def _is_given_index(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` computes of a tensor and the index: `x.mul(rank)`, `torch.add(x, rank)`."""
    name = facts.context.qualified_name(call.func)
    given = _numbers(call)
    if name is not None:
        if name.rpartition(".")[0] not in COMPUTING:
            return False
        on_device = any(map(facts.values.on_device, given))
    elif isinstance(call.func, cst.Attribute) and not facts.context.run_by(call):
        method = call.func.attr.value
        on_device = method not in OF_DEVICES and facts.values.on_device(call.func.value)
    else:
        return False
    return on_device and any(_follows(part, facts) for arg in given for part in _elements(arg))


def _numbers(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what `call` is given, but for a device."""
    return [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value != "device"]


def _elements(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(value, cst.Tuple | cst.List):
        yield from (element.value for element in value.elements)
    else:
        yield value


def _positions(part: cst.BaseSlice) -> Iterator[cst.BaseExpression]:
    if isinstance(part, cst.Index):
        yield part.value
    elif isinstance(part, cst.Slice):
        yield from (bound for bound in (part.lower, part.upper) if bound is not None)


def _follows(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether `node` is the index of the replica, or a number that is computed from it."""
    if isinstance(node, cst.BinaryOperation):
        if facts.values.is_tensor(node):
            return False  # the operation in it is reported
        return _follows(node.left, facts, depth) or _follows(node.right, facts, depth)
    if isinstance(node, cst.UnaryOperation):
        return _follows(node.expression, facts, depth)
    if isinstance(node, cst.IfExp):
        return _follows(node.body, facts, depth) or _follows(node.orelse, facts, depth)
    if not isinstance(node, cst.Call | cst.Name | cst.Attribute | cst.Subscript):
        return False
    if facts.values.is_tensor(node):
        return False
    if facts.context.place(node) in facts.context.calls.of_index or facts.context.ranks.is_rank(
        node
    ):
        return True
    if isinstance(node, cst.Call):
        return facts.guards.is_index(node)
    if isinstance(node, cst.Name) and depth:
        binding = facts.bindings.nearest(node)
        if binding is not None:
            value = binding.value
            return isinstance(value, cst.BaseExpression) and _follows(value, facts, depth - 1)
    # Not by its name alone: the rank of a matrix bounds its slices.
    named = isinstance(node, cst.Name | cst.Attribute) and RANK_NAME.fullmatch(last_part(node))
    return bool(named) and _is_beside_size(node, facts)


def _is_beside_size(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether the function or class around `node` knows the number of replicas, too."""
    around = facts.context.class_around(node) or facts.context.function_around(node)
    if around is None:
        return False
    return any(name.value in SIZES for name in nodes_of(around, cst.Name))
