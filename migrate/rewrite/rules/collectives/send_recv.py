"""Point-to-point messages are reported."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.reading.values.collectives import POINT_TO_POINT, called
from migrate.rewrite.rule import Rule, RuleFinding, Safety, checked, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, keyword

PARAMETERS = ("output", "input", "output_split_sizes", "input_split_sizes", "group", "async_op")


class SendRecv(Rule):
    """Report messages from one replica to another.

    **Why.** `send` and `recv` of the XLA backend cut the graph where they stand, and wait. On XLA every
    replica runs the same program. A `send` on one replica and a `recv` on another make graphs that differ:
    torch_xla cuts the graph at each of them, and the order of the calls must match exactly, or the replicas
    wait for ever.

    **Reported.** `send`, `recv`, `isend`, `irecv`, `batch_isend_irecv`, `send_object_list` and
    `recv_object_list`. `torch_xla.core.xla_model.collective_permute(x, pairs)` says the same in one
    operation that all replicas make.

    `all_to_all_single` with sizes of the parts too (XLA825): XLA's all-to-all cuts its input into equal
    parts, and refuses other sizes, also those of a mixture-of-experts layer, which depend on the values
    besides. Pad the parts to one size, and exchange the sizes with a first collective where they differ.

    Source: torch_xla 2.9, `torch_xla/distributed/xla_backend.py` (read).
    """

    name = "send-recv"
    code = "XLA207"
    also = (("XLA825", "split-sizes"),)
    beside_frameworks = True
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = spelled([*POINT_TO_POINT, "all_to_all_single"])
    examples = (
        left_alone(
            """
            import socket


            def tell(peer: socket.socket):
                peer.send(b"here")
                return peer.recv(4)
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def exchange(x, rank):
                if rank == 0:
                    dist.send(x, dst=1)
                else:
                    dist.recv(x, src=0)
            """,
            "collective_permute",
        ),
        checked(
            """
            import torch.distributed as dist


            def exchange(out, x, sizes, group):
                dist.all_to_all_single(out, x, output_split_sizes=sizes)  # XLA825
                dist.all_to_all_single(out, x, None, sizes)  # XLA825
                dist.all_to_all_single(out, x, None, None, group=group)
                dist.all_to_all_single(out, x)
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield a finding for one message."""
        assert isinstance(node, cst.Call)
        name = called(node, context)
        if context.qualified_name(node.func) == "torch.distributed.all_to_all_single":
            arguments = bind(node, PARAMETERS) or {}
            names = ("output_split_sizes", "input_split_sizes")
            sizes = (arguments.get(name) or keyword(node, name) for name in names)
            if any(arg is not None and code(arg.value) not in ("None", "[]") for arg in sizes):
                message = (
                    "all_to_all_single with split sizes raises on XLA: pad the parts to one size"
                )
                yield from self.report(node, message, code="XLA825")
        if name in POINT_TO_POINT:
            message = (
                f"{name} cuts the graph on XLA: let all replicas call "
                "torch_xla.core.xla_model.collective_permute(x, pairs)"
            )
            if name.endswith("object_list"):
                message = (
                    f"{name} raises on XLA: use a group made by dist.new_group(backend='gloo')"
                )
            yield from self.report(node, message)
