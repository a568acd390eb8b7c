"""Point-to-point messages are reported."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.prescan import spelled
from migrate.reading.values.collectives import POINT_TO_POINT, called
from migrate.rewrite.rule import Finding, Rule, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import keyword


class SendRecv(Rule):
    """Report messages from one replica to another.

    **Why.** On XLA every replica runs the same program. A `send` on one replica and a `recv` on another
    make graphs that differ: torch_xla cuts the graph at each of them, and the order of the calls must
    match exactly, or the replicas wait for ever.

    **Reported.** `send`, `recv`, `isend`, `irecv`, `batch_isend_irecv`, `send_object_list` and
    `recv_object_list`. `torch_xla.core.xla_model.collective_permute(x, pairs)` says the same in one
    operation that all replicas make.

    `all_to_all_single` with sizes of the parts too: XLA splits evenly, other sizes raise.

    Source: torch_xla 2.9, `torch_xla/distributed/xla_backend.py` (read).
    """

    name = "send-recv"
    code = "XLA207"
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
        reported(
            """
            import torch.distributed as dist


            def exchange(received, x, sizes):
                dist.all_to_all_single(received, x, input_split_sizes=sizes)
            """,
            "pad the parts",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Finding]:
        """Yield a finding for one message."""
        assert isinstance(node, cst.Call)
        name = called(node, context)
        sizes = [keyword(node, f"{side}_split_sizes") for side in ("output", "input")]
        if name == "all_to_all_single" and any(sizes):
            message = "all_to_all_single with split sizes raises on XLA: pad the parts to one size"
            yield from self.report(node, message)
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
