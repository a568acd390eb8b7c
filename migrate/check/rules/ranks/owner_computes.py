"""Each replica updates other parameters than the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.check.rules.ranks.guarded_collective import COLLECTIVE
from migrate.check.rules.ranks.parting.cut_out import is_used_cut_out
from migrate.reading.facts import Facts
from migrate.reading.flow.index_numbers import follows_index
from migrate.reading.values.collectives import TENSORS, called
from migrate.reading.values.parameters import holds_parameters, is_in_optimizer, value_of
from migrate.syntax.tree import code, nodes, string_value

MESSAGE = (
    "each replica computes with other parameters than the others, so that their graphs differ, and "
    "they meet in a collective: on a TPU they wait for each other for ever; compute it on every replica, "
    "or shard with torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer"
)
# A parameter that is a list of tensors.
LISTS = re.compile(r"\b([Ll]ist|[Tt]uple|Sequence)\[\s*(torch\.)?Tensor\b")
DEEPEST = 4
EQUAL = cst.Equal | cst.NotEqual | cst.Is | cst.IsNot


class OwnerComputes(Hazard):
    """Each replica updates other parameters than the others.

    **Why.** Muon, Shampoo and ZeRO-1 written by hand give each parameter an owner (`if i % world_size ==
    rank:`, `params[rank::world_size]`), which computes its update; a collective then hands it to the others.
    On XLA the update and the collective are one graph, and each replica would run a graph of its own:
    replicas whose graphs differ wait for each other for ever.

    **What to do.** Compute every update on every replica, and leave out the collective that hands it on: the
    gradients are equal everywhere, so the results are too. Where memory is short,
    `torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer` shards every parameter, so that
    all replicas run one graph. Where each replica has to compute its own, end the graph before and after
    it: `torch_xla.sync()` above and below the test, or the loop around it, with no collective in between.

    Source: torch_xla 2.9; two simulated replicas part at the collective.
    """

    code = "XLA310"
    name = "owner-computes"
    severity = Severity.ERROR
    nodes = (cst.If, cst.IfExp, cst.CompIf, cst.Subscript)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            class Muon(torch.optim.Optimizer):
                def __init__(self, params, rank, world_size):
                    super().__init__(params, {})
                    self.rank, self.world_size = rank, world_size

                def step(self):
                    for group in self.param_groups:
                        for i, p in enumerate(group["params"]):
                            if i % self.world_size == self.rank:  # XLA310
                                p.update = newton_schulz(p.grad)
                            dist.broadcast(p.update, src=i % self.world_size)
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def step(model, state):
                rank, world_size = dist.get_rank(), dist.get_world_size()
                params = list(model.parameters())
                for p in params[rank::world_size]:  # XLA310
                    update(p, state[p])
                for base in range(0, len(params), world_size):
                    p = params[base + rank]  # XLA310
                    dist.all_gather([torch.empty_like(p)] * world_size, update(p, state[p]))
                mine = [p for i, p in enumerate(params) if i % world_size == rank]  # XLA310
                for i, p in enumerate(params):
                    owner = i % world_size
                    if owner != rank:  # XLA310
                        continue
                    update(p, state[p])
                for i in range(rank, len(params), world_size):
                    update(params[i], state)  # XLA310
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            from torch import Tensor


            def orthogonalize(updates: list[Tensor], rank: int, world_size: int, padding):
                padded = updates + [torch.zeros_like(updates[0])] * padding if padding > 0 else updates
                each = len(padded) // world_size
                start = rank * each
                own = torch.stack(padded[start : start + each])  # XLA310
                own = own / own.norm()
                chunks = [torch.empty_like(own) for _ in range(world_size)]
                work = dist.all_gather(chunks, own, async_op=True)
                yield
                work.wait()
                return torch.stack(chunks), chunks[rank]


            def gathered(parts: list[Tensor], own: Tensor, rank: int):
                dist.all_gather(parts, own)
                parts[rank] = own
                return torch.cat(parts)
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def evaluate(model, files, rows, rank, world_size):
                total = torch.zeros(1)
                for i, file in enumerate(files[rank::world_size]):
                    total += model(rows[file])
                dist.all_reduce(total)
                for p in model.parameters():
                    if rank == 0:
                        print(p.shape)
                return total


            def low_rank(p, rank):
                u, s, v = torch.linalg.svd(p)
                return u[:, :rank], s[:rank]
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def step(model, flat, rank, world_size):
                for i, p in enumerate(model.parameters()):
                    torch_xla.sync()
                    if i % world_size == rank:
                        flat[i] = newton_schulz(p.grad)
                    torch_xla.sync()
                dist.all_reduce(flat)


            def in_one_loop(model, rank, world_size):
                params = list(model.parameters())
                mine = [p for i, p in enumerate(params) if i % world_size == rank]
                torch_xla.sync()
                for i, p in enumerate(params):
                    if i % world_size != rank:
                        continue
                    p.data.add_(newton_schulz(p.grad))
                for p in (*mine, *params[rank::world_size]):
                    p.data.mul_(0.9)
                torch_xla.sync()
                for i, p in enumerate(params):
                    dist.broadcast(p.data, src=i % world_size)
            """
        ),
        example(
            """
            import torch.distributed as dist
            import torch_xla


            def step(model, rank, world_size):
                params = list(model.parameters())
                mine = [p for i, p in enumerate(params) if i % world_size == rank]  # XLA310
                torch_xla.sync()
                for i, p in enumerate(params):
                    if i % world_size == rank:  # XLA310
                        p.data.add_(newton_schulz(p.grad))
                    dist.broadcast(p.data, src=i % world_size)
                torch_xla.sync()
                for p in mine:
                    p.data.mul_(0.9)
                for i, p in enumerate(params):
                    torch_xla.sync()
                    if i % world_size != rank:  # XLA310
                        continue
                    p.data.mul_(0.9)
                    torch_xla.sync()
            """
        ),
    )
    mended = example(
        """
        import torch


        class Muon(torch.optim.Optimizer):
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]:
                        p.add_(newton_schulz(p.grad), alpha=-group["lr"])
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one test, or one selection, by which a replica selects its parameters."""
        if isinstance(node, cst.Subscript):
            chosen = _is_by_rank(node, facts) and (
                holds_parameters(node.value, facts.context) or _is_shared_list(node, facts)
            )
        else:
            assert isinstance(node, cst.If | cst.IfExp | cst.CompIf)
            chosen = _asks_for_owner(node.test, facts) and _is_of_parameters(node, facts)
        met = chosen and (is_in_optimizer(node, facts.context) or _meets(facts))
        if met and not is_used_cut_out(node, facts):
            where = node if isinstance(node, cst.Subscript) else node.test
            yield self.hit(where, MESSAGE)


def _asks_for_owner(test: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `test` compares the replica's index with a computed value."""
    if isinstance(test, cst.BooleanOperation):
        return _asks_for_owner(test.left, facts) or _asks_for_owner(test.right, facts)
    if isinstance(test, cst.UnaryOperation):
        return _asks_for_owner(test.expression, facts)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    compared = test.comparisons[0]
    if not isinstance(compared.operator, EQUAL):
        return False
    sides = (test.left, compared.comparator)
    by_rank = [facts.guards.is_index(side) for side in sides]
    if sum(by_rank) != 1:
        return False
    other = sides[by_rank[0]]
    constant = isinstance(other, cst.BaseNumber | cst.UnaryOperation) or string_value(other)
    return not constant and getattr(other, "value", None) not in ("None", "True", "False")


def _is_of_parameters(node: cst.If | cst.IfExp | cst.CompIf, facts: Facts) -> bool:
    """Whether a loop around the test iterates over parameters."""
    above: cst.CSTNode
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.For | cst.CompFor):
            if holds_parameters(above.iter, facts.context):
                return True
        elif isinstance(above, cst.FunctionDef | cst.ClassDef):
            return False
    return False


def _is_by_rank(node: cst.Subscript, facts: Facts) -> bool:
    """Whether a subscript selects the share of this replica: `x[base + rank]`, `x[rank::world_size]`."""
    if len(node.slice) != 1:
        return False
    part = node.slice[0].slice
    chosen = part.lower if isinstance(part, cst.Slice) else cst.ensure_type(part, cst.Index).value
    if chosen is None or string_value(chosen) is not None:
        return False
    return any(_follows_rank(named, facts) for named in _expressions(chosen))


def _follows_rank(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is the replica's index, or a name that a statement or a loop computes from it."""
    if facts.guards.is_index(node) or follows_index(node, facts):
        return True
    if not isinstance(node, cst.Name):
        return False
    values = (value_of(binding.node, facts.context) for binding in facts.context.bindings(node))
    return any(
        isinstance(value, cst.BinaryOperation | cst.Call)
        and (not isinstance(value, cst.Call) or code(value.func) == "range")
        and any(facts.guards.is_index(part) for part in _expressions(value))
        for value in values
    )


def _is_shared_list(node: cst.Subscript, facts: Facts) -> bool:
    """Whether `node` takes tensors of a list that a function gets, and the function meets in a collective.

    A list that a collective fills does not count: `dist.all_gather(parts, x)`, then `parts[rank]`.
    """
    function = facts.context.function_around(node)
    if not isinstance(function, cst.FunctionDef) or not isinstance(node.value, cst.Name):
        return False
    if isinstance(facts.context.parent(node), cst.AssignTarget):
        return False
    gathers = [
        c for c in facts.below(function.body, cst.Call) if called(c, facts.context) in TENSORS
    ]
    filled = {part.value for c in gathers for arg in c.args for part in facts.below(arg, cst.Name)}
    return bool(gathers) and node.value.value not in filled and _is_list(node.value, facts, 0)


def _is_list(name: cst.Name, facts: Facts, depth: int) -> bool:
    """Whether `name` is a parameter of the type `list[Tensor]`, or made of one, as `tensors + padding`."""
    for binding in facts.context.bindings(name) if depth < DEEPEST else ():
        if isinstance(binding.node, cst.Param):
            annotation = binding.node.annotation
            if annotation is not None and LISTS.search(code(annotation.annotation)):
                return True
            continue
        value = value_of(binding.node, facts.context)
        if isinstance(value, cst.IfExp):
            value = value.body
        while isinstance(value, cst.BinaryOperation):
            value = value.left
        if isinstance(value, cst.Name) and _is_list(value, facts, depth + 1):
            return True
    return False


def _expressions(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    return (part for part in nodes(node) if isinstance(part, cst.Name | cst.Attribute | cst.Call))


def _meets(facts: Facts) -> bool:
    """Whether the script reaches a collective."""
    return not facts.called.isdisjoint(COLLECTIVE) or any(
        facts.context.effects.meets(call) for call in facts.calls
    )
