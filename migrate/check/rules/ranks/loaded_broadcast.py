"""Weights that one replica loads and a broadcast hands to the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import keyword, last_part, nodes_of
from migrate.reading.values.collectives import makes_gloo_group
from migrate.reading.values.kind import Kind

BROADCASTS = frozenset({"torch.distributed.broadcast", "torch.distributed.all_reduce"})
SYNCS = frozenset(
    {"torch_xla.sync", "torch_xla.core.xla_model.mark_step", "shims.sync", "torch.cuda.synchronize"}
)
# What a function of another file that loads weights is called.
LOADING = re.compile(r"(^|_)(load|restore|resume|init_from)(_|$)")


class LoadedBroadcast(Hazard):
    """A broadcast of weights that one replica alone has loaded.

    **Why.** Nothing runs on the device before the graph ends. The graph with the broadcast then begins with
    what each replica did before: one replica has copied a checkpoint into the weights, the others have not.
    Replicas that run different graphs with a collective wait for each other.

    **What to do.** `torch_xla.sync()` on all replicas between the load and the broadcast: the graph of the
    broadcast is then the same everywhere. Or load on all replicas, and leave the broadcast out.

    Source: torch_xla 2.9, measured on two replicas.
    """

    code = "XLA314"
    name = "loaded-broadcast"
    severity = Severity.ERROR
    nodes = (cst.If,)
    words = "load"
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
        """Yield a test of the rank below which weights are loaded, above a broadcast."""
        assert isinstance(node, cst.If)
        if not facts.context.guards.asks(node.test) or not _loads(node.body, facts):
            return
        if node.orelse is not None and _loads(node.orelse, facts):
            return
        broadcast = next(_next_collectives(node, facts), None)
        if broadcast is not None:
            line = facts.context.position(broadcast).line
            message = (
                f"one replica loads the weights, and its graph of the broadcast (line {line}) is another one "
                "than the others': torch_xla.sync() on all replicas between the two"
            )
            yield self.hit(node, message)


def _loads(body: cst.CSTNode, facts: Facts) -> bool:
    """Whether `body` loads the weights of a model, itself or by a function of the project."""
    return any(_loads_weights(call, facts) for call in nodes_of(body, cst.Call))


def _loads_weights(call: cst.Call, facts: Facts) -> bool:
    if _copies(call, facts):
        return True
    functions = facts.context.called(call)
    if functions:
        return any(_copies(c, facts) for f in functions for c in nodes_of(f.body, cst.Call))
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
    inside = {id(below) for below in nodes_of(node, cst.Call)}
    start = facts.context.position(node).line
    for call in nodes_of(around, cst.Call):
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
