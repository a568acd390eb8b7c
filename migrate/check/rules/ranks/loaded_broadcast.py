"""Work of one replica alone on the device before a collective: computing a tensor, loading weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.model.calls.kind import Kind
from migrate.reading.collectives.computing import updates_copy
from migrate.reading.collectives.uneven_graphs import uneven_graphs
from migrate.reading.facts import Facts
from migrate.reading.values.collectives import makes_gloo_group
from migrate.syntax.origins import at_line
from migrate.syntax.tree import keyword, last_part

BROADCASTS = frozenset({"torch.distributed.broadcast", "torch.distributed.all_reduce"})
SYNCS = frozenset(
    {"torch_xla.sync", "torch_xla.core.xla_model.mark_step", "shims.sync", "torch.cuda.synchronize"}
)
# Names of functions in other files that load weights.
LOADING = re.compile(r"(^|_)(load|restore|resume|init_from)(_|$)")


class LoadedBroadcast(Hazard):
    """A collective in one graph with what one replica alone computed or loaded on the device.

    **Why.** Nothing runs on the device before the graph ends. The graph with the collective has in it what
    each replica did around it: one replica has drawn a tensor, written into it, followed the weights with an
    average, or copied a checkpoint into the weights, and the others have not. Replicas that run different
    programs with a collective in them wait for each other.

    **What to do.** `torch_xla.sync()` on all replicas between what one replica does and the collective: the
    graph of the collective is then the same everywhere. `migrate rewrite` writes it where it can. Or do the
    same on all replicas, or compute on the host and move the result: a tensor that is copied from the host is
    an input of the graph, whatever its values are. A tensor that is made on the device, as by
    `torch.empty(1, device=device)`, is an operation. So is 0 or 1 without a dimension,
    `torch.tensor(stop, device=device)`: a constant of the graph, another one in each replica.

    Source: torch_xla 2.9, measured on two replicas; `core/xla_model.py`: "We must produce the exact same
    graph in each replica to prevent hanging".
    """

    code = "XLA314"
    name = "loaded-broadcast"
    severity = Severity.ERROR
    nodes = (cst.If, cst.Module)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def load_checkpoint(model, path):
                model.load_state_dict(torch.load(path, map_location="cpu"))


            def create_model(model, path):
                rank = dist.get_rank()
                if rank == 0:  # XLA314
                    load_checkpoint(model, path)
                if dist.get_world_size() > 1:
                    for p in model.parameters():
                        dist.broadcast(p.data, src=0)
                return model
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def size_of(data, rank):
                size = torch.zeros(1, dtype=torch.long, device="cuda")
                if rank == 0:
                    size[0] = len(data)  # XLA314
                dist.broadcast(size, src=0)
                return size.item()


            def start(shape, rank):
                x = torch.randn(shape, device="cuda") if rank == 0 else torch.empty(shape).cuda()  # XLA314
                dist.broadcast(x, src=0)
                return x


            class Seen:
                def __init__(self, rank):
                    self.main = rank == 0
                    self.count = torch.zeros(3).cuda()

                def add(self, x):
                    dist.all_reduce(x)
                    if self.main:
                        self.count += x  # XLA314
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def size_of(data, rank):
                size = torch.zeros(1, dtype=torch.long)
                if rank == 0:
                    size[0] = len(data)
                size = size.cuda()
                dist.broadcast(size, src=0)
                return size.item()


            def shown(x, rank):
                if rank == 0:
                    print((x.cuda() * 2).mean().item())
                dist.all_reduce(x)
                return x
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist
            import torch_xla


            def create_model(model, path, flag):
                rank = dist.get_rank()
                if rank == 0:
                    model.load_state_dict(torch.load(path, map_location="cpu"))
                torch_xla.sync()
                for p in model.parameters():
                    dist.broadcast(p.data, src=0)
                if rank == 0:
                    print("loaded")
                dist.broadcast(flag, src=0)
                if rank == 0:
                    best = torch.load(path, map_location="cpu")["best"]
                group = dist.new_group(backend="gloo")
                dist.broadcast(flag, src=0, group=group)
                return best
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist
        import torch_xla


        def create_model(model, path):
            if dist.get_rank() == 0:
                model.load_state_dict(torch.load(path, map_location="cpu"))
            torch_xla.sync()
            for p in model.parameters():
                dist.broadcast(p.data, src=0)
            return model
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield a test of the rank with a load of weights below it; for a script, each other operation."""
        if isinstance(node, cst.Module):
            yield from self._operations(facts)
            return
        assert isinstance(node, cst.If)
        if not facts.context.guards.asks(node.test) or not _loads(node.body, facts):
            return
        if node.orelse is not None and _loads(node.orelse, facts):
            return
        broadcast = next(_next_collectives(node, facts), None)
        if broadcast is not None:
            line = facts.context.position(broadcast).line
            message = (
                f"one replica loads the weights, and its graph of the broadcast ({at_line(line)}) is "
                "another one "
                "than the others': torch_xla.sync() on all replicas between the two"
            )
            yield self.hit(node, message)

    def _operations(self, facts: Facts) -> Iterator[Hit]:
        """Yield each device operation that only some replicas have in a graph with a collective."""
        for uneven in uneven_graphs(facts):
            operation = uneven.alone.operation
            if isinstance(operation, cst.Call) and updates_copy(operation, facts):
                continue  # XLA311
            place = facts.context.position
            where = "the gradients of the step"
            if uneven.collective is not None:
                where = f"a collective ({at_line(place(uneven.collective).line)})"
            side = "before it" if uneven.before else "below it"
            if uneven.alone.guard is None:
                yield self.hit(
                    operation,
                    f"a tensor without a dimension, 0 in some replicas and 1 in others: a constant of one "
                    f"graph with {where}: the replicas run different programs and wait for each other; "
                    f"torch_xla.sync() in all of them {side}, or give it a dimension: torch.tensor([…])",
                )
                continue
            message = (
                "computed on the device in some replicas only "
                f"({at_line(place(uneven.alone.guard).line)}), in "
                f"one graph with {where}: the replicas run different programs and wait for each other; "
                f"torch_xla.sync() in all of them {side}, or compute it in all of them"
            )
            yield self.hit(operation, message)


def _loads(body: cst.CSTNode, facts: Facts) -> bool:
    """Whether `body` loads the weights of a model, itself or by a function of the project."""
    return any(_loads_weights(call, facts) for call in facts.below(body, cst.Call))


def _loads_weights(call: cst.Call, facts: Facts) -> bool:
    if _copies(call, facts):
        return True
    functions = facts.context.called(call)
    if functions:
        return any(_copies(c, facts) for f in functions for c in facts.below(f.body, cst.Call))
    named = LOADING.search(last_part(call.func)) is not None and facts.context.run_by(call)
    return bool(named) and any(facts.values.kind(arg.value) is Kind.MODEL for arg in call.args)


def _copies(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is the `load_state_dict` of a module."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "load_state_dict":
        return False
    return facts.values.kind(call.func.value) is Kind.MODEL


def _next_collectives(node: cst.If, facts: Facts) -> Iterator[cst.Call]:
    """Yield the collectives of the device below `node` in its function, up to the end of a graph."""
    around = facts.context.function_around(node) or facts.context.module
    inside = {id(below) for below in facts.below(node, cst.Call)}
    start = facts.context.position(node).line
    for call in facts.below(around, cst.Call):
        if id(call) in inside or facts.context.position(call).line <= start:
            continue
        name = facts.names.of(call.func) or ""
        if name in SYNCS or last_part(call.func) in ("item", "mark_step"):
            return
        if name in BROADCASTS and facts.context.function_around(call) is (
            facts.context.function_around(node)
        ):
            group = keyword(call, "group")
            if group is None or not makes_gloo_group(group.value, facts.context):
                yield call
