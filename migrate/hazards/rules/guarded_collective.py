"""Collectives that only some replicas reach."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.facts import Facts
from migrate.hazards.hazard import Hit, Severity, example
from migrate.hazards.vocabulary import words

COLLECTIVES = words(
    "all_reduce all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor broadcast reduce "
    "gather scatter all_to_all all_to_all_single barrier all_gather_object broadcast_object_list "
    "gather_object scatter_object_list"
)
XLA_COLLECTIVES = ("rendezvous", "all_reduce", "mesh_reduce", "all_gather", "reduce_scatter")


class GuardedCollective(NamedHazard):
    """A collective runs in some replicas only.

    **Why.** The replicas that do not come to it are waited for: all hang.

    **What to do.** Call it in every replica, and put only what uses the result under the condition. The two
    halves of an asymmetric pair of barriers become one `xm.rendezvous(tag)` with the same tag each.

    Source: pytorch/xla#3625, #8660.
    """

    code = "XLA302"
    name = "guarded-collective"
    severity = Severity.ERROR
    spoken_by = ("barrier",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        *((f"torch.distributed.{name}", "in some replicas only") for name in sorted(COLLECTIVES)),
        *(
            (f"torch_xla.core.xla_model.{name}", "in some replicas only")
            for name in XLA_COLLECTIVES
        ),
    )
    examples = (
        example(
            """
            import torch.distributed as dist


            def finish(loss, rank):
                if rank == 0:
                    dist.all_reduce(loss)  # XLA302
                    print(loss)


            def load(local_rank, read):
                if local_rank not in [-1, 0]:
                    dist.barrier()  # XLA302
                return read()
            """
        ),
        example(
            """
            import torch.distributed as dist


            def finish(loss, rank, world_size):
                if world_size > 1 and dist.is_initialized():
                    dist.all_reduce(loss)
                if rank == 0:
                    print(loss, dist.get_world_size())
            """
        ),
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one collective under a condition of the rank."""
        for hit in super().find(node, facts):
            above = facts.context.parent(node)
            called = isinstance(above, cst.Call) and above.func is node
            guard = facts.guards.around(node) if called else None
            if guard is not None:
                line = facts.context.position(guard).line
                yield self.hit(node, f"{hit.message} (line {line}): the others wait for ever")
